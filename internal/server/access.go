package server

import (
	"context"
	"crypto/sha256"
	"crypto/subtle"
	"net"
	"net/http"
	"os"
	"strings"
	"sync"
	"time"

	v1 "github.com/recluse-dev/recluse/api/v1"
	"github.com/recluse-dev/recluse/internal/ids"
	"github.com/recluse-dev/recluse/internal/store"
	"github.com/recluse-dev/recluse/session"
)

// scope is how much a caller may do; each scope includes the previous ones.
type scope int

const (
	scopeNone    scope = iota // no authentication
	scopeRead                 // read sessions, files and output
	scopeExecute              // run code, write files, create and end sessions
	scopeAdmin                // keys and audit log of the tenant
)

var scopeNames = []string{"none", "read", "execute", "admin"}

// String returns the name of the scope in requests.
func (s scope) String() string { return scopeNames[s] }

func parseScope(name string) (scope, error) {
	for i, n := range scopeNames[1:] {
		if n == name {
			return scope(i + 1), nil
		}
	}
	return 0, invalid("invalid scope %q: want read, execute or admin", name)
}

// principal is an authenticated caller.
type principal struct {
	actor  string // name in the audit log
	tenant string
	scope  scope
	// operator may act for every tenant; host may name files and directories of this machine.
	operator, host bool
	key            string // id of the key, or of the key that created the token; empty: none
	rate           string // identity for rate limiting; empty: not limited
	session        string // for a token: the name of its session
	sessionID      string // for a token: the id of its session, because names are reused
}

// asActor returns the caller as sessions know it.
func (p *principal) asActor() session.Actor {
	return session.Actor{Name: p.actor, Tenant: p.tenant, Key: p.key, Remote: !p.host}
}

// Prefixes of secrets. People and secret scanners recognise them.
const (
	keyPrefix   = "rk"
	tokenPrefix = "rs"
	// e2bPrefix is the prefix of a key that the SDKs of E2B accept, which require 40 hexadecimal digits after it.
	e2bPrefix = "e2b"
)

// keyID is the number of hexadecimal digits of the id of a key.
const keyID = 16

// allTenants is the tenant of an operator's key.
const allTenants = "*"

// newSecret returns a new secret "prefix_id_secret". The id identifies the record, the secret authenticates. The secret
// has 256 random bits, so an unsalted hash protects it.
func newSecret(prefix string) (text, id string, hash []byte) {
	id = ids.Hex(8)
	secret := ids.Hex(32)
	sum := sha256.Sum256([]byte(secret))
	return prefix + "_" + id + "_" + secret, id, sum[:]
}

// newE2BSecret returns a new secret in the form of E2B's keys. It has 96 random bits.
func newE2BSecret() (text, id string, hash []byte) {
	id = ids.Hex(keyID / 2)
	secret := ids.Hex(12)
	sum := sha256.Sum256([]byte(secret))
	return e2bPrefix + "_" + id + secret, id, sum[:]
}

// access holds keys and tokens. All changes of keys go through it, so its keys are never older than those in the store.
type access struct {
	store store.Access

	mu     sync.RWMutex
	keys   map[string]store.APIKey // guarded by mu; all of them, by id
	tokens map[string]store.Token  // guarded by mu; those that were used, by id
}

// maxTokens is how many tokens are cached. When it is reached, the cache is cleared.
const maxTokens = 10_000

func loadAccess(ctx context.Context, st store.Access) (*access, error) {
	a := &access{store: st, keys: map[string]store.APIKey{}, tokens: map[string]store.Token{}}
	keys, err := st.Keys(ctx, "")
	if err != nil {
		return nil, err
	}
	for _, k := range keys {
		a.keys[k.ID] = k
	}
	return a, nil
}

// any reports whether a valid key exists.
func (a *access) any() bool {
	a.mu.RLock()
	defer a.mu.RUnlock()
	now := time.Now()
	for _, k := range a.keys {
		if keyUsable(k, now) {
			return true
		}
	}
	return false
}

// ever reports whether a key was ever created, also if it has expired or was revoked: a server that once had keys never
// becomes open again.
func (a *access) ever() bool {
	a.mu.RLock()
	defer a.mu.RUnlock()
	return len(a.keys) > 0
}

func keyUsable(k store.APIKey, now time.Time) bool {
	return k.Revoked.IsZero() && (k.Expires.IsZero() || now.Before(k.Expires))
}

// check authenticates a secret. Hashes are compared in constant time, even if the id is unknown.
func (a *access) check(ctx context.Context, text string) (principal, bool) {
	prefix, rest, _ := strings.Cut(text, "_")
	id, secret, _ := strings.Cut(rest, "_")
	if prefix == e2bPrefix && len(rest) > keyID {
		prefix, id, secret = keyPrefix, rest[:keyID], rest[keyID:]
	}
	sum := sha256.Sum256([]byte(secret))
	now := time.Now()
	if prefix == tokenPrefix {
		t := a.token(ctx, id, sum[:])
		if !same(t.Hash, sum[:]) || !t.Expires.IsZero() && !now.Before(t.Expires) || !a.goodKey(t.Key, now) {
			return principal{}, false
		}
		return principal{
			actor:     "token " + t.ID,
			tenant:    t.Tenant,
			scope:     scopeOf(t.Scopes),
			rate:      "token " + t.ID,
			key:       t.Key,
			session:   t.Name,
			sessionID: t.Session,
		}, true
	}
	a.mu.RLock()
	k := a.keys[id]
	a.mu.RUnlock()
	if prefix != keyPrefix || !same(k.Hash, sum[:]) || !keyUsable(k, now) {
		return principal{}, false
	}
	who := principal{actor: k.Name, tenant: k.Tenant, scope: scopeOf(k.Scopes), rate: "key " + k.ID, key: k.ID}
	if k.Tenant == allTenants {
		who.tenant, who.operator = session.DefaultTenant, true
	}
	return who, true
}

// goodKey reports whether the key that created a token is still valid. A token that was created without a key is always
// valid.
func (a *access) goodKey(id string, now time.Time) bool {
	a.mu.RLock()
	defer a.mu.RUnlock()
	k, ok := a.keys[id]
	return id == "" || ok && keyUsable(k, now)
}

// token returns the token with this id, from the cache or from the store.
func (a *access) token(ctx context.Context, id string, hash []byte) store.Token {
	a.mu.RLock()
	t, ok := a.tokens[id]
	a.mu.RUnlock()
	if ok {
		return t
	}
	t, err := a.store.TokenByHash(ctx, hash)
	if err != nil || t.ID != id {
		return store.Token{}
	}
	a.mu.Lock()
	defer a.mu.Unlock()
	if len(a.tokens) >= maxTokens {
		clear(a.tokens)
	}
	a.tokens[id] = t
	return t
}

func scopeOf(names []string) scope {
	most := scopeNone
	for _, n := range names {
		if s, err := parseScope(n); err == nil {
			most = max(most, s)
		}
	}
	return most
}

func same(have, given []byte) bool {
	if len(have) != sha256.Size {
		have = make([]byte, sha256.Size) // no secret has this hash
	}
	return subtle.ConstantTimeCompare(have, given) == 1
}

// authenticate identifies the caller, or rejects the request. It also applies the tenant that an operator names.
func (s *Server) authenticate(r *http.Request) (principal, error) {
	who, err := s.identify(r)
	if err != nil {
		return principal{}, err
	}
	tenant := r.Header.Get(v1.HeaderTenant)
	if tenant == "" || tenant == who.tenant {
		return who, nil
	}
	if !who.operator {
		return principal{}, &v1.Error{
			Code:    v1.CodeForbidden,
			Op:      "check access",
			Message: "only an operator's key may name a tenant",
		}
	}
	if !validName(tenant) {
		return principal{}, invalid("invalid tenant name %q", tenant)
	}
	who.tenant = tenant
	return who, nil
}

func (s *Server) identify(r *http.Request) (principal, error) {
	if h := r.Header.Get("Authorization"); h != "" {
		kind, secret, _ := strings.Cut(h, " ")
		if strings.EqualFold(kind, "bearer") {
			if who, ok := s.access.check(r.Context(), strings.TrimSpace(secret)); ok {
				return who, nil
			}
		}
		return principal{}, &v1.Error{
			Code:    v1.CodeUnauthorized,
			Op:      "check access",
			Message: "the key is unknown, has expired or was revoked",
		}
	}
	if p := peerOf(r.Context()); p.unix {
		if p.known && p.uid == os.Geteuid() {
			return principal{
				actor:    "user " + userName(p.uid),
				tenant:   session.DefaultTenant,
				scope:    scopeAdmin,
				operator: true,
				host:     true,
			}, nil
		}
		return principal{}, &v1.Error{
			Code:    v1.CodeUnauthorized,
			Op:      "check access",
			Message: "the socket belongs to another user",
			Remedy:  "send a key as Authorization: Bearer KEY",
		}
	}
	if !s.access.ever() && local(r) {
		return principal{actor: "anonymous", tenant: session.DefaultTenant, scope: scopeExecute, rate: "anonymous"}, nil
	}
	return principal{}, &v1.Error{
		Code:    v1.CodeUnauthorized,
		Op:      "check access",
		Message: "missing key",
		Remedy:  "send a key as Authorization: Bearer KEY",
	}
}

// local reports whether a program on this machine sent the request over loopback. Pages in a browser are excluded: by
// their origin, and by a host name that a resolver maps to loopback (DNS rebinding).
func local(r *http.Request) bool {
	host, _, err := net.SplitHostPort(r.RemoteAddr)
	if err != nil || !loopback(host) {
		return false
	}
	name := r.Host
	if h, _, err := net.SplitHostPort(name); err == nil {
		name = h
	}
	if !loopback(strings.Trim(name, "[]")) {
		return false
	}
	if site := r.Header.Get("Sec-Fetch-Site"); site != "" && site != "none" && site != "same-origin" {
		return false
	}
	origin := r.Header.Get("Origin")
	return origin == "" || origin == "http://"+r.Host || origin == "https://"+r.Host
}

func loopback(host string) bool {
	if host == "localhost" {
		return true
	}
	ip := net.ParseIP(host)
	return ip != nil && ip.IsLoopback()
}

// allow rejects a request that the caller's scope does not permit.
func (c *call) allow() error {
	if c.who.scope < c.route.scope {
		return &v1.Error{
			Code: v1.CodeForbidden,
			Op:   "check access",
			Message: "this request requires the scope " + c.route.scope.String() +
				"; the key has the scope " + c.who.scope.String(),
		}
	}
	if c.route.operator && !c.who.operator {
		return &v1.Error{Code: v1.CodeForbidden, Op: "check access", Message: "this request requires an operator's key"}
	}
	if c.who.session == "" {
		return nil
	}
	if !strings.Contains(c.route.path, "{session}") {
		if c.route.everybody {
			return nil
		}
		return &v1.Error{
			Code:    v1.CodeForbidden,
			Op:      "check access",
			Message: "a session token is valid for its session only",
		}
	}
	if c.r.PathValue("session") != c.who.session {
		return c.unknownSession()
	}
	return nil
}

// validName reports whether s is a valid name of a tenant.
func validName(s string) bool {
	if s == "" || len(s) > 64 {
		return false
	}
	for _, r := range s {
		if !(r >= 'a' && r <= 'z' || r >= 'A' && r <= 'Z' || r >= '0' && r <= '9' || strings.ContainsRune("-_.", r)) {
			return false
		}
	}
	return true
}
