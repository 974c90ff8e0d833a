package llm

import (
	"io"
	"net/http"
	"net/http/httptest"
	"sync"
	"testing"
	"time"
)

// BenchmarkBatch sends 1,000 prompts, 100 at a time, to a server that takes 50 ms for each: at least half a second.
func BenchmarkBatch(b *testing.B) {
	for _, w := range wires {
		b.Run(w.typ, func(b *testing.B) {
			body := w.stream("one ", "two ", "three")
			srv := httptest.NewServer(http.HandlerFunc(func(rw http.ResponseWriter, r *http.Request) {
				io.Copy(io.Discard, r.Body)
				time.Sleep(50 * time.Millisecond)
				rw.Header().Set("Content-Type", w.kind)
				io.WriteString(rw, body)
			}))
			defer srv.Close()
			set, err := Open(Config{Providers: map[string]Provider{"here": {Type: w.typ, BaseURL: srv.URL, Concurrency: 100}}})
			if err != nil {
				b.Fatal(err)
			}
			defer set.Close()
			m, err := set.Model("here/m")
			if err != nil {
				b.Fatal(err)
			}
			for b.Loop() {
				var wg sync.WaitGroup
				for range 1000 {
					wg.Go(func() {
						if _, err := m.Complete(b.Context(), ask("hi")); err != nil {
							b.Error(err)
						}
					})
				}
				wg.Wait()
			}
		})
	}
}
