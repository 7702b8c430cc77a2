// Package apiclock provides the time of the API server's clock. So all processes of Capstan measure a Turn by one
// clock, however wrong the clocks of their machines are.
//
// Each response of the API server carries its time in the header Date, in whole seconds. The server wrote the
// header between the sending of the request and the arrival of the response, so each response bounds the offset
// between the two clocks. The bounds of many responses together are narrow. Between responses, time advances by the
// monotonic clock of this process, which cannot be set.
package apiclock

import (
	"sync"
	"time"

	"github.com/go-logr/logr"
)

const (
	// Tolerance is how far the clock of this machine may be off before Capstan logs a warning.
	Tolerance = 2 * time.Second

	// resolution is the resolution of the header Date.
	resolution = time.Second
	// drift is the divisor by which the bounds widen with time, because no two clocks run at the same speed: 1/5000
	// is 200 parts per million.
	drift = 5000
	// jitter is how far a sample may contradict the known bounds and still count as a sample of the same clock. The
	// clocks of a cluster's API servers may differ by as much.
	jitter = 2 * time.Second
	// stepSamples and stepTime are the number of samples, and the time that they must span, before Clock accepts
	// that the clock of the API server, or of this machine, has jumped.
	stepSamples = 3
	stepTime    = 5 * time.Second
	// warnAgain is the shortest time between two warnings about the same offset.
	warnAgain = 10 * time.Minute
)

// bounds limit the offset: how far the clock of the API server is ahead of the local clock.
type bounds struct{ low, high time.Duration }

// intersect returns the intersection of two bounds. ok is false if it is empty.
func (b bounds) intersect(o bounds) (common bounds, ok bool) {
	common = bounds{max(b.low, o.low), min(b.high, o.high)}
	return common, common.low <= common.high
}

// gap returns the interval between two bounds that do not intersect.
func (b bounds) gap(o bounds) bounds {
	return bounds{min(b.high, o.high), max(b.low, o.low)}
}

// nearest returns the value within the bounds that is nearest to 0. So the time of this machine is used unchanged if it
// may be correct.
func (b bounds) nearest() time.Duration { return min(max(0, b.low), b.high) }

// Clock provides the time of the API server. Before the first response, it provides the time of this machine. Once a
// later response has confirmed the time, Now never goes back. Clock is safe for concurrent use.
type Clock struct {
	// local is the clock of this machine, and start is its first reading. The time since start is measured by the
	// monotonic clock.
	local func() time.Time
	start time.Time
	// observe receives the offset after each sample. It may be nil.
	observe func(time.Duration)
	log     logr.Logger

	mu sync.Mutex
	// synced is set by the first sample, and confirmed when a later sample agrees with the known bounds. known are the
	// current bounds of the offset, computed at the local time knownAt.
	synced, confirmed bool
	known             bounds
	knownAt           time.Duration
	// contradicting are the bounds of samples that contradict the known bounds. contradictingCount is the number of
	// such samples in a row; contradictingSince is the local time of the first of them.
	contradicting      bounds
	contradictingCount int
	contradictingSince time.Duration
	// lastNow is the last result of Now, at the local time lastNowAt.
	lastNow   time.Time
	lastNowAt time.Duration
	// warned is the offset in the last warning, and warnedAt the local time of that warning. warnedAt is negative
	// before the first warning.
	warned, warnedAt time.Duration
}

// New returns a clock that advances by a local clock. observe receives, after each sample, how far the clock of the API
// server is ahead of the local clock. observe may be nil, and must not call the clock.
func New(local func() time.Time, observe func(time.Duration), log logr.Logger) *Clock {
	start := local()
	return &Clock{local: local, start: start, observe: observe, log: log, lastNow: start.Round(0), warnedAt: -1}
}

// Now returns the time by the clock of the API server.
//
// Once a later response has confirmed the time of the first one, Now never goes back. If the API server's clock was set
// back, Now advances at half speed until that clock has caught up. So a duration that is measured in this time is too
// short by at most half, and Now never stands still.
func (c *Clock) Now() time.Time {
	c.mu.Lock()
	defer c.mu.Unlock()
	at := c.elapsed()
	now := c.serverAt(at)
	passed := max(0, at-c.lastNowAt)
	if slow := c.lastNow.Add(passed / 2); now.Before(slow) {
		now = slow
	}
	c.lastNow, c.lastNowAt = now, at
	return now
}

// Server returns the time by the clock of the API server as it is now. Unlike Now, it goes back if that clock was set
// back. Times that the API server writes, such as the creation of an object, must be compared with Server. The same
// holds for times that several processes compare: after such a step, Now differs between them.
func (c *Clock) Server() time.Time {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.serverAt(c.elapsed())
}

// serverAt returns the time by the clock of the API server at a local time.
func (c *Clock) serverAt(at time.Duration) time.Time {
	server := c.start.Round(0).Add(at)
	if c.synced {
		server = server.Add(c.known.nearest())
	}
	return server
}

// Local returns the current time of the local clock, for Sample.
func (c *Clock) Local() time.Duration { return c.elapsed() }

// elapsed returns the local time since start. It needs no lock.
func (c *Clock) elapsed() time.Duration { return c.local().Sub(c.start) }

// Sample records that the API server wrote a date, in whole seconds, between two times of Local.
func (c *Clock) Sample(date time.Time, sent, received time.Duration) {
	if received < sent {
		return // the local clock was set back during the request
	}
	server := date.Sub(c.start.Round(0))
	sample := bounds{server - received, server + resolution - sent}
	c.mu.Lock()
	defer c.mu.Unlock()
	c.combine(sample, received)
	offset := c.known.nearest()
	if c.observe != nil {
		c.observe(offset)
	}
	c.warn(offset, received)
}

// combine combines a sample with the known bounds.
func (c *Clock) combine(sample bounds, at time.Duration) {
	if !c.synced {
		c.begin(sample, at)
		return
	}
	wider := max(0, at-c.knownAt) / drift
	known := bounds{c.known.low - wider, c.known.high + wider}
	common, agree := known.intersect(sample)
	if !agree {
		between := known.gap(sample)
		if between.high-between.low > jitter {
			c.contradict(sample, at)
			return
		}
		common = between
	}
	c.known, c.knownAt, c.contradictingCount, c.confirmed = common, at, 0, true
}

// begin starts the time with these bounds, whatever it was before.
func (c *Clock) begin(b bounds, at time.Duration) {
	c.synced, c.known, c.knownAt = true, b, at
	c.lastNow, c.lastNowAt = c.serverAt(at), at
}

// contradict records a sample that is far from the known bounds. A single such sample may come from a machine with a
// wrong clock, or from a proxy. Several such samples that agree mean that a clock has jumped. If no sample has ever
// confirmed the first one, the first one was wrong: then no clock has jumped, so Now does not catch up.
func (c *Clock) contradict(sample bounds, at time.Duration) {
	common, agree := c.contradicting.intersect(sample)
	if c.contradictingCount == 0 || !agree {
		c.contradicting, c.contradictingCount, c.contradictingSince = sample, 1, at
		return
	}
	c.contradicting = common
	c.contradictingCount++
	if c.contradictingCount < stepSamples || at-c.contradictingSince < stepTime && at >= c.contradictingSince {
		return
	}
	before, now := c.known.nearest().String(), c.contradicting.nearest().String()
	c.contradictingCount = 0
	if !c.confirmed {
		c.log.Info("The first response had another time than the later ones: following the later ones", "before", before, "now", now)
		c.begin(c.contradicting, at)
		c.confirmed = true
		return
	}
	c.log.Info("The clock of the API server or of this machine has jumped: following the API server", "before", before, "now", now)
	c.known, c.knownAt = c.contradicting, at
}

// warn logs a warning if the clock of this machine is off by more than Tolerance.
func (c *Clock) warn(offset, at time.Duration) {
	if offset.Abs() <= Tolerance {
		return
	}
	if c.warnedAt >= 0 && (at-c.warnedAt).Abs() < warnAgain && (offset-c.warned).Abs() <= Tolerance {
		return
	}
	c.warned, c.warnedAt = offset, max(0, at)
	c.log.Info("Warning: the clock of this machine differs from the clock of the API server, which is used "+
		"instead: correct it, for example with NTP",
		"offsetSeconds", offset.Seconds())
}
