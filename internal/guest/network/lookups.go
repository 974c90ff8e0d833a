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
	// maxPairs bounds the look-ups that are remembered.
	maxPairs = 256
)

// lookups makes one look-up of the questions for different kinds of records of a name, which most programs ask at once.
// Otherwise each denial would be reported twice.
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
	if k := l.byName[name]; k != nil && now.Sub(k.began) < pairTime && !k.asked[typ] {
		k.asked[typ] = true
		l.mu.Unlock()
		<-k.done
		return k.answer
	}
	if len(l.byName) >= maxPairs || l.byName == nil {
		l.byName = map[string]*lookup{} // those that wait keep their look-ups
	}
	k := &lookup{began: now, asked: map[dnsmessage.Type]bool{typ: true}, done: make(chan struct{})}
	l.byName[name] = k
	l.mu.Unlock()
	k.answer = find()
	close(k.done)
	return k.answer
}
