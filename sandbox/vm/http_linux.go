package vm

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"net"
	"net/http"
	"strings"
	"time"

	"golang.org/x/sys/unix"
)

const (
	// apiWait is how long a monitor may take for a request, and stateWait for one that reads or writes a state.
	apiWait, stateWait = 30 * time.Second, 5 * time.Minute
	// apiMax bounds an answer. The guest cannot write to the socket, but a monitor that it has taken over could.
	apiMax = 1 << 20
	// apiSocket is the control socket, in the home of a monitor.
	apiSocket = "api"
)

// api is the control socket of a monitor that speaks HTTP.
type api struct {
	dir    string // with the socket
	prefix string // of paths
	// fault returns the message in the body of an error.
	fault func(body []byte) string
}

// apiError is the refusal of a request.
type apiError struct {
	request string
	status  int
	message string
}

func (e *apiError) Error() string { return fmt.Sprintf("%s: %s (%d)", e.request, e.message, e.status) }

// call sends a request and decodes the answer into result, unless that is nil.
func (a api) call(ctx context.Context, wait time.Duration, method, path string, body, result any) error {
	ctx, cancel := context.WithTimeout(ctx, wait)
	defer cancel()
	var text []byte
	if body != nil {
		var err error
		if text, err = json.Marshal(body); err != nil {
			return err
		}
	}
	request := method + " " + a.prefix + path
	req, err := http.NewRequestWithContext(ctx, method, "http://localhost"+a.prefix+path, bytes.NewReader(text))
	if err != nil {
		return err
	}
	req.Header.Set("Accept", "application/json")
	if body != nil {
		req.Header.Set("Content-Type", "application/json")
	}
	t := &http.Transport{
		DisableKeepAlives: true,
		DialContext:       func(ctx context.Context, _, _ string) (net.Conn, error) { return dialIn(ctx, a.dir, apiSocket) },
	}
	defer t.CloseIdleConnections()
	answer, err := t.RoundTrip(req)
	if err != nil {
		return fmt.Errorf("%s: %w", request, err)
	}
	defer answer.Body.Close()
	got, err := io.ReadAll(io.LimitReader(answer.Body, apiMax+1))
	switch {
	case err != nil:
		return fmt.Errorf("%s: %w", request, err)
	case len(got) > apiMax:
		return fmt.Errorf("%s: the answer is longer than %d bytes", request, apiMax)
	case answer.StatusCode < 200 || answer.StatusCode >= 300:
		message := a.fault(got)
		if message == "" {
			message = strings.ToValidUTF8(strings.TrimSpace(string(got[:min(len(got), 500)])), "?")
		}
		return &apiError{request, answer.StatusCode, message}
	case result == nil:
		return nil
	}
	if err := json.Unmarshal(got, result); err != nil {
		return fmt.Errorf("%s: %w", request, err)
	}
	return nil
}

// await waits until the control socket accepts connections, and sends a first request.
func (a api) await(ctx context.Context, l *launched, path string, result any) error {
	for {
		err := a.call(ctx, apiWait, http.MethodGet, path, nil, result)
		if !errors.Is(err, fs.ErrNotExist) && !errors.Is(err, unix.ECONNREFUSED) {
			return err
		}
		if err := l.pause(ctx); err != nil {
			return err
		}
	}
}

// step is one request of a sequence.
type step struct {
	method, path string
	body         any
}

// run sends requests until one fails.
func (a api) run(ctx context.Context, wait time.Duration, steps []step) error {
	for _, s := range steps {
		if err := a.call(ctx, wait, s.method, s.path, s.body, nil); err != nil {
			return err
		}
	}
	return nil
}

// object is a JSON object.
type object = map[string]any
