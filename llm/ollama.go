package llm

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"io"
	"net/http"

	v1 "github.com/recluse-dev/recluse/api/v1"
)

// maxLine bounds one line of Ollama's stream.
const maxLine = 16 << 20

// ollama implements dialect for Ollama's own API. Unlike Ollama's OpenAI-compatible API, it has a parameter for the
// window.
type ollama struct {
	base    string
	headers map[string]string
	client  *http.Client
	stream  bool
}

type ollamaRequest struct {
	Model    string          `json:"model"`
	Messages []Message       `json:"messages"`
	Stream   bool            `json:"stream"`
	Format   json.RawMessage `json:"format,omitempty"`
	Options  ollamaOptions   `json:"options"`
}

type ollamaOptions struct {
	Window      int64    `json:"num_ctx,omitempty"`
	MaxTokens   int64    `json:"num_predict,omitempty"`
	Temperature *float64 `json:"temperature,omitempty"`
	Stop        []string `json:"stop,omitempty"`
}

type ollamaChunk struct {
	Message *struct {
		Content  string `json:"content"`
		Thinking string `json:"thinking"`
		Calls    []struct {
			Function struct {
				Name string          `json:"name"`
				Args json.RawMessage `json:"arguments"`
			} `json:"function"`
		} `json:"tool_calls"`
	} `json:"message"`
	Done       bool   `json:"done"`
	DoneReason string `json:"done_reason"`
	Input      int64  `json:"prompt_eval_count"`
	Output     int64  `json:"eval_count"`
	Error      string `json:"error"`
}

// ask implements dialect.
func (o *ollama) ask(ctx context.Context, q question, out *sink, res *outcome) error {
	// Ollama silently drops the beginning of a prompt that is too long.
	var n int64
	for _, m := range q.req.Messages {
		n += messageTokens + Count(m.Content)
	}
	if n > q.info.Window {
		return tooLong(q.info, n)
	}
	body, err := json.Marshal(ollamaRequest{
		Model:    q.model,
		Messages: q.req.Messages,
		Stream:   o.stream,
		Format:   q.req.Schema,
		Options: ollamaOptions{
			Window:      q.info.Window,
			MaxTokens:   q.req.MaxTokens,
			Temperature: q.req.Temperature,
			Stop:        q.req.Stop,
		},
	})
	if err != nil {
		return badSchema(err)
	}
	resp, err := o.send(ctx, http.MethodPost, "/api/chat", body)
	if err != nil {
		return err
	}
	defer resp.Body.Close()
	return readOllama(resp, out, res)
}

// readOllama reads a reply: one JSON object per line.
func readOllama(resp *http.Response, out *sink, res *outcome) error {
	seen := false
	var calls toolCalls
	lines := bufio.NewScanner(resp.Body)
	lines.Buffer(nil, maxLine)
	for lines.Scan() {
		line := bytes.TrimSpace(lines.Bytes())
		if len(line) == 0 {
			continue
		}
		var c ollamaChunk
		if err := json.Unmarshal(line, &c); err != nil {
			if !seen {
				return emptyResponse(resp.Header)
			}
			return err
		}
		if c.Error != "" {
			return errorResponse(0, resp.Header, string(line))
		}
		if c.Message == nil && !c.Done {
			continue
		}
		seen = true
		if c.Message != nil {
			res.thinking += Count(c.Message.Thinking)
			if !out.write(c.Message.Content) {
				return nil
			}
			for _, t := range c.Message.Calls {
				calls.add(int64(len(calls.calls)), t.Function.Name, string(t.Function.Args))
			}
		}
		if c.Done {
			res.input, res.output, res.outputKnown = c.Input, c.Output, c.Output > 0
			res.finish = FinishStop
			if c.DoneReason == "length" {
				res.finish = FinishLength
			}
			calls.write(out)
			return nil
		}
	}
	if err := lines.Err(); err != nil {
		return err
	}
	if !seen {
		return emptyResponse(resp.Header)
	}
	return truncatedReply()
}

// send sends a request. It returns a failure for a status other than 200.
func (o *ollama) send(ctx context.Context, method, path string, body []byte) (*http.Response, error) {
	req, err := http.NewRequestWithContext(ctx, method, o.base+path, bytes.NewReader(body))
	if err != nil {
		return nil, err
	}
	req.Header.Set("Content-Type", "application/json")
	for k, v := range o.headers {
		req.Header.Set(k, v)
	}
	resp, err := o.client.Do(req)
	if err != nil {
		return nil, err
	}
	if resp.StatusCode == http.StatusOK {
		return resp, nil
	}
	defer resp.Body.Close()
	text, err := io.ReadAll(resp.Body)
	if err != nil {
		return nil, err
	}
	f := errorResponse(resp.StatusCode, resp.Header, string(text))
	if f.code == v1.CodeModelUnknown {
		f.remedy = "run: ollama pull {model}"
	}
	return nil, f
}

// models returns the names of the installed models, newest first.
func (o *ollama) models(ctx context.Context) ([]string, error) {
	resp, err := o.send(ctx, http.MethodGet, "/api/tags", nil)
	if err != nil {
		return nil, err
	}
	defer resp.Body.Close()
	var list struct {
		Models []struct {
			Name string `json:"name"`
		} `json:"models"`
	}
	if err := json.NewDecoder(resp.Body).Decode(&list); err != nil {
		return nil, emptyResponse(resp.Header)
	}
	names := make([]string, 0, len(list.Models))
	for _, m := range list.Models {
		if m.Name != "" {
			names = append(names, m.Name)
		}
	}
	return names, nil
}

// ollamaModels returns the models of the provider ollama.
func ollamaModels(ctx context.Context, p *provider) ([]string, error) {
	o, ok := p.dialect.(*ollama)
	if !ok {
		return nil, nil // the configuration has given this name to a provider of another type
	}
	names, err := o.models(ctx)
	if err == nil {
		return names, nil
	}
	f, ok := errors.AsType[*failure](err)
	if !ok {
		f = connectionFailure(err)
	}
	return nil, f.toError("list models of "+p.name, p, "")
}
