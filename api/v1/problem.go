package v1

import "errors"

// ProblemType is the media type of a problem.
const ProblemType = "application/problem+json"

// Problem is an error in the form of RFC 9457, with additional members of recluse.
type Problem struct {
	Type     string `json:"type" doc:"URN of the code"`
	Title    string `json:"title" doc:"the code, as words"`
	Status   int    `json:"status" doc:"HTTP status"`
	Detail   string `json:"detail" doc:"what happened"`
	Instance string `json:"instance,omitempty" doc:"id of the request"`
	Code     Code   `json:"code" doc:"stable code, for programs"`
	Op       string `json:"op,omitempty" doc:"what the server was doing"`
	Cause    string `json:"cause,omitempty" doc:"underlying error"`
	Remedy   string `json:"remedy,omitempty" doc:"what to do next"`
	Retry    bool   `json:"retry" doc:"the same request may succeed later"`
}

// Err returns the problem as an *Error.
func (p Problem) Err() *Error {
	e := &Error{Code: p.Code, Op: p.Op, Message: p.Detail, Remedy: p.Remedy, Retry: p.Retry}
	if p.Cause != "" {
		e.Err = errors.New(p.Cause)
	}
	if e.Code == "" {
		e.Code = CodeInternal
	}
	return e
}
