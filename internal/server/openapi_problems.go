package server

import (
	"net/http"
	"reflect"
	"slices"
	"strings"

	v1 "github.com/recluse-dev/recluse/api/v1"
	"github.com/recluse-dev/recluse/internal/problem"
	"github.com/recluse-dev/recluse/internal/schema"
)

// Statuses of problems: of every route, of routes with a scope, with a body, and with a sandbox. A test fails if a
// route answers with a status that it does not declare (package servertest).
var (
	everyProblem = []int{http.StatusBadRequest, http.StatusInternalServerError}
	scopeProblem = []int{
		http.StatusUnauthorized, http.StatusForbidden, http.StatusTooManyRequests, http.StatusServiceUnavailable,
	}
	bodyProblem = []int{http.StatusRequestTimeout, http.StatusRequestEntityTooLarge, problem.StatusClientClosed}
	// sandboxProblem includes the problems of making a sandbox, because a route that uses a sandbox makes it first if
	// the session is new, lost or hibernated.
	sandboxProblem = []int{
		http.StatusNotFound, http.StatusConflict, http.StatusGone, http.StatusRequestEntityTooLarge,
		http.StatusUnprocessableEntity, problem.StatusClientClosed, http.StatusNotImplemented,
		http.StatusBadGateway, http.StatusInsufficientStorage,
	}
)

// problems returns the statuses of the problems that a route can answer with.
func (r *route) problems() []int {
	out := slices.Concat(everyProblem, r.fails)
	if r.scope != scopeNone {
		out = append(out, scopeProblem...)
	}
	if !r.long {
		out = append(out, http.StatusGatewayTimeout)
	}
	if r.in != nil || r.accepts != "" {
		out = append(out, bodyProblem...)
	}
	if strings.Contains(r.path, "{") {
		out = append(out, http.StatusNotFound)
	}
	if r.sandbox || strings.Contains(r.path, "{session}") {
		out = append(out, sandboxProblem...)
	}
	if r.repeatable {
		out = append(out, http.StatusConflict, http.StatusUnprocessableEntity)
	}
	if r.status == http.StatusSwitchingProtocols {
		out = append(out, http.StatusUpgradeRequired)
	}
	slices.Sort(out)
	return slices.Compact(out)
}

// problemResponses returns the shared responses of the document. Routes refer to them by responseName.
func problemResponses(types *schema.Set) object {
	body := content(types, v1.ProblemType, reflect.TypeFor[v1.Problem]())
	out := object{"Problem": object{"description": "Any other problem", "content": body}}
	for _, status := range problem.Statuses() {
		if status == http.StatusMethodNotAllowed || status == http.StatusMisdirectedRequest {
			continue // no route of the table answers with it
		}
		var codes []string
		for _, c := range problem.Codes(status) {
			codes = append(codes, string(c))
		}
		answer := object{"description": statusText(status) + ": " + strings.Join(codes, ", "), "content": body}
		switch status {
		case http.StatusInternalServerError:
			answer["description"] = statusText(status) + ": internal, and codes without a status of their own"
		case http.StatusTooManyRequests:
			answer["headers"] = object{"Retry-After": header("seconds to wait; with rate_limited, and for chat completions", "integer")}
		case http.StatusUnauthorized:
			answer["headers"] = object{"WWW-Authenticate": header("how to authenticate", "string")}
		}
		out[responseName(status)] = answer
	}
	return out
}

func header(doc, kind string) object {
	return object{"description": doc, "schema": object{"type": kind}}
}

func statusText(status int) string {
	if status == problem.StatusClientClosed {
		return "Client Closed Request"
	}
	return http.StatusText(status)
}

func responseName(status int) string { return strings.ReplaceAll(statusText(status), " ", "") }

// problemResponse describes a problem of a route. Problems of the chat route may also have OpenAI's format.
func problemResponse(r *route, types *schema.Set, name string) object {
	if r.tag != "chat" || r.events == nil {
		return object{"$ref": "#/components/responses/" + name}
	}
	both := content(types, v1.ProblemType, reflect.TypeFor[v1.Problem]())
	both["application/json"] = object{"schema": types.Of(reflect.TypeFor[chatFailure]())}
	return object{"description": "A problem, or an error in OpenAI's format", "content": both}
}
