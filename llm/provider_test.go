package llm

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	v1 "github.com/recluse-dev/recluse/api/v1"
)

func TestRepliesAreWhole(t *testing.T) {
	eachWire(t, func(t *testing.T, w wire) {
		m, _ := serve(t, w, respond(w.stream("Hel", "lo ", "wörld", "\n\"x\" 🙂")))
		for _, streamed := range []bool{true, false} {
			req := ask("hi")
			heard := ""
			if streamed {
				req.Delta = func(s string) bool { heard += s; return true }
			}
			r := mustReply(t, m, req, "Hello wörld\n\"x\" 🙂")
			if streamed && heard != r.Text {
				t.Errorf("received %q", heard)
			}
			if r.Model != "here/m" || r.Finish != FinishStop || r.Usage.Calls != 1 || r.Usage.Input != w.input || r.Usage.Output != 7 || r.Usage.Estimated || r.Usage.Unpriced {
				t.Errorf("%+v", r)
			}
			if r.Usage.Cost <= 0 {
				t.Errorf("cost %v", r.Usage.Cost)
			}
		}
	})
}

func TestAnthropicCostsCacheAsItIs(t *testing.T) {
	m, _ := serve(t, wires[1], respond(wires[1].stream("x")))
	r := mustReply(t, m, ask("hi"), "x")
	// 14 tokens at the full price, a surcharge of a quarter for 4 of them, 20 from the cache, 7 of output.
	if want := (14*1 + 1 + 20*0.1 + 7*2) / 1e6; fmt.Sprintf("%.9f", r.Usage.Cost) != fmt.Sprintf("%.9f", want) {
		t.Errorf("cost %v, not %v", r.Usage.Cost, want)
	}
}

func TestStreamsSplitAnywhere(t *testing.T) {
	eachWire(t, func(t *testing.T, w wire) {
		body := w.stream("a", "ö🙂", "\n")
		var at atomic.Int64
		m, _ := serve(t, w, func(_ int, rw http.ResponseWriter, _ *http.Request) {
			i := int(at.Load())
			io.WriteString(rw, body[:i])
			flush(rw)
			io.WriteString(rw, body[i:])
		})
		for i := range len(body) {
			at.Store(int64(i))
			mustReply(t, m, ask("hi"), "aö🙂\n")
		}
	})
	t.Run("byte by byte", func(t *testing.T) {
		eachWire(t, func(t *testing.T, w wire) {
			body := w.stream("a", "ö🙂", "\n")
			m, _ := serve(t, w, func(_ int, rw http.ResponseWriter, _ *http.Request) {
				for i := range len(body) {
					io.WriteString(rw, body[i:i+1])
					flush(rw)
				}
			})
			mustReply(t, m, ask("hi"), "aö🙂\n")
		})
	})
	t.Run("lines end in CRLF", func(t *testing.T) {
		eachWire(t, func(t *testing.T, w wire) {
			m, _ := serve(t, w, respond(strings.ReplaceAll(w.stream("a", "b"), "\n", "\r\n")))
			mustReply(t, m, ask("hi"), "ab")
		})
	})
}

func TestFailuresAreNamed(t *testing.T) {
	long := "This model's maximum context length is 8192 tokens"
	for _, tc := range []struct {
		name    string
		status  int
		kind    string
		message string
		code    v1.Code
		hits    int
		remedy  string
	}{
		{"wrong key", 401, "authentication_error", "Incorrect API key provided: " + secret, v1.CodeModelKeyRefused, 1, "key"},
		{"forbidden", 403, "permission_error", "your key " + secret + " may not", v1.CodeModelKeyRefused, 1, "rights"},
		{"no money", 402, "billing_error", "pay first", v1.CodeModelQuota, 1, "credit"},
		{"quota used up", 429, "insufficient_quota", "You exceeded your current quota", v1.CodeModelQuota, 1, "credit"},
		{"no such model", 404, "not_found_error", "model: m not found", v1.CodeModelUnknown, 1, "m"},
		{"prompt too long", 400, "invalid_request_error", long, v1.CodeModelContextExceeded, 1, "smaller"},
		{"too large", 413, "request_too_large", "too big", v1.CodeModelContextExceeded, 1, "smaller"},
		{"nonsense asked", 400, "invalid_request_error", "temperature must be at most 1", v1.CodeModelRefused, 1, ""},
		{"too often", 429, "rate_limit_error", "slow down", v1.CodeModelRateLimited, 3, "concurrency"},
		{"overloaded", 529, "overloaded_error", "Overloaded", v1.CodeModelOverloaded, 3, "later"},
		{"broken", 500, "api_error", "oops", v1.CodeModelOverloaded, 3, "later"},
		{"bad gateway", 502, "", "<html>\nbad\ngateway</html>", v1.CodeModelOverloaded, 3, "later"},
	} {
		t.Run(tc.name, func(t *testing.T) {
			eachWire(t, func(t *testing.T, w wire) {
				m, h := serve(t, w, func(_ int, rw http.ResponseWriter, _ *http.Request) {
					rw.Header().Set("Content-Type", "application/json")
					rw.WriteHeader(tc.status)
					if tc.kind == "" {
						io.WriteString(rw, tc.message)
						return
					}
					io.WriteString(rw, w.fail(tc.kind, tc.message))
				})
				r, err := m.Complete(t.Context(), ask("hi"))
				e := wantCode(t, err, tc.code)
				if r != nil {
					t.Errorf("unexpected reply: %+v", r)
				}
				if strings.Contains(fmt.Sprintf("%v %+v %#v", err, e, e), secret) {
					t.Errorf("the key is in the error: %v", err)
				}
				if e.Retry != (tc.hits > 1) || h.count() != tc.hits {
					t.Errorf("retry %v, asked %d times", e.Retry, h.count())
				}
				if !strings.Contains(e.Remedy, tc.remedy) {
					t.Errorf("the remedy is %q", e.Remedy)
				}
				if strings.Contains(e.Message, "\n") {
					t.Errorf("more than one line: %q", e.Message)
				}
			})
		})
	}
}

func TestTrialsGoOn(t *testing.T) {
	for _, tc := range []struct {
		name  string
		calls int64 // that a provider may have begun to answer
		first func(w wire, rw http.ResponseWriter)
	}{
		{"after a time the provider names", 1, func(w wire, rw http.ResponseWriter) {
			rw.Header().Set("Retry-After", "0.01")
			rw.WriteHeader(http.StatusTooManyRequests)
			io.WriteString(rw, w.fail("rate_limit_error", "slow down"))
		}},
		{"after a failure", 1, func(w wire, rw http.ResponseWriter) {
			rw.WriteHeader(http.StatusServiceUnavailable)
			io.WriteString(rw, w.fail("overloaded_error", "busy"))
		}},
		{"after a connection that was dropped at once", 2, func(_ wire, rw http.ResponseWriter) { panic(http.ErrAbortHandler) }},
		{"after one that was dropped on the way", 2, func(w wire, rw http.ResponseWriter) {
			io.WriteString(rw, w.cut("half "))
			drop(rw)
		}},
		{"after a reply without an end", 2, func(w wire, rw http.ResponseWriter) { io.WriteString(rw, w.cut("half ")) }},
		{"after garbage", 2, func(_ wire, rw http.ResponseWriter) { io.WriteString(rw, "\x00\xff{{{ not this\n\n") }},
		{"after nothing", 2, func(wire, http.ResponseWriter) {}},
	} {
		t.Run(tc.name, func(t *testing.T) {
			eachWire(t, func(t *testing.T, w wire) {
				m, h := serve(t, w, func(n int, rw http.ResponseWriter, _ *http.Request) {
					if n == 1 {
						tc.first(w, rw)
						return
					}
					io.WriteString(rw, w.stream("whole"))
				})
				r := mustReply(t, m, ask("hi"), "whole")
				if h.count() != 2 || r.Usage.Calls != tc.calls || r.Usage.Estimated != (tc.calls == 2) {
					t.Errorf("asked %d times, usage %+v", h.count(), r.Usage)
				}
			})
		})
	}
}

func TestALongWaitIsNotWaitedFor(t *testing.T) {
	eachWire(t, func(t *testing.T, w wire) {
		m, h := serve(t, w, func(_ int, rw http.ResponseWriter, _ *http.Request) {
			rw.Header().Set("Retry-After", "3600")
			rw.WriteHeader(http.StatusTooManyRequests)
			io.WriteString(rw, w.fail("rate_limit_error", "tomorrow"))
		})
		_, err := m.Complete(t.Context(), ask("hi"))
		if e := wantCode(t, err, v1.CodeModelRateLimited); !strings.Contains(e.Message, "1h0m0s") || h.count() != 1 {
			t.Errorf("asked %d times: %v", h.count(), err)
		}
	})
}

func TestWhatWasHeardIsKept(t *testing.T) {
	eachWire(t, func(t *testing.T, w wire) {
		for name, end := range map[string]func(http.ResponseWriter){"dropped": drop, "ended": flush} {
			m, h := serve(t, w, func(_ int, rw http.ResponseWriter, _ *http.Request) {
				io.WriteString(rw, w.cut("half a ", "reply"))
				end(rw)
			})
			heard := ""
			req := ask("hi")
			req.Delta = func(s string) bool { heard += s; return true }
			r, err := m.Complete(t.Context(), req)
			e := wantCode(t, err, v1.CodeModelUnreachable)
			if heard != "half a reply" || r == nil || r.Text != heard || r.Finish != FinishCut || !r.Usage.Estimated || r.Usage.Output == 0 || !e.Retry {
				t.Errorf("%s: heard %q, %+v, %v", name, heard, r, err)
			}
			if h.count() != 1 {
				t.Errorf("%s: text was sent twice", name)
			}
		}
	})
}

func TestErrorsInTheMiddleOfAStream(t *testing.T) {
	eachWire(t, func(t *testing.T, w wire) {
		failing := map[string]string{
			TypeOpenAI:    "data: " + w.fail("server_error", "gpu on fire") + "\n\n",
			TypeAnthropic: "event: error\ndata: " + w.fail("overloaded_error", "gpu on fire") + "\n\n",
			TypeOllama:    w.fail("", "gpu on fire") + "\n",
		}
		m, _ := serve(t, w, respond(w.cut("some")+failing[w.typ]))
		r, err := m.Complete(t.Context(), ask("hi"))
		if e := wantCode(t, err, v1.CodeModelOverloaded); !strings.Contains(e.Message, "gpu on fire") || !e.Retry {
			t.Errorf("%v", err)
		}
		if r == nil || r.Text != "some" {
			t.Errorf("%+v", r)
		}
	})
}

// A reply whose stream breaks is requested again, if its caller can discard the part that it has.
func TestAStreamThatBreaksBeginsAnewIfItMay(t *testing.T) {
	for name, c := range map[string]struct {
		repeat func() bool
		calls  int
	}{
		"it may":       {func() bool { return true }, 2},
		"it may not":   {func() bool { return false }, 1},
		"nothing said": {nil, 1},
	} {
		t.Run(name, func(t *testing.T) {
			eachWire(t, func(t *testing.T, w wire) {
				m, h := serve(t, w, func(n int, rw http.ResponseWriter, _ *http.Request) {
					if n > 1 {
						io.WriteString(rw, w.stream("whole"))
						return
					}
					io.WriteString(rw, w.cut("some"))
					flush(rw)
					panic(http.ErrAbortHandler)
				})
				var got strings.Builder
				req := ask("hi")
				req.Delta = func(text string) bool { got.WriteString(text); return true }
				if c.repeat != nil {
					req.Repeat = func(paid Usage) bool { got.Reset(); return paid.Calls == 1 && paid.Output > 0 && c.repeat() }
				}
				r, err := m.Complete(t.Context(), req)
				if h.count() != c.calls || (err == nil) != (c.calls == 2) || c.calls == 2 && (r.Text != "whole" || got.String() != "whole") {
					t.Errorf("asked %d times: %+v %q %v", h.count(), r, got.String(), err)
				}
			})
		})
	}
}

func TestStrangeReplies(t *testing.T) {
	for name, text := range map[string]string{
		"garbage": strings.Repeat("\x00\xfe garbage", 1000), "nothing": "", "a list": "[1,2,3]\n", "another object": `{"hello": "world"}` + "\n",
		"an event of garbage": "event: content_block_delta\ndata: {{{{\n\n",
	} {
		t.Run(name, func(t *testing.T) {
			eachWire(t, func(t *testing.T, w wire) {
				m, _ := serve(t, w, respond(text))
				_, err := m.Complete(t.Context(), ask("hi"))
				wantCode(t, err, v1.CodeModelReplyBroken)
			})
		})
	}
	t.Run("a web page", func(t *testing.T) {
		eachWire(t, func(t *testing.T, w wire) {
			m, h := serve(t, w, func(_ int, rw http.ResponseWriter, _ *http.Request) {
				rw.Header().Set("Content-Type", "text/html; charset=utf-8")
				io.WriteString(rw, "<html><title>log in</title></html>")
			})
			_, err := m.Complete(t.Context(), ask("hi"))
			if e := wantCode(t, err, v1.CodeModelReplyBroken); !strings.Contains(e.Message, "web page") || h.count() != 1 {
				t.Errorf("asked %d times: %v", h.count(), err)
			}
		})
	})
	t.Run("an empty one is a reply", func(t *testing.T) {
		eachWire(t, func(t *testing.T, w wire) {
			m, h := serve(t, w, respond(w.stream("")))
			if r := mustReply(t, m, ask("hi"), ""); r.Finish != FinishStop || h.count() != 1 {
				t.Errorf("%+v", r)
			}
		})
	})
}

func TestEndlessRepliesEnd(t *testing.T) {
	eachWire(t, func(t *testing.T, w wire) {
		gone := make(chan struct{})
		m, _ := serve(t, w, func(_ int, rw http.ResponseWriter, r *http.Request) {
			defer close(gone)
			for r.Context().Err() == nil {
				io.WriteString(rw, w.cut(strings.Repeat("again and ", 100)))
				flush(rw)
			}
		})
		req := ask("hi")
		req.MaxTokens = 1000
		r, err := m.Complete(t.Context(), req)
		if err != nil || r.Finish != FinishLength || len(r.Text) > 1024*32 || !r.Usage.Estimated {
			t.Fatalf("%d bytes, %v", len(r.Text), err)
		}
		<-gone
	})
}

func TestListenersCut(t *testing.T) {
	eachWire(t, func(t *testing.T, w wire) {
		gone := make(chan struct{})
		m, _ := serve(t, w, func(_ int, rw http.ResponseWriter, r *http.Request) {
			defer close(gone)
			io.WriteString(rw, w.cut("one ", "two ", "three "))
			flush(rw)
			<-r.Context().Done()
		})
		heard := ""
		req := ask("hi")
		req.Delta = func(s string) bool { heard += s; return !strings.Contains(heard, "two") }
		r, err := m.Complete(t.Context(), req)
		if err != nil || r.Text != "one two " || r.Finish != FinishCut || !r.Usage.Estimated || r.Usage.Output < 2 || r.Usage.Input < 5 {
			t.Errorf("%+v, %v", r, err)
		}
		<-gone
	})
}

func TestStopWordsHold(t *testing.T) {
	eachWire(t, func(t *testing.T, w wire) {
		m, _ := serve(t, w, respond(w.stream("one <", "e", "n", "> <", "end", "> two")))
		heard := ""
		req := ask("hi")
		req.Stop = []string{"<end>", "a", "b", "c", "d", " "}[:1]
		req.Delta = func(s string) bool { heard += s; return true }
		r := mustReply(t, m, req, "one <en> ")
		if heard != r.Text || r.Finish != FinishStop || !r.Usage.Estimated {
			t.Errorf("heard %q, %+v", heard, r)
		}
	})
}

func TestCallsAreGivenUpAtOnce(t *testing.T) {
	for _, when := range []string{"before a byte", "in the middle", "while waiting to try again", "while waiting for a slot"} {
		t.Run(when, func(t *testing.T) {
			eachWire(t, func(t *testing.T, w wire) {
				ctx, cancel := context.WithCancel(t.Context())
				defer cancel()
				entered := make(chan struct{}, 10)
				m, _ := serve(t, w, func(_ int, rw http.ResponseWriter, r *http.Request) {
					entered <- struct{}{}
					switch when {
					case "in the middle":
						io.WriteString(rw, w.cut("half"))
						flush(rw)
					case "while waiting to try again":
						rw.WriteHeader(http.StatusServiceUnavailable)
						return
					}
					<-r.Context().Done()
				}, func(c *Config, p *Provider) {
					p.Concurrency = 1
					c.Retry.Backoff, c.Retry.Max = v1.Duration(time.Hour), v1.Duration(time.Hour)
				})
				var wg sync.WaitGroup
				if when == "while waiting for a slot" {
					wg.Go(func() { m.Complete(ctx, ask("first")) })
					<-entered
				}
				req := ask("hi")
				heard := make(chan struct{}, 1)
				req.Delta = func(string) bool { heard <- struct{}{}; return true }
				wg.Go(func() {
					switch when {
					case "in the middle":
						<-heard
					case "while waiting for a slot":
					default:
						<-entered
					}
					cancel()
				})
				r, err := m.Complete(ctx, req)
				wg.Wait()
				wantCode(t, err, v1.CodeCancelled)
				if !errors.Is(err, context.Canceled) {
					t.Errorf("%v does not wrap the error of the ctx", err)
				}
				if when == "in the middle" && (r == nil || r.Text != "half") {
					t.Errorf("the received text is lost: %+v", r)
				}
			})
		})
	}
}

func TestTimeLimits(t *testing.T) {
	eachWire(t, func(t *testing.T, w wire) {
		synctest.Test(t, func(t *testing.T) {
			silent := func(_ int, rw http.ResponseWriter, r *http.Request) {
				io.WriteString(rw, w.cut("half"))
				flush(rw)
				<-r.Context().Done()
			}
			m, h := serveInside(t, w, silent, func(_ *Config, p *Provider) { p.Idle = v1.Duration(20 * time.Second) })
			r, err := m.Complete(t.Context(), ask("hi"))
			if e := wantCode(t, err, v1.CodeModelTimeout); !strings.Contains(e.Message, "silent for 20s") || r == nil || r.Text != "half" || h.count() != 2 {
				t.Errorf("%d times, %+v, %v", h.count(), r, err)
			}
			m, h = serveInside(t, w, func(_ int, rw http.ResponseWriter, r *http.Request) {
				for r.Context().Err() == nil {
					io.WriteString(rw, "\n") // a byte, but no reply
					flush(rw)
					wait(r.Context(), time.Second)
				}
			}, func(_ *Config, p *Provider) {
				p.Idle, p.Timeout = v1.Duration(20*time.Second), v1.Duration(50*time.Second)
			})
			_, err = m.Complete(t.Context(), ask("hi"))
			if e := wantCode(t, err, v1.CodeModelTimeout); !strings.Contains(e.Message, "50s") || h.count() != 1 {
				t.Errorf("%d times, %v", h.count(), err)
			}
		})
	})
}

func TestConcurrencyIsKept(t *testing.T) {
	eachWire(t, func(t *testing.T, w wire) {
		var now, most atomic.Int64
		full := make(chan struct{})
		m, h := serve(t, w, func(n int, rw http.ResponseWriter, _ *http.Request) {
			at := now.Add(1)
			defer now.Add(-1)
			for old := most.Load(); at > old && !most.CompareAndSwap(old, at); old = most.Load() {
			}
			if n == 3 {
				close(full)
			}
			<-full // no request ends before three have begun
			io.WriteString(rw, w.stream("x"))
		}, func(_ *Config, p *Provider) { p.Concurrency = 3 })
		var wg sync.WaitGroup
		for range 20 {
			wg.Go(func() {
				if _, err := m.Complete(t.Context(), ask("hi")); err != nil {
					t.Error(err)
				}
			})
		}
		wg.Wait()
		if most.Load() != 3 || h.count() != 20 {
			t.Errorf("%d at once, %d in all", most.Load(), h.count())
		}
	})
}

func TestRatesAreKept(t *testing.T) {
	m, h := serve(t, wires[0], respond(wires[0].stream("x")), func(_ *Config, p *Provider) { p.RequestsPerMinute = 1 })
	mustReply(t, m, ask("hi"), "x")
	ctx, cancel := context.WithTimeout(t.Context(), 20*time.Millisecond)
	defer cancel()
	_, err := m.Complete(ctx, ask("hi"))
	wantCode(t, err, v1.CodeCancelled)
	if !errors.Is(err, context.DeadlineExceeded) || h.count() != 1 {
		t.Errorf("asked %d times: %v", h.count(), err)
	}
	m, h = serve(t, wires[0], respond(wires[0].stream("x")), func(_ *Config, p *Provider) { p.TokensPerMinute = 100 })
	mustReply(t, m, ask(strings.Repeat("many words ", 1000)), "x") // a call above the limit per minute runs alone
	ctx, cancel = context.WithTimeout(t.Context(), 20*time.Millisecond)
	defer cancel()
	_, err = m.Complete(ctx, ask("hi"))
	wantCode(t, err, v1.CodeCancelled)
	if h.count() != 1 {
		t.Errorf("asked %d times", h.count())
	}
}

func TestNobodyThere(t *testing.T) {
	eachWire(t, func(t *testing.T, w wire) {
		srv := httptest.NewServer(http.NotFoundHandler())
		srv.Close()
		m, _ := serve(t, w, nil, func(_ *Config, p *Provider) { p.BaseURL = srv.URL })
		_, err := m.Complete(t.Context(), ask("hi"))
		if e := wantCode(t, err, v1.CodeModelUnreachable); !strings.Contains(e.Remedy, "here") || !e.Retry {
			t.Errorf("%v", err)
		}
	})
}

func TestRedirectsAreNotFollowed(t *testing.T) {
	eachWire(t, func(t *testing.T, w wire) {
		elsewhere := httptest.NewServer(http.HandlerFunc(func(http.ResponseWriter, *http.Request) { t.Error("the key was sent to another server") }))
		defer elsewhere.Close()
		m, _ := serve(t, w, func(_ int, rw http.ResponseWriter, r *http.Request) {
			http.Redirect(rw, r, elsewhere.URL, http.StatusTemporaryRedirect)
		})
		_, err := m.Complete(t.Context(), ask("hi"))
		wantCode(t, err, v1.CodeModelUnreachable)
	})
}

func TestACountThatCannotBeRightIsNotUsed(t *testing.T) {
	for reported, want := range map[int64]bool{0: true, 5000: true, -1: false, -1 << 40: false, 1 << 50: false} {
		if got := plausible(reported, 1000); got != want {
			t.Errorf("%d: %v", reported, got)
		}
	}
}

// A server that counts in every chunk has counted only a part when a reply is cut.
func TestTheCountOfAReplyThatIsCutIsAnEstimate(t *testing.T) {
	counted := func(text, finish string, output int) string {
		choice := object{"index": 0, "delta": object{"content": text}}
		if finish != "" {
			choice["finish_reason"] = finish
		}
		return "data: " + jsonText(object{"choices": []object{choice}, "usage": object{"prompt_tokens": 34, "completion_tokens": output, "total_tokens": 34 + output}}) + "\n\n"
	}
	for name, c := range map[string]struct {
		stream    string
		cut       bool
		estimated bool
	}{
		"whole":                         {counted("one ", "", 1) + counted("two", "stop", 2) + "data: [DONE]\n\n", false, false},
		"without a reason of the end":   {counted("one ", "", 1) + counted("two", "", 2) + "data: [DONE]\n\n", false, false},
		"cut by the caller":             {counted("one ", "", 1) + counted("two", "stop", 2), true, true},
		"the end has no count":          {counted("one ", "", 1) + openAIChunks("two") + "data: " + jsonText(object{"choices": []object{{"delta": object{}, "finish_reason": "stop"}}}) + "\n\n", false, true},
		"dropped after the last chunk":  {counted("one ", "", 1) + counted("two", "stop", 2) + "drop", false, false},
		"dropped before the last chunk": {counted("one ", "", 1) + "drop", false, true},
	} {
		t.Run(name, func(t *testing.T) {
			m, h := serve(t, wires[0], func(_ int, rw http.ResponseWriter, _ *http.Request) {
				text, dropped := strings.CutSuffix(c.stream, "drop")
				io.WriteString(rw, text)
				if dropped {
					drop(rw)
				}
			})
			req := ask("hi")
			req.Delta = func(string) bool { return !c.cut }
			r, err := m.Complete(t.Context(), req)
			if (err != nil) != strings.Contains(name, "before") || r.Usage.Input != 34 || r.Usage.Estimated != c.estimated || h.count() != 1 {
				t.Errorf("asked %d times: %+v %v", h.count(), r, err)
			}
		})
	}
}

func TestACostThatCannotBeRightIsNotUsed(t *testing.T) {
	for cost, want := range map[string]float64{"-1": 48e-6, "0": 48e-6, "0.5": 0.5, "1e300": 48e-6} {
		usage := `{"prompt_tokens": 34, "completion_tokens": 7, "total_tokens": 41, "cost": ` + cost + "}"
		m, _ := serve(t, wires[0], respond(openAIChunks("x")+`data: {"choices": [], "usage": `+usage+"}\n\ndata: [DONE]\n\n"))
		if r := mustReply(t, m, ask("hi"), "x"); fmt.Sprintf("%.9f", r.Usage.Cost) != fmt.Sprintf("%.9f", want) {
			t.Errorf("cost %s: %+v", cost, r.Usage)
		}
	}
}
