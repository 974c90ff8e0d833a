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

// failure is what went wrong with one attempt, before it is known to whom it is told. Its text is the provider's and may
// hold the key, so it never leaves this package as it is.
type failure struct {
	code    v1.Code
	message string
	remedy  string
	retry   bool
	after   time.Duration // how long the provider asks us to wait; 0: not said
	most    int           // attempts that make sense; 0: as many as configured
}

// Error implements error.
func (f *failure) Error() string { return string(f.code) + ": " + f.message }

// typed makes the error that leaves the package.
func (f *failure) typed(op string, p *provider, model string) error {
	remedy := strings.NewReplacer("{provider}", p.name, "{model}", model, "{key}", keyPlace(p)).Replace(f.remedy)
	message := p.clean(f.message)
	if f.after > 0 {
		message += fmt.Sprintf("; it asks to wait %s", f.after.Round(time.Millisecond))
	}
	return &v1.Error{Code: f.code, Op: op, Message: message, Remedy: remedy, Retry: f.retry}
}

// keyPlace is where a provider's key is looked for.
func keyPlace(p *provider) string {
	if p.cfg.KeyEnv != "" {
		return p.cfg.KeyEnv
	}
	return "providers." + p.name + ".key_env"
}

// broken is the failure of a connection or of a reply that is not as it should be.
func broken(err error) *failure {
	text := err.Error()
	if u, ok := errors.AsType[*url.Error](err); ok {
		text = u.Err.Error() // without the address, which says nothing that the provider's name does not
	}
	if d, ok := errors.AsType[*net.DNSError](err); ok {
		return &failure{code: v1.CodeModelUnreachable, message: "its address is not known: " + d.Error(), remedy: "check the provider's base_url and the network", retry: d.IsTemporary || d.IsTimeout}
	}
	if errors.Is(err, syscall.ECONNREFUSED) {
		return &failure{code: v1.CodeModelUnreachable, message: "nobody listens there: " + text, remedy: "start the server of {provider}, or correct its base_url", retry: true, most: 3}
	}
	if errors.Is(err, errLarge) {
		return &failure{code: v1.CodeModelReplyBroken, message: "the response never ends"}
	}
	_, isNet := errors.AsType[net.Error](err)
	if isNet || errors.Is(err, io.ErrUnexpectedEOF) || errors.Is(err, io.EOF) || errors.Is(err, syscall.ECONNRESET) || errors.Is(err, syscall.EPIPE) {
		return &failure{code: v1.CodeModelUnreachable, message: "the connection broke: " + text, remedy: "check the network and whether the provider is up", retry: true}
	}
	return &failure{code: v1.CodeModelReplyBroken, message: "the reply cannot be read: " + text, remedy: "check that the provider's base_url and type are right", retry: true}
}

// unfinished is the failure of a reply that stops without an end.
func unfinished() *failure {
	return &failure{code: v1.CodeModelUnreachable, message: "the connection ended before the reply did", remedy: "check the network and whether the provider is up", retry: true}
}

// nothing is the failure of a response in which there is no reply at all.
func nothing(header http.Header) *failure {
	f := &failure{code: v1.CodeModelReplyBroken, message: "the response holds no reply", remedy: "check that the provider's base_url and type are right", retry: true}
	switch kind, _, _ := strings.Cut(header.Get("Content-Type"), ";"); kind {
	case "text/html":
		f.message, f.retry = "the server answered with a web page", false
	case "application/json":
		f.remedy = "if the server cannot stream, set no_stream: true for the provider; else check its base_url"
	}
	return f
}

var (
	saysTooLong = lazyregexp.New(`(?i)context[ _]?(length|window|size)|maximum context|prompt is too long|input is too long|too many (input )?tokens|exceeds? (the )?(model's )?(available |maximum )?(context|number of tokens)|reduce the length`)
	saysNoModel = lazyregexp.New(`(?i)model.{0,80}(not found|does not exist|not exist|unknown|not supported|not a valid|invalid)|(unknown|invalid|no such) model|not a valid model`)
	saysFilter  = lazyregexp.New(`(?i)content[ _]?(filter|policy|management)|moderation|flagged|safety`)
	saysNoMoney = lazyregexp.New(`(?i)insufficient[ _](quota|credit|balance|funds)|credit balance|exceeded your current quota|billing`)
)

// refusal is the failure of a response with an error status, or of an error within a stream (then status is 0).
func refusal(status int, header http.Header, body string) *failure {
	kind, text := errorText(body)
	if text == "" {
		text = http.StatusText(status)
	}
	f := &failure{message: text, after: retryAfter(header)}
	if status > 0 {
		f.message = fmt.Sprintf("HTTP %d: %s", status, text)
	}
	all := kind + " " + text
	switch {
	case saysNoMoney().MatchString(all):
		f.code, f.remedy = v1.CodeModelQuota, "add credit to the account at {provider}, or use another model"
	case status == http.StatusUnauthorized || kind == "authentication_error" || kind == "invalid_api_key":
		f.code, f.remedy = v1.CodeModelKeyRefused, "check the key of {provider} in {key}"
	case status == http.StatusPaymentRequired || kind == "billing_error":
		f.code, f.remedy = v1.CodeModelQuota, "add credit to the account at {provider}, or use another model"
	case status == http.StatusForbidden && !saysFilter().MatchString(all):
		f.code, f.remedy = v1.CodeModelKeyRefused, "the key in {key} may not use {model}; check its rights at {provider}"
	case status == http.StatusNotFound || kind == "not_found_error" || kind == "model_not_found":
		f.code, f.remedy = v1.CodeModelUnknown, "check the name {model}, and the provider's base_url"
	case status == http.StatusTooManyRequests || kind == "rate_limit_error" || kind == "rate_limit_exceeded":
		f.code, f.retry, f.remedy = v1.CodeModelRateLimited, true, "wait, or lower the provider's concurrency or requests_per_minute"
	case status == http.StatusRequestEntityTooLarge || saysTooLong().MatchString(all):
		f.code, f.remedy = v1.CodeModelContextExceeded, "ask about a smaller piece, or use a model with a larger window"
	case status >= 300 && status < 400:
		f.code, f.remedy = v1.CodeModelUnreachable, "the server sends us elsewhere; set base_url to where it really is"
	case status == http.StatusRequestTimeout:
		f.code, f.retry = v1.CodeModelTimeout, true
	case status == http.StatusNotImplemented || status == http.StatusMethodNotAllowed:
		f.code, f.remedy = v1.CodeModelUnknown, "this server does not speak the provider's protocol; check base_url and type"
	case status >= 500, status == http.StatusConflict, status == http.StatusTooEarly, kind == "overloaded_error", kind == "api_error", kind == "server_error", kind == "timeout_error":
		f.code, f.retry, f.remedy = v1.CodeModelOverloaded, true, "try again later, or use another model"
	case saysNoModel().MatchString(all):
		f.code, f.remedy = v1.CodeModelUnknown, "check the name {model}"
	case status == 0 && kind == "" && !saysFilter().MatchString(all):
		// An error in the middle of a stream without a name: mostly the server's own trouble.
		f.code, f.retry = v1.CodeModelOverloaded, true
	default:
		f.code = v1.CodeModelRefused
	}
	return f
}

// errorText finds the kind and the message in an error's body: {"error": {"type", "code", "message"}}, {"error": "…"}, {"message": "…"}.
func errorText(body string) (kind, text string) {
	var outer map[string]json.RawMessage
	if json.Unmarshal([]byte(body), &outer) != nil {
		return "", brief(body, 500)
	}
	source := outer
	if raw, ok := outer["error"]; ok {
		var said string
		if json.Unmarshal(raw, &said) == nil {
			return "", said
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
		text = brief(body, 500)
	}
	return kind, text
}

// retryAfter reads how long a provider asks us to wait.
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

// seconds makes a duration of a number that somebody else wrote.
func seconds(s float64) time.Duration {
	const most = float64(365 * 24 * 3600)
	if !(s > 0) { // also what is no number
		return 0
	}
	return time.Duration(min(s, most) * float64(time.Second))
}
