package e2b

import (
	"net/http"
	"os"
	"testing"

	"github.com/recluse-dev/recluse/internal/remoteguest"
	"github.com/recluse-dev/recluse/internal/remoteguest/remotetest"
)

func TestMain(m *testing.M) { os.Exit(remotetest.Main(m)) }

const key = remotetest.E2BKey

// newService returns our own server with the API of E2B.
func newService(t *testing.T) *remotetest.Web {
	s := &remotetest.Web{
		Machines: remotetest.NewMachines(t),
		IsCreate: func(r *http.Request) bool { return r.Method == http.MethodPost && r.URL.Path == "/v2/sandboxes" },
		IsUpload: func(r *http.Request) bool { return r.URL.Path == "/files" },
		Message:  `{"code":1,"message":"no, ` + key + `"}`,
	}
	s.Serve(t, s.Machines)
	return s
}

var subject = remotetest.Subject{
	New: func(t *testing.T) remotetest.Service { return newService(t) },
	Open: func(at string, o remoteguest.Options) (remotetest.Backend, error) {
		return New(Options{URL: at, Key: key, Remote: o})
	},
	Key: key,
}

func TestService(t *testing.T) { subject.Run(t) }

func TestAddressesThatWouldLeakTheKey(t *testing.T) {
	t.Parallel()
	for at, ok := range map[string]bool{
		"https://api.e2b.app": true, "http://127.0.0.1:1": true, "http://localhost:1": true, "https://box.example:8": true,
		"http://box.example": false, "ftp://127.0.0.1": false, "https://user:pass@box.example": false, "box.example": false,
	} {
		b, err := New(Options{URL: at, Key: key, Remote: remoteguest.Options{Dir: t.TempDir()}})
		if (err == nil) != ok {
			t.Errorf("%s: %v", at, err)
		}
		if err == nil {
			_ = b.Close()
		}
	}
}
