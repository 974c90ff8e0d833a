package e2b

import (
	"io"
	"net/http"
	"time"
)

// stallTimeout is how long a body or an answer may make no progress.
const stallTimeout = time.Minute

// patientBody is a body whose every read must end in time.
type patientBody struct {
	io.ReadCloser
	rc    *http.ResponseController
	limit time.Duration
}

// Read implements io.Reader. The deadline is removed after it: the server also reads to notice that the caller
// disconnects.
func (b *patientBody) Read(p []byte) (int, error) {
	_ = b.rc.SetReadDeadline(time.Now().Add(b.limit)) // not every connection has deadlines
	n, err := b.ReadCloser.Read(p)
	_ = b.rc.SetReadDeadline(time.Time{})
	return n, err
}

// patientWriter is an answer whose every write must end in time.
type patientWriter struct {
	http.ResponseWriter
	rc    *http.ResponseController
	limit time.Duration
}

// Write implements io.Writer.
func (w *patientWriter) Write(p []byte) (int, error) {
	_ = w.rc.SetWriteDeadline(time.Now().Add(w.limit)) // not every connection has deadlines
	return w.ResponseWriter.Write(p)
}

// Flush implements http.Flusher, which streams of Connect require.
func (w *patientWriter) Flush() {
	_ = w.rc.SetWriteDeadline(time.Now().Add(w.limit))
	_ = w.rc.Flush() // if the caller has disconnected, the next write fails
}

// Unwrap returns the wrapped writer, for http.ResponseController.
func (w *patientWriter) Unwrap() http.ResponseWriter { return w.ResponseWriter }
