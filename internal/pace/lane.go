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
	// failuresToOpen is the number of consecutive failures that open a circuit. openFor is how long the circuit stays
	// open until one request tries the endpoint.
	failuresToOpen = 5
	openFor        = 10 * time.Second
	// failuresOfOneNamespace is the number of consecutive failures that open the circuit even if the requests of one
	// namespace may cause them.
	failuresOfOneNamespace = 50
	// silentFor is the minimum time that a request must wait for the first part of an answer until silence counts as a
	// failure.
	silentFor = 20 * time.Second
	// trialFor is how long the request that tries the endpoint may wait for the first part of its answer until another
	// request tries the endpoint, too.
	trialFor = 30 * time.Second
	// maxPause bounds each pause that an endpoint asks for. After this time, requests are sent again.
	maxPause = model.MaxPause
	// firstPause and longestPause bound the pause after a refused request if the endpoint does not say how long to
	// wait.
	firstPause, longestPause = time.Second, 30 * time.Second
	// rampFor is how long the pace grows after a pause. The number of requests that were sent since the end of the
	// pause may double with each second, so the waiting requests are not all sent together.
	rampFor = 10 * time.Second
)

// lane has the state of the requests to one model. Endpoints limit each model separately, and one model may fail while
// the others work.
type lane struct {
	limiter
	gate *Gate
	// count is the number of requests so far, and unfinished are the requests that have not ended.
	count      int64
	unfinished map[*Permit]struct{}
	// circuit holds requests back while the endpoint fails. openUntil is the time at which an open circuit lets in a
	// request that tries the endpoint. lastFailure is the newest failure of the endpoint.
	circuit     *gobreaker.TwoStepCircuitBreaker[struct{}]
	openUntil   time.Time
	lastFailure *model.Error
	// heardAt is when an answer or a refusal last began, or zero. slowest is the longest time from a request to the
	// beginning of its answer, with less weight for older requests. silent counts the requests since heardAt that have
	// ended in silence.
	heardAt time.Time
	slowest time.Duration
	silent  uint32
	// culprit is a namespace if all failures since the last success are failures of its requests and have the kind
	// Overloaded. Otherwise it is empty. answered are the newest answers to two namespaces, the newest answer first.
	culprit  string
	answered [2]lastAnswer
	// trial is the newest request that tries an endpoint that has failed, or nil. No other request tries the endpoint
	// before trialUntil.
	trial      *Permit
	trialUntil time.Time
	// pausedUntil is the end of a pause, and sentBeforePause is the number of requests before the pause began. refusals
	// counts the consecutive pauses.
	pausedUntil     time.Time
	sentBeforePause int64
	refusals        int
	// rampStart is the time from which the pace grows, or zero. rampCount is the number of requests since then.
	rampStart time.Time
	rampCount int
	// stated are the limits that the endpoint states: of requests and of tokens.
	stated [2]allowance
	// statedBy is the number of the request whose answer stated the limits.
	statedBy int64
	// heldSince is the time since which the stated limits hold back the first waiting request, or zero. heldUntil is
	// the end of this hold, as it was last known.
	heldSince, heldUntil time.Time
}

func newLane(g *Gate) *lane {
	l := &lane{gate: g, unfinished: map[*Permit]struct{}{}}
	l.circuit = gobreaker.NewTwoStepCircuitBreaker[struct{}](gobreaker.Settings{
		MaxRequests: 1, Timeout: openFor,
		ReadyToTrip: func(c gobreaker.Counts) bool {
			failures := max(c.ConsecutiveFailures, l.silent)
			return failures >= failuresToOpen && (failures >= failuresOfOneNamespace || !l.worksForOthers(clock()))
		},
		IsExcluded:    func(err error) bool { return errors.Is(err, errNoSign) },
		OnStateChange: func(_ string, from, to gobreaker.State) { l.onStateChange(from, to) },
	})
	return l
}

// onStateChange notes a change of the circuit. The circuit calls it while the gate is locked.
func (l *lane) onStateChange(from, to gobreaker.State) {
	now := clock()
	switch {
	case to == gobreaker.StateOpen:
		l.openUntil = now.Add(openFor + time.Millisecond)
	case from == gobreaker.StateHalfOpen:
		l.startRamp(now)
	}
}

// silentEnd returns errNoSign or a failure for a request that has ended before a part of its answer arrived. An
// endpoint that accepts requests and never answers has failed, but a slow model has not. So silence is a failure only
// after several requests in a row. Each must have been sent after the newest answer had begun, and must have waited for
// the time that patience returns.
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

// patience returns the time within which a working endpoint begins an answer.
func (l *lane) patience() time.Duration { return max(silentFor, 2*l.slowest) }

// recordFailure records a failure of the endpoint. It must be called before the failure is reported to the circuit.
func (l *lane) recordFailure(p *Permit, failure *model.Error) {
	l.lastFailure = failure
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

// lastAnswer is the time at which an answer to a namespace has last begun or ended.
type lastAnswer struct {
	namespace string
	at        time.Time
}

// worksForOthers reports whether all failures are failures of one namespace, and the endpoint has answered another
// namespace a short time ago. If so, the requests may cause the failures, for example because they are malformed.
func (l *lane) worksForOthers(now time.Time) bool {
	other := l.answered[0]
	if other.namespace == l.culprit {
		other = l.answered[1]
	}
	return l.culprit != "" && now.Sub(other.at) < l.patience()
}

// recordAnswer records that the answer to a request has begun, or has ended.
func (l *lane) recordAnswer(p *Permit, now time.Time) {
	if !p.begun {
		took := now.Sub(p.admitted)
		l.slowest = max(took, l.slowest-(l.slowest-took)/8)
	}
	if l.answered[0].namespace != p.namespace {
		l.answered[1] = l.answered[0]
	}
	l.answered[0] = lastAnswer{p.namespace, now}
	l.recordResponse(p, now)
}

// recordResponse records that the answer to a request has begun, or that the endpoint has refused the request. If the
// circuit has opened because of silence, recordResponse closes it.
func (l *lane) recordResponse(p *Permit, now time.Time) {
	if p.begun {
		return
	}
	p.begun, l.heardAt = true, now
	wasSilent := l.silent >= failuresToOpen
	if l.silent = 0; wasSilent && l.circuit.State() == gobreaker.StateHalfOpen {
		l.closeCircuit(p)
	}
}

// isOpen reports whether the endpoint counts as failed. If no request tries the endpoint for maxPause after openUntil,
// the endpoint no longer counts as failed, because its state is not known.
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

// isTrying reports whether a request tries the endpoint, so that no other request may.
func (l *lane) isTrying(now time.Time) bool {
	return l.circuit.State() == gobreaker.StateHalfOpen && l.trial != nil && now.Before(l.trialUntil)
}

// closeCircuit closes the circuit after the answer to a trial has begun. An earlier trial may succeed while a later
// trial still runs. In this case closeCircuit reports success for the later trial, because the circuit waits for the
// result of the later trial.
func (l *lane) closeCircuit(p *Permit) {
	if l.circuit.State() == gobreaker.StateHalfOpen && l.trial != p {
		if l.trial != nil {
			l.trial.report(nil)
		} else if done, err := l.circuit.Allow(); err == nil {
			done(nil)
		}
	}
	p.report(nil)
}

// isUnused reports whether the lane has no state that a new lane would not have.
func (l *lane) isUnused(now time.Time) bool {
	return l.limiter.isUnused(now) && !l.isOpen(now) && l.pause(now, math.Inf(1)) == 0 && l.rampWait(now) == 0
}

// recordAdmission counts the request of a new permit.
func (l *lane) recordAdmission(p *Permit, now time.Time) {
	l.count++
	p.number = l.count
	l.unfinished[p] = struct{}{}
	if p.tries = l.circuit.State() == gobreaker.StateHalfOpen; p.tries {
		l.trial, l.trialUntil = p, now.Add(trialFor)
	}
	if !l.rampStart.IsZero() {
		l.rampCount++
	}
	l.stated[0].take(1)
	l.stated[1].take(p.tokens)
}

// wait returns the time until a request may be sent.
func (l *lane) wait(now time.Time, tokens float64) time.Duration {
	stated := l.statedWait(now, tokens)
	l.noteHold(stated, now)
	wait := max(l.limiter.wait(now, tokens), l.pausedUntil.Sub(now), stated, l.rampWait(now))
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

// recordEnd counts the end of a request.
func (l *lane) recordEnd(p *Permit, unsent bool) {
	delete(l.unfinished, p)
	if unsent {
		l.stated[0].giveBack(p.number, 1)
		l.stated[1].giveBack(p.number, p.tokens)
	}
}

// setStatedLimits sets the limits that the answer to a request has stated. Later requests that have not ended are
// subtracted from the remaining requests, because the endpoint may not have counted them.
func (l *lane) setStatedLimits(p *Permit, stated model.StatedLimits, now time.Time) {
	if r := stated.Requests; r.Reset > 0 {
		for other := range l.unfinished {
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

// pause returns the time until the endpoint accepts requests again, as the endpoint has stated it.
func (l *lane) pause(now time.Time, tokens float64) time.Duration {
	return max(l.pausedUntil.Sub(now), l.statedWait(now, tokens))
}

// statedWait returns the time until the limits that the endpoint states allow a request.
func (l *lane) statedWait(now time.Time, tokens float64) time.Duration {
	return max(0, l.stated[0].wait(now, 1), l.stated[1].wait(now, tokens))
}

// noteHold notes whether the stated limits hold back the first waiting request for the time wait. At the end of such a
// hold, it starts the growth of the pace, because many requests may wait. After a short hold, the pace starts higher,
// as if it had already grown for a part of rampFor.
func (l *lane) noteHold(wait time.Duration, now time.Time) {
	switch {
	case wait > 0:
		if l.heldUntil = now.Add(wait); l.heldSince.IsZero() {
			l.heldSince = now
		}
	case !l.heldSince.IsZero():
		end := l.heldUntil // if no request has waited until then, the current time may be much later
		if now.Before(end) {
			end = now
		}
		if from := end.Add(min(end.Sub(l.heldSince), rampFor) - rampFor); from.After(l.rampStart) {
			l.startRamp(from)
		}
		l.heldSince = time.Time{}
	}
}

// startRamp lets the pace grow from this time on.
func (l *lane) startRamp(from time.Time) { l.rampStart, l.rampCount = from, 0 }

// rampWait returns the time until the growing pace allows another request.
func (l *lane) rampWait(now time.Time) time.Duration {
	switch {
	case l.rampStart.IsZero():
		return 0
	case now.Sub(l.rampStart) >= rampFor:
		l.rampStart = time.Time{}
		return 0
	}
	return max(0, l.rampStart.Add(seconds(math.Log2(float64(l.rampCount+1)))).Sub(now))
}

// refusal returns why a request must not wait, or nil if it may wait. A request with a fallback to another model does
// not wait for an endpoint that fails.
func (l *lane) refusal(now time.Time, w *waiter) error {
	inTime := func(wait time.Duration) bool { return w.deadline.IsZero() || now.Add(wait).Before(w.deadline) }
	open := l.circuit.State() == gobreaker.StateOpen
	if open && !inTime(l.openUntil.Sub(now)) || w.request.Fallback && (open || l.isTrying(now)) {
		e := l.gate.failure(l.lastFailure.Kind, "no request was sent, because the last %d requests to the model failed: %s",
			failuresToOpen, l.lastFailure.Message)
		e.Err = l.lastFailure
		return e
	}
	pause := l.pause(now, float64(w.request.Tokens))
	if pause > 0 && !inTime(pause) || w.request.Fallback && pause > w.request.FallbackTime {
		e := l.gate.failure(model.RateLimited, "no request was sent, because the endpoint accepts none for %s", pause.Round(time.Second))
		e.RetryAfter = pause
		return e
	}
	return nil
}

// startPause starts a pause after the endpoint has refused a request because of its limits. If the request was sent
// before the newest pause began, its refusal is not a new one: it can only make the pause longer.
func (l *lane) startPause(number int64, retryAfter time.Duration, now time.Time) {
	wait := retryAfter
	if number > l.sentBeforePause {
		l.sentBeforePause = l.count
		l.refusals++
		if wait <= 0 {
			wait = min(firstPause<<min(l.refusals-1, 10), longestPause)
		}
	}
	if until := now.Add(min(wait, maxPause)); wait > 0 && until.After(l.pausedUntil) {
		l.pausedUntil = until
		l.startRamp(until)
	}
}

// recordAcceptance resets the count of refusals if the request was sent after the newest pause began.
func (l *lane) recordAcceptance(number int64) {
	if number > l.sentBeforePause {
		l.refusals = 0
	}
}

// allowance is the amount that an endpoint still allows until a time. since is the number of the newest request that
// the endpoint has counted itself, so that take was not called for it.
type allowance struct {
	left  int64
	until time.Time
	since int64
}

func (a *allowance) take(amount int64) { a.left -= amount }

// giveBack gives back the amount that was taken for a request.
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
