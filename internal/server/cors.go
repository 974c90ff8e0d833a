package server

import (
	"fmt"
	"net/http"
	"net/url"
	"slices"
	"strings"

	v1 "github.com/recluse-dev/recluse/api/v1"
)

// Pages of other origins may use the API only if their origin is configured. Their credential is a key in the
// Authorization header, which a browser sends only after a preflight request: no cookies are read,
// Access-Control-Allow-Credentials is never sent, and an origin is allowed by its full name, never by *. Access without
// a key, as on loopback, is always refused to pages of other origins.

const (
	corsMaxAge = "600" // seconds for which a browser caches the answer to a preflight request
	// corsRequest and corsExposed are the headers that pages may send and read.
	corsRequest = "Authorization, Content-Type, Accept, Last-Event-ID, " + v1.HeaderIdempotency + ", " +
		v1.HeaderTenant + ", traceparent, tracestate"
	corsExposed = v1.HeaderRequest + ", Location, Retry-After, " + headerReplayed + ", " + headerRun + ", " +
		v1.TrailerFile + ", " + v1.TrailerTar
)

// cors lists the origins whose pages may use the API, in lower case.
type cors []string

// CheckOrigins returns an error if one of the origins is invalid.
func CheckOrigins(origins []string) error {
	_, err := newCORS(origins)
	return err
}

func newCORS(origins []string) (cors, error) {
	var out cors
	for _, o := range origins {
		u, err := url.Parse(o)
		if err != nil || u.Scheme != "http" && u.Scheme != "https" || u.Host == "" || u.User != nil || u.Path != "" ||
			u.RawQuery != "" || u.Fragment != "" || strings.Contains(o, "*") {
			return nil, &v1.Error{
				Code:    v1.CodeInvalidRequest,
				Op:      "allow origins",
				Message: fmt.Sprintf("invalid origin %q", o),
				Remedy:  "write each origin in full, e.g. https://app.example:8443, without a path and without *",
			}
		}
		out = append(out, strings.ToLower(o))
	}
	return out, nil
}

// allows reports whether pages of the request's origin may use the API.
func (c cors) allows(r *http.Request) bool {
	return slices.Contains(c, strings.ToLower(r.Header.Get("Origin")))
}

// mark adds the CORS headers to an answer, which allow the page to read it.
func (c cors) mark(w http.ResponseWriter, r *http.Request) {
	if len(c) == 0 {
		return
	}
	w.Header().Add("Vary", "Origin")
	if c.allows(r) {
		w.Header().Set("Access-Control-Allow-Origin", r.Header.Get("Origin"))
		w.Header().Set("Access-Control-Expose-Headers", corsExposed)
	}
}

// preflight answers a preflight request of an allowed origin. It returns false for every other request.
func (c cors) preflight(w http.ResponseWriter, r *http.Request, methods string) bool {
	if r.Method != http.MethodOptions || r.Header.Get("Access-Control-Request-Method") == "" || !c.allows(r) {
		return false
	}
	c.mark(w, r)
	h := w.Header()
	h.Set("Access-Control-Allow-Methods", methods)
	h.Set("Access-Control-Allow-Headers", corsRequest)
	h.Set("Access-Control-Max-Age", corsMaxAge)
	w.WriteHeader(http.StatusNoContent)
	return true
}
