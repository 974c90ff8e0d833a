//go:build linux

package network

import (
	"sync"
	"time"

	"golang.org/x/net/dns/dnsmessage"

	"github.com/recluse-dev/recluse/internal/guest/wire"
)

const (
	// pairTime is the longest time between the questions of one program for the two kinds of addresses of a name.
	pairTime = time.Second
	// allowedTime is how long the answer holds that a name is allowed. The host decides again about each connection.
	allowedTime = 5 * time.Second
	// maxLookups bounds the look-ups that are remembered.
	maxLookups = 256
)

// lookups makes one look-up of the questions for different kinds of records of a name, which most programs ask at once:
// otherwise each denial would be reported twice. It remembers which names are allowed, because a look-up costs as much
// as a connection.
type lookups struct {
	mu     sync.Mutex
	byName map[string]*lookup // guarded by mu
}

// lookup is one look-up of the host.
type lookup struct {
	began  time.Time
	asked  map[dnsmessage.Type]bool // guarded by lookups.mu; kinds of records that were asked for
	done   chan struct{}
	answer wire.Answer
}

// ask returns the answer of the host about a name, which find requests.
func (l *lookups) ask(name string, typ dnsmessage.Type, find func() wire.Answer) wire.Answer {
	l.mu.Lock()
	now := time.Now()
	if k := l.byName[name]; k != nil && k.answers(typ, now) {
		k.asked[typ] = true
		l.mu.Unlock()
		<-k.done
		return k.answer
	}
	if len(l.byName) >= maxLookups || l.byName == nil {
		l.byName = map[string]*lookup{} // those that wait keep their look-ups
	}
	k := &lookup{began: now, asked: map[dnsmessage.Type]bool{typ: true}, done: make(chan struct{})}
	l.byName[name] = k
	l.mu.Unlock()
	k.answer = find()
	close(k.done)
	return k.answer
}

// answers reports whether the look-up answers a new question. Preconditions: lookups.mu is held.
func (k *lookup) answers(typ dnsmessage.Type, now time.Time) bool {
	age := now.Sub(k.began)
	if age < pairTime && !k.asked[typ] {
		return true
	}
	select {
	case <-k.done:
		return k.answer == wire.Answer_ANSWER_ALLOWED && age < allowedTime
	default:
		return false
	}
}

// forget makes the next questions look-ups.
func (l *lookups) forget() {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.byName = nil
}
