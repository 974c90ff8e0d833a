package rlm

import (
	"math"
	"sync"

	"github.com/recluse-dev/recluse/llm"
)

// A meter learns how the counts of providers differ from our estimates, so that a budget is exceeded at most by the
// calls that were in flight when a model reported its first usage. One meter serves all budgets of a run.
type meter struct {
	mu     sync.Mutex
	models map[string]*metered // guarded by mu; by name
}

// metered is what the reported usage of a model shows.
type metered struct {
	input   float64 // highest quotient of reported and estimated input; at least 1
	excess  int64   // most input tokens above an estimate
	largest int64   // largest estimate of the calls that reported their usage
	cost    float64 // highest quotient of the reported cost and the cost by the price; between 1 and maxCostFactor
	replies int64   // replies that reported their usage
	hidden  int64   // tokens of these replies that are not in their text
}

// maxCostFactor bounds metered.cost: one wrong cost must not prevent all further calls.
const maxCostFactor = 10

func newMeter() *meter { return &meter{models: map[string]*metered{}} }

// of returns what is known of a model.
//
// Preconditions: m.mu is held.
func (m *meter) of(model string) *metered {
	x := m.models[model]
	if x == nil {
		x = &metered{input: 1, cost: 1}
		m.models[model] = x
	}
	return x
}

// inputFor returns the input tokens to expect of a call, by our estimate. A provider may count more tokens in the same
// text, or add a prompt of its own. A single call does not tell which of both it is: therefore a prompt that is larger
// than all before is expected to have at most twice its estimate, unless more was added to a smaller one.
func (m *meter) inputFor(model string, estimate int64) int64 {
	m.mu.Lock()
	defer m.mu.Unlock()
	x := m.of(model)
	most := x.excess
	if estimate > x.largest {
		most = max(most, estimate)
	}
	more := math.Ceil(float64(estimate)*x.input) - float64(estimate)
	return estimate + int64(min(more, float64(most)))
}

// costOf returns the cost of a call of a model with this usage.
func (m *meter) costOf(model string, price *llm.Price, u llm.Usage) float64 {
	if price == nil {
		return 0
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	return price.Cost(u) * m.of(model).cost
}

// learn records the usage that a provider reported for one call, whose input had the given estimate.
func (m *meter) learn(model string, price *llm.Price, estimate int64, u llm.Usage) {
	m.mu.Lock()
	defer m.mu.Unlock()
	x := m.of(model)
	x.largest = max(x.largest, estimate)
	x.excess = max(x.excess, u.Input-estimate)
	x.input = max(x.input, float64(u.Input)/float64(max(estimate, 1)))
	if price != nil {
		if listed := price.Cost(u); listed > 0 {
			x.cost = max(x.cost, min(u.Cost/listed, maxCostFactor))
		}
	}
}

// addHidden records the tokens of a reply that are not in its text.
func (m *meter) addHidden(model string, tokens int64) {
	m.mu.Lock()
	defer m.mu.Unlock()
	x := m.of(model)
	x.replies, x.hidden = x.replies+1, x.hidden+max(0, tokens)
}

// hiddenTokens returns the mean number of tokens that replies of a model have besides their text.
func (m *meter) hiddenTokens(model string) int64 {
	m.mu.Lock()
	defer m.mu.Unlock()
	if x := m.of(model); x.replies > 0 {
		return x.hidden / x.replies
	}
	return 0
}
