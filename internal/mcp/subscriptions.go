package mcp

import (
	"context"
	"path"
	"sync"
	"time"

	sdk "github.com/modelcontextprotocol/go-sdk/mcp"

	v1 "github.com/recluse-dev/recluse/api/v1"
)

// updateGap is the least time between two notifications about one resource: one that changes all the time is told about no more often.
const updateGap = 500 * time.Millisecond

// subscriptions watch resources for clients.
type subscriptions struct {
	mu      sync.Mutex
	cancels map[subscription]context.CancelFunc // guarded by mu
	closed  bool                                // guarded by mu
	running sync.WaitGroup
}

type subscription struct {
	client *sdk.ServerSession
	uri    string
}

// begin starts watching, until end, close or the end of the client's connection. A second subscription to the same resource changes nothing.
func (s *subscriptions) begin(key subscription, watch func(context.Context)) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.closed || s.cancels[key] != nil {
		return
	}
	ctx, cancel := context.WithCancel(context.Background())
	if s.cancels == nil {
		s.cancels = map[subscription]context.CancelFunc{}
	}
	s.cancels[key] = cancel
	s.running.Go(func() {
		defer s.end(key)
		watch(ctx)
	})
	s.running.Go(func() {
		ended := make(chan struct{})
		go func() {
			_ = key.client.Wait() // however it ended
			close(ended)
		}()
		select {
		case <-ended:
			s.end(key)
		case <-ctx.Done():
		}
	})
}

func (s *subscriptions) end(key subscription) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if cancel := s.cancels[key]; cancel != nil {
		cancel()
		delete(s.cancels, key)
	}
}

// close ends all and waits for them.
func (s *subscriptions) close() {
	s.mu.Lock()
	s.closed = true
	for _, cancel := range s.cancels {
		cancel()
	}
	s.mu.Unlock()
	s.running.Wait()
}

// subscribe has a client told when a file of a session changes, or when something happens in a run.
func (f *face) subscribe(ctx context.Context, req *sdk.SubscribeRequest) error {
	uri := req.Params.URI
	l, err := f.link(req.Extra, req.Session)
	if err != nil {
		return told(err)
	}
	var watch func(context.Context, func()) // calls the function at each change
	if name, file, ok := fileOf(uri); ok {
		if _, _, err := l.client.Get(ctx, name); err != nil {
			return sdk.ResourceNotFoundError(uri)
		}
		watch = func(ctx context.Context, changed func()) {
			dir, base := path.Split(file) // the file itself may be replaced by another
			_ = l.client.Session(name).Files().Watch(ctx, dir, v1.WatchOptions{}, func(e v1.FileEvent) error {
				if e.Op == "overflow" || path.Base(e.Path) == base || path.Base(e.From) == base {
					changed()
				}
				return nil
			}) // it ends with the session, which needs no telling
		}
	} else if id, ok := runOf(uri); ok {
		if _, err := l.client.Run(ctx, id); err != nil {
			return sdk.ResourceNotFoundError(uri)
		}
		watch = func(ctx context.Context, changed func()) {
			for _, err := range l.client.RunEvents(ctx, id, 0) {
				if err != nil {
					return
				}
				changed()
			}
		}
	} else {
		return sdk.ResourceNotFoundError(uri)
	}
	f.subscriptions.begin(subscription{req.Session, uri}, func(ctx context.Context) {
		changes := make(chan struct{}, 1)
		go func() {
			defer close(changes)
			watch(ctx, func() {
				select {
				case changes <- struct{}{}:
				default: // one is waiting to be told already
				}
			})
		}()
		for range changes {
			if f.server.ResourceUpdated(ctx, &sdk.ResourceUpdatedNotificationParams{URI: uri}) != nil {
				return
			}
			select {
			case <-ctx.Done():
			case <-time.After(updateGap):
			}
		}
	})
	return nil
}

func (f *face) unsubscribe(_ context.Context, req *sdk.UnsubscribeRequest) error {
	f.subscriptions.end(subscription{req.Session, req.Params.URI})
	return nil
}
