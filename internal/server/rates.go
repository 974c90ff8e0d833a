package server

import (
	"sync"
	"time"

	"golang.org/x/time/rate"

	v1 "github.com/recluse-dev/recluse/api/v1"
)

// maxRates is how many callers' rates are kept. There are as many as keys and tokens in use, so this is only reached by abuse;
// then all begin anew.
const maxRates = 10_000

// rates limits how often each caller may ask.
type rates struct {
	limits Limits

	mu      sync.Mutex
	callers map[string]*rate.Limiter // guarded by mu
}

func newRates(l Limits) *rates { return &rates{limits: l, callers: map[string]*rate.Limiter{}} }

// take counts a request, and tells how long to wait when there were too many.
func (r *rates) take(caller string) (wait time.Duration, err error) {
	if r.limits.Rate == 0 || caller == "" {
		return 0, nil
	}
	r.mu.Lock()
	l := r.callers[caller]
	if l == nil {
		if len(r.callers) >= maxRates {
			clear(r.callers)
		}
		l = rate.NewLimiter(rate.Limit(r.limits.Rate), r.limits.Burst)
		r.callers[caller] = l
	}
	r.mu.Unlock()
	if l.Allow() {
		return 0, nil
	}
	res := l.Reserve()
	wait = res.Delay()
	res.Cancel()
	return wait, &v1.Error{Code: v1.CodeRateLimited, Op: "check access", Message: "too many requests", Remedy: "wait as long as Retry-After says", Retry: true}
}
