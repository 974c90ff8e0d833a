package server_test

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"net/http"
	"slices"
	"strings"
	"testing"

	"github.com/openai/openai-go/v3"
	"github.com/openai/openai-go/v3/option"
	"github.com/openai/openai-go/v3/shared"

	v1 "github.com/recluse-dev/recluse/api/v1"
	"github.com/recluse-dev/recluse/client"
)

// TestOpenAIsClient uses the server with the official OpenAI client.
func TestOpenAIsClient(t *testing.T) {
	k := newRunBench(t)
	ctx := t.Context()
	transport := &http.Transport{}
	t.Cleanup(transport.CloseIdleConnections)
	options := func(key string) []option.RequestOption {
		return []option.RequestOption{option.WithBaseURL(k.URL + "/v1"), option.WithAPIKey(key), option.WithHTTPClient(&http.Client{Transport: transport}), option.WithMaxRetries(0)}
	}
	key := k.Key("acme", "execute")
	c := openai.NewClient(options(key)...)
	long := openai.ChatCompletionNewParams{
		Model: "recluse",
		Messages: []openai.ChatCompletionMessageParamUnion{
			openai.SystemMessage("Be brief."), openai.UserMessage(haystack), openai.AssistantMessage("What do you want to know?"), openai.UserMessage("What is the password?"),
		},
	}

	t.Run("models", func(t *testing.T) {
		var names []string
		list, err := c.Models.List(ctx)
		if err != nil {
			t.Fatal(err)
		}
		for _, m := range list.Data {
			names = append(names, m.ID)
		}
		if got := strings.Join(names, " "); got != "recluse scripted/root scripted/sub" {
			t.Error(got)
		}
	})
	t.Run("whoever has no money left gets no answer", func(t *testing.T) {
		if a := ask(t, k.Bench, k.Key("*", "admin"), "PUT", "/v1/tenants/poor", `{"spend_usd":0}`); a.status != http.StatusOK {
			t.Fatalf("%d %s", a.status, a.body)
		}
		poor := openai.NewClient(options(k.Key("poor", "execute"))...)
		for _, messages := range [][]openai.ChatCompletionMessageParamUnion{{openai.UserMessage("hello")}, long.Messages} {
			_, err := poor.Chat.Completions.New(ctx, openai.ChatCompletionNewParams{Model: "recluse", Messages: messages})
			if e, ok := errors.AsType[*openai.Error](err); !ok || e.StatusCode != http.StatusTooManyRequests || e.Code != string(v1.CodeQuotaExceeded) || e.Response.Header.Get("Retry-After") != "60" {
				t.Errorf("%v", err)
			}
		}
	})
	t.Run("a huge message is answered by a run", func(t *testing.T) {
		var res *http.Response
		got, err := c.Chat.Completions.New(ctx, long, option.WithResponseInto(&res))
		if err != nil {
			t.Fatal(err)
		}
		if got.Choices[0].Message.Content != "swordfish" || got.Choices[0].FinishReason != "stop" || got.Usage.TotalTokens == 0 {
			t.Errorf("%+v", got)
		}
		i, err := k.Client(key).Run(ctx, res.Header.Get("Recluse-Run"))
		if err != nil || i.Turns != 3 || i.Query != "Be brief.\n\nWhat is the password?" || i.Usage.Tokens() != got.Usage.TotalTokens {
			t.Errorf("%+v %v", i, err)
		}
	})
	t.Run("the same as a stream", func(t *testing.T) {
		p := long
		p.StreamOptions.IncludeUsage = openai.Bool(true)
		var raw bytes.Buffer
		s := c.Chat.Completions.NewStreaming(ctx, p, option.WithMiddleware(func(r *http.Request, next option.MiddlewareNext) (*http.Response, error) {
			res, err := next(r)
			if err == nil {
				res.Body = struct {
					io.Reader
					io.Closer
				}{io.TeeReader(res.Body, &raw), res.Body}
			}
			return res, err
		}))
		var acc openai.ChatCompletionAccumulator
		for s.Next() {
			acc.AddChunk(s.Current())
		}
		if err := s.Err(); err != nil || acc.Choices[0].Message.Content != "swordfish" || acc.Usage.TotalTokens == 0 || acc.Choices[0].FinishReason != "stop" {
			t.Errorf("%+v %v", acc.ChatCompletion, err)
		}
		// The comments, which the official client ignores, are the progress of the run, up to its answer.
		progress, answer, _ := strings.Cut(raw.String(), "data: ")
		if strings.Contains(answer, "\n: ") {
			t.Errorf("progress behind the answer: %s", answer)
		}
		var told []string
		for line := range strings.Lines(progress) {
			text, ok := strings.CutPrefix(line, ":")
			if text = strings.TrimSpace(text); !ok && text != "" {
				t.Errorf("no comment: %q", line)
			}
			if text != "" { // a slow run sends empty comments in between
				told = append(told, text)
			}
		}
		var want []string
		for turn := range 3 {
			for _, kind := range []string{"turn_started", "cell_started", "cell_ended"} {
				want = append(want, fmt.Sprintf("%s node 0 turn %d", kind, turn+1))
			}
		}
		want = append(slices.Insert(want, 8, "answer node 0 turn 3"), "run_ended node 0 turn 0")
		if len(told) == 0 || !strings.HasPrefix(told[0], "run ") || !slices.Equal(told[1:], want) {
			t.Errorf("progress:\n%s\nwanted:\n%s", strings.Join(told, "\n"), strings.Join(want, "\n"))
		}
	})
	t.Run("a short one is handed to the model", func(t *testing.T) {
		p := openai.ChatCompletionNewParams{Model: "scripted/root", Messages: []openai.ChatCompletionMessageParamUnion{openai.UserMessage("hello")}}
		got, err := c.Chat.Completions.New(ctx, p)
		if err != nil || got.Choices[0].Message.Content != "a plain reply" || got.Usage.PromptTokens == 0 {
			t.Fatalf("%+v %v", got, err)
		}
		s := c.Chat.Completions.NewStreaming(ctx, p)
		var pieces []string
		for s.Next() {
			for _, choice := range s.Current().Choices {
				if choice.Delta.Content != "" {
					pieces = append(pieces, choice.Delta.Content)
				}
			}
		}
		if s.Err() != nil || len(pieces) < 4 || strings.Join(pieces, "") != "a plain reply" {
			t.Errorf("%q %v", pieces, s.Err())
		}
	})
	t.Run("reasoning is not part of an answer, and estimates are marked", func(t *testing.T) {
		p := openai.ChatCompletionNewParams{Model: "scripted/root", Messages: []openai.ChatCompletionMessageParamUnion{openai.UserMessage("Think first")}}
		got, err := c.Chat.Completions.New(ctx, p)
		if err != nil || got.Choices[0].Message.Content != "yes, after all" || got.Usage.JSON.ExtraFields["estimated"].Raw() != "true" {
			t.Fatalf("%+v %v", got, err)
		}
		s := c.Chat.Completions.NewStreaming(ctx, p)
		var acc openai.ChatCompletionAccumulator
		for s.Next() {
			acc.AddChunk(s.Current())
		}
		if s.Err() != nil || acc.Choices[0].Message.Content != "yes, after all" {
			t.Errorf("%+v %v", acc, s.Err())
		}
	})
	t.Run("a refusal is told", func(t *testing.T) {
		got, err := c.Chat.Completions.New(ctx, openai.ChatCompletionNewParams{
			Model: "scripted/root", Messages: []openai.ChatCompletionMessageParamUnion{openai.UserMessage("Refuse")},
		})
		if err != nil || got.Choices[0].FinishReason != "content_filter" {
			t.Errorf("%+v %v", got, err)
		}
	})
	t.Run("JSON", func(t *testing.T) {
		got, err := c.Chat.Completions.New(ctx, openai.ChatCompletionNewParams{
			Model: "recluse", Messages: []openai.ChatCompletionMessageParamUnion{openai.UserMessage("Answer as JSON")},
			ResponseFormat: openai.ChatCompletionNewParamsResponseFormatUnion{OfJSONSchema: &shared.ResponseFormatJSONSchemaParam{
				JSONSchema: shared.ResponseFormatJSONSchemaJSONSchemaParam{Name: "word", Schema: map[string]any{"type": "object"}},
			}},
		})
		if err != nil || got.Choices[0].Message.Content != `{"word": "plain"}` {
			t.Errorf("%+v %v", got, err)
		}
	})
	t.Run("errors are told as OpenAI's", func(t *testing.T) {
		for name, tt := range map[string]struct {
			key    string
			p      openai.ChatCompletionNewParams
			status int
			code   string
		}{
			"unknown model": {key, openai.ChatCompletionNewParams{Model: "nobody/x", Messages: long.Messages}, 404, "model_unknown"},
			"no messages":   {key, openai.ChatCompletionNewParams{Model: "recluse", Messages: []openai.ChatCompletionMessageParamUnion{}}, 400, "invalid_request"},
			"a picture": {key, openai.ChatCompletionNewParams{Model: "recluse", Messages: []openai.ChatCompletionMessageParamUnion{
				openai.UserMessage([]openai.ChatCompletionContentPartUnionParam{openai.ImageContentPart(openai.ChatCompletionContentPartImageImageURLParam{URL: "data:,"})}),
			}}, 400, "invalid_request"},
			"tools": {key, openai.ChatCompletionNewParams{Model: "recluse", Messages: long.Messages, Tools: []openai.ChatCompletionToolUnionParam{
				openai.ChatCompletionFunctionTool(shared.FunctionDefinitionParam{Name: "weather"}),
			}}, 400, "invalid_request"},
			"no key":   {"rk_0_0", long, 401, ""},
			"read key": {k.Key("acme", "read"), long, 403, ""},
		} {
			other := openai.NewClient(options(tt.key)...)
			_, err := other.Chat.Completions.New(ctx, tt.p)
			var e *openai.Error
			if !errors.As(err, &e) || e.StatusCode != tt.status || e.Code != tt.code {
				t.Errorf("%s: %v", name, err)
			}
		}
	})
	t.Run("a caller who goes away stops the run", func(t *testing.T) {
		k.hold.Lock()
		defer k.hold.Unlock()
		s := c.Chat.Completions.NewStreaming(ctx, long)
		acme := k.Client(key)
		id := newest(t, acme)
		for e, err := range acme.RunEvents(ctx, id, 0) {
			if err != nil {
				t.Fatal(err)
			}
			if e.Kind == v1.KindTurnEnded && e.Turn == 2 {
				_ = s.Close()
			}
		}
		if i, err := acme.Run(ctx, id); err != nil || i.Result == nil || i.Result.Reason != v1.ReasonCancelled {
			t.Errorf("%+v %v", i, err)
		}
	})
}

// newest returns the newest run, which is live.
func newest(t *testing.T, c *client.Client) string {
	t.Helper()
	for {
		for i, err := range c.Runs(t.Context()) {
			if err != nil {
				t.Fatal(err)
			}
			if i.Running {
				return i.ID
			}
		}
	}
}
