package session

import (
	"testing"
	"time"

	v1 "github.com/recluse-dev/recluse/api/v1"
	"github.com/recluse-dev/recluse/internal/testneed"
	"github.com/recluse-dev/recluse/sandbox"
)

func TestASessionHibernatesAtItsExpiry(t *testing.T) {
	k := newBench(t, quick())
	s, _, err := k.m.Open(t.Context(), Key{Name: "x"}, OpenOptions{Settings: Settings{Policy: Policy{
		Expires: v1.Duration(time.Hour), OnExpiry: v1.ExpiryHibernate, Idle: v1.NoLimit,
	}}})
	if err != nil {
		t.Fatal(err)
	}
	if _, err := s.Cell(t.Context(), sandbox.Cell{Code: "x = 41"}); err != nil {
		t.Fatal(err)
	}
	id, err := s.Start(t.Context(), sandbox.Command{Shell: "sleep 1000"})
	if err != nil {
		t.Fatal(err)
	}
	if err := s.SetExpiry(t.Context(), time.Now()); err != nil {
		t.Fatal(err)
	}
	testneed.Await(t, "it hibernates", func() bool { return s.Info().State == v1.StateHibernated })
	if at := s.Info().Expires; at != nil && time.Until(*at) < time.Hour {
		t.Errorf("it expires at %s", at)
	}
	v, err := s.Cell(t.Context(), sandbox.Cell{Code: "x + 1"})
	if err != nil || v.Result.Text() != "42" {
		t.Fatalf("%v %v", v, err)
	}
	if o, err := s.Operation(t.Context(), id); err != nil || !o.Running {
		t.Errorf("the command: %+v %v", o, err)
	}
	if err := s.End(t.Context(), ""); err != nil {
		t.Fatal(err)
	}
}

func TestSetExpiryStaysWithinMaxAge(t *testing.T) {
	o := calm()
	o.Quota.MaxAge = new(v1.Duration(time.Hour))
	k := newBench(t, o)
	s, _, err := k.m.Open(t.Context(), Key{Name: "x"}, OpenOptions{})
	if err != nil {
		t.Fatal(err)
	}
	left := func() time.Duration { return time.Until(*s.Info().Expires).Round(time.Minute) }
	if err := s.SetExpiry(t.Context(), time.Now().Add(10*time.Minute)); err != nil || left() != 10*time.Minute {
		t.Errorf("earlier: %v, %s", err, left())
	}
	wantCode(t, "beyond max_age", s.SetExpiry(t.Context(), time.Now().Add(2*time.Hour)), v1.CodeQuotaExceeded)
	if err := s.SetExpiry(t.Context(), time.Time{}); err != nil || left() != time.Hour {
		t.Errorf("none: %v, %s", err, left())
	}
	if err := s.End(t.Context(), ""); err != nil {
		t.Fatal(err)
	}
	wantCode(t, "of an ended session", s.SetExpiry(t.Context(), time.Now()), v1.CodeSessionEnded)
}
