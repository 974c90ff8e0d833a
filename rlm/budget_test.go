package rlm

import (
	"context"
	"errors"
	"fmt"
	"math"
	"math/rand/v2"
	"sync"
	"testing"
	"time"

	v1 "github.com/recluse-dev/recluse/api/v1"
	"github.com/recluse-dev/recluse/llm"
)

func unlimited() v1.RunLimits {
	l := v1.RunLimits{Depth: new(v1.NoLimit), Turns: new(v1.NoLimit)}
	for _, f := range l.Fields() {
		_ = f.Set("none") // depth and turns do not accept none
	}
	return l
}

// tree spends a budget at random, as runs do: each node makes its calls one after the other, and its children run
// concurrently.
type tree struct {
	b     *budget
	price *llm.Price

	mu       sync.Mutex
	rng      *rand.Rand // guarded by mu
	provider llm.Usage  // guarded by mu; as the providers report it
	refused  int        // guarded by mu
}

func (x *tree) random(n int) int {
	x.mu.Lock()
	defer x.mu.Unlock()
	return x.rng.IntN(n)
}

func (x *tree) node(ctx context.Context, depth int) {
	var wg sync.WaitGroup
	for range 1 + x.random(6) {
		if depth < 4 && x.random(3) == 0 {
			wg.Go(func() { x.node(ctx, depth+1) })
			continue
		}
		x.call(ctx, depth)
	}
	wg.Wait()
}

func (x *tree) call(ctx context.Context, depth int) {
	input := int64(1 + x.random(500))
	info := llm.Info{Name: fmt.Sprintf("m%d", depth%2), Output: 1000, Price: x.price, Local: x.price == nil}
	r, err := x.b.reserve(ctx, info, input)
	if err != nil {
		x.mu.Lock()
		x.refused++
		x.mu.Unlock()
		return
	}
	if x.random(4) == 0 {
		time.Sleep(time.Duration(x.random(100)) * time.Microsecond) // so that reservations overlap
	}
	u := llm.Usage{Calls: 1, Input: input, Output: int64(x.random(int(r.reply) + 1))}
	if x.random(10) == 0 {
		u = llm.Usage{} // the call did not reach its provider
	}
	if x.price != nil {
		u.Cost = (float64(u.Input)*x.price.Input + float64(u.Output)*x.price.Output) / 1e6
	}
	x.mu.Lock()
	x.provider = x.provider.Add(u)
	x.mu.Unlock()
	r.commit(info.Name, depth, u)
}

func TestNoTreeOverspendsOrStops(t *testing.T) {
	for seed := range uint64(150) {
		rng := rand.New(rand.NewPCG(seed, 7))
		l := unlimited()
		var price *llm.Price
		switch seed % 4 {
		case 0:
			l.Tokens = new(int64(rng.IntN(20_000)))
		case 1:
			l.Calls = new(int64(rng.IntN(40)))
		case 2:
			l.Cost, price = new(rng.Float64()*0.05), &llm.Price{Input: 3, Output: 15}
		case 3:
			l.Tokens, l.Calls = new(int64(rng.IntN(20_000))), new(int64(rng.IntN(40)))
			l.Cost, price = new(rng.Float64()*0.05), &llm.Price{Input: 3, Output: 15}
		}
		x := &tree{b: newBudget(l), rng: rng, price: price}
		ctx, cancel := context.WithTimeout(t.Context(), 30*time.Second)
		x.node(ctx, 0)
		stuck := ctx.Err() != nil
		cancel()
		if stuck {
			t.Fatalf("seed %d: a call waited for ever", seed)
		}
		spent, by := x.b.usage()
		if *l.Tokens >= 0 && spent.Tokens() > *l.Tokens {
			t.Errorf("seed %d: %d tokens of %d", seed, spent.Tokens(), *l.Tokens)
		}
		if *l.Calls >= 0 && spent.Calls > *l.Calls {
			t.Errorf("seed %d: %d calls of %d", seed, spent.Calls, *l.Calls)
		}
		if *l.Cost >= 0 && spent.Cost > *l.Cost*(1+1e-9) {
			t.Errorf("seed %d: $%f of $%f", seed, spent.Cost, *l.Cost)
		}
		var sum llm.Usage
		for _, s := range by {
			sum = sum.Add(s.Usage)
		}
		apart := func(a, b float64) bool { return math.Abs(a-b) > 1e-9 } // the parts are added in a different order
		if sum.Tokens() != x.provider.Tokens() || sum.Calls != x.provider.Calls || spent.Tokens() != x.provider.Tokens() || apart(sum.Cost, x.provider.Cost) || apart(spent.Cost, x.provider.Cost) {
			t.Errorf("seed %d: total usage %+v, sum of the parts %+v, providers %+v", seed, spent, sum, x.provider)
		}
		if x.b.tokens != 0 || x.b.inFlight != 0 || x.b.cost > 1e-9 || x.b.cost < -1e-9 {
			t.Errorf("seed %d: still reserved: %d tokens, %d calls, $%g", seed, x.b.tokens, x.b.inFlight, x.b.cost)
		}
	}
}

func TestAReservationWaitsOnlyForWhatMayComeBack(t *testing.T) {
	l := unlimited()
	l.Tokens = new(int64(1000))
	b := newBudget(l)
	info := llm.Info{Name: "m", Output: 900, Local: true}
	first, err := b.reserve(t.Context(), info, 100)
	if err != nil {
		t.Fatal(err)
	}
	got := make(chan error, 1)
	go func() {
		r, err := b.reserve(context.Background(), info, 100)
		if err == nil {
			r.commit("m", 0, llm.Usage{Calls: 1, Input: 100, Output: r.reply})
		}
		got <- err
	}()
	select {
	case err := <-got:
		t.Fatalf("the second did not wait: %v", err)
	case <-time.After(20 * time.Millisecond):
	}
	first.commit("m", 0, llm.Usage{Calls: 1, Input: 100, Output: 10})
	first.commit("m", 0, llm.Usage{Calls: 1, Input: 100, Output: 10}) // a second commit does nothing
	if err := <-got; err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	hold, err := b.reserve(t.Context(), info, 50)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := b.reserve(ctx, info, 900); !errors.Is(err, context.Canceled) {
		t.Errorf("cancelled while waiting: %v", err)
	}
	hold.commit("m", 0, llm.Usage{})
	if _, err := b.reserve(t.Context(), info, 900); reasonOf(err) != v1.ReasonTokens {
		t.Errorf("a reservation above the limit: %v", err)
	}
}

func TestMoneyNeedsAPrice(t *testing.T) {
	l := unlimited()
	l.Cost = new(1.0)
	b := newBudget(l)
	if _, err := b.reserve(t.Context(), llm.Info{Name: "m"}, 1); err == nil {
		t.Error("a model without a price was accepted")
	}
	if _, err := b.reserve(t.Context(), llm.Info{Name: "m", Local: true}, 1); err != nil {
		t.Errorf("a local model: %v", err)
	}
}

// A provider counts up to twice as many tokens as we do, and charges up to three times the price. After the first call,
// no limit is exceeded, however many calls are made at once.
func TestAProviderThatCountsMoreExceedsALimitByOneCallAtMost(t *testing.T) {
	for seed := range uint64(60) {
		rng := rand.New(rand.NewPCG(seed, 8))
		l := unlimited()
		price := &llm.Price{Input: 3, Output: 15, Long: &llm.LongPrice{Above: 700, Input: 6, Output: 30}}
		if seed%2 == 0 {
			l.Tokens = new(int64(2000 + rng.IntN(20_000)))
		} else {
			l.Cost = new(0.05 + rng.Float64()*0.5)
		}
		info := llm.Info{Name: "m", Output: 500, Price: price}
		ratio, markup := 1+rng.Float64(), 1+2*rng.Float64()
		b := newBudget(l)
		var first llm.Usage
		call := func(input, output int64) bool {
			r, err := b.reserve(t.Context(), info, input)
			if err != nil {
				return false
			}
			u := llm.Usage{Calls: 1, Input: int64(math.Ceil(float64(input) * ratio)), Output: min(output, r.reply)}
			u.Cost = price.Cost(u) * markup
			if first.Calls == 0 {
				first = u
			}
			b.meter.learn(info.Name, price, input, u)
			r.commit(info.Name, 0, u)
			return true
		}
		call(100, 100)
		var wg sync.WaitGroup
		for range 16 {
			input, output := int64(1+rng.IntN(2000)), int64(rng.IntN(600))
			wg.Go(func() {
				for call(input, output) {
				}
			})
		}
		wg.Wait()
		spent, _ := b.usage()
		if most := *l.Tokens; most >= 0 && spent.Tokens() > most+first.Tokens() {
			t.Errorf("seed %d: %d tokens of %d; the first call had %d", seed, spent.Tokens(), most, first.Tokens())
		}
		if most := *l.Cost; most >= 0 && spent.Cost > (most+first.Cost)*(1+1e-9) {
			t.Errorf("seed %d: $%g of $%g; the first call had $%g", seed, spent.Cost, most, first.Cost)
		}
	}
}

// Another prompt that a provider adds to each one is not taken for a share of large prompts.
func TestWhatAProviderAddsToPromptsDoesNotMultiply(t *testing.T) {
	m := newMeter()
	const added = 20_000
	for _, input := range []int64{100, 10_000} {
		m.learn("m", nil, input, llm.Usage{Calls: 1, Input: input + added})
	}
	for input, most := range map[int64]int64{100: 100 + added, 5000: 5000 + added, 10_000: 10_000 + added, 100_000: 200_000} {
		if got := m.inputFor("m", input); got > most {
			t.Errorf("%d tokens are expected of a prompt of %d", got, input)
		}
	}
	m.learn("m", nil, 100_000, llm.Usage{Calls: 1, Input: 100_000 + added})
	if got := m.inputFor("m", 90_000); got > 90_000+added {
		t.Errorf("%d tokens are expected of a prompt of 90000", got)
	}
}

// A request that is sent again has a reservation, or it is not sent.
func TestARequestIsSentAgainOnlyWithinTheLimits(t *testing.T) {
	info := llm.Info{Name: "m", Output: 100, Price: &llm.Price{Input: 1e4, Output: 1e4}}
	paid := llm.Usage{Calls: 1, Input: 100, Output: 100, Cost: 2}
	for reason, set := range map[Reason]func(l *v1.RunLimits, calls int64){
		v1.ReasonTokens: func(l *v1.RunLimits, calls int64) { l.Tokens = new(200 * calls) },
		v1.ReasonCost:   func(l *v1.RunLimits, calls int64) { l.Cost = new(float64(2 * calls)) },
		v1.ReasonCalls:  func(l *v1.RunLimits, calls int64) { l.Calls = new(calls) },
	} {
		l := unlimited()
		set(&l, 2)
		b := newBudget(l)
		r, err := b.reserve(t.Context(), info, 100)
		if err != nil {
			t.Fatal(err)
		}
		for range 2 { // the second extension is for the same request
			if err := r.again(info, 100, paid); err != nil {
				t.Errorf("%s: %v", reason, err)
			}
		}
		if err := r.again(info, 100, paid.Add(paid)); reasonOf(err) != reason {
			t.Errorf("%s: a third request: %v", reason, err)
		}
		r.commit("m", 0, paid.Add(paid))
		if b.tokens != 0 || b.inFlight != 0 || math.Abs(b.cost) > 1e-9 {
			t.Errorf("%s: still reserved: %d tokens, %d calls, $%g", reason, b.tokens, b.inFlight, b.cost)
		}
	}
}
