package api

import (
	"context"
	"errors"
	"net/http"
	"strings"

	"github.com/recluse-dev/recluse/gate"
	"github.com/recluse-dev/recluse/llm"
	"github.com/recluse-dev/recluse/rlm"
	"github.com/recluse-dev/recluse/sandbox"
	"github.com/recluse-dev/recluse/session"
)

// The codes of the API itself, beside those of packages sandbox and session.
const (
	CodeUnauthorized  sandbox.Code = "unauthorized"
	CodeForbidden     sandbox.Code = "forbidden"
	CodeRateLimited   sandbox.Code = "rate_limited"
	CodeNoRoute       sandbox.Code = "no_such_route"
	CodeMethod        sandbox.Code = "method_not_allowed"
	CodeInvalidJSON   sandbox.Code = "invalid_json"
	CodeUnknownField  sandbox.Code = "unknown_field"
	CodeInvalidQuery  sandbox.Code = "invalid_query"
	CodeIdempotency   sandbox.Code = "idempotency_mismatch"
	CodeNotKept       sandbox.Code = "answer_not_kept"
	CodeRequestTime   sandbox.Code = "request_timeout"
	CodeUnavailable   sandbox.Code = "server_unavailable"
	CodeListenRefused sandbox.Code = "listen_refused"
	CodeKeyUnknown    sandbox.Code = "key_not_found"
	CodeInterrupted   sandbox.Code = "stream_interrupted"
)

// ProblemType is the media type of a problem.
const ProblemType = "application/problem+json"

// Problem is an error as RFC 9457 writes it, with our own members behind.
type Problem struct {
	Type     string       `json:"type"`
	Title    string       `json:"title"`
	Status   int          `json:"status"`
	Detail   string       `json:"detail"`
	Instance string       `json:"instance,omitempty"` // the request's id
	Code     sandbox.Code `json:"code"`
	Op       string       `json:"op,omitempty"`
	Cause    string       `json:"cause,omitempty"`
	Remedy   string       `json:"remedy,omitempty"`
	Retry    bool         `json:"retry"`
}

// ProblemOf tells an error. What is no error of ours is told as internal, without its text: it may hold paths of the host.
func ProblemOf(err error) Problem {
	e, ok := errors.AsType[*sandbox.Error](err)
	if !ok {
		e = &sandbox.Error{Code: sandbox.CodeInternal, Message: "the server failed", Remedy: "its log says why, under the id of this request"}
		if errors.Is(err, context.Canceled) || errors.Is(err, context.DeadlineExceeded) {
			e = &sandbox.Error{Code: sandbox.CodeCancelled, Message: "given up", Retry: true}
		}
	}
	p := Problem{
		Type: "urn:recluse:problem:" + string(e.Code), Title: strings.ReplaceAll(string(e.Code), "_", " "), Status: Status(e.Code),
		Detail: e.Message, Code: e.Code, Op: e.Op, Remedy: e.Remedy, Retry: e.Retry,
	}
	if e.Err != nil {
		p.Cause = e.Err.Error()
	}
	if p.Detail == "" {
		p.Detail = p.Title
	}
	return p
}

// Err gives the error back.
func (p Problem) Err() *sandbox.Error {
	e := &sandbox.Error{Code: p.Code, Op: p.Op, Message: p.Detail, Remedy: p.Remedy, Retry: p.Retry}
	if p.Cause != "" {
		e.Err = errors.New(p.Cause)
	}
	if e.Code == "" {
		e.Code = sandbox.CodeInternal
	}
	return e
}

var statuses = map[sandbox.Code]int{
	CodeUnauthorized: http.StatusUnauthorized, CodeForbidden: http.StatusForbidden, CodeRateLimited: http.StatusTooManyRequests,
	CodeNoRoute: http.StatusNotFound, CodeMethod: http.StatusMethodNotAllowed,
	CodeInvalidJSON: http.StatusBadRequest, CodeUnknownField: http.StatusBadRequest, CodeInvalidQuery: http.StatusBadRequest,
	CodeIdempotency: http.StatusUnprocessableEntity, CodeNotKept: http.StatusConflict, CodeRequestTime: http.StatusGatewayTimeout, CodeUnavailable: http.StatusServiceUnavailable,
	CodeKeyUnknown: http.StatusNotFound,

	session.CodeNotFound: http.StatusNotFound, session.CodeExists: http.StatusConflict, session.CodeExpired: http.StatusGone,
	session.CodeEnded: http.StatusGone, session.CodeLost: http.StatusGone, session.CodeSpecConflict: http.StatusConflict,
	session.CodeInvalidKey: http.StatusBadRequest, session.CodeQueueFull: http.StatusTooManyRequests, session.CodeLimit: http.StatusConflict,
	session.CodeNoExtension: http.StatusConflict, session.CodePaused: http.StatusConflict, session.CodeMoved: http.StatusConflict, session.CodeSnapshotName: http.StatusNotFound,
	session.CodeSnapshotExists: http.StatusConflict, session.CodeVarUnknown: http.StatusNotFound, session.CodeClosing: http.StatusServiceUnavailable,
	session.CodeStoreBusy: http.StatusServiceUnavailable,
	session.CodeRefused:   http.StatusForbidden, gate.CodeApprovalUnknown: http.StatusNotFound, gate.CodeApprovalResolved: http.StatusConflict,

	sandbox.CodeNotSupported: http.StatusNotImplemented, sandbox.CodeBackendUnknown: http.StatusBadRequest,
	sandbox.CodeBackendMissing: http.StatusServiceUnavailable, sandbox.CodeNoBackend: http.StatusServiceUnavailable,
	sandbox.CodeConsentMissing: http.StatusForbidden, sandbox.CodeInvalidSpec: http.StatusBadRequest, sandbox.CodeInvalidRequest: http.StatusBadRequest,
	sandbox.CodeMountRefused: http.StatusForbidden, sandbox.CodeImageNotFound: http.StatusUnprocessableEntity,
	sandbox.CodeImageDenied: http.StatusUnprocessableEntity, sandbox.CodeImageUnreachable: http.StatusBadGateway, sandbox.CodeImageCorrupt: http.StatusUnprocessableEntity,
	sandbox.CodeImageArch: http.StatusUnprocessableEntity, sandbox.CodeRootFS: http.StatusUnprocessableEntity,
	sandbox.CodeNoPython: http.StatusConflict, sandbox.CodeNoShell: http.StatusConflict, sandbox.CodeNotFound: http.StatusNotFound,
	sandbox.CodeBusy: http.StatusConflict, sandbox.CodeCancelled: 499, sandbox.CodeSnapshotStale: http.StatusConflict,
	sandbox.CodeSnapshotCorrupt: http.StatusConflict, sandbox.CodeSnapshotVersion: http.StatusConflict,
	sandbox.CodeDiskFull: http.StatusInsufficientStorage, sandbox.CodeFileNotFound: http.StatusNotFound, sandbox.CodeFileExists: http.StatusConflict,
	sandbox.CodeFilePermission: http.StatusForbidden, sandbox.CodeFileNotRegular: http.StatusConflict, sandbox.CodeFileIsDirectory: http.StatusConflict,
	sandbox.CodeFileNotDirectory: http.StatusConflict, sandbox.CodeFileNotEmpty: http.StatusConflict, sandbox.CodePathEscapes: http.StatusBadRequest,
	sandbox.CodePathInvalid: http.StatusBadRequest, sandbox.CodeTooLarge: http.StatusRequestEntityTooLarge, sandbox.CodeTooMany: http.StatusRequestEntityTooLarge,
	sandbox.CodeSandboxLost: http.StatusBadGateway, sandbox.CodeGuestLost: http.StatusBadGateway,

	rlm.CodeRunNotFound: http.StatusNotFound, rlm.CodeRunEnded: http.StatusConflict, rlm.CodeInvalidSchema: http.StatusBadRequest,
	rlm.CodeContextMissing: http.StatusBadRequest, rlm.CodeContextEmpty: http.StatusBadRequest, rlm.CodeContextBinary: http.StatusUnprocessableEntity,
	rlm.CodeContextUnread: http.StatusUnprocessableEntity, rlm.CodeContextChanged: http.StatusConflict, rlm.CodeBudget: http.StatusUnprocessableEntity,
	rlm.CodeNoAnswer: http.StatusUnprocessableEntity, rlm.CodePriceUnknown: http.StatusUnprocessableEntity, rlm.CodeWindow: http.StatusUnprocessableEntity,
	llm.CodeNoModel: http.StatusServiceUnavailable, llm.CodeUnknown: http.StatusNotFound, llm.CodeKeyMissing: http.StatusServiceUnavailable,
	llm.CodeKeyRefused: http.StatusBadGateway, llm.CodeUnreachable: http.StatusBadGateway, llm.CodeRateLimited: http.StatusTooManyRequests,
	llm.CodeQuota: http.StatusBadGateway, llm.CodeOverloaded: http.StatusBadGateway,
}

// Status is the HTTP status of a code.
func Status(c sandbox.Code) int {
	if s, ok := statuses[c]; ok {
		return s
	}
	return http.StatusInternalServerError
}
