package server

import (
	"sync"
	"time"

	"golang.org/x/time/rate"

	v1 "github.com/recluse-dev/recluse/api/v1"
)

// maxRates is the maximum number of callers whose rates are kept. There is one for each key and token in use, so only
// abuse reaches the maximum. All rates are then reset.
const maxRates = 10_000

// rates limits the number of requests of each caller per second.
type rates struct {
	limits Limits

	mu      sync.Mutex
	callers map[string]*rate.Limiter // guarded by mu
}

func newRates(l Limits) *rates { return &rates{limits: l, callers: map[string]*rate.Limiter{}} }

// take counts a request. If there were too many, it returns an error and how long to wait.
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
	return wait, &v1.Error{
		Code:    v1.CodeRateLimited,
		Op:      "check access",
		Message: "too many requests",
		Remedy:  "wait for the time in Retry-After",
		Retry:   true,
	}
}
