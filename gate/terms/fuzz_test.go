package terms

import (
	"errors"
	"testing"

	"github.com/recluse-dev/recluse/gate/source"
)

func FuzzReview(f *testing.F) {
	th := thesaurus(f, kitchen)
	g, err := NewGraph(th, GraphOptions{Strictness: Strict, Documents: []string{"onion pan"}})
	if err != nil {
		f.Fatal(err)
	}
	for _, s := range []string{"", "onion", "frying frying pan pan", "c++c++", "ONION\xff", "İstanbul onion", "pan-pan_pan"} {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, text string) {
		if o := g.Review(text).Objection; o != nil && (o.Rule == "" || o.Message == "" || o.Fix == "") {
			t.Errorf("incomplete objection: %+v", o)
		}
		last := int32(0)
		for _, m := range th.matcher.find(text, nil) {
			if m.start < last || m.end <= m.start || int(m.end) > len(text) {
				t.Fatalf("match %+v in %q", m, text)
			}
			last = m.end
		}
	})
}

func FuzzParse(f *testing.F) {
	for _, s := range []string{kitchen, "{", `{"data":{"a":{"id":1,"nterm":"x"}}}`, `{"data":{"a":{"id":1e999,"nterm":"x"}}}`, `{"data":{"a":null}}`, `[]`, `{"data":{"a":{"id":"","nterm":""}}} x`} {
		f.Add([]byte(s))
	}
	f.Fuzz(func(t *testing.T, data []byte) {
		for _, name := range []string{"f.json", "f.txt"} {
			th, err := Parse(name, data)
			if (th != nil) == (err != nil) {
				t.Fatalf("%s: %v with error %v", name, th, err)
			}
			if err == nil {
				continue
			}
			pos, ok := errors.AsType[*source.Error](err)
			if !errors.Is(err, ErrThesaurusInvalid) || !ok || pos.Line < 1 || pos.Column < 1 {
				t.Fatalf("%s: %v", name, err)
			}
		}
	})
}
