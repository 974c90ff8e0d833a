package rlm

import (
	"encoding/json"
	"unicode/utf8"

	v1 "github.com/recluse-dev/recluse/api/v1"
	"github.com/recluse-dev/recluse/gate"
)

// termsRequest is the payload of a host call of chunks(…, by="terms").
type termsRequest struct {
	Text    string `json:"text"`
	Concept string `json:"concept"` // the last one that is mentioned before the text; empty: none
}

// termsReply has the places between two mentions of different concepts.
type termsReply struct {
	Places  [][2]int `json:"places"`  // end of a mention, and start of the next one, in characters
	Concept string   `json:"concept"` // the last one that is mentioned
}

// findTerms answers a host call of chunks(…, by="terms").
func (n *node) findTerms(payload []byte) ([]byte, error) {
	var req termsRequest
	if err := json.Unmarshal(payload, &req); err != nil {
		return nil, &v1.Error{Code: v1.CodeInvalidRequest, Op: "read call", Err: err}
	}
	t := gate.ThesaurusOf(n.run.engine.o.Gate, n.run.q.Labels[roleLabel])
	if t == nil {
		return nil, &v1.Error{
			Code:    v1.CodeNotSupported,
			Op:      "find terms",
			Message: "no thesaurus is configured for this run",
			Remedy:  "use chunks(text, size) without by, or configure gate.thesaurus",
		}
	}
	reply := termsReply{Places: [][2]int{}, Concept: req.Concept}
	bytes, chars, last := 0, 0, 0 // chars is the number of characters before bytes
	count := func(to int) int {
		chars += utf8.RuneCountInString(req.Text[bytes:to])
		bytes = to
		return chars
	}
	for _, m := range t.Mentions(req.Text) {
		start := count(m.Start)
		if reply.Concept != "" && m.Concept != reply.Concept {
			reply.Places = append(reply.Places, [2]int{last, start})
		}
		reply.Concept, last = m.Concept, count(m.End)
	}
	return json.Marshal(reply)
}
