package wire

import (
	"bytes"
	"crypto/rand"
	"encoding/binary"
	"errors"
	"io"
	"net"
	"os"
	"testing"

	"go.uber.org/goleak"
	"google.golang.org/protobuf/proto"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

func testToken() []byte {
	t := make([]byte, TokenSize)
	rand.Read(t)
	return t
}

// duplex is a pair of pipes that stay open when a writer ends, as those of a sandbox.
func duplex(t *testing.T) (host, guest struct {
	io.Reader
	io.Writer
},
) {
	t.Helper()
	gr, hw, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	hr, gw, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { gr.Close(); hw.Close(); hr.Close(); gw.Close() })
	host.Reader, host.Writer = hr, hw
	guest.Reader, guest.Writer = gr, gw
	return host, guest
}

func nonce(b byte) []byte { return bytes.Repeat([]byte{b}, 16) }

func TestANewHostTakesOverBehindHalfAFrame(t *testing.T) {
	host, guest := duplex(t)
	token := testToken()
	link := NewLink(guest, guest, token)
	accepted := make(chan *Attachment, 2)
	go func() {
		for range 2 {
			a, err := link.Accept(func(*Hello) *Welcome { return &Welcome{Protocol: Protocol} })
			if err != nil {
				t.Error(err)
			}
			accepted <- a
		}
	}()

	if _, _, err := Attach(host, token, &Hello{Nonce: nonce(1)}); err != nil {
		t.Fatal(err)
	}
	first := <-accepted
	if first.Epoch != 1 {
		t.Errorf("the first attachment has epoch %d", first.Epoch)
	}
	if _, err := first.Write([]byte("an answer nobody has read")); err != nil {
		t.Fatal(err)
	}
	// The first host dies in the middle of a frame that contains ten bytes of a token.
	host.Write(append([]byte{0, 0, 1, 0, 'h', 'a', 'l', 'f'}, token[:10]...))
	read := make(chan error, 1)
	go func() {
		_, err := io.ReadAll(first)
		read <- err
	}()

	_, rw, err := Attach(host, token, &Hello{Nonce: nonce(2)})
	if err != nil {
		t.Fatal(err)
	}
	if err := <-read; err != nil {
		t.Fatalf("the first attachment got %v, want io.EOF", err)
	}
	second := <-accepted
	if second.Epoch != 2 {
		t.Errorf("the second attachment has epoch %d", second.Epoch)
	}
	if _, err := first.Write([]byte("x")); !errors.Is(err, ErrFenced) {
		t.Fatalf("the first attachment could still write: %v", err)
	}
	go second.Write([]byte("fresh"))
	got := make([]byte, 5)
	if _, err := io.ReadFull(rw, got); err != nil || string(got) != "fresh" {
		t.Fatalf("second attachment read %q, %v", got, err)
	}
}

func TestABadHelloDoesNotKeepTheNextOut(t *testing.T) {
	token := testToken()
	token[0], token[1] = 0, 0 // the beginning of a length that is fine, or of a nil message
	good, err := tokenMessage(token, &Hello{Nonce: nonce(1), Identity: &Identity{Hostname: "a name that is longer than a token, by a little"}})
	if err != nil {
		t.Fatal(err)
	}
	join := func(b ...byte) []byte { return append(append([]byte(nil), token...), b...) }
	for name, bad := range map[string][]byte{
		"too large":                   join(0xff, 0xff, 0xff, 0xff, 1, 2, 3),
		"no message":                  join(0, 0, 0, 3, 0xff, 0xff, 0xff),
		"without a nonce":             join(0, 0, 0, 0),
		"cut behind the token":        join(),
		"cut in a length":             join(0xff, 0xff),
		"cut in a length that is nil": join(0, 0),
		"cut in a short length":       join(0, 0, 0),
		"cut in the message":          good[:len(good)-TokenSize-1],
	} {
		t.Run(name, func(t *testing.T) {
			for cut := 1; cut <= 50; cut++ {
				in := append(append([]byte(nil), bad...), good...)
				l := NewLink(&cutReader{b: in, n: cut}, io.Discard, token)
				a, err := l.Accept(func(*Hello) *Welcome { return &Welcome{} })
				if err != nil || !bytes.Equal(a.Hello.Nonce, nonce(1)) {
					t.Fatalf("reads of %d bytes: %v", cut, err)
				}
			}
		})
	}
}

func TestATokenIsFoundHoweverReadsAreCut(t *testing.T) {
	token := testToken()
	for cut := 1; cut <= 2*TokenSize+3; cut++ {
		in := append(append([]byte("abc"), token[:7]...), token...)
		in = append(in, "rest"...)
		s := &scanner{r: &cutReader{b: in, n: cut}, token: token}
		if err := s.seek(); err != nil {
			t.Fatalf("reads of %d bytes: %v", cut, err)
		}
		rest := append([]byte(nil), s.pending...)
		more, _ := io.ReadAll(s.r)
		if got := string(append(rest, more...)); got != "rest" {
			t.Fatalf("reads of %d bytes: after the token is %q", cut, got)
		}
	}
}

type cutReader struct {
	b []byte
	n int
}

func (c *cutReader) Read(p []byte) (int, error) {
	if len(c.b) == 0 {
		return 0, io.EOF
	}
	n := copy(p[:min(len(p), c.n)], c.b)
	c.b = c.b[n:]
	return n, nil
}

func TestCallsReuseTheirStream(t *testing.T) {
	a, b := net.Pipe()
	host, guest := NewSession(a, a, true), NewSession(b, b, false)
	defer guest.Close()
	defer host.Close()
	go host.Serve(nil)
	go guest.Serve(func(st *Stream, req *Request) bool {
		return st.Send(&Frame{Body: &Frame_Data{Data: req.GetExec().GetShell()}, Last: true}) == nil
	})
	for i := range 3 {
		st, err := host.Open()
		if err != nil {
			t.Fatal(err)
		}
		st.Send(&Request{Call: &Request_Exec{Exec: &Exec{Shell: []byte{byte(i)}}}})
		f := &Frame{}
		if err := st.Receive(f); err != nil || !f.Last || f.GetData()[0] != byte(i) {
			t.Fatalf("call %d: %v, %v", i, f, err)
		}
		st.Release()
	}
}

func TestAFrameBeyondTheLimitIsRefused(t *testing.T) {
	var b bytes.Buffer
	binary.Write(&b, binary.BigEndian, uint32(MaxFrame+1))
	if _, err := readFrame(&b, nil, MaxFrame); err == nil {
		t.Fatal("a frame over the limit was read")
	}
	if _, err := AppendFrame(nil, &Frame{Body: &Frame_Data{Data: make([]byte, MaxFrame+1)}}); err == nil {
		t.Fatal("a frame over the limit was written")
	}
}

func FuzzLink(f *testing.F) {
	token := bytes.Repeat([]byte{7, 9}, TokenSize/2)
	hello, _ := tokenMessage(token, &Hello{Nonce: nonce(3)})
	f.Add(hello, 5)
	f.Add(append(append([]byte(nil), token[:9]...), hello...), 3)
	f.Add(append(append([]byte(nil), hello[:len(hello)-2]...), hello...), 7)
	f.Fuzz(func(t *testing.T, in []byte, cut int) {
		l := NewLink(&cutReader{b: in, n: 1 + (cut&0x7fffffff)%100}, io.Discard, token)
		for range 4 {
			a, err := l.Accept(func(*Hello) *Welcome { return &Welcome{} })
			if err != nil {
				return
			}
			io.Copy(io.Discard, a)
		}
	})
}

func FuzzFrame(f *testing.F) {
	ok, _ := AppendFrame(nil, &Frame{Body: &Frame_Output{Output: &Output{Stream: 1, Data: []byte("x")}}})
	f.Add(ok)
	f.Add([]byte{0, 0, 0, 1, 0xff})
	f.Add([]byte{0xff, 0xff, 0xff, 0xff})
	f.Fuzz(func(t *testing.T, in []byte) {
		r := bytes.NewReader(in)
		for {
			b, err := readFrame(r, nil, MaxFrame)
			if err != nil {
				return
			}
			m := &Frame{}
			if err := proto.Unmarshal(b, m); err != nil {
				continue
			}
			if out, err := AppendFrame(nil, m); err != nil || len(out) < 4 {
				t.Fatalf("a decoded message cannot be written again: %v", err)
			}
		}
	})
}
