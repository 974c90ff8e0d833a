package e2b

import (
	"context"
	"net/http"
	"slices"
	"testing"

	"connectrpc.com/connect"

	"github.com/recluse-dev/recluse/internal/e2b/wire"
	"github.com/recluse-dev/recluse/internal/testneed"
)

// rpc makes a call in binary form over HTTP/2.
func rpc[In, Out any](t *testing.T, s *testServer, client *http.Client, a access, procedure string, in *In) (*Out, error) {
	t.Helper()
	r := connect.NewRequest(in)
	for name, value := range headersOf(a) {
		r.Header().Set(name, value)
	}
	out, err := connect.NewClient[In, Out](client, s.vars["E2B_SANDBOX_URL"]+procedure).CallUnary(t.Context(), r)
	if err != nil {
		return nil, err
	}
	return out.Msg, nil
}

func headersOf(a access) map[string]string {
	return map[string]string{"E2b-Sandbox-Id": a.Sandbox, "E2b-Sandbox-Port": "49983", "X-Access-Token": a.Token}
}

func TestBinaryCallsOverHTTP2(t *testing.T) {
	t.Parallel()
	testneed.All(t, thisOne)
	s := serve(t)
	a := s.create(s.vars["E2B_API_KEY"], `{"timeout":300}`)
	transport := &http.Transport{Protocols: new(http.Protocols)}
	transport.Protocols.SetUnencryptedHTTP2(true)
	defer transport.CloseIdleConnections()
	client := &http.Client{Transport: transport}

	// Watchers that are asked for their events, as the SDK for Python does.
	const files = "/filesystem.Filesystem/"
	w, err := rpc[wire.CreateWatcherRequest, wire.CreateWatcherResponse](t, s, client, a, files+"CreateWatcher", &wire.CreateWatcherRequest{Path: "/tmp"})
	if err != nil {
		t.Fatal(err)
	}
	if _, err := rpc[wire.MakeDirRequest, wire.MakeDirResponse](t, s, client, a, files+"MakeDir", &wire.MakeDirRequest{Path: "/tmp/new"}); err != nil {
		t.Fatal(err)
	}
	testneed.Await(t, "the event", func() bool {
		got, err := rpc[wire.GetWatcherEventsRequest, wire.GetWatcherEventsResponse](t, s, client, a, files+"GetWatcherEvents",
			&wire.GetWatcherEventsRequest{WatcherId: w.WatcherId})
		if err != nil {
			t.Fatal(err)
		}
		return slices.ContainsFunc(got.Events, func(e *wire.FilesystemEvent) bool {
			return e.Name == "new" && e.Type == wire.EventType_EVENT_TYPE_CREATE
		})
	})
	if _, err := rpc[wire.RemoveWatcherRequest, wire.RemoveWatcherResponse](t, s, client, a, files+"RemoveWatcher",
		&wire.RemoveWatcherRequest{WatcherId: w.WatcherId}); err != nil {
		t.Fatal(err)
	}
	_, err = rpc[wire.GetWatcherEventsRequest, wire.GetWatcherEventsResponse](t, s, client, a, files+"GetWatcherEvents",
		&wire.GetWatcherEventsRequest{WatcherId: w.WatcherId})
	if connect.CodeOf(err) != connect.CodeNotFound {
		t.Errorf("a removed watcher: %v", err)
	}

	// A process with a tag, and input as a stream.
	const processes = "/process.Process/"
	tag := "the tag"
	start := connect.NewRequest(&wire.StartRequest{Process: &wire.ProcessConfig{Cmd: "cat"}, Tag: &tag})
	input := connect.NewClient[wire.StreamInputRequest, wire.StreamInputResponse](client, s.vars["E2B_SANDBOX_URL"]+processes+"StreamInput").
		CallClientStream(t.Context())
	for name, value := range headersOf(a) {
		start.Header().Set(name, value)
		input.RequestHeader().Set(name, value)
	}
	out, err := connect.NewClient[wire.StartRequest, wire.StartResponse](client, s.vars["E2B_SANDBOX_URL"]+processes+"Start").
		CallServerStream(t.Context(), start)
	if err != nil {
		t.Fatal(err)
	}
	defer out.Close()
	if !out.Receive() || out.Msg().GetEvent().GetStart().GetPid() == 0 {
		t.Fatalf("%v %v", out.Msg(), out.Err())
	}
	to := &wire.ProcessSelector{Selector: &wire.ProcessSelector_Tag{Tag: tag}}
	if err := input.Send(&wire.StreamInputRequest{Event: &wire.StreamInputRequest_Start{
		Start: &wire.StreamInputRequest_StartEvent{Process: to},
	}}); err != nil {
		t.Fatal(err)
	}
	if err := input.Send(&wire.StreamInputRequest{Event: &wire.StreamInputRequest_Data{Data: &wire.StreamInputRequest_DataEvent{
		Input: &wire.ProcessInput{Input: &wire.ProcessInput_Stdin{Stdin: []byte("streamed")}},
	}}}); err != nil {
		t.Fatal(err)
	}
	if _, err := input.CloseAndReceive(); err != nil {
		t.Fatal(err)
	}
	if !out.Receive() || string(out.Msg().GetEvent().GetData().GetStdout()) != "streamed" {
		t.Fatalf("%v %v", out.Msg(), out.Err())
	}
	if _, err := rpc[wire.SendSignalRequest, wire.SendSignalResponse](t, s, client, a, processes+"SendSignal",
		&wire.SendSignalRequest{Process: to, Signal: wire.Signal_SIGNAL_SIGTERM}); err != nil {
		t.Fatal(err)
	}
	if !out.Receive() || out.Msg().GetEvent().GetEnd().GetStatus() != "signal: terminated" {
		t.Fatalf("%v %v", out.Msg(), out.Err())
	}
	_, err = rpc[wire.StartRequest, wire.StartResponse](t, s, client, a, files+"None", &wire.StartRequest{})
	if connect.CodeOf(err) != connect.CodeUnimplemented {
		t.Errorf("an unknown call: %v", err)
	}

	// A caller that goes away does not kill its process.
	ctx, leave := context.WithCancel(t.Context())
	defer leave()
	kept := connect.NewRequest(&wire.StartRequest{Process: &wire.ProcessConfig{Cmd: "sleep", Args: []string{"1000"}}})
	for name, value := range headersOf(a) {
		kept.Header().Set(name, value)
	}
	gone, err := connect.NewClient[wire.StartRequest, wire.StartResponse](client, s.vars["E2B_SANDBOX_URL"]+processes+"Start").CallServerStream(ctx, kept)
	if err != nil || !gone.Receive() {
		t.Fatalf("%v %v", err, gone.Err())
	}
	leave()
	_ = gone.Close()
	list, err := rpc[wire.ListRequest, wire.ListResponse](t, s, client, a, processes+"List", &wire.ListRequest{})
	if err != nil || len(list.Processes) != 1 || list.Processes[0].Config.Cmd != "sleep" {
		t.Errorf("%v %v", list, err)
	}
}
