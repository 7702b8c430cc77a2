package server

import (
	"context"
	"fmt"
	"maps"
	"sync"
)

// The bounds of the recorded data.
const (
	// maxKeptBytes bounds the total size of the bodies of all kept requests.
	maxKeptBytes = 64 << 20
	// maxModels bounds the model names with a count of their own. All other names share the count of otherModels.
	maxModels   = 1000
	otherModels = "(other)"
)

// recorder counts and keeps requests. It is safe for concurrent use.
type recorder struct {
	// keep is the maximum number of kept requests.
	keep int

	mu       sync.Mutex
	stats    Stats
	requests []*Request // oldest first
	bills    []*Bill    // oldest first
	bytes    int        // the total size of the bodies in requests
	// generation changes with a reset, so that a request in flight at the reset is not counted as finished after
	// it.
	generation int
	// changed is closed at the next change. It is nil if no goroutine waits for a change.
	changed chan struct{}
}

// entry is the record of a request. Only the goroutine that serves the request uses it.
type entry struct {
	recorder   *recorder
	request    *Request
	generation int
	finished   bool
	// billed is the request's bill, or nil if the list of bills has none.
	billed *Bill
}

func newRecorder(keep int) *recorder {
	r := &recorder{keep: keep}
	r.clear()
	return r
}

// begin counts and keeps a request, and sets its number.
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
		r.requests[0] = nil // frees the body before append moves the list
		r.requests = r.requests[1:]
	}
	r.notify()
	return &entry{recorder: r, request: req, generation: r.generation}
}

// setRule records the rule that matched the request.
func (e *entry) setRule(rule int) {
	e.recorder.mu.Lock()
	defer e.recorder.mu.Unlock()
	e.request.Rule = rule
}

// finish counts the end of a request once; later calls change nothing. The exchange calls it just before it sends
// the last bytes, so that a client that has the whole response finds the request counted.
func (e *entry) finish(outcome Outcome, usage wireUsage) {
	r := e.recorder
	r.mu.Lock()
	defer r.mu.Unlock()
	if e.finished {
		return
	}
	e.finished = true
	e.request.Outcome = outcome
	e.setDelivered(outcome == OutcomeAnswered)
	r.stats.InFlight--
	r.notify()
	if e.generation != r.generation {
		return
	}
	r.stats.ByOutcome[outcome]++
	switch outcome { //nolint:exhaustive // because the other outcomes have no counter
	case OutcomeCancelled:
		r.stats.Cancelled++
	case OutcomeAnswered:
		r.stats.PromptTokens += int64(usage.PromptTokens)
		r.stats.CompletionTokens += int64(usage.CompletionTokens)
		r.stats.CachedTokens += int64(usage.PromptDetails.CachedTokens)
		r.stats.ReasoningTokens += int64(usage.CompletionDetails.ReasoningTokens)
	}
}

// countModelList counts a request for the list of models or for one model.
func (r *recorder) countModelList() {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.stats.ModelLists++
	r.notify()
}

// clear removes everything except the number of requests in flight.
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

// snapshot returns a copy of the counts and a channel that is closed when they change.
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

// kept returns copies of the kept requests, oldest first. The copies share headers and bodies, which never change.
func (r *recorder) kept() []Request {
	r.mu.Lock()
	defer r.mu.Unlock()
	requests := make([]Request, 0, len(r.requests))
	for _, req := range r.requests {
		requests = append(requests, *req)
	}
	return requests
}

// wait returns nil as soon as done reports true, or an error that shows the counts if ctx ends first.
func (r *recorder) wait(ctx context.Context, done func(Stats) bool) error {
	for {
		stats, changed := r.snapshot()
		if done(stats) {
			return nil
		}
		select {
		case <-changed:
		case <-ctx.Done():
			return fmt.Errorf("gave up waiting for the fake model's requests: %w; its counts are %+v", context.Cause(ctx), stats)
		}
	}
}

// notify wakes all waiting goroutines. The caller must hold the lock.
func (r *recorder) notify() {
	if r.changed != nil {
		close(r.changed)
		r.changed = nil
	}
}
