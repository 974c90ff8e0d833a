package client

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"strings"
	"time"

	v1 "github.com/recluse-dev/recluse/api/v1"
)

// Complete asks one of the server's models for a reply; an empty name is the model it is configured with. A conversation that is too
// long for a plain call is answered by a run. Delta is not called.
func (c *Client) Complete(ctx context.Context, model string, req v1.ModelRequest) (*v1.ModelReply, error) {
	const op = "ask model"
	body, err := json.Marshal(map[string]any{
		"model": model, "messages": req.Messages, "max_tokens": req.MaxTokens, "temperature": req.Temperature, "stop": req.Stop,
	})
	if err != nil {
		return nil, &v1.Error{Code: v1.CodeInvalidRequest, Op: op, Message: "the request cannot be written", Err: err}
	}
	r, err := http.NewRequestWithContext(ctx, http.MethodPost, c.base+"/v1/chat/completions", bytes.NewReader(body))
	if err != nil {
		return nil, &v1.Error{Code: v1.CodeInvalidRequest, Op: op, Message: "the request cannot be made", Err: err}
	}
	c.headers(ctx, r.Header)
	r.Header.Set("Content-Type", "application/json")
	began := time.Now()
	res, err := c.http.Do(r)
	if err != nil {
		return nil, unreachable(ctx, op, err)
	}
	defer res.Body.Close()
	if strings.HasPrefix(res.Header.Get("Content-Type"), v1.ProblemType) { // it did not get as far as the models
		return nil, problem(op, res)
	}
	raw, err := io.ReadAll(res.Body)
	if err != nil {
		return nil, unreachable(ctx, op, err)
	}
	var out completion
	if err := json.Unmarshal(raw, &out); err != nil {
		return nil, &v1.Error{Code: v1.CodeProtocol, Op: op, Message: fmt.Sprintf("the server answered %s, and not as a recluse server would", res.Status), Err: err}
	}
	if out.Error.Code != "" {
		return nil, &v1.Error{Code: out.Error.Code, Op: op, Message: out.Error.Message}
	}
	if len(out.Choices) == 0 {
		return nil, &v1.Error{Code: v1.CodeProtocol, Op: op, Message: fmt.Sprintf("the server answered %s, and without a reply", res.Status)}
	}
	reply := &v1.ModelReply{
		Text: out.Choices[0].Message.Content, Model: out.Model, Finish: v1.Finish(out.Choices[0].Finish), Wall: time.Since(began),
		Usage: v1.Usage{Calls: 1, Input: out.Usage.Prompt, Output: out.Usage.Completion, Unpriced: true},
	}
	return reply, nil
}

// completion is an answer in OpenAI's layout, an error included.
type completion struct {
	Model   string `json:"model"`
	Choices []struct {
		Message struct {
			Content string `json:"content"`
		} `json:"message"`
		Finish string `json:"finish_reason"`
	} `json:"choices"`
	Usage struct {
		Prompt     int64 `json:"prompt_tokens"`
		Completion int64 `json:"completion_tokens"`
	} `json:"usage"`
	Error struct {
		Code    v1.Code `json:"code"`
		Message string  `json:"message"`
	} `json:"error"`
}
