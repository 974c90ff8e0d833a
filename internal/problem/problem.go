// Package problem maps errors to RFC 9457 problems and to HTTP statuses.
package problem

import (
	"context"
	"encoding/json"
	"errors"
	"maps"
	"net/http"
	"slices"
	"strings"

	v1 "github.com/recluse-dev/recluse/api/v1"
)

// Of returns the problem that reports err. An error that is not a *v1.Error gets the code internal and a general text,
// because its own text may contain paths of the host.
func Of(err error) v1.Problem {
	e, ok := errors.AsType[*v1.Error](err)
	if !ok {
		e = &v1.Error{
			Code:    v1.CodeInternal,
			Message: "internal error of the server",
			Remedy:  "look for the id of this request in the server's log",
		}
		if errors.Is(err, context.Canceled) || errors.Is(err, context.DeadlineExceeded) {
			e = &v1.Error{Code: v1.CodeCancelled, Message: "the request was cancelled", Retry: true}
		}
	}
	p := v1.Problem{
		Type:   "urn:recluse:problem:" + string(e.Code),
		Title:  strings.ReplaceAll(string(e.Code), "_", " "),
		Status: Status(e.Code),
		Detail: e.Message,
		Code:   e.Code,
		Op:     e.Op,
		Remedy: e.Remedy,
		Retry:  e.Retry,
	}
	if e.Err != nil {
		p.Cause = e.Err.Error()
	}
	if p.Detail == "" {
		p.Detail = p.Title
	}
	return p
}

// Write answers a request with a problem.
func Write(w http.ResponseWriter, p v1.Problem) {
	b, err := json.Marshal(p)
	if err != nil { // cannot happen: all fields can be marshalled
		b = []byte(`{"code":"internal"}`)
	}
	w.Header().Set("Content-Type", v1.ProblemType)
	w.Header().Set("Cache-Control", "no-store")
	w.Header().Del("Content-Length")
	if p.Status == http.StatusUnauthorized {
		w.Header().Set("WWW-Authenticate", `Bearer realm="recluse"`)
	}
	w.WriteHeader(p.Status)
	_, _ = w.Write(append(b, '\n')) // the caller may have disconnected
}

// StatusClientClosed is nginx's status for a client that closed the connection; HTTP has no status for that.
const StatusClientClosed = 499

// codes lists the error codes of each status. Any other code is an internal server error.
var codes = map[int][]v1.Code{
	http.StatusInternalServerError: {
		v1.CodeInternal,
	},
	http.StatusUpgradeRequired: {
		v1.CodeWebSocket,
	},
	StatusClientClosed: {
		v1.CodeCancelled,
	},
	http.StatusBadGateway: {
		v1.CodeImageUnreachable, v1.CodeSandboxLost, v1.CodeGuestLost, v1.CodeModelKeyRefused, v1.CodeModelUnreachable,
		v1.CodeModelQuota, v1.CodeModelOverloaded, v1.CodePortClosed,
		v1.CodePortResponse,
	},
	http.StatusBadRequest: {
		v1.CodeInvalidJSON, v1.CodeUnknownField, v1.CodeInvalidQuery, v1.CodeInvalidKey, v1.CodeBackendUnknown,
		v1.CodeInvalidSpec, v1.CodeInvalidRequest, v1.CodePathEscapes, v1.CodePathInvalid, v1.CodeInvalidSchema,
		v1.CodeContextMissing, v1.CodeContextEmpty, v1.CodeSessionNeeded, v1.CodePromptUnknown,
	},
	http.StatusConflict: {
		v1.CodeNotKept, v1.CodeSessionExists, v1.CodeSpecConflict, v1.CodeSessionLimit,
		v1.CodeSessionPaused, v1.CodeSessionMoved, v1.CodeSnapshotExists, v1.CodeApprovalResolved, v1.CodeNoPython,
		v1.CodeNoShell, v1.CodeBusy, v1.CodeOperationExists, v1.CodeSnapshotStale, v1.CodeSnapshotCorrupt,
		v1.CodeSnapshotVersion,
		v1.CodeFileExists, v1.CodeFileNotRegular, v1.CodeFileIsDirectory, v1.CodeFileNotDirectory, v1.CodeFileNotEmpty,
		v1.CodeRunEnded, v1.CodeContextChanged, v1.CodeNetworkChanged, v1.CodeVolumeExists, v1.CodeVolumeBusy,
	},
	http.StatusForbidden: {
		v1.CodeForbidden, v1.CodeOrigin, v1.CodeGateRefused, v1.CodeConsentMissing, v1.CodeMountRefused,
		v1.CodeFilePermission, v1.CodeNetworkExceeds,
	},
	http.StatusGatewayTimeout: {
		v1.CodeRequestTime,
	},
	http.StatusGone: {
		v1.CodeSessionExpired, v1.CodeSessionEnded, v1.CodeSessionLost,
	},
	http.StatusInsufficientStorage: {
		v1.CodeDiskFull,
	},
	http.StatusMisdirectedRequest: {
		v1.CodeHostUnknown,
	},
	http.StatusMethodNotAllowed: {
		v1.CodeMethod,
	},
	http.StatusNotFound: {
		v1.CodeNoRoute, v1.CodeKeyUnknown, v1.CodeSessionNotFound, v1.CodeSnapshotNotFound, v1.CodeVarNotFound,
		v1.CodeApprovalUnknown, v1.CodeNotFound, v1.CodeFileNotFound, v1.CodeRunNotFound, v1.CodeModelUnknown,
		v1.CodeVolumeNotFound,
	},
	http.StatusNotImplemented: {
		v1.CodeNotSupported,
	},
	http.StatusRequestEntityTooLarge: {
		v1.CodeTooLarge, v1.CodeTooMany,
	},
	http.StatusRequestTimeout: {
		v1.CodeBodyTimeout,
	},
	http.StatusServiceUnavailable: {
		v1.CodeUnavailable, v1.CodeClosing, v1.CodeStoreBusy, v1.CodeBackendMissing, v1.CodeNoBackend,
		v1.CodeModelMissing, v1.CodeModelKeyMissing,
	},
	http.StatusTooManyRequests: {
		v1.CodeQuotaExceeded,
		v1.CodeRateLimited, v1.CodeQueueFull, v1.CodeModelRateLimited,
	},
	http.StatusUnauthorized: {
		v1.CodeUnauthorized,
	},
	http.StatusUnprocessableEntity: {
		v1.CodeIdempotency, v1.CodeImageNotFound, v1.CodeImageDenied, v1.CodeImageCorrupt, v1.CodeImageArch,
		v1.CodeRootFS, v1.CodeContextBinary, v1.CodeContextUnread, v1.CodeBudget, v1.CodeNoAnswer,
		v1.CodePriceUnknown, v1.CodeWindow,
	},
}

var statuses = func() map[v1.Code]int {
	out := map[v1.Code]int{}
	for status, list := range codes {
		for _, c := range list {
			out[c] = status
		}
	}
	return out
}()

// Status returns the HTTP status of a code.
func Status(c v1.Code) int {
	if s, ok := statuses[c]; ok {
		return s
	}
	return http.StatusInternalServerError
}

// Statuses returns all statuses that Status can return, sorted.
func Statuses() []int {
	return slices.Sorted(maps.Keys(codes))
}

// Codes returns the codes of a status in alphabetical order.
func Codes(status int) []v1.Code {
	return slices.Sorted(slices.Values(codes[status]))
}
