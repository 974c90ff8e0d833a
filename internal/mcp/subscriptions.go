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
	// updateGap is the least time between two notifications about one resource, however often it changes.
	updateGap = 500 * time.Millisecond
	// awakePoll is the time between two looks at a session that is not awake.
	awakePoll = 2 * time.Second
)

// subscriptions watch resources for clients.
type subscriptions struct {
	mu      sync.Mutex
	all     map[subscription]*watcher   // guarded by mu
	clients map[*sdk.ServerSession]bool // guarded by mu; whose end is waited for
	closed  bool                        // guarded by mu
	running sync.WaitGroup
}

type subscription struct {
	client *sdk.ServerSession
	uri    string
}

// watcher is what a subscription has running.
type watcher struct {
	cancel context.CancelFunc
	ready  chan struct{} // closed once changes are seen, or cannot be
	once   sync.Once
	err    error // why they cannot be seen; set before ready is closed
}

// settle reports that changes are seen from now on, or why they cannot be. Only the first call counts.
func (w *watcher) settle(err error) {
	w.once.Do(func() {
		w.err = err
		close(w.ready)
	})
}

// begin starts watching until end, close or the end of the client's connection, and returns once changes are seen. A second
// subscription to the same resource changes nothing. watch calls its function as soon as it sees changes.
func (s *subscriptions) begin(ctx context.Context, key subscription, watch func(ctx context.Context, ready func()) error) error {
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

// add returns the watcher of a subscription; nil after close.
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
		w.settle(watch(ctx, func() { w.settle(nil) }))
	})
	if !s.clients[key.client] {
		s.clients[key.client] = true
		go func() { // not in running: close does not wait for connections to end
			_ = key.client.Wait() // however it ended
			s.leave(key.client)
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

// remove ends a watcher. The subscription may have another one by now, which stays.
func (s *subscriptions) remove(key subscription, w *watcher) {
	w.cancel()
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.all[key] == w {
		delete(s.all, key)
	}
}

// leave ends all subscriptions of a client.
func (s *subscriptions) leave(client *sdk.ServerSession) {
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

// close ends all and waits for them.
func (s *subscriptions) close() {
	s.mu.Lock()
	s.closed = true
	for _, w := range s.all {
		w.cancel()
	}
	s.mu.Unlock()
	s.running.Wait()
}

// subscriberKey is where the metadata of a notification names the one client that it is for, within this process.
const subscriberKey = "recluse/subscriber"

// addressed drops a notification for another client. Server.ResourceUpdated sends to every client that has subscribed to the URI,
// but each client has a watcher of its own, and two tenants may have sessions of the same name.
func addressed(next sdk.MethodHandler) sdk.MethodHandler {
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
		out.Meta = maps.Clone(p.Meta) // the next client's notification has the same one
		delete(out.Meta, subscriberKey)
		return next(ctx, method, &sdk.ServerRequest[*sdk.ResourceUpdatedNotificationParams]{Session: client, Params: &out})
	}
}

// subscribe has a client told when a file of a session changes, or when something happens in a run.
func (f *face) subscribe(ctx context.Context, req *sdk.SubscribeRequest) error {
	uri := req.Params.URI
	l, err := f.link(req.Extra, req.Session)
	if err != nil {
		return told(err)
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
			ready() // the events from the first on are sent
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
	err = f.subscriptions.begin(ctx, subscription{req.Session, uri}, func(ctx context.Context, ready func()) error {
		changes := make(chan struct{}, 1)
		ended := make(chan error, 1)
		go func() {
			defer close(changes)
			ended <- watch(ctx, ready, func() {
				select {
				case changes <- struct{}{}:
				default: // one is waiting to be told already
				}
			})
		}()
		for range changes {
			f.notify(ctx, req.Session, uri)
		}
		return <-ended
	})
	if v1.CodeOf(err) == v1.CodeFileNotFound || absent(err) {
		return sdk.ResourceNotFoundError(uri)
	}
	if err != nil {
		return told(err)
	}
	return nil
}

// notify tells one client that a resource has changed, and waits until it may be told again.
func (f *face) notify(ctx context.Context, client *sdk.ServerSession, uri string) {
	p := &sdk.ResourceUpdatedNotificationParams{Meta: sdk.Meta{subscriberKey: client}, URI: uri}
	_ = f.server.ResourceUpdated(ctx, p) // it has logged what it could not send
	select {
	case <-ctx.Done():
	case <-time.After(updateGap):
	}
}

// watchFile watches a file until its session ends. Watching keeps no session awake and ends when the session is put to sleep or
// restored; to watch a sleeping one would wake it, so it goes on once something else has done so.
func (l *link) watchFile(ctx context.Context, name, file string, ready, changed func()) error {
	dir, base := path.Split(file) // the file itself may be replaced by another
	for again := false; ; again = true {
		err := l.client.Session(name).Files().Watch(ctx, dir, v1.WatchOptions{}, func(e v1.FileEvent) error {
			switch {
			case e.Op == "ready" && !again:
				ready()
			case e.Op == "ready", e.Op == "overflow", path.Base(e.Path) == base, path.Base(e.From) == base:
				changed() // perhaps, if it was not watched meanwhile
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
		case <-time.After(awakePoll):
		}
		_, s, err := l.client.Get(ctx, name)
		if err != nil || s.State == v1.StateReady || s.State == v1.StateExecuting {
			return err
		}
	}
}

func (f *face) unsubscribe(_ context.Context, req *sdk.UnsubscribeRequest) error {
	f.subscriptions.end(subscription{req.Session, req.Params.URI})
	return nil
}
