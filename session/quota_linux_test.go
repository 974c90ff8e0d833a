package session

import (
	"errors"
	"testing"

	v1 "github.com/recluse-dev/recluse/api/v1"
	"github.com/recluse-dev/recluse/internal/store"
	"github.com/recluse-dev/recluse/sandbox"
)

func TestQuotasOfSessions(t *testing.T) {
	k := newBench(t, quick())
	ctx := withKey(t.Context(), "k")
	err := errors.Join(
		k.m.store.SaveTenant(ctx, store.Tenant{Name: DefaultTenant, Quota: v1.Quota{Memory: new(int64(1 << 30)), Snapshots: new(1)}}),
		k.m.store.AddKey(ctx, store.APIKey{ID: "k", Tenant: DefaultTenant, Hash: []byte("1"), Quota: v1.Quota{Sessions: new(1)}}),
	)
	if err != nil {
		t.Fatal(err)
	}
	o := OpenOptions{Settings: Settings{Spec: &sandbox.Spec{Limits: sandbox.Limits{Memory: 512 << 20}}, Labels: map[string]string{"team": "web"}}}
	s, opened, err := k.m.Open(ctx, Key{Name: "one"}, o)
	if err != nil || opened.APIKey != "k" {
		t.Fatalf("%+v %v", opened, err)
	}
	_, _, err = k.m.Open(ctx, Key{Name: "two"}, o)
	wantQuota(t, "a second session of the key", err, "key k, sessions: limit 1, 0 left")
	_, err = k.m.Get(ctx, Key{Name: "two"})
	wantCode(t, "what is left of it", err, v1.CodeSessionNotFound)
	if _, _, err := k.m.Open(ctx, Key{Name: "one"}, OpenOptions{}); err != nil {
		t.Errorf("one that is there: %v", err)
	}
	o.Spec.Limits.Memory = 768 << 20
	_, _, err = k.m.Open(t.Context(), Key{Name: "two"}, o)
	wantQuota(t, "more memory than the tenant has", err, "memory: limit 1g, 512m left, 768m requested")
	if sleeps(k.b) {
		_, err = s.Fork(t.Context(), 2, nil)
		wantQuota(t, "copies", err, "512m left, 1g requested")
		save(t, s, "first")
		_, err = s.Save(ctx, "second")
		wantQuota(t, "a snapshot", err, "snapshots: limit 1")
		if n := k.images(); n != 1 {
			t.Errorf("%d images", n)
		}
		copied, _, err := k.m.Open(t.Context(), Key{Name: "three"}, OpenOptions{Settings: Settings{From: "one@first"}})
		if err != nil {
			t.Errorf("from a snapshot of 512m, where the default is more than is left: %v", err)
		} else if err := copied.End(t.Context(), ""); err != nil {
			t.Fatal(err)
		}
	}

	k.restart() // the new manager counts what sessions hold again
	_, _, err = k.m.Open(ctx, Key{Name: "two"}, OpenOptions{})
	wantQuota(t, "after a restart", err, "sessions")
	if err := k.get("one").End(ctx, ""); err != nil {
		t.Fatal(err)
	}
	o.Spec.Limits.Memory = 512 << 20
	if _, _, err := k.m.Open(ctx, Key{Name: "two"}, o); err != nil {
		t.Errorf("its place is not free again: %v", err)
	}
	var found []string
	for i, err := range k.m.List(ctx, ListOptions{Labels: map[string]string{"team": "web"}}) {
		if err != nil {
			t.Fatal(err)
		}
		found = append(found, i.Key.Name)
	}
	if len(found) != 1 || found[0] != "two" {
		t.Errorf("sessions with the label: %v", found)
	}
	for range k.m.List(ctx, ListOptions{Labels: map[string]string{"team": "ops"}}) {
		t.Error("a session has an unknown label")
	}
}
