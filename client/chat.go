package client

import (
	"context"
	"time"

	v1 "github.com/recluse-dev/recluse/api/v1"
)

// Complete sends a request to a model of the server and returns the reply. If model is empty, the server uses its
// configured model. A conversation that is too long for a model call is answered by a run. req.Delta is not called.
func (c *Client) Complete(ctx context.Context, model string, req v1.ModelRequest) (*v1.ModelReply, error) {
	const op = "ask model"
	began := time.Now()
	out, err := callJSON[completion](ctx, c, post(op, "/v1/chat/completions", map[string]any{
		"model":       model,
		"messages":    req.Messages,
		"max_tokens":  req.MaxTokens,
		"temperature": req.Temperature,
		"stop":        req.Stop,
	}))
	if err != nil {
		return nil, err
	}
	if len(out.Choices) == 0 {
		return nil, &v1.Error{Code: v1.CodeProtocol, Op: op, Message: "the answer of the server has no reply"}
	}
	return &v1.ModelReply{
		Text:   out.Choices[0].Message.Content,
		Model:  out.Model,
		Finish: v1.Finish(out.Choices[0].Finish),
		Usage:  v1.Usage{Calls: 1, Input: out.Usage.Prompt, Output: out.Usage.Completion, Unpriced: true},
		Wall:   time.Since(began),
	}, nil
}

// completion is an answer in OpenAI's format.
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
}
