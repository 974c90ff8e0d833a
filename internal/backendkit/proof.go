package backendkit

import (
	"os"
	"path/filepath"
	"sync"
	"time"

	"github.com/recluse-dev/recluse/internal/atomicfile"
)

const (
	// provenHere is how long this program believes that a sandbox can be made.
	provenHere = time.Minute
	// provenElsewhere is how long every program with the same file believes it.
	provenElsewhere = time.Hour
)

// Proof remembers that a sandbox could be made, with all that this depended on. A program that lives for
// one command would otherwise make a sandbox to see whether that works, before its own.
type Proof[T comparable] struct {
	Path string // of the file that other programs read

	mu sync.Mutex
	at time.Time // guarded by mu; when this program saw it last
}

// proven is the content of the file.
type proven[T comparable] struct {
	Of T         `json:"of"`
	At time.Time `json:"at"`
}

// Fresh reports whether this program has seen lately that a sandbox can be made.
func (p *Proof[T]) Fresh() bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	return time.Since(p.at) < provenHere
}

// Renew notes that this program has just made a sandbox.
func (p *Proof[T]) Renew() {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.at = time.Now()
}

// Kept returns what some program has proved in the last hour.
func (p *Proof[T]) Kept() (of T, ok bool) {
	var got proven[T]
	if atomicfile.ReadJSON(p.Path, &got) != nil {
		return of, false
	}
	age := time.Since(got.At)
	return got.Of, age >= 0 && age < provenElsewhere
}

// Keep writes a proof for other programs. Without it they try as well.
func (p *Proof[T]) Keep(of T) {
	if os.MkdirAll(filepath.Dir(p.Path), 0o700) == nil {
		_ = atomicfile.WriteJSON(p.Path, proven[T]{of, time.Now().UTC()})
	}
}

// Forget drops all proofs: a sandbox could not be made.
func (p *Proof[T]) Forget() {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.at = time.Time{}
	_ = os.Remove(p.Path) // mostly there is none
}
