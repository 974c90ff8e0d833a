package server

import (
	"reflect"

	"github.com/google/jsonschema-go/jsonschema"

	v1 "github.com/recluse-dev/recluse/api/v1"
	"github.com/recluse-dev/recluse/internal/schema"
	"github.com/recluse-dev/recluse/sandbox"
	"github.com/recluse-dev/recluse/session"
)

// eventStream describes an answer as server-sent events.
type eventStream struct {
	name   string // name of the schema
	events []eventType
}

// eventType describes the events of a stream that have the same type of data.
type eventType struct {
	kinds []string // values of the event field; nil: the events have no event field
	data  reflect.Type
	text  string // the data, if it is a constant text that is not JSON
}

func event[T any](kinds ...string) eventType {
	return eventType{kinds: kinds, data: reflect.TypeFor[T]()}
}

// The streams of the API.
var (
	operationStream = eventStream{"OperationStreamEvent", []eventType{
		event[v1.Started](v1.EventStarted), event[v1.Chunk](v1.EventStdout, v1.EventStderr),
		event[v1.Skipped](v1.EventSkipped), event[sandbox.Bundle](v1.EventDisplay),
		event[sandbox.Verdict](v1.EventVerdict), event[v1.Problem](v1.EventProblem),
	}}
	sessionStream = eventStream{"SessionStreamEvent", []eventType{
		event[session.Event](v1.EventSession), event[none](v1.EventEnd), event[v1.Problem](v1.EventProblem),
	}}
	fileStream = eventStream{"FileStreamEvent", []eventType{
		event[v1.FileEvent](v1.EventChange), event[none](v1.EventEnd), event[v1.Problem](v1.EventProblem),
	}}
	networkStream = eventStream{"NetworkStreamEvent", []eventType{
		event[v1.NetworkEvent](v1.EventNetwork), event[none](v1.EventEnd), event[v1.Problem](v1.EventProblem),
	}}
	runStream = eventStream{"RunStreamEvent", []eventType{
		event[v1.RunEvent](schema.Enum(reflect.TypeFor[v1.RunEvent](), "kind")...),
		event[none](v1.EventEnd), event[v1.Problem](v1.EventProblem),
	}}
	chatStream = eventStream{"ChatStreamEvent", []eventType{event[chatReply](), event[chatFailure](), {text: chatDone}}}
)

// schema returns a reference to the schema of one event. Events without a type differ by their data.
func (e *eventStream) schema(types *schema.Set) *jsonschema.Schema {
	if types.Named[e.name] == nil {
		one := &jsonschema.Schema{}
		for _, t := range e.events {
			if t.kinds == nil {
				one.OneOf = append(one.OneOf, t.dataSchema(types))
			} else {
				one.OneOf = append(one.OneOf, eventObject(t.kinds, t.dataSchema(types)))
			}
		}
		if e.events[0].kinds == nil {
			one = eventObject(nil, one)
		}
		one.Description = "one server-sent event"
		types.Named[e.name] = one
	}
	return &jsonschema.Schema{Ref: types.Prefix + e.name}
}

func (t eventType) dataSchema(types *schema.Set) *jsonschema.Schema {
	if t.data == nil {
		return &jsonschema.Schema{Type: "string", Enum: []any{t.text}}
	}
	return types.Of(t.data)
}

// eventObject returns the schema of an event with one of the given types. If kinds is nil, the event has no type.
func eventObject(kinds []string, data *jsonschema.Schema) *jsonschema.Schema {
	data.Description = "data of the event, decoded if it is JSON"
	s := &jsonschema.Schema{
		Type:                 "object",
		Required:             []string{"data"},
		Properties:           map[string]*jsonschema.Schema{"data": data},
		AdditionalProperties: &jsonschema.Schema{Not: &jsonschema.Schema{}},
	}
	if kinds == nil {
		return s
	}
	kind := &jsonschema.Schema{Type: "string", Description: "type of the event"}
	for _, k := range kinds {
		kind.Enum = append(kind.Enum, k)
	}
	s.Required = []string{"event", "data"}
	s.Properties["event"] = kind
	s.Properties["id"] = &jsonschema.Schema{
		Type:        "string",
		Description: "value of Last-Event-ID to continue after this event",
	}
	return s
}
