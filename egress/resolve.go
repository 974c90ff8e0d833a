package egress

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"strings"
	"sync"
	"time"

	v1 "github.com/recluse-dev/recluse/api/v1"
)

// Resolver is the part of net.Resolver that a gateway uses.
type Resolver interface {
	LookupNetIP(ctx context.Context, network, name string) ([]netip.Addr, error)
}

// LookupStatus is the answer to a question of DNS.
type LookupStatus string

// The answers. The guest answers LookupDenied with an address too, so that the connection can be refused in words.
const (
	LookupExists   LookupStatus = "exists"
	LookupNotFound LookupStatus = "not_found" // NXDOMAIN
	LookupFailed   LookupStatus = "failed"    // SERVFAIL; a later question may succeed
	LookupDenied   LookupStatus = "denied"    // nothing was resolved; also while approval is requested
)

// LookupResult is the result of a look-up. The addresses stay on the host.
type LookupResult struct {
	Status   LookupStatus
	Decision Decision
	Failure  string // why an allowed name has no address; empty: it has one
}

const (
	lookupTimeout = 5 * time.Second // glibc waits as long for the guest
	foundTTL      = 10 * time.Second
	notFoundTTL   = 2 * time.Second
	maxNames      = 256 // in the cache of a gateway
	maxLookups    = 32  // at once
)

var errLookupsBusy = errors.New("too many look-ups at once")

// names resolves and caches names.
type names struct {
	resolver Resolver
	group    sync.WaitGroup

	mu      sync.Mutex
	cache   map[string]*lookup
	running int
}

// lookup is one question. Its other fields are valid after done is closed.
type lookup struct {
	done    chan struct{}
	addrs   []netip.Addr
	err     error
	expires time.Time
}

// resolve returns the addresses of a name. Several callers share one question. It ends with ctx, while the question
// lasts until lookupTimeout or the end of life.
func (n *names) resolve(ctx, life context.Context, name string) ([]netip.Addr, error) {
	l, err := n.start(life, name)
	if err != nil {
		return nil, err
	}
	select {
	case <-l.done:
		return l.addrs, l.err
	case <-ctx.Done():
		return nil, ctx.Err()
	}
}

func (n *names) start(life context.Context, name string) (*lookup, error) {
	n.mu.Lock()
	defer n.mu.Unlock()
	now := time.Now()
	if l := n.cache[name]; l != nil && !l.expired(now) {
		return l, nil
	}
	if life.Err() != nil {
		return nil, life.Err()
	}
	if n.running >= maxLookups {
		return nil, errLookupsBusy
	}
	n.makeRoom(now)
	l := &lookup{done: make(chan struct{})}
	n.cache[name] = l
	n.running++
	n.group.Go(func() {
		ctx, cancel := context.WithTimeout(life, lookupTimeout)
		defer cancel()
		query := name
		if strings.Contains(name, ".") {
			query += "." // never with the search domains of the host
		}
		addrs, err := n.resolver.LookupNetIP(ctx, "ip", query)
		n.mu.Lock()
		defer n.mu.Unlock()
		n.running--
		l.addrs, l.err = addrs, err
		switch now := time.Now(); {
		case err == nil:
			l.expires = now.Add(foundTTL)
		case isNotFound(err):
			l.expires = now.Add(notFoundTTL)
		}
		close(l.done)
	})
	return l, nil
}

// makeRoom removes entries from a full cache. Preconditions: n.mu is locked.
func (n *names) makeRoom(now time.Time) {
	if len(n.cache) < maxNames {
		return
	}
	for name, l := range n.cache {
		if l.expired(now) {
			delete(n.cache, name)
		}
	}
	for name, l := range n.cache { // any of them
		if len(n.cache) < maxNames {
			return
		}
		if l.finished() {
			delete(n.cache, name)
		}
	}
}

func (l *lookup) finished() bool {
	select {
	case <-l.done:
		return true
	default:
		return false
	}
}

func (l *lookup) expired(now time.Time) bool { return l.finished() && now.After(l.expires) }

func isNotFound(err error) bool {
	e, ok := errors.AsType[*net.DNSError](err)
	return ok && e.IsNotFound
}

// Lookup answers a question of the guest about a name. A name that is not allowed is not resolved.
func (g *Gateway) Lookup(ctx context.Context, name string) LookupResult {
	normal, err := NormalizeName(name)
	if err != nil {
		return g.looked(name, LookupResult{Status: LookupDenied, Decision: badName(err)}, nil)
	}
	policy := g.Policy()
	d := policy.name(host{name: normal})
	switch {
	case d.Action != v1.NetworkAllow:
		return g.looked(normal, LookupResult{Status: LookupDenied, Decision: d}, nil)
	case g.proxies(host{name: normal}, 443): // this host may be unable to resolve public names
		return g.looked(normal, LookupResult{Status: LookupExists, Decision: d}, nil)
	}
	switch addrs, err := g.names.resolve(ctx, g.life, normal); {
	case err == nil && len(addrs) > 0:
		return g.looked(normal, LookupResult{Status: LookupExists, Decision: d}, nil)
	case err == nil || isNotFound(err):
		why := normal + " is allowed, but this host finds no such name"
		return g.looked(normal, LookupResult{LookupNotFound, d, why}, nil)
	default:
		return g.looked(normal, LookupResult{LookupFailed, d, fmt.Sprintf("%s is allowed, but this host cannot resolve it: %v", normal, err)}, err)
	}
}

func (g *Gateway) looked(name string, r LookupResult, err error) LookupResult {
	g.observe(Event{
		Kind:     EventLookup,
		Request:  Request{Name: printable(name)},
		Decision: r.Decision,
		Lookup:   r.Status,
		Err:      err,
	})
	return r
}

// printable bounds a name that is invalid and removes what is not printable, for logs.
func printable(name string) string {
	if len(name) > maxName {
		name = name[:maxName] + "…"
	}
	return strings.Map(func(r rune) rune {
		if r < ' ' || r == 0x7f || r == 0xfffd {
			return '?'
		}
		return r
	}, strings.ToValidUTF8(name, "?"))
}
