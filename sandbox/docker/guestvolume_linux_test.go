package docker

import (
	"context"
	"encoding/json"
	"net"
	"net/http"
	"net/http/httptest"
	"net/http/httputil"
	"sync"
	"testing"

	"github.com/moby/moby/api/types/container"

	v1 "github.com/recluse-dev/recluse/api/v1"
	"github.com/recluse-dev/recluse/internal/backendkit"
	"github.com/recluse-dev/recluse/internal/bundle"
	"github.com/recluse-dev/recluse/internal/dockerengine"
)

// Two goroutines wait for a lock whose owner has died. Both have read it, and one of them is faster.
func TestADeadProgramsLockIsTakenOverOnce(t *testing.T) {
	quick := newBackend(t, nil)
	dead := backendkit.Self()
	dead.PID, dead.Start = 1<<22-1, 1 // no process has this PID
	own, err := json.Marshal(dead)
	if err != nil {
		t.Fatal(err)
	}
	hc := &container.HostConfig{NetworkMode: "none"}
	volume := "test-" + randomHex(6)
	lock := dockerengine.HolderName(volume)
	if _, _, err := quick.cli.Carrier(t.Context(), lock, testImage, map[string]string{dockerengine.LabelOwner: string(own)}, hc); err != nil {
		t.Fatal(err)
	}
	var first string
	var release func() error
	engine := &httputil.ReverseProxy{
		Rewrite: func(r *httputil.ProxyRequest) { r.Out.URL.Scheme, r.Out.URL.Host = "http", "engine" },
		Transport: &http.Transport{DisableKeepAlives: true, DialContext: func(ctx context.Context, _, _ string) (net.Conn, error) {
			return quick.cli.Dialer()(ctx)
		}},
	}
	took := make(chan struct{}) // closed when the fast one has the lock, and the slow one has removed the old lock
	overtake := sync.OnceFunc(func() {
		if first, release, err = quick.cli.Hold(t.Context(), volume, testImage, hc); err != nil {
			t.Error(err)
		}
	})
	removed := sync.OnceFunc(func() { close(took) })
	proxy := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.Method == http.MethodDelete {
			overtake()
			defer removed()
		}
		engine.ServeHTTP(w, r)
	}))
	defer proxy.Close()
	slow := newBackend(t, func(o *Options) { o.Host, o.Instance = "tcp://"+proxy.Listener.Addr().String(), quick.instance })
	var second string
	done := make(chan struct{})
	go func() {
		defer close(done)
		var remove func() error
		var err error
		if second, remove, err = slow.cli.Hold(t.Context(), volume, testImage, hc); err == nil {
			err = remove()
		}
		if err != nil {
			t.Error(err)
		}
	}()
	await(t, "the removal", took)
	if now, _ := quick.cli.Holder(t.Context(), volume); now != first {
		t.Errorf("the lock of %s is now that of %q", first, now)
	}
	if release != nil {
		if err := release(); err != nil {
			t.Error(err)
		}
	}
	await(t, "the slow one", done)
	if second == "" || second == first {
		t.Errorf("it got %q after %q", second, first)
	}
	if left := leftovers(t, []string{volume}); len(left) > 0 {
		t.Errorf("left behind: %q", left)
	}
}

func TestWhoGivesUpDoesNotWaitForTheOneWhoBringsTheGuest(t *testing.T) {
	b := newBackend(t, nil)
	b.filling <- struct{}{} // another call that takes long
	defer func() { <-b.filling }()
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if _, err := b.guestVolume(ctx, bundle.Program{Hash: randomHex(32)}, &dockerengine.Facts{}, testImage); v1.CodeOf(err) != v1.CodeCancelled {
		t.Error(err)
	}
}
