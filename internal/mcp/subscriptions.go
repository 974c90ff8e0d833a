package mcp

import (
	"context"
	"maps"
	"path"
	"sync"
	"time"

	sdk "github.com/modelcontextprotocol/go-sdk/mcp"

	v1 "github.com/recluse-dev/recluse/api/v1"
)

const (
	// minUpdateInterval is the shortest time between two notifications about one resource.
	minUpdateInterval = 500 * time.Millisecond
	// awakePollInterval is the time between two checks of a session that is not awake.
	awakePollInterval = 2 * time.Second
)

// subscriptions are the subscriptions of all clients to resources.
type subscriptions struct {
	mu      sync.Mutex
	all     map[subscription]*watcher   // guarded by mu
	clients map[*sdk.ServerSession]bool // guarded by mu; clients with a goroutine that waits for their end
	closed  bool                        // guarded by mu
	running sync.WaitGroup
}

type subscription struct {
	client *sdk.ServerSession
	uri    string
}

// watcher watches the resource of one subscription.
type watcher struct {
	cancel context.CancelFunc
	ready  chan struct{} // closed when the watcher sees changes, or has failed
	once   sync.Once
	err    error // why the watcher failed; set before ready is closed
}

// markReady reports that the watcher sees changes from now on, or why it failed. Only the first call has an effect.
func (w *watcher) markReady(err error) {
	w.once.Do(func() {
		w.err = err
		close(w.ready)
	})
}

// begin starts a watcher that runs until end, close or the end of the client's connection. It returns when the watcher
// sees changes. A second subscription to the same resource changes nothing. watch calls ready as soon as it sees
// changes.
func (s *subscriptions) begin(
	ctx context.Context,
	key subscription,
	watch func(ctx context.Context, ready func()) error,
) error {
	w := s.add(key, watch)
	if w == nil {
		return context.Canceled
	}
	select {
	case <-w.ready:
		return w.err
	case <-ctx.Done():
		s.remove(key, w)
		return ctx.Err()
	}
}

// add returns the watcher of a subscription, and starts it if there is none. After close, it returns nil.
func (s *subscriptions) add(key subscription, watch func(ctx context.Context, ready func()) error) *watcher {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.closed {
		return nil
	}
	if w := s.all[key]; w != nil {
		return w
	}
	if s.all == nil {
		s.all, s.clients = map[subscription]*watcher{}, map[*sdk.ServerSession]bool{}
	}
	ctx, cancel := context.WithCancel(context.Background())
	w := &watcher{cancel: cancel, ready: make(chan struct{})}
	s.all[key] = w
	s.running.Go(func() {
		defer s.remove(key, w)
		w.markReady(watch(ctx, func() { w.markReady(nil) }))
	})
	if !s.clients[key.client] {
		s.clients[key.client] = true
		go func() { // not in running: close does not wait for connections to end
			_ = key.client.Wait() // however it ended
			s.removeClient(key.client)
		}()
	}
	return w
}

// end ends a subscription, if there is one.
func (s *subscriptions) end(key subscription) {
	s.mu.Lock()
	w := s.all[key]
	s.mu.Unlock()
	if w != nil {
		s.remove(key, w)
	}
}

// remove ends a watcher. If the subscription has a newer watcher, that one stays.
func (s *subscriptions) remove(key subscription, w *watcher) {
	w.cancel()
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.all[key] == w {
		delete(s.all, key)
	}
}

// removeClient ends all subscriptions of a client.
func (s *subscriptions) removeClient(client *sdk.ServerSession) {
	s.mu.Lock()
	defer s.mu.Unlock()
	delete(s.clients, client)
	for key, w := range s.all {
		if key.client == client {
			w.cancel()
			delete(s.all, key)
		}
	}
}

// close ends all subscriptions and waits for their watchers.
func (s *subscriptions) close() {
	s.mu.Lock()
	s.closed = true
	for _, w := range s.all {
		w.cancel()
	}
	s.mu.Unlock()
	s.running.Wait()
}

// subscriberKey is the key of the metadata of a notification that holds its client. It is used only within this
// process.
const subscriberKey = "recluse/subscriber"

// dropMisaddressed is a middleware that drops notifications for other clients. Server.ResourceUpdated sends to every
// client that has subscribed to the URI, but each client has its own watcher, and two tenants may have sessions of the
// same name.
func dropMisaddressed(next sdk.MethodHandler) sdk.MethodHandler {
	return func(ctx context.Context, method string, req sdk.Request) (sdk.Result, error) {
		p, ok := req.GetParams().(*sdk.ResourceUpdatedNotificationParams)
		if !ok {
			return next(ctx, method, req)
		}
		client, ok := req.GetSession().(*sdk.ServerSession)
		if !ok || p.Meta[subscriberKey] != client {
			return nil, nil
		}
		out := *p
		out.Meta = maps.Clone(p.Meta) // the notifications of all clients share the map
		delete(out.Meta, subscriberKey)
		return next(ctx, method, &sdk.ServerRequest[*sdk.ResourceUpdatedNotificationParams]{Session: client, Params: &out})
	}
}

// subscribe notifies a client when a file of a session changes, or when a run has new events.
func (srv *mcpServer) subscribe(ctx context.Context, req *sdk.SubscribeRequest) error {
	uri := req.Params.URI
	l, err := srv.link(req.Extra, req.Session)
	if err != nil {
		return forModel(err)
	}
	var watch func(ctx context.Context, ready, changed func()) error
	if name, file, ok := fileOf(uri); ok {
		if _, _, err := l.client.Get(ctx, name); err != nil {
			return sdk.ResourceNotFoundError(uri)
		}
		watch = func(ctx context.Context, ready, changed func()) error {
			return l.watchFile(ctx, name, file, ready, changed)
		}
	} else if id, ok := runOf(uri); ok {
		if _, err := l.client.Run(ctx, id); err != nil {
			return sdk.ResourceNotFoundError(uri)
		}
		watch = func(ctx context.Context, ready, changed func()) error {
			ready() // RunEvents sends all events from the first
			for _, err := range l.client.RunEvents(ctx, id, 0) {
				if err != nil {
					return err
				}
				changed()
			}
			return nil
		}
	} else {
		return sdk.ResourceNotFoundError(uri)
	}
	err = srv.subscriptions.begin(ctx, subscription{req.Session, uri}, func(ctx context.Context, ready func()) error {
		changes := make(chan struct{}, 1)
		ended := make(chan error, 1)
		go func() {
			defer close(changes)
			ended <- watch(ctx, ready, func() {
				select {
				case changes <- struct{}{}:
				default: // a notification is pending already
				}
			})
		}()
		for range changes {
			srv.notify(ctx, req.Session, uri)
		}
		return <-ended
	})
	if v1.CodeOf(err) == v1.CodeFileNotFound || sessionGone(err) {
		return sdk.ResourceNotFoundError(uri)
	}
	if err != nil {
		return forModel(err)
	}
	return nil
}

// notify sends a client the notification that a resource has changed, and waits for minUpdateInterval.
func (srv *mcpServer) notify(ctx context.Context, client *sdk.ServerSession, uri string) {
	p := &sdk.ResourceUpdatedNotificationParams{Meta: sdk.Meta{subscriberKey: client}, URI: uri}
	_ = srv.server.ResourceUpdated(ctx, p) // ResourceUpdated logs errors
	select {
	case <-ctx.Done():
	case <-time.After(minUpdateInterval):
	}
}

// watchFile watches a file until its session ends. Watching does not keep a session awake, and it stops when the
// session hibernates or is restored. A new watch would wake a hibernated session, so watchFile waits until another call
// has woken it.
func (l *link) watchFile(ctx context.Context, name, file string, ready, changed func()) error {
	dir, base := path.Split(file) // watches the directory, because the file may be replaced
	for again := false; ; again = true {
		err := l.client.Session(name).Files().Watch(ctx, dir, v1.WatchOptions{}, func(e v1.FileEvent) error {
			switch {
			case e.Op == "ready" && !again:
				ready()
			case e.Op == "ready", e.Op == "overflow", path.Base(e.Path) == base, path.Base(e.From) == base:
				changed() // after a gap in the watch, the file may have changed
			}
			return nil
		})
		if v1.CodeOf(err) != v1.CodeSessionMoved {
			return err
		}
		if err := l.awaitAwake(ctx, name); err != nil {
			return err
		}
	}
}

// awaitAwake waits until a session is awake, without waking it.
func (l *link) awaitAwake(ctx context.Context, name string) error {
	for {
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-time.After(awakePollInterval):
		}
		_, s, err := l.client.Get(ctx, name)
		if err != nil || s.State == v1.StateReady || s.State == v1.StateExecuting {
			return err
		}
	}
}

func (srv *mcpServer) unsubscribe(_ context.Context, req *sdk.UnsubscribeRequest) error {
	srv.subscriptions.end(subscription{req.Session, req.Params.URI})
	return nil
}
