package mcpclients

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"image"
	"image/png"
	"strings"
	"time"

	sdk "github.com/modelcontextprotocol/go-sdk/mcp"
)

type (
	nothing = map[string]any
	object  = map[string]any
)

// silence is an empty sound in a WAV file.
var silence = append([]byte("RIFF\x24\x00\x00\x00WAVEfmt \x10\x00\x00\x00\x01\x00\x01\x00\x40\x1f\x00\x00\x80\x3e\x00\x00\x02\x00\x10\x00data\x00\x00\x00\x00"), 0, 0)

func dot() []byte {
	var b bytes.Buffer
	_ = png.Encode(&b, image.NewGray(image.Rect(0, 0, 1, 1))) // writing to a buffer cannot fail
	return b.Bytes()
}

// fixture returns the server that the suite expects, with the names that its scenarios use.
func fixture() *sdk.Server {
	s := sdk.NewServer(&sdk.Implementation{Name: "fixture", Version: "1"}, &sdk.ServerOptions{
		CompletionHandler: func(context.Context, *sdk.CompleteRequest) (*sdk.CompleteResult, error) {
			return &sdk.CompleteResult{Completion: sdk.CompletionResultDetails{Values: []string{}}}, nil
		},
		SubscribeHandler:   func(context.Context, *sdk.SubscribeRequest) error { return nil },
		UnsubscribeHandler: func(context.Context, *sdk.UnsubscribeRequest) error { return nil },
	})
	contents(s)
	conversations(s)
	resources(s)
	prompts(s)
	return s
}

func addStaticTool(s *sdk.Server, name string, content ...sdk.Content) {
	sdk.AddTool(s, &sdk.Tool{Name: name, Description: "returns constant content"}, func(context.Context, *sdk.CallToolRequest, nothing) (*sdk.CallToolResult, any, error) {
		return &sdk.CallToolResult{Content: content}, nil, nil
	})
}

func embedded(uri string) *sdk.EmbeddedResource {
	return &sdk.EmbeddedResource{Resource: &sdk.ResourceContents{URI: uri, MIMEType: "text/plain", Text: "inside"}}
}

// contents adds the tools for the kinds of content.
func contents(s *sdk.Server) {
	text := &sdk.TextContent{Text: "This is a simple text response for testing."} // the suite compares it
	picture := &sdk.ImageContent{Data: dot(), MIMEType: "image/png"}
	addStaticTool(s, "test_simple_text", text)
	addStaticTool(s, "test_image_content", picture)
	addStaticTool(s, "test_audio_content", &sdk.AudioContent{Data: silence, MIMEType: "audio/wav"})
	addStaticTool(s, "test_embedded_resource", embedded("test://embedded"))
	addStaticTool(s, "test_multiple_content_types", text, picture, embedded("test://mixed"))
	sdk.AddTool(s, &sdk.Tool{Name: "test_error_handling", Description: "fails"}, func(context.Context, *sdk.CallToolRequest, nothing) (*sdk.CallToolResult, any, error) {
		return nil, nil, errors.New("intentional failure")
	})
	s.AddTool(&sdk.Tool{Name: "json_schema_2020_12_tool", Description: "has a schema with all allowed keywords", InputSchema: json.RawMessage(`{
		"$schema": "https://json-schema.org/draft/2020-12/schema", "type": "object",
		"$defs": {"address": {"type": "object", "properties": {"street": {"type": "string"}, "city": {"type": "string"}}}},
		"properties": {"name": {"type": "string"}, "address": {"$ref": "#/$defs/address"}}, "additionalProperties": false}`)},
		func(context.Context, *sdk.CallToolRequest) (*sdk.CallToolResult, error) {
			return &sdk.CallToolResult{Content: []sdk.Content{text}}, nil
		})
}

// addInteractiveTool adds a tool that sends requests or notifications to the client before it answers.
func addInteractiveTool(s *sdk.Server, name string, talk func(ctx context.Context, r *sdk.CallToolRequest, in nothing) (string, error)) {
	sdk.AddTool(s, &sdk.Tool{Name: name, Description: "sends requests to the client"}, func(ctx context.Context, r *sdk.CallToolRequest, in nothing) (*sdk.CallToolResult, any, error) {
		said, err := talk(ctx, r, in)
		return &sdk.CallToolResult{Content: []sdk.Content{&sdk.TextContent{Text: said}}}, nil, err
	})
}

//nolint:staticcheck // the suite is older than the deprecation of logging and sampling
func conversations(s *sdk.Server) {
	addInteractiveTool(s, "test_tool_with_logging", func(ctx context.Context, r *sdk.CallToolRequest, _ nothing) (string, error) {
		for _, line := range []string{"begun", "under way", "done"} {
			if err := r.Session.Log(ctx, &sdk.LoggingMessageParams{Level: "info", Data: line}); err != nil {
				return "", err
			}
		}
		return "logged", nil
	})
	addInteractiveTool(s, "test_tool_with_progress", func(ctx context.Context, r *sdk.CallToolRequest, _ nothing) (string, error) {
		for _, n := range []float64{0, 50, 100} {
			p := &sdk.ProgressNotificationParams{ProgressToken: r.Params.GetProgressToken(), Progress: n, Total: 100}
			if err := r.Session.NotifyProgress(ctx, p); err != nil {
				return "", err
			}
		}
		return "all done", nil
	})
	addInteractiveTool(s, "test_sampling", func(ctx context.Context, r *sdk.CallToolRequest, in nothing) (string, error) {
		prompt, _ := in["prompt"].(string)
		m := []*sdk.SamplingMessage{{Role: "user", Content: &sdk.TextContent{Text: prompt}}}
		res, err := r.Session.CreateMessage(ctx, &sdk.CreateMessageParams{Messages: m, MaxTokens: 100})
		if err != nil {
			return "", err
		}
		return fmt.Sprintf("LLM response: %v", res.Content), nil
	})
	asks := func(name string, properties object, required ...string) {
		addInteractiveTool(s, name, func(ctx context.Context, r *sdk.CallToolRequest, in nothing) (string, error) {
			message, _ := in["message"].(string)
			schema := object{"type": "object", "properties": properties}
			if required != nil {
				schema["required"] = required
			}
			res, err := r.Session.Elicit(ctx, &sdk.ElicitParams{Message: "asked: " + message, RequestedSchema: schema})
			if err != nil {
				return "", err
			}
			return fmt.Sprintf("action=%s content=%v", res.Action, res.Content), nil
		})
	}
	asks("test_elicitation", object{"username": object{"type": "string"}, "email": object{"type": "string"}}, "username")
	asks("test_elicitation_sep1034_defaults", object{
		"name": object{"type": "string", "default": "John Doe"}, "age": object{"type": "integer", "default": 30}, "score": object{"type": "number", "default": 95.5},
		"status":   object{"type": "string", "enum": []string{"active", "inactive", "pending"}, "default": "active"},
		"verified": object{"type": "boolean", "default": true},
	})
	plain := []string{"option1", "option2", "option3"}
	titled := []object{{"const": "value1", "title": "One"}, {"const": "value2", "title": "Two"}, {"const": "value3", "title": "Three"}}
	asks("test_elicitation_sep1330_enums", object{
		"untitledSingle": object{"type": "string", "enum": plain},
		"titledSingle":   object{"type": "string", "oneOf": titled},
		"legacyEnum":     object{"type": "string", "enum": []string{"opt1", "opt2", "opt3"}, "enumNames": []string{"One", "Two", "Three"}},
		"untitledMulti":  object{"type": "array", "items": object{"type": "string", "enum": plain}},
		"titledMulti":    object{"type": "array", "items": object{"anyOf": titled}},
	})
	addInteractiveTool(s, "test_reconnection", func(_ context.Context, r *sdk.CallToolRequest, _ nothing) (string, error) {
		if r.Extra != nil && r.Extra.CloseSSEStream != nil {
			r.Extra.CloseSSEStream(sdk.CloseSSEStreamArgs{RetryAfter: 10 * time.Millisecond})
		}
		return "back again", nil
	})
}

func resources(s *sdk.Server) {
	read := func(mime string, give func(uri string) *sdk.ResourceContents) sdk.ResourceHandler {
		return func(_ context.Context, r *sdk.ReadResourceRequest) (*sdk.ReadResourceResult, error) {
			c := give(r.Params.URI)
			c.URI, c.MIMEType = r.Params.URI, mime
			return &sdk.ReadResourceResult{Contents: []*sdk.ResourceContents{c}}, nil
		}
	}
	words := func(string) *sdk.ResourceContents { return &sdk.ResourceContents{Text: "words"} }
	s.AddResource(&sdk.Resource{Name: "text", Description: "a text", URI: "test://static-text", MIMEType: "text/plain"}, read("text/plain", words))
	s.AddResource(&sdk.Resource{Name: "watched", Description: "a text", URI: "test://watched-resource", MIMEType: "text/plain"}, read("text/plain", words))
	s.AddResource(&sdk.Resource{Name: "binary", Description: "a picture", URI: "test://static-binary", MIMEType: "image/png"},
		read("image/png", func(string) *sdk.ResourceContents { return &sdk.ResourceContents{Blob: dot()} }))
	s.AddResourceTemplate(&sdk.ResourceTemplate{Name: "template", Description: "one of many", URITemplate: "test://template/{id}/data", MIMEType: "application/json"},
		read("application/json", func(uri string) *sdk.ResourceContents {
			id := strings.TrimSuffix(strings.TrimPrefix(uri, "test://template/"), "/data")
			return &sdk.ResourceContents{Text: fmt.Sprintf(`{"id":%q,"templateTest":true,"data":"of %s"}`, id, id)}
		}))
}

func prompts(s *sdk.Server) {
	prompt := func(name string, content func(args map[string]string) []sdk.Content, args ...string) {
		p := &sdk.Prompt{Name: name, Description: "returns constant messages"}
		for _, a := range args {
			p.Arguments = append(p.Arguments, &sdk.PromptArgument{Name: a, Description: "a word", Required: true})
		}
		s.AddPrompt(p, func(_ context.Context, r *sdk.GetPromptRequest) (*sdk.GetPromptResult, error) {
			var out sdk.GetPromptResult
			for _, c := range content(r.Params.Arguments) {
				out.Messages = append(out.Messages, &sdk.PromptMessage{Role: "user", Content: c})
			}
			return &out, nil
		})
	}
	say := &sdk.TextContent{Text: "look at it"}
	prompt("test_simple_prompt", func(map[string]string) []sdk.Content { return []sdk.Content{say} })
	prompt("test_prompt_with_arguments", func(a map[string]string) []sdk.Content {
		return []sdk.Content{&sdk.TextContent{Text: fmt.Sprintf("arg1=%s arg2=%s", a["arg1"], a["arg2"])}}
	}, "arg1", "arg2")
	prompt("test_prompt_with_embedded_resource", func(a map[string]string) []sdk.Content {
		return []sdk.Content{embedded(a["resourceUri"]), say}
	}, "resourceUri")
	prompt("test_prompt_with_image", func(map[string]string) []sdk.Content {
		return []sdk.Content{&sdk.ImageContent{Data: dot(), MIMEType: "image/png"}, say}
	})
}
