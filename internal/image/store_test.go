package image

import (
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"

	v1 "github.com/recluse-dev/recluse/api/v1"
)

func TestConcurrentGets(t *testing.T) {
	t.Parallel()
	s, reg := newStore(t), newRegistry(t)
	ref := reg.push(t, "hello:v1", hello(t, ""))
	var wg sync.WaitGroup
	for range 8 {
		wg.Go(func() {
			own := &Store{Dir: s.Dir, NoSync: true} // as another process would have
			img, err := own.Get(t.Context(), ref, Options{})
			if err != nil {
				t.Error(err)
				return
			}
			if tr := tree(t, img.RootFS); tr != helloTree {
				t.Errorf("unpacked:\n%s", tr)
			}
		})
	}
	wg.Wait()
	if n := reg.blobs.Load(); n != 3 {
		t.Errorf("%d blobs were fetched, want each once", n)
	}
}

func TestConcurrentProcesses(t *testing.T) {
	t.Parallel()
	s, reg := newStore(t), newRegistry(t)
	ref := reg.push(t, "hello:v1", hello(t, ""))
	var wg sync.WaitGroup
	for range 3 {
		wg.Go(func() {
			out, err := child(s.Dir, ref).CombinedOutput()
			if err != nil {
				t.Errorf("%v: %s", err, out)
				return
			}
			if tr := tree(t, strings.TrimSpace(string(out))); tr != helloTree {
				t.Errorf("unpacked:\n%s", tr)
			}
		})
	}
	wg.Wait()
	if n := reg.blobs.Load(); n != 3 {
		t.Errorf("%d blobs were fetched, want each once", n)
	}
}

// TestCrashInTheMiddle kills a process while it unpacks. The next process cleans up and succeeds.
func TestCrashInTheMiddle(t *testing.T) {
	t.Parallel()
	s, reg := newStore(t), newRegistry(t)
	img := hello(t, "")
	ref := reg.push(t, "hello:v1", img)
	layers, _ := img.Layers()
	last, _ := layers[1].Digest()
	reached, once := make(chan struct{}), sync.Once{}
	reg.intercept(func(w http.ResponseWriter, r *http.Request) bool {
		if r.Method != http.MethodGet || !strings.HasSuffix(r.URL.Path, last.String()) {
			return false
		}
		once.Do(func() { close(reached) })
		<-r.Context().Done()
		return true
	})
	cmd := child(s.Dir, ref)
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	<-reached
	if left := tree(t, filepath.Join(s.Dir, "tmp")); !strings.Contains(left, "usr/bin/sh") {
		t.Errorf("the child had not begun:\n%s", left)
	}
	cmd.Process.Kill()
	cmd.Wait()
	reg.intercept(func(http.ResponseWriter, *http.Request) bool { return false })
	if left := tree(t, filepath.Join(s.Dir, "images")); left != "" {
		t.Errorf("half an image is shown:\n%s", left)
	}
	// A Get of another image also cleans up.
	if _, err := s.Get(t.Context(), reg.push(t, "other:v1", makeImage(t, "", makeLayer(t, file("x", "")))), Options{}); err != nil {
		t.Fatal(err)
	}
	if left := tree(t, filepath.Join(s.Dir, "tmp")); left != "" {
		t.Errorf("left in tmp:\n%s", left)
	}
	if _, err := s.Get(t.Context(), ref, Options{}); err != nil {
		t.Fatal(err)
	}
}

func TestDamagedCacheIsMadeAnew(t *testing.T) {
	t.Parallel()
	s := newStore(t)
	lay := writeLayout(t, hello(t, ""), "v1")
	img, err := s.Get(t.Context(), lay, Options{})
	if err != nil {
		t.Fatal(err)
	}
	for _, damage := range []func() error{
		func() error {
			return os.WriteFile(filepath.Join(filepath.Dir(img.RootFS), "config.json"), []byte("{}"), 0o600)
		},
		func() error {
			return os.WriteFile(filepath.Join(filepath.Dir(img.RootFS), "manifest.json"), nil, 0o600)
		},
		func() error { return os.RemoveAll(img.RootFS) },
	} {
		if err := damage(); err != nil {
			t.Fatal(err)
		}
		if _, err := s.Get(t.Context(), lay, Options{}); err != nil {
			t.Fatal(err)
		}
		if tr := tree(t, img.RootFS); tr != helloTree {
			t.Errorf("unpacked:\n%s", tr)
		}
	}
}

func TestCacheNotUsable(t *testing.T) {
	t.Parallel()
	file := filepath.Join(t.TempDir(), "file")
	if err := os.WriteFile(file, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	for _, dir := range []string{"", file, file + "/below"} {
		_, err := (&Store{Dir: dir}).Get(t.Context(), writeLayout(t, hello(t, ""), "v1"), Options{})
		if v1.CodeOf(err) != Cache {
			t.Errorf("cache in %q: %v", dir, err)
		}
	}
}
