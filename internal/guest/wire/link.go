package wire

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"sync"

	"google.golang.org/protobuf/proto"
)

// TokenSize is the length of the token that marks the beginning of an attachment. The token is random and known only to
// host and guest, so ordinary traffic does not contain it.
const TokenSize = 32

// maxHello bounds the message after a token.
const maxHello = 1 << 20

// errMessage means that the bytes after a token are not a valid message.
var errMessage = errors.New("invalid message")

// ErrFenced is the error of an attachment that a newer one has replaced.
var ErrFenced = errors.New("replaced by a newer attachment")

// scanner reads a stream and finds the token in it. It returns bytes at once, even if they might be the beginning of a
// token: if they are, the current attachment is about to end anyway, and holding them back would stall an ordinary
// message that ends with the same bytes.
type scanner struct {
	r       io.Reader
	token   []byte
	tail    []byte // the last bytes returned, fewer than a token
	pending []byte // bytes after a token, read and not yet returned

	// pendingToken means that a Read of an attachment has found a token that Accept has not handled yet.
	pendingToken bool
}

// read fills p with bytes of the current attachment. If it finds a token, it returns found, keeps the bytes after the
// token for the next read, and the content of p is invalid.
func (s *scanner) read(p []byte) (n int, found bool, err error) {
	if len(s.pending) > 0 {
		n = copy(p, s.pending)
		s.pending = s.pending[n:]
	} else if n, err = s.r.Read(p); n == 0 {
		return 0, false, err
	}
	got := p[:n]
	if end := s.crossing(got); end >= 0 {
		s.keep(got[end:])
		return 0, true, nil
	}
	if i := bytes.Index(got, s.token); i >= 0 {
		s.keep(got[i+len(s.token):])
		return 0, true, nil
	}
	if n >= len(s.token)-1 {
		s.tail = append(s.tail[:0], got[n-len(s.token)+1:]...)
	} else {
		s.tail = append(s.tail, got...)
		if over := len(s.tail) - len(s.token) + 1; over > 0 {
			s.tail = append(s.tail[:0], s.tail[over:]...)
		}
	}
	return n, false, err
}

// crossing returns the position in got at which a token ends that began in earlier reads, or -1.
func (s *scanner) crossing(got []byte) int {
	if len(s.tail) == 0 {
		return -1
	}
	join := append(append(make([]byte, 0, 2*len(s.token)), s.tail...), got[:min(len(got), len(s.token)-1)]...)
	if i := bytes.Index(join, s.token); i >= 0 {
		return i + len(s.token) - len(s.tail)
	}
	return -1
}

func (s *scanner) keep(rest []byte) {
	s.tail = s.tail[:0]
	s.pending = append(append([]byte(nil), rest...), s.pending...)
}

// message reads the message after a token. Another token restarts it, because the writer of the first was interrupted.
func (s *scanner) message(m proto.Message) error {
restart:
	var buf []byte
	need := 4
	for len(buf) < need {
		chunk := make([]byte, need-len(buf))
		n, found, err := s.read(chunk)
		if found {
			goto restart
		}
		buf = append(buf, chunk[:n]...)
		if n == 0 && err != nil {
			return err
		}
		if need == 4 && len(buf) == 4 {
			size := binary.BigEndian.Uint32(buf)
			if size > maxHello {
				return fmt.Errorf("%w: %d bytes", errMessage, size)
			}
			need += int(size)
		}
	}
	if err := proto.Unmarshal(buf[4:], m); err != nil {
		return fmt.Errorf("%w: %w", errMessage, err)
	}
	return nil
}

// seek reads up to the end of the next token.
func (s *scanner) seek() error {
	junk := make([]byte, 64<<10)
	for {
		n, found, err := s.read(junk)
		if found {
			return nil
		}
		if n == 0 && err != nil {
			return err
		}
	}
}

func tokenMessage(token []byte, m proto.Message) ([]byte, error) {
	b := append([]byte(nil), token...)
	b = append(b, 0, 0, 0, 0)
	b, err := proto.MarshalOptions{}.MarshalAppend(b, m)
	if err != nil {
		return nil, err
	}
	size := len(b) - len(token) - 4
	if size > maxHello {
		return nil, fmt.Errorf("message of %d bytes exceeds the limit of %d", size, maxHello)
	}
	binary.BigEndian.PutUint32(b[len(token):], uint32(size))
	return b, nil
}

// Link is the guest's end of a stream on which hosts attach one after another.
type Link struct {
	w io.Writer

	readMu sync.Mutex
	scan   scanner     // guarded by readMu
	reader *Attachment // guarded by readMu; the attachment that receives the next bytes

	writeMu sync.Mutex
	current *Attachment // guarded by writeMu
	epoch   uint64      // guarded by writeMu
}

// NewLink returns the guest's end of a stream that stays open when a host ends.
func NewLink(r io.Reader, w io.Writer, token []byte) *Link {
	return &Link{w: w, scan: scanner{r: r, token: token}}
}

// NewLinkAfter returns the guest's end of a stream that only one host uses, after other hosts have attached on other
// streams: its epochs continue after epoch.
func NewLinkAfter(r io.Reader, w io.Writer, token []byte, epoch uint64) *Link {
	l := NewLink(r, w, token)
	l.epoch = epoch
	return l
}

// Accept waits for the next host that attaches, and ends the previous attachment. decide gets the Hello and returns the
// Welcome; Accept sets its nonce. Accept skips an incomplete or invalid Hello, so that the next host can attach.
func (l *Link) Accept(decide func(*Hello) *Welcome) (*Attachment, error) {
	hello := &Hello{}
	a := &Attachment{link: l, Hello: hello}
	l.readMu.Lock()
	err := l.awaitHello(a)
	l.readMu.Unlock()
	if err != nil {
		return nil, err
	}

	l.writeMu.Lock()
	defer l.writeMu.Unlock()
	l.epoch++
	w := decide(hello)
	w.Nonce = hello.Nonce
	a.Epoch = l.epoch
	l.current = a
	b, err := tokenMessage(l.scan.token, w)
	if err != nil {
		return nil, err
	}
	if _, err := l.w.Write(b); err != nil {
		return nil, err
	}
	return a, nil
}

// awaitHello reads up to the end of a valid Hello and stores it in a.
//
// Preconditions: readMu is held.
func (l *Link) awaitHello(a *Attachment) error {
	for {
		if err := l.awaitToken(); err != nil {
			return err
		}
		l.reader = a
		err := l.scan.message(a.Hello)
		if errors.Is(err, errMessage) || err == nil && len(a.Hello.Nonce) == 0 {
			continue
		}
		return err
	}
}

// awaitToken reads up to the end of a token, unless the previous reader has already found one.
//
// Preconditions: readMu is held.
func (l *Link) awaitToken() error {
	if l.scan.pendingToken {
		l.scan.pendingToken = false
		return nil
	}
	return l.scan.seek()
}

// Attachment is the use of a Link by one host. It ends when the next host attaches.
type Attachment struct {
	Epoch uint64
	Hello *Hello
	link  *Link

	closeMu sync.Mutex
	closed  bool // guarded by closeMu
}

// Read implements io.Reader. It returns io.EOF once a newer host has attached.
func (a *Attachment) Read(p []byte) (int, error) {
	a.link.readMu.Lock()
	defer a.link.readMu.Unlock()
	for {
		if a.link.scan.pendingToken || a.link.reader != a {
			return 0, io.EOF
		}
		n, found, err := a.link.scan.read(p)
		if found {
			a.link.scan.pendingToken = true
			return 0, io.EOF
		}
		if a.isClosed() && err == nil {
			continue // drop bytes for an ended session
		}
		return n, err
	}
}

// Write implements io.Writer.
func (a *Attachment) Write(p []byte) (int, error) {
	a.link.writeMu.Lock()
	defer a.link.writeMu.Unlock()
	if a.link.current != a || a.isClosed() {
		return 0, ErrFenced
	}
	return a.link.w.Write(p)
}

// Close ends the attachment. The link stays usable.
func (a *Attachment) Close() error {
	a.closeMu.Lock()
	defer a.closeMu.Unlock()
	a.closed = true
	return nil
}

func (a *Attachment) isClosed() bool {
	a.closeMu.Lock()
	defer a.closeMu.Unlock()
	return a.closed
}

// Attach is the host's counterpart of Accept: it writes the token and the Hello, drops bytes that the guest sent
// earlier, and returns the Welcome. The returned stream is then ready for a Session.
func Attach(rw io.ReadWriter, token []byte, hello *Hello) (*Welcome, io.ReadWriter, error) {
	b, err := tokenMessage(token, hello)
	if err != nil {
		return nil, nil, err
	}
	// Read concurrently with the write: the guest may be blocked on a full pipe.
	wrote := make(chan error, 1)
	go func() {
		_, err := rw.Write(b)
		wrote <- err
	}()
	s := &scanner{r: rw, token: token}
	for {
		if err := s.seek(); err != nil {
			return nil, nil, err
		}
		w := &Welcome{}
		if err := s.message(w); err != nil {
			return nil, nil, fmt.Errorf("read the guest's welcome: %w", err)
		}
		if !bytes.Equal(w.Nonce, hello.Nonce) {
			continue // the answer to an earlier host
		}
		if err := <-wrote; err != nil {
			return nil, nil, err
		}
		if len(s.pending) == 0 {
			return w, rw, nil
		}
		return w, struct {
			io.Reader
			io.Writer
		}{io.MultiReader(bytes.NewReader(s.pending), rw), rw}, nil
	}
}
