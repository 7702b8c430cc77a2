package server

import (
	"context"
	"fmt"
	"maps"
	"sync"
)

// Bounds of what is kept.
const (
	// maxKeptBytes bounds the bodies of all kept requests together.
	maxKeptBytes = 64 << 20
	maxModels    = 1000
	otherModels  = "(other)"
)

// recorder counts and keeps requests. It is safe for concurrent use.
type recorder struct {
	// keep is how many requests are kept at most.
	keep int

	mu       sync.Mutex
	stats    Stats
	requests []*Request // oldest first
	bills    []*Bill    // oldest first
	bytes    int        // of the bodies of requests
	// generation changes with a reset, so that what was in flight then is not counted as finished after it.
	generation int
	// changed is closed at the next change; nil when nobody waits for one.
	changed chan struct{}
}

// entry is a request's place in the recorder. It belongs to the goroutine that serves the request.
type entry struct {
	recorder   *recorder
	request    *Request
	generation int
	settled    bool
	// billed is the request's bill if it has one that is listed.
	billed *Bill
}

func newRecorder(keep int) *recorder {
	r := &recorder{keep: keep}
	r.clear()
	return r
}

// begin counts a request and keeps it. It sets the request's number.
func (r *recorder) begin(req *Request) *entry {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.stats.Requests++
	r.stats.InFlight++
	r.stats.PeakInFlight = max(r.stats.PeakInFlight, r.stats.InFlight)
	model := req.Model
	if _, known := r.stats.ByModel[model]; !known && len(r.stats.ByModel) >= maxModels {
		model = otherModels
	}
	r.stats.ByModel[model]++
	req.Number = r.stats.Requests
	r.requests = append(r.requests, req)
	r.bytes += len(req.Body)
	for len(r.requests) > r.keep || r.bytes > maxKeptBytes {
		r.bytes -= len(r.requests[0].Body)
		r.requests[0] = nil // lets go of the body before append moves the list
		r.requests = r.requests[1:]
	}
	r.notify()
	return &entry{recorder: r, request: req, generation: r.generation}
}

// decided notes the rule that a request met.
func (e *entry) decided(rule int) {
	e.recorder.mu.Lock()
	defer e.recorder.mu.Unlock()
	e.request.Rule = rule
}

// settle counts a request's end, once: later calls change nothing. It is called just before the last bytes are sent, so that a
// client that has the whole response finds it counted.
func (e *entry) settle(outcome Outcome, usage wireUsage) {
	r := e.recorder
	r.mu.Lock()
	defer r.mu.Unlock()
	if e.settled {
		return
	}
	e.settled = true
	e.request.Outcome = outcome
	e.setDelivered(outcome == OutcomeAnswered)
	r.stats.InFlight--
	r.notify()
	if e.generation != r.generation {
		return
	}
	r.stats.ByOutcome[outcome]++
	switch outcome { //nolint:exhaustive // because the other outcomes have no number of their own
	case OutcomeCancelled:
		r.stats.Cancelled++
	case OutcomeAnswered:
		r.stats.PromptTokens += int64(usage.PromptTokens)
		r.stats.CompletionTokens += int64(usage.CompletionTokens)
		r.stats.CachedTokens += int64(usage.PromptDetails.CachedTokens)
		r.stats.ReasoningTokens += int64(usage.CompletionDetails.ReasoningTokens)
	}
}

func (r *recorder) listedModels() {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.stats.ModelLists++
	r.notify()
}

// clear forgets everything but what is in flight.
func (r *recorder) clear() {
	r.mu.Lock()
	defer r.mu.Unlock()
	inFlight := r.stats.InFlight
	r.stats = Stats{
		InFlight: inFlight, PeakInFlight: inFlight,
		ByModel: map[string]int64{}, ByOutcome: map[Outcome]int64{},
	}
	r.requests, r.bytes, r.bills = nil, 0, nil
	r.generation++
	r.notify()
}

// snapshot returns a copy of the counts, and a channel that is closed when they change.
func (r *recorder) snapshot() (Stats, <-chan struct{}) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.changed == nil {
		r.changed = make(chan struct{})
	}
	stats := r.stats
	stats.ByModel, stats.ByOutcome = maps.Clone(stats.ByModel), maps.Clone(stats.ByOutcome)
	return stats, r.changed
}

// kept returns copies of the kept requests, oldest first. Headers and bodies are shared: nothing changes them.
func (r *recorder) kept() []Request {
	r.mu.Lock()
	defer r.mu.Unlock()
	requests := make([]Request, 0, len(r.requests))
	for _, req := range r.requests {
		requests = append(requests, *req)
	}
	return requests
}

// wait returns when done is true of the counts, or with an error that shows them when ctx ends first.
func (r *recorder) wait(ctx context.Context, done func(Stats) bool) error {
	for {
		stats, changed := r.snapshot()
		if done(stats) {
			return nil
		}
		select {
		case <-changed:
		case <-ctx.Done():
			return fmt.Errorf("failed to wait for the fake model's requests: %w; its counts are %+v", context.Cause(ctx), stats)
		}
	}
}

// notify wakes those who wait. The caller holds the lock.
func (r *recorder) notify() {
	if r.changed != nil {
		close(r.changed)
		r.changed = nil
	}
}
