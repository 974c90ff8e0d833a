package e2b

import (
	"encoding/json"
	"errors"
	"net/http"

	"connectrpc.com/connect"

	v1 "github.com/recluse-dev/recluse/api/v1"
	"github.com/recluse-dev/recluse/internal/e2b/wire"
	"github.com/recluse-dev/recluse/internal/problem"
)

// fail answers with an error.
func fail(w http.ResponseWriter, status int, message string) {
	if status == http.StatusTooManyRequests && w.Header().Get("Retry-After") == "" {
		w.Header().Set("Retry-After", "1")
	}
	reply(w, status, failure{Code: status, Message: message})
}

// reply answers with JSON.
func reply(w http.ResponseWriter, status int, body any) {
	b, err := json.Marshal(body)
	if err != nil { // cannot happen: all bodies are plain values
		status, b = http.StatusInternalServerError, []byte(`{"code":500,"message":"internal error"}`)
	}
	w.Header().Set("Content-Type", "application/json")
	w.WriteHeader(status)
	_, _ = w.Write(b) // the caller may have disconnected
}

// statusOf returns the status of an error. A full server is busy (503): the SDKs then know that nothing changed. A full
// session is the caller's own limit.
func statusOf(err error) int {
	switch v1.CodeOf(err) {
	case v1.CodeQuotaExceeded, v1.CodeQueueFull, v1.CodeBusy:
		return http.StatusServiceUnavailable
	case v1.CodeInvalidSpec, v1.CodeImageNotFound, v1.CodeFileIsDirectory, v1.CodeFileNotDirectory,
		v1.CodeFileNotRegular:
		return http.StatusBadRequest
	case v1.CodeSessionExpired, v1.CodeSessionEnded, v1.CodeSessionLost:
		return http.StatusNotFound
	}
	return problem.Of(err).Status
}

// text returns the message of an error with its remedy. Errors that are not of the API have a general text.
func text(err error) string {
	p := problem.Of(err)
	if p.Cause != "" {
		p.Detail += ": " + p.Cause
	}
	if p.Remedy != "" {
		p.Detail += " (" + p.Remedy + ")"
	}
	return p.Detail
}

// failWith answers with an error of a session.
func failWith(w http.ResponseWriter, err error) { fail(w, statusOf(err), text(err)) }

// gone is the answer for a sandbox that does not run. The SDKs expect exactly this form.
func gone(w http.ResponseWriter, id, message string) {
	reply(w, http.StatusBadGateway, struct {
		Sandbox string `json:"sandboxId"`
		Message string `json:"message"`
		Code    int    `json:"code"`
	}{id, message, http.StatusBadGateway})
}

const notFound = wire.SandboxNotFound

// invalid returns the error for a request that cannot be fulfilled as it is.
func invalid(message string) error {
	return &v1.Error{Code: v1.CodeInvalidRequest, Op: "read request", Message: message}
}

// unsupported returns the error for something that E2B has and this server does not.
func unsupported(what string) error {
	return &v1.Error{Code: v1.CodeNotSupported, Op: "read request", Message: what + " is not supported by this server"}
}

// rpcCodes are the codes of Connect by HTTP status.
var rpcCodes = map[int]connect.Code{
	http.StatusBadRequest:            connect.CodeInvalidArgument,
	http.StatusUnauthorized:          connect.CodeUnauthenticated,
	http.StatusForbidden:             connect.CodePermissionDenied,
	http.StatusNotFound:              connect.CodeNotFound,
	http.StatusConflict:              connect.CodeFailedPrecondition,
	http.StatusRequestEntityTooLarge: connect.CodeInvalidArgument,
	http.StatusTooManyRequests:       connect.CodeResourceExhausted,
	http.StatusNotImplemented:        connect.CodeUnimplemented,
	http.StatusInsufficientStorage:   connect.CodeResourceExhausted,
	http.StatusServiceUnavailable:    connect.CodeResourceExhausted,
	http.StatusBadGateway:            connect.CodeUnavailable,
}

// rpcError returns an error of a session as an error of Connect.
func rpcError(err error) error {
	if err == nil {
		return nil
	}
	if _, ok := errors.AsType[*connect.Error](err); ok {
		return err
	}
	code, ok := rpcCodes[statusOf(err)]
	switch v1.CodeOf(err) {
	case v1.CodeFileExists:
		code, ok = connect.CodeAlreadyExists, true
	case v1.CodeStartFailed, v1.CodeNotSupported:
		code, ok = connect.CodeInvalidArgument, true
	}
	if !ok {
		code = connect.CodeInternal
	}
	return connect.NewError(code, errors.New(text(err)))
}
