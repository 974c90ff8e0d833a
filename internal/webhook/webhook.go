// Package webhook posts messages to a URL that the operator has configured. The URL is often a secret, so errors do not
// contain it.
package webhook

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"net/url"
	"time"
)

const (
	attempts       = 3
	attemptTimeout = 5 * time.Second
	retryPause     = time.Second
)

// Hook is a webhook.
type Hook struct {
	url   string
	pause time.Duration // between attempts
}

// New returns the webhook at a URL.
func New(url string) *Hook { return &Hook{url: url, pause: retryPause} }

// Send posts a message as JSON. It makes up to three attempts.
func (h *Hook) Send(ctx context.Context, message any) error {
	body, err := json.Marshal(message)
	if err != nil {
		return fmt.Errorf("encode message: %w", err)
	}
	for n := range attempts {
		if n > 0 {
			select {
			case <-time.After(h.pause):
			case <-ctx.Done():
				return ctx.Err()
			}
		}
		if err = h.post(ctx, body); err == nil {
			return nil
		}
	}
	return err
}

// post makes one attempt.
func (h *Hook) post(ctx context.Context, body []byte) error {
	ctx, cancel := context.WithTimeout(ctx, attemptTimeout)
	defer cancel()
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, h.url, bytes.NewReader(body))
	if err != nil {
		return errors.New("invalid webhook URL")
	}
	req.Header.Set("Content-Type", "application/json")
	req.Close = true // messages are rare, so no idle connection is kept
	resp, err := (&http.Client{Timeout: attemptTimeout}).Do(req)
	if u, ok := errors.AsType[*url.Error](err); ok {
		return u.Err
	}
	if err != nil {
		return err
	}
	defer resp.Body.Close()
	if resp.StatusCode >= 300 {
		return fmt.Errorf("webhook answered %s", resp.Status)
	}
	return nil
}
