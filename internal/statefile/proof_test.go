package statefile

import (
	"path/filepath"
	"testing"
	"time"
)

func TestAProofIsBelievedForAWhile(t *testing.T) {
	type what struct{ Engine, Guest string }
	is := what{"a", "b"}
	for _, tt := range []struct {
		name string
		at   time.Duration // from now
		ok   bool
	}{
		{"just now", 0, true},
		{"a while ago", -30 * time.Minute, true},
		{"too long ago", -time.Hour, false},
		{"by a clock that was wrong", time.Hour, false},
	} {
		t.Run(tt.name, func(t *testing.T) {
			path := filepath.Join(t.TempDir(), "proof.json")
			if err := Write(path, proof[what]{is, time.Now().Add(tt.at)}); err != nil {
				t.Fatal(err)
			}
			if got, ok := Proven[what](path, time.Hour); ok != tt.ok || got != is {
				t.Errorf("%+v, %v", got, ok)
			}
		})
	}
	path := filepath.Join(t.TempDir(), "proof.json")
	if _, ok := Proven[what](path, time.Hour); ok {
		t.Error("there is none")
	}
	if err := Prove(path, is); err != nil {
		t.Fatal(err)
	}
	if got, ok := Proven[what](path, time.Hour); !ok || got != is {
		t.Errorf("%+v, %v", got, ok)
	}
}
