// Package pace decides when the requests to a model provider are sent. It enforces the limits that people set and the
// limits that the endpoint states, and holds requests back while the endpoint fails. Waiting namespaces take turns.
package pace

import (
	"container/list"
	"context"
	"errors"
	"fmt"
	"math"
	"slices"
	"sync"
	"time"

	"github.com/capstan-dev/capstan/internal/runtime/model"
)

const (
	// noticeAfter is how long a request waits before its wait is reported.
	noticeAfter = 3 * time.Second
	// maxLanes is the number of models whose unused state is kept.
	maxLanes = 64
	// never is the wait of a request that can be sent only after another request has ended.
	never time.Duration = math.MaxInt64
)

// Limits are limits of requests. 0 means no limit.
type Limits struct {
	RequestsPerMinute, TokensPerMinute, MaxConcurrent int64
}

// Gate lets in the requests to one provider. All state of a model is lost with the process: a new process begins with
// closed circuits and without the endpoint's limits. Gate is safe for concurrent use.
type Gate struct {
	provider string

	mu sync.Mutex
	// providerLimits are the limits of the provider, and modelLimits are the limits of its models. executors is the
	// number of executors that share them.
	providerLimits Limits
	modelLimits    map[string]Limits
	executors      int
	// total enforces this executor's share of the provider's limits. Each lane enforces the share of a model's limits.
	total limiter
	lanes map[string]*lane
	queue queue
	// refused is called for each request that is not let in. It is nil if no function was set.
	refused func()
	// wake lets requests in when a wait is over.
	wake *time.Timer
	// used is when the last request came or ended.
	used time.Time
}

// New returns a gate without limits. The name of the provider is for messages.
func New(provider string) *Gate {
	return &Gate{provider: provider, executors: 1, lanes: map[string]*lane{}, used: clock()}
}

// OnRefused sets a function that the gate calls for each request that is not let in. It must not block, and must not
// use the gate. It must be set before the first request.
func (g *Gate) OnRefused(refused func()) { g.refused = refused }

// SetLimits sets the limits of the provider and of its models. A request counts for both. Executors that share the
// limits get equal parts. The part of MaxConcurrent is rounded down, but is at least 1. executors must be at least 1.
func (g *Gate) SetLimits(provider Limits, models map[string]Limits, executors int) {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.providerLimits, g.modelLimits, g.executors = provider, models, executors
	g.applyLimits()
}

// SetExecutors sets the number of executors that share the limits, at least 1.
func (g *Gate) SetExecutors(executors int) {
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.executors != executors {
		g.executors = executors
		g.applyLimits()
	}
}

func (g *Gate) applyLimits() {
	now := clock()
	g.total.set(g.providerLimits, g.executors, now)
	for name, l := range g.lanes {
		l.set(g.modelLimits[name], g.executors, now)
	}
	g.letIn(now)
}

// Use is the current use of a gate.
type Use struct {
	// Waiting is the number of waiting requests.
	Waiting int64
	// Open lists the models with an open circuit, in no order.
	Open []string
}

// Use returns the current use.
func (g *Gate) Use() Use {
	g.mu.Lock()
	defer g.mu.Unlock()
	now := clock()
	u := Use{Waiting: int64(g.queue.waiting)}
	for name, l := range g.lanes {
		if l.isOpen(now) {
			u.Open = append(u.Open, name)
		}
	}
	return u
}

// IsUnused reports whether the gate had no requests for this time, and has no state that a new gate would not have.
func (g *Gate) IsUnused(unusedFor time.Duration) bool {
	g.mu.Lock()
	defer g.mu.Unlock()
	now := clock()
	for _, l := range g.lanes {
		if !l.isUnused(now) {
			return false
		}
	}
	return g.total.isUnused(now) && g.queue.waiting == 0 && now.Sub(g.used) >= unusedFor
}

// Request is a request that must pass the gate.
type Request struct {
	model.Wait
	// Namespace and Agent identify the sender of the request.
	Namespace, Agent string
	// Low lets all requests that are not low go first, also requests to other models of the provider.
	Low bool
	// Waits is called with true when the request has waited for some seconds, and then with false when the wait is
	// over. It must not block. It may be nil.
	Waits func(waits bool)
}

// waiter is a waiting request.
type waiter struct {
	request *Request
	// deadline is the time after which waiting is useless, or zero.
	deadline time.Time
	lane     *lane
	// line and place are the place in the queue, or nil if the request is not in the queue.
	line  *line
	place *list.Element
	// ready is closed when permit or err is set.
	ready  chan struct{}
	permit *Permit
	err    error
}

// errTooLong is the cause of a wait that has taken too long.
var errTooLong = errors.New("the wait for a turn took too long")

// Enter waits until a request may be sent; see model.Gate. If it returns a permit, Done must be called.
func (g *Gate) Enter(ctx context.Context, r *Request) (*Permit, error) {
	w := &waiter{request: r, ready: make(chan struct{})}
	w.deadline, _ = ctx.Deadline()
	g.push(w)
	select {
	case <-w.ready:
		return w.permit, w.err
	default:
		return g.await(ctx, w)
	}
}

// push adds a request to the queue, and lets it in if possible.
func (g *Gate) push(w *waiter) {
	g.mu.Lock()
	defer g.mu.Unlock()
	now := clock()
	g.used = now
	w.lane = g.lane(w.request.Model, now)
	if err := w.lane.refusal(now, w); err != nil {
		g.refuse(w, err)
		return
	}
	g.queue.push(w)
	g.letIn(now)
}

// await waits until a request is let in or must not wait any longer.
func (g *Gate) await(ctx context.Context, w *waiter) (*Permit, error) {
	notice := time.NewTimer(noticeAfter)
	defer notice.Stop()
	var over <-chan time.Time
	if most := w.request.MaxWait; most > 0 {
		timer := time.NewTimer(most)
		defer timer.Stop()
		over = timer.C
	}
	for {
		select {
		case <-w.ready:
			return w.permit, w.err
		case <-notice.C:
			if waits := w.request.Waits; waits != nil {
				waits(true)
				defer waits(false)
			}
		case <-over:
			return g.leave(w, errTooLong)
		case <-w.request.Stop:
			return g.leave(w, model.ErrStopped)
		case <-ctx.Done():
			return g.leave(w, context.Cause(ctx))
		}
	}
}

// leave takes a request out of the queue. If it was let in meanwhile, its permit is given back.
func (g *Gate) leave(w *waiter, cause error) (*Permit, error) {
	g.mu.Lock()
	defer g.mu.Unlock()
	switch {
	case w.permit != nil:
		w.permit.finish(Outcome{Unsent: true})
	case w.err != nil:
		return nil, w.err
	default:
		g.queue.remove(w)
		g.letIn(clock()) // another request may need fewer tokens
	}
	if errors.Is(cause, errTooLong) {
		g.notifyRefused()
		return nil, g.failure(model.RateLimited, "the request waited for %s for its turn, and another model can answer",
			w.request.MaxWait.Round(time.Second))
	}
	return nil, cause
}

// refuse ends the wait of a request that is not in the queue.
func (g *Gate) refuse(w *waiter, err error) {
	g.notifyRefused()
	w.err = err
	close(w.ready)
}

func (g *Gate) notifyRefused() {
	if g.refused != nil {
		g.refused()
	}
}

// evict refuses the waiting requests to a model that must not wait any longer.
func (g *Gate) evict(l *lane, now time.Time) {
	for _, w := range g.queue.waitingFor(l) {
		if err := l.refusal(now, w); err != nil {
			g.queue.remove(w)
			g.refuse(w, err)
		}
	}
}

// failure returns the failure of a request that was not sent.
func (g *Gate) failure(kind model.ErrorKind, format string, args ...any) *model.Error {
	return &model.Error{Kind: kind, Unsent: true, Message: fmt.Sprintf("provider %q: ", g.provider) + fmt.Sprintf(format, args...)}
}

// letIn lets in the requests that may be sent now, and sets the timer for the next one. The caller must hold the lock.
func (g *Gate) letIn(now time.Time) {
	for {
		w, wait := g.next(now)
		if w == nil {
			g.wakeIn(wait)
			return
		}
		g.queue.moveToEnd(w)
		g.queue.remove(w)
		close(w.ready)
	}
}

// next returns a request that may be sent now, with its permit. If there is no such request, it returns the time after
// which there may be one. If the first request to a model must wait, no other request to the model overtakes it:
// otherwise a request that needs many tokens might wait for ever. If the limits of the provider hold a request back, no
// request at all overtakes it.
func (g *Gate) next(now time.Time) (found *waiter, soonest time.Duration) {
	soonest = never
	var held []*lane
	g.queue.visitHeads(func(w *waiter) bool {
		tokens := float64(w.request.Tokens)
		if slices.Contains(held, w.lane) {
			return true
		}
		if wait := w.lane.wait(now, tokens); wait > 0 {
			soonest, held = min(soonest, wait), append(held, w.lane)
			return true
		}
		if wait := g.total.wait(now, tokens); wait > 0 {
			soonest = min(soonest, wait)
			return false
		}
		if w.permit = g.admit(w, now); w.permit == nil {
			soonest = min(soonest, time.Millisecond) // the circuit has changed meanwhile
			return true
		}
		found = w
		return false
	})
	return found, soonest
}

// admit returns the permit of a request, or nil if the circuit does not let it in.
func (g *Gate) admit(w *waiter, now time.Time) *Permit {
	l := w.lane
	if l.trial != nil && !l.isTrying(now) {
		l.trial.abandonTrial()
	}
	done, err := l.circuit.Allow()
	if err != nil {
		return nil
	}
	p := &Permit{gate: g, lane: l, namespace: w.request.Namespace, tokens: w.request.Tokens, admitted: now, done: done}
	g.total.take(float64(p.tokens))
	l.take(float64(p.tokens))
	l.recordAdmission(p, now)
	return p
}

func (g *Gate) wakeIn(wait time.Duration) {
	switch {
	case wait == never && g.wake != nil:
		g.wake.Stop()
	case wait == never:
	case g.wake == nil:
		g.wake = time.AfterFunc(wait, g.awake)
	default:
		g.wake.Reset(wait)
	}
}

func (g *Gate) awake() {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.letIn(clock())
}

// lane returns the state of a model.
func (g *Gate) lane(name string, now time.Time) *lane {
	l := g.lanes[name]
	if l != nil {
		return l
	}
	for other, l := range g.lanes { // bound the number of lanes, because Agents choose the names of models
		if len(g.lanes) >= maxLanes && l.isUnused(now) && len(g.queue.waitingFor(l)) == 0 {
			delete(g.lanes, other)
		}
	}
	l = newLane(g)
	l.set(g.modelLimits[name], g.executors, now)
	g.lanes[name] = l
	return l
}

func clock() time.Time {
	return time.Now() //nolint:forbidigo // because durations are measured, not a time of day
}

// limiter enforces the limits of a provider or of a model.
type limiter struct {
	requests, tokens *bucket
	// inFlight is the number of requests that were let in and have not ended. maxInFlight is its maximum, or 0 for no
	// limit.
	maxInFlight, inFlight int64
}

// set sets the limits. They are divided among the executors.
func (l *limiter) set(to Limits, executors int, now time.Time) {
	share := func(n int64) float64 { return float64(n) / float64(executors) }
	l.requests = newBucket(share(to.RequestsPerMinute), l.requests, now)
	l.tokens = newBucket(share(to.TokensPerMinute), l.tokens, now)
	if l.maxInFlight = to.MaxConcurrent; l.maxInFlight > 0 {
		l.maxInFlight = max(1, l.maxInFlight/int64(executors))
	}
}

// isUnused reports whether the limiter has no state that a new one would not have.
func (l *limiter) isUnused(now time.Time) bool {
	return l.inFlight == 0 && l.requests.isFull(now) && l.tokens.isFull(now)
}

// wait returns the time until a request may be sent.
func (l *limiter) wait(now time.Time, tokens float64) time.Duration {
	if l.maxInFlight > 0 && l.inFlight >= l.maxInFlight {
		return never
	}
	return max(l.requests.wait(now, 1), l.tokens.wait(now, tokens))
}

// take counts a request.
func (l *limiter) take(tokens float64) {
	l.inFlight++
	l.requests.take(1)
	l.tokens.take(tokens)
}

// settle counts the end of a request. It replaces the tokens that were taken some time ago by the tokens that were
// used.
func (l *limiter) settle(o *Outcome, taken int64, ago time.Duration) {
	l.inFlight--
	if o.Unsent {
		l.requests.giveBack(1, ago)
		l.tokens.giveBack(float64(taken-o.Tokens), ago)
		return
	}
	l.tokens.take(float64(o.Tokens - taken))
}
