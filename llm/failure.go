package llm

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/url"
	"strconv"
	"strings"
	"syscall"
	"time"

	v1 "github.com/recluse-dev/recluse/api/v1"
	"github.com/recluse-dev/recluse/internal/lazyregexp"
)

// failure is the error of one attempt. Its message comes from the provider and may contain the key, so it never leaves
// this package; toError makes the error that does.
type failure struct {
	code        v1.Code
	message     string
	remedy      string
	retry       bool
	retryAfter  time.Duration // the provider's Retry-After; 0: not sent
	maxAttempts int           // attempts after which a retry is useless; 0: Retry.Attempts
}

// Error implements error.
func (f *failure) Error() string { return string(f.code) + ": " + f.message }

// toError returns the error for the caller, without the key.
func (f *failure) toError(op string, p *provider, model string) error {
	remedy := strings.NewReplacer("{provider}", p.name, "{model}", model, "{key}", keySource(p)).Replace(f.remedy)
	message := p.redact(f.message)
	if f.retryAfter > 0 {
		message += fmt.Sprintf("; retry after %s", f.retryAfter.Round(time.Millisecond))
	}
	return &v1.Error{Code: f.code, Op: op, Message: message, Remedy: remedy, Retry: f.retry}
}

// keySource returns where the key of a provider is configured: an environment variable or a setting.
func keySource(p *provider) string {
	if p.cfg.KeyEnv != "" {
		return p.cfg.KeyEnv
	}
	return "providers." + p.name + ".key_env"
}

// connectionFailure returns the failure for an error of the connection, or for a reply that cannot be decoded.
func connectionFailure(err error) *failure {
	text := err.Error()
	if u, ok := errors.AsType[*url.Error](err); ok {
		text = u.Err.Error() // without the URL, because the error names the provider
	}
	if d, ok := errors.AsType[*net.DNSError](err); ok {
		return &failure{
			code:    v1.CodeModelUnreachable,
			message: "the host name cannot be resolved: " + d.Error(),
			remedy:  "check the provider's base_url and the network",
			retry:   d.IsTemporary || d.IsTimeout,
		}
	}
	if errors.Is(err, syscall.ECONNREFUSED) {
		return &failure{
			code:        v1.CodeModelUnreachable,
			message:     "connection refused: " + text,
			remedy:      "start the server of {provider}, or correct its base_url",
			retry:       true,
			maxAttempts: 3,
		}
	}
	if errors.Is(err, errResponseTooLarge) {
		return &failure{code: v1.CodeModelReplyBroken, message: "the response is too large"}
	}
	_, isNet := errors.AsType[net.Error](err)
	if isNet || errors.Is(err, io.ErrUnexpectedEOF) || errors.Is(err, io.EOF) ||
		errors.Is(err, syscall.ECONNRESET) || errors.Is(err, syscall.EPIPE) {
		return &failure{
			code:    v1.CodeModelUnreachable,
			message: "the connection failed: " + text,
			remedy:  "check the network and whether the provider is up",
			retry:   true,
		}
	}
	return &failure{
		code:    v1.CodeModelReplyBroken,
		message: "invalid reply: " + text,
		remedy:  "check the provider's base_url and type",
		retry:   true,
	}
}

// truncatedReply returns the failure of a reply without an end marker.
func truncatedReply() *failure {
	return &failure{
		code:    v1.CodeModelUnreachable,
		message: "the connection ended before the end of the reply",
		remedy:  "check the network and whether the provider is up",
		retry:   true,
	}
}

// emptyResponse returns the failure of a response without a reply.
func emptyResponse(header http.Header) *failure {
	f := &failure{
		code:    v1.CodeModelReplyBroken,
		message: "the response contains no reply",
		remedy:  "check the provider's base_url and type",
		retry:   true,
	}
	switch kind, _, _ := strings.Cut(header.Get("Content-Type"), ";"); kind {
	case "text/html":
		f.message, f.retry = "the server answered with a web page", false
	case "application/json":
		f.remedy = "if the server cannot stream, set no_stream: true for the provider; otherwise check its base_url"
	}
	return f
}

var (
	tooLongPattern = lazyregexp.New(
		`(?i)context[ _]?(length|window|size)|maximum context|prompt is too long|input is too long|too many (input )?tokens|exceeds? (the )?(model's )?(available |maximum )?(context|number of tokens)|reduce the length`,
	)
	noModelPattern = lazyregexp.New(
		`(?i)model.{0,80}(not found|does not exist|not exist|unknown|not supported|not a valid|invalid)|(unknown|invalid|no such) model|not a valid model`,
	)
	filterPattern   = lazyregexp.New(`(?i)content[ _]?(filter|policy|management)|moderation|flagged|safety`)
	noCreditPattern = lazyregexp.New(
		`(?i)insufficient[ _](quota|credit|balance|funds)|credit balance|exceeded your current quota|billing`,
	)
)

// errorResponse returns the failure of a response with an error status, or of an error within a stream (then status
// is 0).
func errorResponse(status int, header http.Header, body string) *failure {
	kind, text := errorText(body)
	if text == "" {
		text = http.StatusText(status)
	}
	f := &failure{message: text, retryAfter: retryAfter(header)}
	if status > 0 {
		f.message = fmt.Sprintf("HTTP %d: %s", status, text)
	}
	all := kind + " " + text
	switch {
	case noCreditPattern().MatchString(all):
		f.code, f.remedy = v1.CodeModelQuota, "add credit to the account at {provider}, or use another model"
	case status == http.StatusUnauthorized || kind == "authentication_error" || kind == "invalid_api_key":
		f.code, f.remedy = v1.CodeModelKeyRefused, "check the key of {provider} in {key}"
	case status == http.StatusPaymentRequired || kind == "billing_error":
		f.code, f.remedy = v1.CodeModelQuota, "add credit to the account at {provider}, or use another model"
	case status == http.StatusForbidden && !filterPattern().MatchString(all):
		f.code, f.remedy = v1.CodeModelKeyRefused, "check the rights of the key in {key} for {model}"
	case status == http.StatusNotFound || kind == "not_found_error" || kind == "model_not_found":
		f.code, f.remedy = v1.CodeModelUnknown, "check the name {model}, and the provider's base_url"
	case status == http.StatusTooManyRequests || kind == "rate_limit_error" || kind == "rate_limit_exceeded":
		f.code, f.retry = v1.CodeModelRateLimited, true
		f.remedy = "wait, or lower the provider's concurrency or requests_per_minute"
	case status == http.StatusRequestEntityTooLarge || tooLongPattern().MatchString(all):
		f.code, f.remedy = v1.CodeModelContextExceeded, "ask about a smaller piece, or use a model with a larger window"
	case status >= 300 && status < 400:
		f.code, f.remedy = v1.CodeModelUnreachable, "set base_url to the target of the redirect"
	case status == http.StatusRequestTimeout:
		f.code, f.retry = v1.CodeModelTimeout, true
	case status == http.StatusNotImplemented || status == http.StatusMethodNotAllowed:
		f.code, f.remedy = v1.CodeModelUnknown, "check base_url and type; the server has another API"
	case status >= 500, status == http.StatusConflict, status == http.StatusTooEarly,
		kind == "overloaded_error", kind == "api_error", kind == "server_error", kind == "timeout_error":
		f.code, f.retry, f.remedy = v1.CodeModelOverloaded, true, "try again later, or use another model"
	case noModelPattern().MatchString(all):
		f.code, f.remedy = v1.CodeModelUnknown, "check the name {model}"
	case status == 0 && kind == "" && !filterPattern().MatchString(all):
		// An error within a stream and without a type is mostly a problem of the server.
		f.code, f.retry = v1.CodeModelOverloaded, true
	default:
		f.code = v1.CodeModelRefused
	}
	return f
}

// errorText returns the kind and the message of an error's body, which has one of the forms
// {"error": {"type", "code", "message"}}, {"error": "…"} and {"message": "…"}.
func errorText(body string) (kind, text string) {
	var outer map[string]json.RawMessage
	if json.Unmarshal([]byte(body), &outer) != nil {
		return "", oneLine(body, 500)
	}
	source := outer
	if raw, ok := outer["error"]; ok {
		var message string
		if json.Unmarshal(raw, &message) == nil {
			return "", message
		}
		var inner map[string]json.RawMessage
		if json.Unmarshal(raw, &inner) == nil && inner != nil {
			source = inner
		}
	}
	field := func(name string) string {
		var s string
		if json.Unmarshal(source[name], &s) != nil {
			return ""
		}
		return s
	}
	kind = field("code")
	if kind == "" {
		kind = field("type")
	}
	if text = field("message"); text == "" {
		text = field("detail")
	}
	if text == "" {
		text = oneLine(body, 500)
	}
	return kind, text
}

// retryAfter returns the time that a provider requests to wait in a header; 0: none.
func retryAfter(h http.Header) time.Duration {
	if ms, err := strconv.ParseFloat(h.Get("Retry-After-Ms"), 64); err == nil && ms > 0 {
		return seconds(ms / 1000)
	}
	v := h.Get("Retry-After")
	if v == "" {
		return 0
	}
	if s, err := strconv.ParseFloat(v, 64); err == nil {
		return seconds(s)
	}
	at, err := http.ParseTime(v)
	if err != nil {
		return 0
	}
	return max(0, time.Until(at))
}

// seconds returns a number of seconds from outside as a duration between 0 and a year.
func seconds(s float64) time.Duration {
	const most = float64(365 * 24 * 3600)
	if !(s > 0) { // includes NaN
		return 0
	}
	return time.Duration(min(s, most) * float64(time.Second))
}
