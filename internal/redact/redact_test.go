package redact

import (
	"encoding/json"
	"strings"
	"testing"
)

func TestWhatHasTheFormOfAKeyIsRemoved(t *testing.T) {
	long := strings.Repeat("aB3x", 20)
	pem := "-----BEGIN RSA PRIVATE KEY-----\n" + long + "\n-----END RSA PRIVATE KEY-----"
	for name, tt := range map[string]struct{ text, want string }{
		"nothing":                   {"a plain text", "a plain text"},
		"OpenAI":                    {"key=sk-proj-" + long + ".", "key=[secret]."},
		"Anthropic":                 {`"sk-ant-api03-` + long + `"`, `"[secret]"`},
		"two":                       {"ghp_" + long + " xoxb-" + long, "[secret] [secret]"},
		"Amazon":                    {"AKIAABCDEFGHIJKLMNOP!", "[secret]!"},
		"Google":                    {"AIza" + long[:35], "[secret]"},
		"its own":                   {"rk_abcd_" + long, "[secret]"},
		"a token of the web":        {"eyJhbGciOi." + long + "." + long, "[secret]"},
		"a header":                  {"Authorization: Bearer " + long, "Authorization: Bearer [secret]"},
		"a private key":             {"a\n" + pem + "\nb", "a\n[secret]\nb"},
		"a private key without end": {"a\n" + pem[:60], "a\n[secret]"},
		"a public key":              {"-----BEGIN PUBLIC KEY-----\nx", "-----BEGIN PUBLIC KEY-----\nx"},
		"too short":                 {"sk-short ghp_example", "sk-short ghp_example"},
		"in the middle of a word":   {"task-" + long + " disk-" + long, "task-" + long + " disk-" + long},
		"base64 without dots":       {"eyJ" + long, "eyJ" + long},
		"prose":                     {"Bearer of news", "Bearer of news"},
	} {
		t.Run(name, func(t *testing.T) {
			if got := New(nil).Text(tt.text); got != tt.want {
				t.Errorf("%q, want %q", got, tt.want)
			}
		})
	}
}

func TestKnownValuesAreRemoved(t *testing.T) {
	r := New([]string{"none", "", "corporate key", `quoted "key"`, "corporate key number 2"})
	if got := r.Text(`none: corporate key number 2, corporate key, quoted "key"`); got != "none: [secret], [secret], [secret]" {
		t.Errorf("%s", got)
	}
	doc, err := json.Marshal(map[string]string{"a": `is quoted "key" here`, "b": "none sk-" + strings.Repeat("a1", 30)})
	if err != nil {
		t.Fatal(err)
	}
	var got map[string]string
	if err := json.Unmarshal(r.JSON(doc), &got); err != nil || got["a"] != "is [secret] here" || len(got["b"]) != 68 {
		t.Errorf("%v %v", got, err)
	}
}

func BenchmarkText(b *testing.B) {
	text := strings.Repeat("The quick brown fox eyJ jumps over the lazy task-dog. ", 2000)
	r := New([]string{"corporate key", "corporate key number 2"})
	b.SetBytes(int64(len(text)))
	for b.Loop() {
		r.Text(text)
	}
}
