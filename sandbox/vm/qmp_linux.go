package vm

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"time"

	"golang.org/x/sys/unix"
)

// qmp is a connection to the control socket of QEMU: one JSON value per command and answer. QEMU serves one connection
// at a time.
type qmp struct {
	conn *net.UnixConn
	in   *json.Decoder
}

const (
	// qmpWait is how long QEMU may take for a command.
	qmpWait = 30 * time.Second
	// qmpMax bounds the bytes that a connection may receive. The guest cannot write to it, but a monitor that it has
	// taken over could.
	qmpMax = 16 << 20
)

// qmpError is QEMU's refusal of a command.
type qmpError struct {
	Class string `json:"class"`
	Desc  string `json:"desc"`
}

func (e *qmpError) Error() string { return "qemu: " + e.Desc }

// openQMP connects to the control socket of a machine.
func openQMP(ctx context.Context, dir string) (*qmp, error) {
	ctx, cancel := context.WithTimeout(ctx, qmpWait)
	defer cancel()
	c, err := dialIn(ctx, dir, qmpSocket)
	if err != nil {
		return nil, err
	}
	q := &qmp{conn: c.(*net.UnixConn), in: json.NewDecoder(io.LimitReader(c, qmpMax))} //nolint:forcetypeassert // dialIn
	if err := q.command(ctx, "qmp_capabilities", nil, nil); err != nil {
		q.close()
		return nil, err
	}
	return q, nil
}

func (q *qmp) close() { _ = q.conn.Close() }

// command runs a command and decodes its result into result, unless that is nil.
func (q *qmp) command(ctx context.Context, name string, args map[string]any, result any) error {
	return q.send(ctx, name, args, nil, result)
}

// passFile gives QEMU a file, under a name that later commands use.
func (q *qmp) passFile(ctx context.Context, name string, f *os.File) error {
	return q.send(ctx, "getfd", map[string]any{"fdname": name}, unix.UnixRights(int(f.Fd())), nil)
}

func (q *qmp) send(ctx context.Context, name string, args map[string]any, rights []byte, result any) error {
	deadline := time.Now().Add(qmpWait)
	if end, ok := ctx.Deadline(); ok && end.Before(deadline) {
		deadline = end
	}
	if err := q.conn.SetDeadline(deadline); err != nil {
		return err
	}
	stop := context.AfterFunc(ctx, func() { _ = q.conn.SetDeadline(time.Now()) })
	defer stop()
	text, err := json.Marshal(struct {
		Execute   string         `json:"execute"`
		Arguments map[string]any `json:"arguments,omitempty"`
	}{name, args})
	if err != nil {
		return err
	}
	if _, _, err := q.conn.WriteMsgUnix(append(text, '\n'), rights, nil); err != nil {
		return q.failed(ctx, name, err)
	}
	for {
		var answer struct {
			Return json.RawMessage `json:"return"`
			Error  *qmpError       `json:"error"`
		}
		err := q.in.Decode(&answer)
		switch {
		case err != nil:
			return q.failed(ctx, name, err)
		case answer.Error != nil:
			return answer.Error
		case answer.Return == nil: // the greeting, or an event
			continue
		case result == nil:
			return nil
		}
		return json.Unmarshal(answer.Return, result)
	}
}

func (q *qmp) failed(ctx context.Context, name string, err error) error {
	if ctx.Err() != nil {
		return ctx.Err()
	}
	end, bounded := ctx.Deadline()
	if bounded && errors.Is(err, os.ErrDeadlineExceeded) && time.Until(end) <= 0 {
		return context.DeadlineExceeded // which ctx is about to notice
	}
	if errors.Is(err, io.EOF) || errors.Is(err, io.ErrUnexpectedEOF) {
		err = errors.New("the connection has ended")
	}
	return fmt.Errorf("qemu: %s: %w", name, err)
}
