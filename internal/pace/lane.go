package pace

import (
	"errors"
	"fmt"
	"math"
	"time"

	"github.com/sony/gobreaker/v2"

	"github.com/capstan-dev/capstan/internal/runtime/model"
)

const (
	// failuresToOpen is the number of consecutive failures that open a circuit. openFor is how long it stays open,
	// until one request tries the endpoint.
	failuresToOpen = 5
	openFor        = 10 * time.Second
	// failuresOfAll is the number of consecutive failures that open it also if all are those of one namespace.
	failuresOfAll = 50
	// silentFor is how long a request must wait for the first part of an answer, at least, until silence counts as a
	// failure.
	silentFor = 20 * time.Second
	// trialFor is how long the first part of that answer may take until another request tries the endpoint, too.
	trialFor = 30 * time.Second
	// maxPause bounds each pause that an endpoint asks for. Then one request asks again.
	maxPause = model.MaxPause
	// firstPause and longestPause bound the pause after a refused request if the endpoint does not say how long to
	// wait.
	firstPause, longestPause = time.Second, 30 * time.Second
	// rampFor is how long the pace grows after a pause. The number of requests that were sent since the end of the
	// pause may double with each second, so the waiting requests do not all come at once.
	rampFor = 10 * time.Second
)

// lane has the requests to one model. Endpoints limit each model by itself, and one of them may fail alone.
type lane struct {
	limiter
	gate *Gate
	// count is the number of requests so far, and underWay are those that have not ended.
	count    int64
	underWay map[*Permit]struct{}
	// circuit holds requests back while the endpoint fails. openUntil is the end of that time, and last is the failure
	// that has opened the circuit.
	circuit   *gobreaker.TwoStepCircuitBreaker[struct{}]
	openUntil time.Time
	last      *model.Error
	// heardAt is when an answer or a refusal last began, or zero. slowest is the longest time from a request to the
	// beginning of its answer, with less weight for older ones. silent counts the requests since heardAt that have
	// ended in silence.
	heardAt time.Time
	slowest time.Duration
	silent  uint32
	// culprit is the only namespace whose requests have failed since the last success, all of them with HTTP 5xx, or
	// empty. answered are the newest answers to two namespaces, the newest one first.
	culprit  string
	answered [2]answered
	// trial is the newest request that tries an endpoint that has failed, or nil, and trialUntil is the time until
	// which no other one does.
	trial      *Permit
	trialUntil time.Time
	// until is the end of a pause, and since the number of requests before the pause began. refusals counts the
	// consecutive pauses.
	until    time.Time
	since    int64
	refusals int
	// ramp is the time since when the pace grows, or zero. ramped is the number of requests since then.
	ramp   time.Time
	ramped int
	// stated are the limits that the endpoint states: of requests and of tokens.
	stated [2]allowance
	// newest is the number of the request whose answer stated them.
	newest int64
	// heldSince is since when they hold back the request that is first in turn, or zero, and heldUntil is the end of
	// that time as it was last known.
	heldSince, heldUntil time.Time
}

func newLane(g *Gate) *lane {
	l := &lane{gate: g, underWay: map[*Permit]struct{}{}}
	l.circuit = gobreaker.NewTwoStepCircuitBreaker[struct{}](gobreaker.Settings{
		MaxRequests: 1, Timeout: openFor,
		ReadyToTrip: func(c gobreaker.Counts) bool {
			failures := max(c.ConsecutiveFailures, l.silent)
			return failures >= failuresToOpen && (failures >= failuresOfAll || !l.worksForOthers(clock()))
		},
		IsExcluded:    func(err error) bool { return errors.Is(err, errNoSign) },
		OnStateChange: func(_ string, from, to gobreaker.State) { l.changed(from, to) },
	})
	return l
}

// changed follows the circuit. The circuit calls it while the gate holds its lock.
func (l *lane) changed(from, to gobreaker.State) {
	now := clock()
	switch {
	case to == gobreaker.StateOpen:
		l.openUntil = now.Add(openFor + time.Millisecond)
	case from == gobreaker.StateHalfOpen:
		l.startRamp(now)
	}
}

// silentEnd returns the sign of a request that has ended before a part of its answer arrived. An endpoint that accepts
// requests and never answers has failed, but a slow model has not. So silence is a failure only after several requests
// in a row that were sent after the newest answer had begun. Each must have waited for twice the time that such a
// beginning has taken.
func (l *lane) silentEnd(p *Permit, now time.Time) error {
	if p.begun || p.admitted.Before(l.heardAt) || now.Sub(p.admitted) < l.patience() {
		return errNoSign
	}
	if l.silent++; l.silent < failuresToOpen {
		return errNoSign
	}
	return &model.Error{Kind: model.Timeout, Message: fmt.Sprintf(
		"the endpoint has accepted %d requests in a row, and has not begun an answer to any of them in its time", l.silent)}
}

// patience is the time in which an endpoint that works begins an answer.
func (l *lane) patience() time.Duration { return max(silentFor, 2*l.slowest) }

// failed records a failure of the endpoint, before the circuit knows it.
func (l *lane) failed(p *Permit, failure *model.Error) {
	l.last = failure
	culprit := p.namespace
	if failure.Kind != model.Overloaded { // the requests do not cause it
		culprit = ""
	}
	switch {
	case l.circuit.Counts().ConsecutiveFailures == 0:
		l.culprit = culprit
	case l.culprit != culprit:
		l.culprit = ""
	}
}

// answered is when an answer to a namespace has last begun or ended.
type answered struct {
	namespace string
	at        time.Time
}

// worksForOthers reports whether the failures are those of one namespace, and the endpoint has answered another one a
// short time ago. Then the requests may cause the failures, for example because they are malformed.
func (l *lane) worksForOthers(now time.Time) bool {
	other := l.answered[0]
	if other.namespace == l.culprit {
		other = l.answered[1]
	}
	return l.culprit != "" && now.Sub(other.at) < l.patience()
}

// began records that the answer to a request has begun, or has ended.
func (l *lane) began(p *Permit, now time.Time) {
	if !p.begun {
		took := now.Sub(p.admitted)
		l.slowest = max(took, l.slowest-(l.slowest-took)/8)
	}
	if l.answered[0].namespace != p.namespace {
		l.answered[1] = l.answered[0]
	}
	l.answered[0] = answered{p.namespace, now}
	l.heard(p, now)
}

// heard records that the answer to a request has begun, or that the endpoint has refused the request. A refusal says
// nothing about the time that an answer takes. If the circuit has opened because of silence, it closes.
func (l *lane) heard(p *Permit, now time.Time) {
	if p.begun {
		return
	}
	p.begun, l.heardAt = true, now
	wasSilent := l.silent >= failuresToOpen
	if l.silent = 0; wasSilent && l.circuit.State() == gobreaker.StateHalfOpen {
		l.trialSucceeded(p)
	}
}

// isOpen reports whether the endpoint counts as failed. Some time after the circuit has opened, it no longer does if no
// request has tried the endpoint since: nothing is known then.
func (l *lane) isOpen(now time.Time) bool {
	switch l.circuit.State() {
	case gobreaker.StateOpen:
		return true
	case gobreaker.StateHalfOpen:
		return l.trial != nil || now.Sub(l.openUntil) < maxPause
	case gobreaker.StateClosed:
	}
	return false
}

// isTrying reports whether a request tries the endpoint, so that no other one may.
func (l *lane) isTrying(now time.Time) bool {
	return l.circuit.State() == gobreaker.StateHalfOpen && l.trial != nil && now.Before(l.trialUntil)
}

// trialSucceeded closes the circuit after the answer to a trial has begun. An earlier trial may succeed after a later
// one has begun. Then the later one has succeeded, too, as far as the circuit knows.
func (l *lane) trialSucceeded(p *Permit) {
	if l.circuit.State() == gobreaker.StateHalfOpen && l.trial != p {
		if l.trial != nil {
			l.trial.report(nil)
		} else if done, err := l.circuit.Allow(); err == nil {
			done(nil)
		}
	}
	p.report(nil)
}

// isUnused reports whether the lane has no state that a new one would not have.
func (l *lane) isUnused(now time.Time) bool {
	return l.inside == 0 && !l.isOpen(now) && l.pause(now, math.Inf(1)) == 0 && l.rampWait(now) == 0
}

// admitted counts the request of a new permit.
func (l *lane) admitted(p *Permit, now time.Time) {
	l.count++
	p.number = l.count
	l.underWay[p] = struct{}{}
	if p.tries = l.circuit.State() == gobreaker.StateHalfOpen; p.tries {
		l.trial, l.trialUntil = p, now.Add(trialFor)
	}
	if !l.ramp.IsZero() {
		l.ramped++
	}
	l.stated[0].take(1)
	l.stated[1].take(p.tokens)
}

// wait returns the time until a request may be sent.
func (l *lane) wait(now time.Time, tokens float64) time.Duration {
	stated := l.statedWait(now, tokens)
	l.followHold(stated, now)
	wait := max(l.limiter.wait(now, tokens), l.until.Sub(now), stated, l.rampWait(now))
	switch l.circuit.State() {
	case gobreaker.StateOpen:
		wait = max(wait, l.openUntil.Sub(now), time.Millisecond)
	case gobreaker.StateHalfOpen:
		if l.isTrying(now) {
			wait = max(wait, l.trialUntil.Sub(now))
		}
	case gobreaker.StateClosed:
	}
	return wait
}

// ended counts the end of a request.
func (l *lane) ended(p *Permit, unsent bool) {
	delete(l.underWay, p)
	if unsent {
		l.stated[0].giveBack(p.number, 1)
		l.stated[1].giveBack(p.number, p.tokens)
	}
}

// stateLimits follows the limits that the answer to a request has stated. The endpoint may not have counted later
// requests that are under way.
func (l *lane) stateLimits(p *Permit, stated model.StatedLimits, now time.Time) {
	if r := stated.Requests; r.Reset > 0 {
		for other := range l.underWay {
			if other.number > p.number {
				r.Remaining--
			}
		}
		l.stated[0] = allowance{left: r.Remaining, until: now.Add(min(r.Reset, maxPause)), since: p.number}
	}
	if t := stated.Tokens; t.Reset > 0 {
		l.stated[1] = allowance{left: t.Remaining, until: now.Add(min(t.Reset, maxPause)), since: l.count}
	}
}

// pause returns the time until the endpoint accepts requests again, by its own words.
func (l *lane) pause(now time.Time, tokens float64) time.Duration {
	return max(l.until.Sub(now), l.statedWait(now, tokens))
}

// statedWait returns the time until the limits that the endpoint states allow a request.
func (l *lane) statedWait(now time.Time, tokens float64) time.Duration {
	return max(0, l.stated[0].wait(now, 1), l.stated[1].wait(now, tokens))
}

// followHold follows how long the stated limits hold back the request that is first in turn. When they no longer do,
// the pace grows, because many requests may wait. After a short hold, it begins as high as if it had grown before.
func (l *lane) followHold(wait time.Duration, now time.Time) {
	switch {
	case wait > 0:
		if l.heldUntil = now.Add(wait); l.heldSince.IsZero() {
			l.heldSince = now
		}
	case !l.heldSince.IsZero():
		end := l.heldUntil // if no request has waited until then, now may be much later
		if now.Before(end) {
			end = now
		}
		if from := end.Add(min(end.Sub(l.heldSince), rampFor) - rampFor); from.After(l.ramp) {
			l.startRamp(from)
		}
		l.heldSince = time.Time{}
	}
}

// startRamp lets the pace grow from now on.
func (l *lane) startRamp(from time.Time) { l.ramp, l.ramped = from, 0 }

// rampWait returns the time until the growing pace allows another request.
func (l *lane) rampWait(now time.Time) time.Duration {
	switch {
	case l.ramp.IsZero():
		return 0
	case now.Sub(l.ramp) >= rampFor:
		l.ramp = time.Time{}
		return 0
	}
	return max(0, l.ramp.Add(seconds(math.Log2(float64(l.ramped+1)))).Sub(now))
}

// refusal returns why a request must not wait, or nil if it may. A request that has another model does not wait for an
// endpoint that fails.
func (l *lane) refusal(now time.Time, w *waiter) error {
	inTime := func(wait time.Duration) bool { return w.deadline.IsZero() || now.Add(wait).Before(w.deadline) }
	open := l.circuit.State() == gobreaker.StateOpen
	if open && !inTime(l.openUntil.Sub(now)) || w.request.Fallback && (open || l.isTrying(now)) {
		e := l.gate.failure(l.last.Kind, "no request was sent, because the last %d requests to the model failed: %s",
			failuresToOpen, l.last.Message)
		e.Err = l.last
		return e
	}
	if pause := l.pause(now, float64(w.request.Tokens)); pause > 0 && !inTime(pause) || w.request.Fallback && pause > w.request.MaxPause {
		e := l.gate.failure(model.RateLimited, "no request was sent, because the endpoint accepts none for %s", pause.Round(time.Second))
		e.RetryAfter = pause
		return e
	}
	return nil
}

// refused begins a pause after the endpoint has refused a request because of its limits. Requests that were sent before
// the pause say nothing new, except how long to wait.
func (l *lane) refused(number int64, retryAfter time.Duration, now time.Time) {
	wait := retryAfter
	if number > l.since {
		l.since = l.count
		l.refusals++
		if wait <= 0 {
			wait = min(firstPause<<min(l.refusals-1, 10), longestPause)
		}
	}
	if until := now.Add(min(wait, maxPause)); wait > 0 && until.After(l.until) {
		l.until = until
		l.startRamp(until)
	}
}

// accepted ends the count of refusals if the request was sent after the newest pause.
func (l *lane) accepted(number int64) {
	if number > l.since {
		l.refusals = 0
	}
}

// allowance is what an endpoint allows until a time. since is the number of the last request that is not taken from it.
type allowance struct {
	left  int64
	until time.Time
	since int64
}

func (a *allowance) take(amount int64) { a.left -= amount }

// giveBack gives back what was taken for a request.
func (a *allowance) giveBack(number, amount int64) {
	if number > a.since {
		a.left += amount
	}
}

// wait returns the time until the amount is allowed.
func (a *allowance) wait(now time.Time, amount float64) time.Duration {
	if float64(a.left) >= amount {
		return 0
	}
	return max(0, a.until.Sub(now))
}
