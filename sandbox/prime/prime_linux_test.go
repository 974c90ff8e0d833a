package prime

import (
	"bytes"
	"encoding/binary"
	"encoding/json"
	"io"
	"net/http"
	"net/http/httptest"
	"os"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"google.golang.org/protobuf/proto"

	e2b "github.com/recluse-dev/recluse/internal/e2b/wire"
	"github.com/recluse-dev/recluse/internal/remoteguest"
	"github.com/recluse-dev/recluse/internal/remoteguest/remotetest"
	"github.com/recluse-dev/recluse/internal/testneed"
	"github.com/recluse-dev/recluse/sandbox"
	"github.com/recluse-dev/recluse/sandbox/prime/wire"
)

func TestMain(m *testing.M) { os.Exit(remotetest.Main(m)) }

const key = "pit_0123456789abcdef0123456789abcdef"

// service speaks the protocol of Prime Intellect. Its sandboxes are those of our own server: command sessions have the
// same messages as E2B's processes, under other names.
type service struct {
	remotetest.Web
	uuids bool // sessions have UUIDs and no tags

	mu    sync.Mutex
	boxes []*box // guarded by mu
}

// box is a sandbox.
type box struct {
	details
	request newSandbox
	inner   e2b.Access
	polls   int // requests for its state
}

func newService(t *testing.T) *service {
	s := &service{}
	s.Machines = remotetest.NewMachines(t)
	s.IsCreate = func(r *http.Request) bool { return r.Method == http.MethodPost && r.URL.Path == "/api/v1/sandbox" }
	s.IsUpload = func(r *http.Request) bool { return strings.HasSuffix(r.URL.Path, "/upload") }
	s.Message = `{"detail":"no, ` + key + `"}`
	mux := http.NewServeMux()
	api := func(pattern string, f func(w http.ResponseWriter, r *http.Request)) {
		mux.HandleFunc(pattern, func(w http.ResponseWriter, r *http.Request) {
			if r.Header.Get("Authorization") != "Bearer "+key || s.Revoked() {
				refuse(w, http.StatusUnauthorized, "the key is not valid")
				return
			}
			f(w, r)
		})
	}
	api("POST /api/v1/sandbox", s.create)
	api("GET /api/v1/sandbox", s.list)
	one := func(pattern string, f func(w http.ResponseWriter, r *http.Request, b *box)) {
		api(pattern, func(w http.ResponseWriter, r *http.Request) {
			s.mu.Lock()
			defer s.mu.Unlock()
			if b := s.box(r.PathValue("id")); b != nil {
				f(w, r, b)
				return
			}
			refuse(w, http.StatusNotFound, "Sandbox not found")
		})
	}
	one("GET /api/v1/sandbox/{id}", func(w http.ResponseWriter, _ *http.Request, b *box) {
		b.polls++
		s.update(b)
		reply(w, http.StatusOK, b.details)
	})
	one("DELETE /api/v1/sandbox/{id}", func(w http.ResponseWriter, _ *http.Request, b *box) {
		s.inner(http.MethodDelete, "/sandboxes/"+b.inner.Sandbox, nil)
		b.Status = "TERMINATED"
		reply(w, http.StatusOK, map[string]string{"status": b.Status})
	})
	one("GET /api/v1/sandbox/{id}/egress-policy", func(w http.ResponseWriter, _ *http.Request, b *box) {
		b.polls++
		applied := 0
		if b.polls > 3 {
			applied = 1
		}
		reply(w, http.StatusOK, map[string]any{
			"policy":     map[string]any{"allowlist": b.request.Allow, "denylist": nil},
			"generation": 1, "applied_generation": applied, "applied": applied == 1,
		})
	})
	one("GET /api/v1/sandbox/{id}/error-context", func(w http.ResponseWriter, _ *http.Request, b *box) {
		reply(w, http.StatusOK, map[string]any{"status": b.Status, "errorType": "TIMEOUT", "errorMessage": nil})
	})
	one("POST /api/v1/sandbox/{id}/auth", func(w http.ResponseWriter, r *http.Request, b *box) {
		reply(w, http.StatusOK, map[string]any{
			"sandbox_id": b.ID, "gateway_url": "http://" + r.Host + "/gateway/", "user_ns": "user-1", "job_id": "job-" + b.ID,
			"token": "gateway-" + b.ID, "expires_at": time.Now().Add(time.Hour).UTC(), "is_vm": true,
		})
	})
	mux.HandleFunc("POST /gateway/user-1/{job}/upload", s.gateway("/files"))
	mux.HandleFunc("POST /gateway/user-1/{job}/command_session.CommandSession/Start", s.start)
	mux.HandleFunc("POST /gateway/user-1/{job}/command_session.CommandSession/List", s.sessions)
	for _, method := range []string{"Connect", "SendInput"} {
		mux.HandleFunc("POST /gateway/user-1/{job}/command_session.CommandSession/"+method, s.gateway("/process.Process/"+method))
	}
	s.Serve(t, mux)
	return s
}

func refuse(w http.ResponseWriter, status int, text string) {
	reply(w, status, map[string]string{"detail": text})
}

func reply(w http.ResponseWriter, status int, v any) {
	w.Header().Set("Content-Type", "application/json")
	w.WriteHeader(status)
	_ = json.NewEncoder(w).Encode(v)
}

// box returns the sandbox with an ID.
//
// Preconditions: mu is held.
func (s *service) box(id string) *box {
	for _, b := range s.boxes {
		if b.ID == id {
			return b
		}
	}
	return nil
}

// update moves a sandbox through its states.
//
// Preconditions: mu is held.
func (s *service) update(b *box) {
	switch {
	case b.Status == "TERMINATED":
	case b.polls == 0:
		b.Status = statePending
	case b.polls == 1:
		b.Status = stateProvisioning
	default:
		b.Status = stateRunning
		if s.inner(http.MethodGet, "/sandboxes/"+b.inner.Sandbox, nil).Code != http.StatusOK {
			b.Status = "TERMINATED"
		}
	}
}

// inner calls the server that has the sandboxes.
func (s *service) inner(method, path string, in any) *httptest.ResponseRecorder {
	body, _ := json.Marshal(in)
	r := httptest.NewRequest(method, path, bytes.NewReader(body))
	r.Header.Set(e2b.HeaderKey, remotetest.E2BKey)
	r.Header.Set("Content-Type", "application/json")
	w := httptest.NewRecorder()
	s.Machines.ServeHTTP(w, r)
	return w
}

func (s *service) create(w http.ResponseWriter, r *http.Request) {
	var in newSandbox
	d := json.NewDecoder(r.Body)
	d.DisallowUnknownFields()
	if err := d.Decode(&in); err != nil || in.Name == "" || in.Image == "" || !in.VM || in.Allow == nil ||
		in.CPUs < 0.1 || in.Memory < 0.1 || in.Timeout < 1 || in.Timeout > 1440 || in.Idempotency == "" {
		refuse(w, http.StatusUnprocessableEntity, "invalid request")
		return
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, b := range s.boxes {
		if b.request.Idempotency == in.Idempotency {
			reply(w, http.StatusCreated, b.details)
			return
		}
	}
	seconds, yes, no := in.Timeout*60, true, false
	res := s.inner(http.MethodPost, "/v2/sandboxes", e2b.NewSandbox{
		Template: "base", Timeout: &seconds, Internet: &no, Secure: &yes,
	})
	b := &box{request: in}
	if res.Code != http.StatusCreated || json.Unmarshal(res.Body.Bytes(), &b.inner) != nil {
		refuse(w, http.StatusInternalServerError, res.Body.String())
		return
	}
	b.details = details{ID: "sbx-" + strconv.Itoa(len(s.boxes)), Labels: in.Labels}
	s.boxes = append(s.boxes, b)
	s.update(b)
	reply(w, http.StatusCreated, b.details)
}

func (s *service) list(w http.ResponseWriter, r *http.Request) {
	s.mu.Lock()
	defer s.mu.Unlock()
	out := page{Sandboxes: []details{}}
	n, _ := strconv.Atoi(r.URL.Query().Get("page"))
	skip := n - 1 // this service has one sandbox per page
	for _, b := range s.boxes {
		s.update(b)
		has := !slices.ContainsFunc(r.URL.Query()["labels"], func(l string) bool { return !slices.Contains(b.Labels, l) })
		switch {
		case b.Status == "TERMINATED" && r.URL.Query().Get("is_active") == "true", !has:
		case skip > 0:
			skip--
		case len(out.Sandboxes) == 0:
			out.Sandboxes = append(out.Sandboxes, b.details)
		default:
			out.HasNext = true
		}
	}
	reply(w, http.StatusOK, out)
}

// gateway passes requests for the inside of a sandbox on.
func (s *service) gateway(to string) http.HandlerFunc {
	return func(w http.ResponseWriter, r *http.Request) {
		s.mu.Lock()
		b := s.box(strings.TrimPrefix(r.PathValue("job"), "job-"))
		s.mu.Unlock()
		switch {
		case b == nil || b.Status != stateRunning:
			reply(w, http.StatusBadGateway, map[string]string{"error": missing})
			return
		case r.Header.Get("Authorization") != "Bearer gateway-"+b.ID || s.Revoked():
			refuse(w, http.StatusUnauthorized, "the token is not valid")
			return
		}
		r.Header.Del("Authorization")
		r.Header.Set(e2b.HeaderSandbox, b.inner.Sandbox)
		r.Header.Set(e2b.HeaderPort, strconv.Itoa(e2b.EnvdPort))
		r.Header.Set(e2b.HeaderToken, b.inner.Token)
		r.URL.Path = to
		s.Machines.ServeHTTP(w, r)
	}
}

// start makes a command session. Our own server knows no UUIDs.
func (s *service) start(w http.ResponseWriter, r *http.Request) {
	body, err := io.ReadAll(r.Body)
	var in wire.StartRequest
	const head = 5 // of a message in a stream
	if err != nil || len(body) < head || proto.Unmarshal(body[head:], &in) != nil {
		w.WriteHeader(http.StatusBadRequest)
		return
	}
	if s.uuids && in.SessionUuid != nil {
		in.Tag = new("uuid") // which is short enough for our own server
	}
	in.SessionUuid = nil
	out, _ := proto.Marshal(&in)
	out = append(binary.BigEndian.AppendUint32([]byte{0}, uint32(len(out))), out...)
	r.Body, r.ContentLength = io.NopCloser(bytes.NewReader(out)), int64(len(out))
	s.gateway("/process.Process/Start")(w, r)
}

// sessions lists command sessions.
func (s *service) sessions(w http.ResponseWriter, r *http.Request) {
	answer := httptest.NewRecorder()
	r.Header.Del("Accept-Encoding") // the answer is read here
	s.gateway("/process.Process/List")(answer, r)
	body := answer.Body.Bytes()
	var out wire.ListResponse
	if answer.Code == http.StatusOK && proto.Unmarshal(body, &out) == nil && s.uuids {
		for _, i := range out.Sessions {
			if i.GetTag() == "uuid" {
				i.Tag, i.SessionUuid = nil, new(sessionUUID)
			}
		}
		body, _ = proto.Marshal(&out)
	}
	w.Header().Set("Content-Type", answer.Header().Get("Content-Type"))
	w.WriteHeader(answer.Code)
	_, _ = w.Write(body)
}

var subject = remotetest.Subject{
	New: func(t *testing.T) remotetest.Service { return newService(t) },
	Open: func(at string, o remoteguest.Options) (remotetest.Backend, error) {
		return New(Options{URL: at, Key: key, PriceCPU: 0.05, PriceMemory: 0.01, Remote: o})
	},
	Key: key,
}

func TestService(t *testing.T) { subject.Run(t) }

func TestOneSandboxIsMadeAlthoughAnAnswerIsLost(t *testing.T) {
	testneed.All(t, "the repetition of calls is tested with failures")
	s := newService(t)
	s.SetFaults(remotetest.Faults{Lost: 1})
	remotetest.Open(t, subject.Backend(t, s.Address(), nil))
	if n := len(s.Running(t)); n != 1 || s.Lost() != 1 || s.Creates() != 2 {
		t.Errorf("%d sandboxes, %d lost answers, %d requests", n, s.Lost(), s.Creates())
	}
}

func TestSessionsWithUUIDs(t *testing.T) {
	testneed.All(t, "a life has sessions with tags")
	s := newService(t)
	s.uuids = true
	b := subject.Backend(t, s.Address(), nil)
	sb := remotetest.Open(t, b)
	sb.Detach()
	again, err := sandbox.Attach(t.Context(), b, sb.ID())
	if err != nil {
		t.Fatal(err)
	}
	if got := remotetest.Sh(t, again, "echo a"); got != "a\n" {
		t.Errorf("%q", got)
	}
	again.Detach()
}

func TestWhatTheServiceGetsOfASpec(t *testing.T) {
	s := newService(t)
	b := subject.Backend(t, s.Address(), nil)
	remotetest.Refused(t, b, s)
	sb, err := sandbox.Open(t.Context(), b, sandbox.Spec{
		Image: "example.com/data:1", Limits: sandbox.Limits{Memory: 3 << 30, CPUs: 2.5},
	})
	if err != nil {
		t.Fatal(err)
	}
	defer sb.Close()
	in := s.boxes[0].request
	if in.Image != "example.com/data:1" || in.CPUs != 2.5 || in.Memory != 3 || in.Timeout != 60 || len(in.Allow) != 0 {
		t.Errorf("%+v", in)
	}
	if strings.Contains(strings.Join(in.Labels, " ")+in.Name+in.Idempotency, key) {
		t.Error("the key is in a label")
	}
	h := b.Health(t.Context())
	if !strings.Contains(h.Reason, "$0.15 per hour") { // 2.5 × 0.05 + 3 × 0.01
		t.Error(h.Reason)
	}
}
