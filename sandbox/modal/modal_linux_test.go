package modal

import (
	"context"
	"encoding/base64"
	"fmt"
	"io"
	"maps"
	"net"
	"net/http"
	"os"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"

	pb "github.com/modal-labs/modal-client/go/proto/modal_proto"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"

	v1 "github.com/recluse-dev/recluse/api/v1"
	"github.com/recluse-dev/recluse/internal/remoteguest"
	"github.com/recluse-dev/recluse/internal/remoteguest/remotetest"
	"github.com/recluse-dev/recluse/sandbox"
)

func TestMain(m *testing.M) { os.Exit(remotetest.Main(m)) }

const (
	tokenID     = "ak-0123456789abcdef"
	tokenSecret = "as-0123456789abcdef0123456789abcdef"
)

// service speaks the protocol of Modal, from the descriptors of its SDK. Its sandboxes are those of gVisor.
type service struct {
	pb.UnimplementedModalClientServer

	backend sandbox.Backend
	address string

	revoked                atomic.Bool
	faults                 atomic.Pointer[remotetest.Faults]
	creates, uploads, lost atomic.Int64

	mu    sync.Mutex
	boxes []*box // guarded by mu
}

// inside is the service's server for the inside of sandboxes.
type inside struct {
	pb.UnimplementedTaskCommandRouterServer
	s *service
}

// box is a sandbox.
type box struct {
	id, task, name string
	tags           []*pb.SandboxTag
	definition     *pb.Sandbox
	created        float64
	sb             *sandbox.Sandbox
	ended          bool
	execs          map[string]*execution
}

// execution is a command in a sandbox.
type execution struct {
	stdout, stderr output
	stdin          *io.PipeWriter
	upload         bool
	done           chan struct{}

	mu     sync.Mutex
	offset uint64 // guarded by mu; of the input
	code   int32  // set before done is closed
}

// maxOutput is how much of a command's output the service keeps.
const maxOutput = 8 << 20

// output is what a command has written last.
type output struct {
	mu      sync.Mutex
	changed sync.Cond
	b       []byte // guarded by mu
	dropped uint64 // guarded by mu; bytes before b
	closed  bool   // guarded by mu
}

// Write implements io.Writer.
func (o *output) Write(b []byte) (int, error) {
	o.mu.Lock()
	defer o.mu.Unlock()
	if o.b = append(o.b, b...); len(o.b) > 2*maxOutput {
		n := len(o.b) - maxOutput
		o.b = append([]byte(nil), o.b[n:]...)
		o.dropped += uint64(n)
	}
	o.changed.Broadcast()
	return len(b), nil
}

func (o *output) close() {
	o.mu.Lock()
	defer o.mu.Unlock()
	o.closed = true
	o.changed.Broadcast()
}

// from waits for output after an offset, and returns it with its own offset.
func (o *output) from(ctx context.Context, offset uint64) ([]byte, uint64) {
	defer context.AfterFunc(ctx, func() {
		o.mu.Lock()
		defer o.mu.Unlock()
		o.changed.Broadcast()
	})()
	o.mu.Lock()
	defer o.mu.Unlock()
	end := func() uint64 { return o.dropped + uint64(len(o.b)) }
	for offset >= end() && !o.closed && ctx.Err() == nil {
		o.changed.Wait()
	}
	const most = 256 << 10
	from := max(offset, o.dropped)
	if from >= end() {
		return nil, from
	}
	return o.b[from-o.dropped : min(from+most, end())-o.dropped], from
}

func newService(t *testing.T) *service {
	s := &service{backend: remotetest.GVisor(t)}
	s.faults.Store(&remotetest.Faults{})
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	s.address = "http://" + listener.Addr().String()
	server := grpc.NewServer(grpc.UnaryInterceptor(func(
		ctx context.Context, in any, info *grpc.UnaryServerInfo, next grpc.UnaryHandler,
	) (any, error) {
		if err := s.admit(ctx, info.FullMethod); err != nil {
			return nil, err
		}
		return next(ctx, in)
	}), grpc.StreamInterceptor(func(srv any, st grpc.ServerStream, info *grpc.StreamServerInfo, next grpc.StreamHandler) error {
		if err := s.admit(st.Context(), info.FullMethod); err != nil {
			return err
		}
		return next(srv, st)
	}))
	pb.RegisterModalClientServer(server, s)
	pb.RegisterTaskCommandRouterServer(server, inside{s: s})
	var wg sync.WaitGroup
	wg.Go(func() { _ = server.Serve(listener) })
	t.Cleanup(func() {
		s.Forget(t)
		server.Stop()
		wg.Wait()
	})
	return s
}

// admit checks what identifies the caller.
func (s *service) admit(ctx context.Context, method string) error {
	md, _ := metadata.FromIncomingContext(ctx)
	has := func(k, v string) bool { return slices.Equal(slices.Compact(md.Get(k)), []string{v}) } // the SDK repeats some
	ok := has("x-modal-token-id", tokenID) && has("x-modal-token-secret", tokenSecret)
	if strings.Contains(method, "TaskCommandRouter") {
		ok = has("authorization", "Bearer "+jwt())
	}
	if !ok || s.revoked.Load() {
		return status.Error(codes.Unauthenticated, "the token is not valid")
	}
	return nil
}

// jwt returns a token in the form that the SDK reads.
func jwt() string {
	payload := fmt.Sprintf(`{"exp":%d}`, 4_000_000_000)
	return "e30." + base64.RawURLEncoding.EncodeToString([]byte(payload)) + ".e30"
}

// router returns the address of the command router, through the link that the caller uses.
func router(ctx context.Context) string {
	md, _ := metadata.FromIncomingContext(ctx)
	return "https://" + strings.Join(md.Get(":authority"), "")
}

// Address implements remotetest.Service.
func (s *service) Address() string { return s.address }

// SetFaults implements remotetest.Service.
func (s *service) SetFaults(f remotetest.Faults) { s.faults.Store(&f) }

// Revoke implements remotetest.Service.
func (s *service) Revoke(revoked bool) { s.revoked.Store(revoked) }

// Creates implements remotetest.Service.
func (s *service) Creates() int64 { return s.creates.Load() }

// Uploads implements remotetest.Service.
func (s *service) Uploads() int64 { return s.uploads.Load() }

// Lost implements remotetest.Service.
func (s *service) Lost() int64 { return s.lost.Load() }

// Running implements remotetest.Service.
func (s *service) Running(*testing.T) (ids []string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, b := range s.boxes {
		if !b.ended {
			ids = append(ids, b.id)
		}
	}
	return ids
}

// Forget implements remotetest.Service.
func (s *service) Forget(t *testing.T) {
	for _, id := range s.Running(t) {
		if err := s.end(id); err != nil {
			t.Error(err)
		}
	}
}

func (s *service) end(id string) error {
	b := s.find(func(b *box) bool { return b.id == id && !b.ended })
	if b == nil {
		return nil
	}
	s.mu.Lock()
	b.ended = true
	s.mu.Unlock()
	return b.sb.Close()
}

func (s *service) find(f func(*box) bool) *box {
	s.mu.Lock()
	defer s.mu.Unlock()
	if i := slices.IndexFunc(s.boxes, f); i >= 0 {
		return s.boxes[i]
	}
	return nil
}

var errNotFound = status.Error(codes.NotFound, "not found")

func (s *service) box(id string) (*box, error) {
	if b := s.find(func(b *box) bool { return b.id == id }); b != nil {
		return b, nil
	}
	return nil, errNotFound
}

// AuthTokenGet implements pb.ModalClientServer.
func (s *service) AuthTokenGet(context.Context, *pb.AuthTokenGetRequest) (*pb.AuthTokenGetResponse, error) {
	return pb.AuthTokenGetResponse_builder{Token: jwt()}.Build(), nil
}

// AppGetOrCreate implements pb.ModalClientServer.
func (s *service) AppGetOrCreate(context.Context, *pb.AppGetOrCreateRequest) (*pb.AppGetOrCreateResponse, error) {
	return pb.AppGetOrCreateResponse_builder{AppId: "ap-1"}.Build(), nil
}

// EnvironmentGetOrCreate implements pb.ModalClientServer.
func (s *service) EnvironmentGetOrCreate(
	context.Context, *pb.EnvironmentGetOrCreateRequest,
) (*pb.EnvironmentGetOrCreateResponse, error) {
	return pb.EnvironmentGetOrCreateResponse_builder{EnvironmentId: "en-1", Metadata: pb.EnvironmentMetadata_builder{
		Name: "main", Settings: pb.EnvironmentSettings_builder{ImageBuilderVersion: "2025.06"}.Build(),
	}.Build()}.Build(), nil
}

// ImageGetOrCreate implements pb.ModalClientServer.
func (s *service) ImageGetOrCreate(_ context.Context, in *pb.ImageGetOrCreateRequest) (*pb.ImageGetOrCreateResponse, error) {
	id := "im-" + base64.RawURLEncoding.EncodeToString([]byte(strings.Join(in.GetImage().GetDockerfileCommands(), "\n")))
	return pb.ImageGetOrCreateResponse_builder{ImageId: id, Result: pb.GenericResult_builder{
		Status: pb.GenericResult_GENERIC_STATUS_SUCCESS,
	}.Build()}.Build(), nil
}

// statuses are those of the service that mean an HTTP status.
var statuses = map[int]codes.Code{
	http.StatusPaymentRequired:     codes.FailedPrecondition,
	http.StatusTooManyRequests:     codes.ResourceExhausted,
	http.StatusInternalServerError: codes.Internal,
	http.StatusBadGateway:          codes.Unavailable,
	http.StatusUnauthorized:        codes.Unauthenticated,
}

// SandboxCreateV2 implements pb.ModalClientServer.
func (s *service) SandboxCreateV2(ctx context.Context, in *pb.SandboxCreateV2Request) (*pb.SandboxCreateV2Response, error) {
	s.creates.Add(1)
	f := s.faults.Load()
	if f.Status != 0 {
		return nil, status.Error(statuses[f.Status], "no, "+tokenSecret)
	}
	name := in.GetDefinition().GetName()
	b := s.find(func(b *box) bool { return b.name == name && !b.ended })
	if s.lost.Load() >= f.Lost && b != nil {
		return nil, status.Error(codes.AlreadyExists, "the name is taken")
	}
	if b == nil {
		sb, err := sandbox.Open(context.WithoutCancel(ctx), s.backend, sandbox.Spec{
			Limits: sandbox.Limits{Memory: 1 << 30, Processes: 1024},
		})
		if err != nil {
			return nil, status.Error(codes.Internal, err.Error())
		}
		s.mu.Lock()
		n := strconv.Itoa(len(s.boxes))
		b = &box{
			id: "sb-v2-" + n, task: "ta-" + n, name: name, tags: in.GetTags(), definition: in.GetDefinition(),
			created: float64(len(s.boxes) + 1), sb: sb, execs: map[string]*execution{},
		}
		s.boxes = append(s.boxes, b)
		s.mu.Unlock()
	}
	if s.lost.Load() < f.Lost {
		s.lost.Add(1)
		return nil, status.Error(codes.Unavailable, "the connection broke")
	}
	return pb.SandboxCreateV2Response_builder{
		SandboxId: b.id, TaskId: b.task,
		CommandRouterAccess: pb.CommandRouterAccess_builder{Jwt: jwt(), Url: router(ctx)}.Build(),
	}.Build(), nil
}

// SandboxGetFromNameV2 implements pb.ModalClientServer.
func (s *service) SandboxGetFromNameV2(
	_ context.Context, in *pb.SandboxGetFromNameRequest,
) (*pb.SandboxGetFromNameResponse, error) {
	b := s.find(func(b *box) bool { return b.name == in.GetSandboxName() && !b.ended })
	if b == nil {
		return nil, errNotFound
	}
	return pb.SandboxGetFromNameResponse_builder{SandboxId: b.id}.Build(), nil
}

// SandboxGetTaskIdV2 implements pb.ModalClientServer.
func (s *service) SandboxGetTaskIdV2(_ context.Context, in *pb.SandboxGetTaskIdRequest) (*pb.SandboxGetTaskIdResponse, error) {
	b, err := s.box(in.GetSandboxId())
	if err != nil {
		return nil, err
	}
	return pb.SandboxGetTaskIdResponse_builder{TaskId: &b.task}.Build(), nil
}

// SandboxGetCommandRouterAccess implements pb.ModalClientServer.
func (s *service) SandboxGetCommandRouterAccess(
	ctx context.Context, in *pb.SandboxGetCommandRouterAccessRequest,
) (*pb.SandboxGetCommandRouterAccessResponse, error) {
	if _, err := s.box(in.GetSandboxId()); err != nil {
		return nil, err
	}
	return pb.SandboxGetCommandRouterAccessResponse_builder{Jwt: jwt(), Url: router(ctx)}.Build(), nil
}

// SandboxListV2 implements pb.ModalClientServer. It has one sandbox per page.
func (s *service) SandboxListV2(_ context.Context, in *pb.SandboxListRequest) (*pb.SandboxListResponse, error) {
	b := s.find(func(b *box) bool {
		all := tags(b.tags)
		for k, v := range tags(in.GetTags()) {
			if all[k] != v {
				return false
			}
		}
		return !b.ended && b.created > in.GetBeforeTimestamp() // from old to new, which is the same to the SDK
	})
	var out []*pb.SandboxInfo
	if b != nil {
		out = append(out, pb.SandboxInfo_builder{Id: b.id, CreatedAt: b.created}.Build())
	}
	return pb.SandboxListResponse_builder{Sandboxes: out}.Build(), nil
}

func tags(all []*pb.SandboxTag) map[string]string {
	return maps.Collect(func(yield func(string, string) bool) {
		for _, t := range all {
			if !yield(t.GetTagName(), t.GetTagValue()) {
				return
			}
		}
	})
}

// SandboxTagsGetV2 implements pb.ModalClientServer.
func (s *service) SandboxTagsGetV2(_ context.Context, in *pb.SandboxTagsGetRequest) (*pb.SandboxTagsGetResponse, error) {
	b, err := s.box(in.GetSandboxId())
	if err != nil {
		return nil, err
	}
	return pb.SandboxTagsGetResponse_builder{Tags: b.tags}.Build(), nil
}

// SandboxTerminateV2 implements pb.ModalClientServer.
func (s *service) SandboxTerminateV2(_ context.Context, in *pb.SandboxTerminateRequest) (*pb.SandboxTerminateResponse, error) {
	if err := s.end(in.GetSandboxId()); err != nil {
		return nil, status.Error(codes.Internal, err.Error())
	}
	return &pb.SandboxTerminateResponse{}, nil
}

// SandboxWaitV2 implements pb.ModalClientServer.
func (s *service) SandboxWaitV2(_ context.Context, in *pb.SandboxWaitRequest) (*pb.SandboxWaitResponse, error) {
	b, err := s.box(in.GetSandboxId())
	if err != nil {
		return nil, err
	}
	out := pb.SandboxWaitResponse_builder{}
	if s.mu.Lock(); b.ended {
		out.Result = pb.GenericResult_builder{Status: pb.GenericResult_GENERIC_STATUS_TERMINATED}.Build()
	}
	s.mu.Unlock()
	return out.Build(), nil
}

// TaskExecStart implements pb.TaskCommandRouterServer.
func (i inside) TaskExecStart(_ context.Context, in *pb.TaskExecStartRequest) (*pb.TaskExecStartResponse, error) {
	b := i.s.find(func(b *box) bool { return b.task == in.GetTaskId() && !b.ended })
	if b == nil {
		return nil, errNotFound
	}
	r, w := io.Pipe()
	e := &execution{stdin: w, done: make(chan struct{})}
	e.stdout.changed.L, e.stderr.changed.L = &e.stdout.mu, &e.stderr.mu
	if e.upload = strings.Contains(strings.Join(in.GetCommandArgs(), " "), `cat >"$0"`); e.upload {
		i.s.uploads.Add(1)
	}
	i.s.mu.Lock()
	old := b.execs[in.GetExecId()]
	if old == nil {
		b.execs[in.GetExecId()] = e
	}
	i.s.mu.Unlock()
	if old != nil {
		return &pb.TaskExecStartResponse{}, nil
	}
	go func() {
		v, err := b.sb.Run(context.Background(), sandbox.Command{Args: in.GetCommandArgs(), RunOptions: sandbox.RunOptions{
			Stdin: r, Stdout: &e.stdout, Stderr: &e.stderr, Timeout: v1.NoLimit,
		}})
		_ = r.Close()
		e.code = 1
		if err == nil {
			e.code = int32(v.ExitCode)
		}
		e.stdout.close()
		e.stderr.close()
		close(e.done)
	}()
	return &pb.TaskExecStartResponse{}, nil
}

func (s *service) execution(task, id string) (*execution, error) {
	b := s.find(func(b *box) bool { return b.task == task && !b.ended })
	if b == nil {
		return nil, errNotFound
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if e := b.execs[id]; e != nil {
		return e, nil
	}
	return nil, errNotFound
}

// TaskExecStdinWrite implements pb.TaskCommandRouterServer.
func (i inside) TaskExecStdinWrite(
	_ context.Context, in *pb.TaskExecStdinWriteRequest,
) (*pb.TaskExecStdinWriteResponse, error) {
	e, err := i.s.execution(in.GetTaskId(), in.GetExecId())
	if err != nil {
		return nil, err
	}
	e.mu.Lock()
	defer e.mu.Unlock()
	data := in.GetData()
	if known := e.offset - in.GetOffset(); known < uint64(len(data)) || in.GetEof() {
		data = data[min(known, uint64(len(data))):] // the rest repeats an earlier request
		if i.s.faults.Load().Half && e.offset > 0 {
			data = make([]byte, len(data))
		}
		e.offset += uint64(len(data))
		if _, err := e.stdin.Write(data); err != nil {
			return nil, status.Error(codes.FailedPrecondition, "the input is closed")
		}
	}
	if in.GetEof() {
		_ = e.stdin.Close()
	}
	return &pb.TaskExecStdinWriteResponse{}, nil
}

// TaskExecStdioRead implements pb.TaskCommandRouterServer.
func (i inside) TaskExecStdioRead(
	in *pb.TaskExecStdioReadRequest, st grpc.ServerStreamingServer[pb.TaskExecStdioReadResponse],
) error {
	e, err := i.s.execution(in.GetTaskId(), in.GetExecId())
	if err != nil {
		return err
	}
	o := &e.stdout
	if in.GetFileDescriptor() == pb.TaskExecStdioFileDescriptor_TASK_EXEC_STDIO_FILE_DESCRIPTOR_STDERR {
		o = &e.stderr
	}
	for at := in.GetOffset(); ; {
		b, from := o.from(st.Context(), at)
		if len(b) == 0 {
			return st.Context().Err()
		}
		if err := st.Send(pb.TaskExecStdioReadResponse_builder{Data: b}.Build()); err != nil {
			return err
		}
		at = from + uint64(len(b))
	}
}

// TaskExecWait implements pb.TaskCommandRouterServer.
func (i inside) TaskExecWait(ctx context.Context, in *pb.TaskExecWaitRequest) (*pb.TaskExecWaitResponse, error) {
	e, err := i.s.execution(in.GetTaskId(), in.GetExecId())
	if err != nil {
		return nil, err
	}
	select {
	case <-e.done:
		return pb.TaskExecWaitResponse_builder{Code: &e.code}.Build(), nil
	case <-ctx.Done():
		return nil, ctx.Err()
	}
}

var subject = remotetest.Subject{
	New: func(t *testing.T) remotetest.Service { return newService(t) },
	Open: func(at string, o remoteguest.Options) (remotetest.Backend, error) {
		if err := os.Setenv(envURL, at); err != nil {
			return nil, err
		}
		return New(Options{TokenID: tokenID, TokenSecret: tokenSecret, PriceCPU: 0.14, PriceMemory: 0.02, Remote: o})
	},
	Key: tokenSecret,
}

func TestService(t *testing.T) { subject.Run(t) }

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
	d := s.boxes[0].definition
	r := d.GetResources()
	if r.GetMilliCpu() != 1250 || r.GetMilliCpuMax() != 1250 || r.GetMemoryMb() != 3072 || r.GetMemoryMbMax() != 3072 {
		t.Errorf("%+v", r)
	}
	image, _ := base64.RawURLEncoding.DecodeString(strings.TrimPrefix(d.GetImageId(), "im-"))
	if string(image) != "FROM example.com/data:1" || d.GetTimeoutSecs() != 3600 ||
		d.GetNetworkAccess().GetNetworkAccessType() != pb.NetworkAccess_BLOCKED {
		t.Errorf("%s %+v", image, d)
	}
	if strings.Contains(d.GetName(), sb.ID()) || len(d.GetName()) >= 64 {
		t.Errorf("the name is %s", d.GetName())
	}
	if h := b.Health(t.Context()); !strings.Contains(h.Reason, "$0.24 per hour") { // 1.25 × 0.14 + 3 × 0.02
		t.Error(h.Reason)
	}
}

func TestOneSandboxIsMadeAlthoughAnAnswerIsLost(t *testing.T) {
	s := newService(t)
	s.SetFaults(remotetest.Faults{Lost: 1})
	remotetest.Open(t, subject.Backend(t, s.Address(), nil))
	if n := len(s.Running(t)); n != 1 || s.Lost() != 1 || s.Creates() != 2 {
		t.Errorf("%d sandboxes, %d lost answers, %d requests", n, s.Lost(), s.Creates())
	}
}
