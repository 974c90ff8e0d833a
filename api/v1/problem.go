package v1

import "errors"

// ProblemType is the media type of a problem.
const ProblemType = "application/problem+json"

// Problem is an error as RFC 9457 writes it, with our own members behind.
type Problem struct {
	Type     string `json:"type"`
	Title    string `json:"title"`
	Status   int    `json:"status"`
	Detail   string `json:"detail"`
	Instance string `json:"instance,omitempty"` // the request's id
	Code     Code   `json:"code"`
	Op       string `json:"op,omitempty"`
	Cause    string `json:"cause,omitempty"`
	Remedy   string `json:"remedy,omitempty"`
	Retry    bool   `json:"retry"`
}

// Err gives the error back.
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
