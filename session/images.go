package session

import (
	"context"
	"time"

	v1 "github.com/recluse-dev/recluse/api/v1"
	"github.com/recluse-dev/recluse/sandbox"
)

// An image is what a backend has written to disk. Named snapshots and hibernated sessions need images, and several may
// need the same one. An image that nothing needs is removed. Its users are counted in the store each time, so that no
// counter can drift.

// imageRef names an image among those of all backends.
func imageRef(s *sandbox.Snapshot) string { return s.Backend + "/" + s.ID }

// takeImage returns an image of the current state of the session: its hibernation image, or a new one. The image is
// pinned until release is called.
func (s *Session) takeImage(ctx context.Context, kind string) (image *sandbox.Snapshot, release func(), err error) {
	for {
		if err := s.acquireTurn(ctx); err != nil {
			return nil, nil, err
		}
		s.mu.Lock()
		sb, hibernation := s.attachment.sandbox, s.rec.Hibernation
		labels := s.m.imageLabels(&s.rec, kind)
		if s.rec.State != v1.StateHibernated {
			hibernation = nil
		}
		err := s.refusal(time.Now())
		s.mu.Unlock()
		switch {
		case err != nil:
		case hibernation != nil:
			release = s.m.pinImage(hibernation)
			s.releaseTurn()
			return hibernation, release, nil
		case sb != nil && alive(sb):
			image, err = sb.Snapshot(ctx, sandbox.SnapshotOptions{Labels: labels})
			if err == nil {
				release = s.m.pinImage(image)
			}
			s.releaseTurn()
			return image, release, s.explain(sb, err)
		}
		s.releaseTurn()
		if err != nil {
			return nil, nil, err
		}
		if _, err := s.awaitSandbox(ctx); err != nil { // it also attaches the sandbox
			return nil, nil, err
		}
	}
}

// lockImage waits until the image is not being removed, and locks imageMu. imageMu is not held during a removal, which
// may take long, so callers that need another image do not wait.
func (m *Manager) lockImage(ref string) {
	for {
		m.imageMu.Lock()
		removed := m.removing[ref]
		if removed == nil {
			return
		}
		m.imageMu.Unlock()
		<-removed
	}
}

// pinImage keeps an image from being removed until release is called.
func (m *Manager) pinImage(image *sandbox.Snapshot) (release func()) {
	ref := imageRef(image)
	m.lockImage(ref)
	defer m.imageMu.Unlock()
	m.pins[ref]++
	return func() {
		m.imageMu.Lock()
		m.pins[ref]--
		last := m.pins[ref] == 0
		if last {
			delete(m.pins, ref)
		}
		m.imageMu.Unlock()
		if last {
			m.dropImage(context.WithoutCancel(m.ctx), image)
		}
	}
}

// dropImage removes an image unless something needs it. GC retries what fails here.
func (m *Manager) dropImage(ctx context.Context, image *sandbox.Snapshot) {
	_, _ = m.removeImage(ctx, image) // removeImage logs the error
}

// removeImage removes an image unless something needs it, and reports whether the image is gone. An image that is still
// needed is not an error.
func (m *Manager) removeImage(ctx context.Context, image *sandbox.Snapshot) (gone bool, err error) {
	ref, b := imageRef(image), m.known(image.Backend)
	if b == nil {
		return false, nil
	}
	removed, needed, err := m.beginRemoval(ctx, ref)
	if needed {
		return false, nil
	}
	if err == nil {
		err = callBackend(ctx, b, m.opts.stopWait, func(ctx context.Context) error {
			return b.DeleteSnapshot(ctx, image.ID)
		})
		removed()
	}
	if err != nil {
		m.log.WarnContext(ctx, "image could not be removed; the next collection retries", "image", ref, "error", err)
	}
	return err == nil, err
}

// beginRemoval blocks other users of an image until removed is called. If something needs the image, it only reports
// needed.
func (m *Manager) beginRemoval(ctx context.Context, ref string) (removed func(), needed bool, err error) {
	m.lockImage(ref)
	defer m.imageMu.Unlock()
	if m.pins[ref] > 0 {
		return nil, true, nil // pinImage's release tries again
	}
	if n, err := m.store.ImageUses(ctx, ref); err != nil || n > 0 {
		return nil, err == nil, err
	}
	done := make(chan struct{})
	m.removing[ref] = done
	return func() {
		m.imageMu.Lock()
		defer m.imageMu.Unlock()
		delete(m.removing, ref)
		close(done)
	}, false, nil
}

// imageInUse reports whether a live session hibernates in an image, or may do so, even if the store does not have that
// yet.
func (m *Manager) imageInUse(image *sandbox.Snapshot) bool {
	for _, s := range m.sessions() {
		s.mu.Lock()
		h := s.rec.Hibernation
		uses := h != nil && imageRef(h) == imageRef(image) ||
			s.attachment.isUnknown() && hibernationImage(&s.rec, []*sandbox.Snapshot{image}) != nil
		s.mu.Unlock()
		if uses {
			return true
		}
	}
	return false
}
