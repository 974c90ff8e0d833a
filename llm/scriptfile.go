package llm

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"strings"

	"go.yaml.in/yaml/v3"

	v1 "github.com/recluse-dev/recluse/api/v1"
	"github.com/recluse-dev/recluse/internal/lazyregexp"
)

// script is the file form of a scripted model, in YAML or JSON:
//
//	name: demo
//	window_tokens: 128000
//	price: {input: 1, output: 2}
//	rules:
//	  - match: 'capital of (\w+)'
//	    reply: 'I do not know {{1}}.'
//	    delay: 50ms
//	  - tags: {depth: "1"}
//	    error: {code: model_overloaded, message: busy, retry: true}
type script struct {
	Name   string       `yaml:"name"`
	Window int64        `yaml:"window_tokens"`
	Output int64        `yaml:"output_tokens"`
	Price  *Price       `yaml:"price"`
	Rules  []scriptRule `yaml:"rules"`
}

type scriptRule struct {
	Rule       `yaml:",inline"`
	Error      *callError   `yaml:"error"`
	Usage      *scriptUsage `yaml:"usage"`
	Delay      v1.Duration  `yaml:"delay"`
	ChunkDelay v1.Duration  `yaml:"chunk_delay"`
}

type scriptUsage struct {
	Input       int64 `yaml:"input_tokens"`
	CachedInput int64 `yaml:"cached_input_tokens"`
	Output      int64 `yaml:"output_tokens"`
}

// OpenScript reads a scripted model from a file.
func OpenScript(path string) (*Scripted, error) {
	f, err := os.Open(path)
	if err != nil {
		return nil, &v1.Error{Code: v1.CodeModelScript, Op: "read script", Err: err}
	}
	defer f.Close()
	s, err := ReadScript(f)
	if err != nil {
		return nil, fmt.Errorf("%s: %w", path, err)
	}
	return s, nil
}

// ReadScript reads a scripted model in YAML or JSON. An unknown key is an error.
func ReadScript(r io.Reader) (*Scripted, error) {
	bad := func(err error) error {
		return &v1.Error{Code: v1.CodeModelScript, Op: "read script", Err: err}
	}
	data, err := io.ReadAll(r)
	if err != nil {
		return nil, bad(err)
	}
	var sc script
	if err := decodeStrict(data, &sc); err != nil {
		return nil, bad(err)
	}
	if sc.Name == "" {
		sc.Name = "script"
	}
	if len(sc.Rules) == 0 {
		return nil, bad(errors.New("missing rules"))
	}
	rules := make([]Rule, 0, len(sc.Rules))
	for i, r := range sc.Rules {
		made, err := r.rule(sc.Name)
		if err != nil {
			return nil, bad(fmt.Errorf("rule %d: %w", i+1, err))
		}
		rules = append(rules, made)
	}
	return newScripted(Info{Name: sc.Name, Window: sc.Window, Output: sc.Output, Price: sc.Price}, rules)
}

func (r scriptRule) rule(name string) (Rule, error) {
	made := r.Rule
	made.Delay, made.ChunkDelay = r.Delay.Std(), r.ChunkDelay.Std()
	switch r.Finish {
	case "", FinishStop, FinishLength, FinishFilter:
	default:
		return Rule{}, fmt.Errorf("invalid finish %q: must be stop, length or filter", r.Finish)
	}
	if r.Nth < 0 || r.Times < 0 || r.Chunk < 0 || r.Delay < 0 || r.ChunkDelay < 0 {
		return Rule{}, errors.New("nth, times, chunk and delays cannot be negative")
	}
	if r.Usage != nil {
		made.Usage = &Usage{Input: r.Usage.Input, CachedInput: r.Usage.CachedInput, Output: r.Usage.Output}
	}
	if r.Error != nil {
		if r.Error.Code == "" {
			return Rule{}, errors.New("missing code of the error")
		}
		r.Error.Op = "ask " + name
		made.Error = r.Error.err()
	}
	return made, nil
}

// decodeStrict decodes YAML or JSON into v and refuses unknown keys. JSON is normalized first, because tabs and some
// escapes of JSON are not valid YAML.
func decodeStrict(data []byte, v any) error {
	if trimmed := bytes.TrimSpace(data); len(trimmed) > 0 && trimmed[0] == '{' && json.Valid(trimmed) {
		var tree any
		dec := json.NewDecoder(bytes.NewReader(trimmed))
		dec.UseNumber()
		if err := dec.Decode(&tree); err != nil {
			return err
		}
		var err error
		if data, err = json.Marshal(tree); err != nil {
			return err
		}
	}
	dec := yaml.NewDecoder(bytes.NewReader(data))
	dec.KnownFields(true)
	if err := dec.Decode(v); err != nil {
		if errors.Is(err, io.EOF) {
			return errors.New("empty file")
		}
		return err
	}
	return nil
}

// placeholder matches a placeholder in a reply, such as {{1}} or {{tag:x|json}}.
var placeholder = lazyregexp.New(`\{\{([A-Za-z0-9_]+|tag:[^{}|]+)(\|json)?\}\}`)

// expand replaces the placeholders of a reply. Other braces stay unchanged, because replies are often code.
func expand(reply string, fill func(string) (string, bool)) string {
	if !strings.Contains(reply, "{{") {
		return reply
	}
	return placeholder().ReplaceAllStringFunc(reply, func(m string) string {
		parts := placeholder().FindStringSubmatch(m)
		v, ok := fill(parts[1])
		if !ok {
			return m
		}
		if parts[2] == "" {
			return v
		}
		quoted, err := json.Marshal(v)
		if err != nil {
			return m // a string always has a JSON form
		}
		return string(quoted)
	})
}
