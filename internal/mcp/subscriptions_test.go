package mcp

import (
	"context"
	"sync/atomic"
	"testing"

	sdk "github.com/modelcontextprotocol/go-sdk/mcp"

	"github.com/recluse-dev/recluse/internal/testneed"
)

const legacy = "2025-11-25" // last version of the protocol with MCP sessions

// inMemory connects a client of one version of the protocol to a server.
func inMemory(t *testing.T, s *sdk.Server, o *sdk.ClientOptions, version string) (*sdk.ServerSession, *sdk.ClientSession) {
	t.Helper()
	ours, theirs := sdk.NewInMemoryTransports()
	server, err := s.Connect(t.Context(), ours, nil)
	if err != nil {
		t.Fatal(err)
	}
	client, err := sdk.NewClient(&sdk.Implementation{Name: "test", Version: "1"}, o).
		Connect(t.Context(), theirs, &sdk.ClientSessionOptions{ProtocolVersion: version})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = client.Close() })
	return server, client
}

func TestOnlyOneSubscriberIsNotified(t *testing.T) {
	const uri = "recluse://sessions/work/files/a"
	s := sdk.NewServer(&sdk.Implementation{Name: "test", Version: "1"}, &sdk.ServerOptions{
		Capabilities:       &sdk.ServerCapabilities{Resources: &sdk.ResourceCapabilities{Subscribe: true}},
		SubscribeHandler:   func(context.Context, *sdk.SubscribeRequest) error { return nil },
		UnsubscribeHandler: func(context.Context, *sdk.UnsubscribeRequest) error { return nil },
	})
	s.AddSendingMiddleware(dropMisaddressed)
	f := &mcpServer{server: s}
	var counts [2]atomic.Int32
	var servers [2]*sdk.ServerSession
	var clients [2]*sdk.ClientSession
	for i := range clients {
		servers[i], clients[i] = inMemory(t, s, &sdk.ClientOptions{
			ResourceUpdatedHandler: func(_ context.Context, r *sdk.ResourceUpdatedNotificationRequest) {
				if r.Params.URI != uri || r.Params.Meta[subscriberKey] != nil {
					t.Errorf("%+v", r.Params)
				}
				counts[i].Add(1)
			},
		}, legacy)
		if err := clients[i].Subscribe(t.Context(), &sdk.SubscribeParams{URI: uri}); err != nil {
			t.Fatal(err)
		}
	}
	for i := range clients {
		f.notify(t.Context(), servers[i], uri)
		testneed.Await(t, "the client is notified", func() bool { return counts[i].Load() > 0 })
	}
	for i, c := range clients {
		if err := c.Ping(t.Context(), nil); err != nil {
			t.Fatal(err)
		}
		if n := counts[i].Load(); n != 1 {
			t.Errorf("client %d was notified %d times", i, n)
		}
	}
}

func TestASubscriptionOutlivesAnEarlierOne(t *testing.T) {
	s := sdk.NewServer(&sdk.Implementation{Name: "test", Version: "1"}, nil)
	server, client := inMemory(t, s, nil, legacy)
	var subs subscriptions
	defer subs.close()
	key := subscription{server, "a"}
	slow, first := make(chan struct{}), make(chan struct{})
	err := subs.begin(t.Context(), key, func(ctx context.Context, ready func()) error {
		defer close(first)
		ready()
		<-ctx.Done()
		<-slow
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	subs.mu.Lock()
	earlier := subs.all[key]
	subs.mu.Unlock()
	subs.end(key)
	ended := make(chan struct{})
	err = subs.begin(t.Context(), key, func(ctx context.Context, ready func()) error {
		defer close(ended)
		ready()
		<-ctx.Done()
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	close(slow)
	<-first
	subs.remove(key, earlier) // as the goroutine of the first watcher does
	select {
	case <-ended:
		t.Fatal("the end of the first watcher ended the second")
	default:
	}
	if err := client.Close(); err != nil {
		t.Fatal(err)
	}
	testneed.Await(t, "the subscription ends with its client", func() bool {
		select {
		case <-ended:
			return true
		default:
			return false
		}
	})
}
