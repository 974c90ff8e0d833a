package runs

import (
	"context"
	"os"
	"path/filepath"
	"testing"
	"time"

	v1 "github.com/recluse-dev/recluse/api/v1"
	"github.com/recluse-dev/recluse/rlm"
	"github.com/recluse-dev/recluse/sandbox"
	"github.com/recluse-dev/recluse/sandbox/local"
)

func TestARunThatWaitsToGoOnCanBeCancelled(t *testing.T) {
	away := &v1.Error{Code: v1.CodeNoBackend}
	for name, tt := range map[string]struct {
		labels  map[string]string // of a run that was made before orderFile existed
		nobody  bool              // no server tries to resume the run
		backend func(ctx context.Context) (sandbox.Backend, error)
		ended   bool // the cancellation ended the run
	}{
		"between two tries": {backend: func(context.Context) (sandbox.Backend, error) { return nil, away }},
		"in the midst of one": {backend: func(ctx context.Context) (sandbox.Backend, error) {
			<-ctx.Done()
			return nil, ctx.Err()
		}},
		"when it just begins": {ended: true, backend: func(ctx context.Context) (sandbox.Backend, error) {
			<-ctx.Done()
			return local.New(local.Options{}), nil
		}},
		"before anybody tries": {nobody: true},
		"as servers noted it once": {
			labels: map[string]string{rlm.LabelAsked: labelRemote}, backend: func(context.Context) (sandbox.Backend, error) { return nil, away },
		},
	} {
		t.Run(name, func(t *testing.T) {
			data := t.TempDir()
			id := leave(t, data, "acme", Ask{Question: rlm.Question{Labels: tt.labels}})
			tried := make(chan struct{}, 1)
			k, _ := keeperIn(t, Options{DataDir: data, Resume: true, Backend: func(ctx context.Context) (sandbox.Backend, error) {
				select {
				case tried <- struct{}{}:
				default:
				}
				return tt.backend(ctx)
			}})
			if tt.labels != nil {
				if err := os.Remove(filepath.Join(k.dir("acme"), id, orderFile)); err != nil {
					t.Fatal(err)
				}
			}
			if !tt.nobody {
				k.Recover()
				<-tried
			}
			info, err := k.Cancel(t.Context(), "acme", id)
			if err != nil || info.Running || (info.Result != nil) != tt.ended {
				t.Fatalf("%+v %v", info, err)
			}
			if tt.ended && info.Result.Reason != v1.ReasonCancelled {
				t.Errorf("%+v", info.Result)
			}
			k.wg.Wait() // until the attempts to resume have ended
			k = next(t, data, true)
			if info, err = k.Show("acme", id); err != nil || (info.Result != nil) != tt.ended || info.Result != nil && info.Result.Reason == v1.ReasonAnswered {
				t.Errorf("the next server resumed the run: %+v %v", info, err)
			}
			if _, err := k.Cancel(t.Context(), "acme", id); err != nil {
				t.Errorf("second cancellation: %v", err)
			}
			r, err := k.Resume(t.Context(), "acme", id, Again{})
			if err != nil {
				t.Fatal(err)
			}
			if res, err := r.Wait(); err != nil || res.Answer != "yes" {
				t.Errorf("resumed by a caller: %+v %v", res, err)
			}
		})
	}
}

// yard is a backend whose sandboxes can only be ended.
type yard struct {
	sandbox.Backend
	boxes []sandbox.Info
	ended chan string
}

// List implements sandbox.Backend.
func (y *yard) List(context.Context) ([]sandbox.Info, error) { return y.boxes, nil }

// Stop implements sandbox.Backend.
func (y *yard) Stop(_ context.Context, id string) error {
	y.ended <- id
	return nil
}

func TestTheSandboxOfARunThatWaitsToGoOnIsNotEnded(t *testing.T) {
	data := t.TempDir()
	y := &yard{ended: make(chan string, 2)}
	// The order matters: when the second sandbox is ended, the first was skipped.
	for _, a := range []Ask{{}, {Waited: true}} {
		y.boxes = append(y.boxes, sandbox.Info{ID: "of one that goes on", Created: time.Now().AddDate(0, -1, 0), Labels: map[string]string{rlm.LabelRun: leave(t, data, "acme", a)}})
	}
	y.boxes[1].ID = "of one that does not"
	k, _ := keeperIn(t, Options{DataDir: data, Resume: true, Known: []sandbox.Backend{y}, Backend: func(context.Context) (sandbox.Backend, error) {
		return nil, &v1.Error{Code: v1.CodeNoBackend}
	}})
	k.Recover()
	if id := <-y.ended; id != y.boxes[1].ID {
		t.Errorf("the sandbox %s was ended", id)
	}
}

// A run that is resumed immediately after its end is live: the clean-up after the first part must not affect the
// second.
func TestARunIsResumedJustAfterItsEnd(t *testing.T) {
	k, _ := newKeeper(t, 1)
	r, err := k.Start(t.Context(), "acme", Ask{Question: rlm.Question{Query: "Is it?"}})
	if err != nil {
		t.Fatal(err)
	}
	for range 50 {
		r.Cancel()
		if _, err := r.Wait(); err == nil {
			t.Fatal("a cancelled run has an answer")
		}
		if r, err = k.Resume(t.Context(), "acme", r.ID(), Again{}); err != nil {
			t.Fatal(err)
		}
		time.Sleep(time.Millisecond) // the clean-up after the first part is done by now
		k.mu.Lock()
		l := k.live[key{"acme", r.ID()}]
		k.mu.Unlock()
		if l == nil || l.Run != r {
			t.Fatalf("the resumed run is not live: %+v", l)
		}
	}
}
