package v1

import "slices"

// RunPrompts are the messages that a run sent to models. A text that was sent several times is contained once, and so
// is a conversation that is sent again with more messages. Secrets are redacted.
type RunPrompts struct {
	Prompts map[string]PromptEnd `json:"prompts" doc:"the last message of each prompt, by the id of the prompt that events have"`
	Texts   map[string]string    `json:"texts" doc:"contents of messages, by hash; those that the run did not store are left out"`
}

// PromptEnd is the last message of a prompt, with a reference to the messages before it.
type PromptEnd struct {
	Before string `json:"before,omitempty" doc:"id of the prompt that consists of the messages before; left out: there are none"`
	Role   Role   `json:"role" enum:"system,user,assistant" doc:"author of the message"`
	Text   string `json:"text" doc:"hash of the content"`
	Bytes  int64  `json:"bytes" doc:"length of the content"`
}

// StoredMessage is one message of a stored prompt.
type StoredMessage struct {
	Message
	LeftOut int64 `json:"left_out,omitempty" doc:"length of the content in bytes, if the content was not stored"`
}

// Messages returns the messages of the prompt with this id, which a CallStarted, a CallEnded or a ChildStarted has. It
// returns nil if the prompt is unknown.
func (p *RunPrompts) Messages(id string) []StoredMessage {
	var out []StoredMessage
	for range len(p.Prompts) { // a damaged file may have a circle
		end, ok := p.Prompts[id]
		if !ok {
			break
		}
		text, stored := p.Texts[end.Text]
		m := StoredMessage{Message: Message{Role: end.Role, Content: text}}
		if !stored {
			m.LeftOut = end.Bytes
		}
		out, id = append(out, m), end.Before
	}
	slices.Reverse(out)
	return out
}
