package remoteguest

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/url"
	"strconv"
	"strings"
	"time"

	v1 "github.com/recluse-dev/recluse/api/v1"
)

const (
	callTimeout = 30 * time.Second
	// createTimeout is longer: the service may have to start a machine.
	createTimeout = 90 * time.Second
	// tries is how often a call without a lasting effect is made.
	tries    = 3
	tryPause = 200 * time.Millisecond
	maxPause = 5 * time.Second
	// MaxAnswer is the size of an answer, or of a message of a stream. The service is not trusted.
	MaxAnswer = 8 << 20
	// MaxPages bounds what is read of a list.
	MaxPages = 100
	// maxMessage is the length of a message of the service in our errors.
	maxMessage = 300
)

// API is a REST API of a service. Its errors do not contain the key.
type API struct {
	Name string // of the backend, for errors
	URL  string // without a slash at the end
	Key  string
	// Header adds what identifies the caller of Call.
	Header func(http.Header)
	// Missing reports whether a failure with this message means that the sandbox does not exist, besides the status 404;
	// nil: no other does.
	Missing func(status int, message string) bool
	HTTP    *http.Client
}

// NewHTTPClient returns a client for a service. It follows no redirection, which would send the key elsewhere.
func NewHTTPClient() *http.Client {
	return &http.Client{
		Transport: &http.Transport{
			Proxy:                 http.ProxyFromEnvironment,
			DialContext:           (&net.Dialer{Timeout: 10 * time.Second, KeepAlive: 15 * time.Second}).DialContext,
			TLSHandshakeTimeout:   10 * time.Second,
			ResponseHeaderTimeout: createTimeout,
			MaxIdleConnsPerHost:   32,
			IdleConnTimeout:       30 * time.Second,
			DisableCompression:    true,
		},
		CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse },
	}
}

// CheckURL returns an error for an address to which a key may not be sent.
func CheckURL(name, text string) error {
	invalid := func(format string, args ...any) error {
		return &v1.Error{Code: v1.CodeInvalidSpec, Op: "check " + name + " options", Message: fmt.Sprintf(format, args...)}
	}
	u, err := url.Parse(text)
	if err != nil || u.Host == "" || u.User != nil {
		return invalid("invalid address of the service")
	}
	if u.Scheme != "https" && (u.Scheme != "http" || !Loopback(u.Hostname())) {
		return invalid("the address %s must begin with https://, because the key is sent to it", u.Redacted())
	}
	return nil
}

// Loopback reports whether a host of an address is this machine.
func Loopback(host string) bool {
	ip := net.ParseIP(host)
	return host == "localhost" || ip != nil && ip.IsLoopback()
}

// NoKey returns the error of a backend that has no key.
func NoKey(name, remedy string, o Options) error {
	code := v1.CodeNotSupported // it was never used, so there is nothing to list or end
	if Used(name, o) {
		code = v1.CodeBackendMissing
	}
	return &v1.Error{Code: code, Op: "check " + name + " options", Message: "there is no API key", Remedy: remedy}
}

// ValidID reports whether an ID can be a part of a path and of a host name.
func ValidID(id string) bool {
	const letters = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789-"
	return id != "" && len(id) < 64 && strings.Trim(id, letters) == ""
}

// Call makes a call with JSON. A call that is repeatable is made again if it fails for a while.
func (a *API) Call(ctx context.Context, method, path string, in, out any, repeatable bool) (http.Header, error) {
	var body []byte
	if in != nil {
		var err error
		if body, err = json.Marshal(in); err != nil {
			return nil, err
		}
	}
	pause := tryPause
	for try := 1; ; try++ {
		h, wait, err := a.once(ctx, method, a.URL+path, body, out)
		if err == nil || !repeatable || try == tries || !retryable(err) {
			return h, err
		}
		select {
		case <-ctx.Done():
			return nil, err
		case <-time.After(max(min(wait, maxPause), pause)):
		}
		pause *= 4
	}
}

func retryable(err error) bool {
	e, ok := errors.AsType[*v1.Error](err)
	return ok && e.Retry
}

func (a *API) once(
	ctx context.Context, method, to string, body []byte, out any,
) (h http.Header, wait time.Duration, err error) {
	limit := callTimeout
	if method == http.MethodPost {
		limit = createTimeout
	}
	ctx, cancel := context.WithTimeout(ctx, limit)
	defer cancel()
	r, err := http.NewRequestWithContext(ctx, method, to, bytes.NewReader(body))
	if err != nil {
		return nil, 0, err
	}
	a.Header(r.Header)
	if body != nil {
		r.Header.Set("Content-Type", "application/json")
	}
	return a.do(r, out)
}

// Do sends a request of any form. The answer is JSON, which is decoded into out unless that is nil.
func (a *API) Do(r *http.Request, out any) error {
	_, _, err := a.do(r, out)
	return err
}

func (a *API) do(r *http.Request, out any) (h http.Header, wait time.Duration, err error) {
	res, err := a.HTTP.Do(r)
	if err != nil {
		return nil, 0, a.unreachable(err)
	}
	defer res.Body.Close()
	b, err := io.ReadAll(io.LimitReader(res.Body, MaxAnswer+1))
	switch {
	case err != nil:
		return nil, 0, a.unreachable(err)
	case len(b) > MaxAnswer:
		return nil, 0, Broken(a.Name, "the answer is too large", nil)
	case res.StatusCode/100 != 2:
		seconds, _ := strconv.Atoi(res.Header.Get("Retry-After"))
		return nil, time.Duration(seconds) * time.Second, a.failure(res.StatusCode, b)
	case out == nil:
		return res.Header, 0, nil
	}
	if err := json.Unmarshal(b, out); err != nil {
		return nil, 0, Broken(a.Name, "the answer is not valid", err)
	}
	return res.Header, 0, nil
}

// unreachable returns the error of a service that does not answer. The error of the HTTP client has the address, but
// neither key nor token.
func (a *API) unreachable(err error) error {
	return &UnsureError{Err: &v1.Error{
		Code: v1.CodeBackendMissing, Op: "call " + a.Name, Message: "the service does not answer",
		Remedy: "check " + a.Name + ".api_url and the network", Retry: true, Err: err,
	}}
}

// Broken returns the error of a service that breaks the protocol.
func Broken(name, what string, err error) error {
	return &UnsureError{Err: &v1.Error{Code: v1.CodeProtocol, Op: "call " + name, Message: what, Err: err}}
}

// failure returns the error for a status. Without a message in the answer, the status is all that is known.
func (a *API) failure(status int, body []byte) error {
	var f struct {
		Message string          `json:"message"`
		Error   string          `json:"error"`
		Detail  json.RawMessage `json:"detail"` // text, or a list of mistakes
	}
	_ = json.Unmarshal(body, &f)
	text := f.Message
	if text == "" {
		text = f.Error
	}
	if text == "" && json.Unmarshal(f.Detail, &text) != nil {
		text = string(f.Detail)
	}
	e := Failure(a.Name, fmt.Sprintf("%d %s", status, http.StatusText(status)), text, a.Key)
	switch {
	case status == http.StatusNotFound, a.Missing != nil && a.Missing(status, text):
		e.Code = v1.CodeNotFound
	case status == http.StatusUnauthorized, status == http.StatusForbidden:
		e.Code, e.Remedy = v1.CodeUnauthorized, "check "+a.Name+".api_key: it may be wrong, expired or revoked"
	case status == http.StatusPaymentRequired:
		e.Code, e.Remedy = v1.CodeQuotaExceeded, "the account has no credit left, or reached a limit of its plan"
	case status == http.StatusTooManyRequests:
		e.Code, e.Retry, e.Remedy = v1.CodeRateLimited, true, "wait, or end sandboxes of the account"
	case status >= http.StatusInternalServerError:
		e.Code, e.Retry = v1.CodeBackendMissing, true
		return &UnsureError{Err: e}
	}
	return e
}

// Failure returns the error of a service that answers with a status and a text. It contains none of the secrets.
func Failure(name, status, text string, secrets ...string) *v1.Error {
	text = Clean(text, secrets...)
	e := &v1.Error{Code: v1.CodeInvalidRequest, Op: "call " + name, Message: "the service answers " + status}
	if text != "" {
		e.Message += fmt.Sprintf(": %q", text)
	}
	return e
}

// Clean returns a text of the service for an error: bounded, and without the secrets.
func Clean(text string, secrets ...string) string {
	for _, s := range secrets {
		if s != "" {
			text = strings.ReplaceAll(text, s, "***")
		}
	}
	return strings.ToValidUTF8(text[:min(len(text), maxMessage)], "")
}
