// Package apiclock tells the time by the clock of the API server, so that all processes of Capstan measure a Turn by one clock,
// however wrong the clocks of their machines are.
//
// Each response of the API server has its time in whole seconds, in the header Date. A response bounds the distance between that
// clock and the one of this machine: the server wrote the header between the sending of the request and the arrival of the
// response. The bounds of many responses together are narrow. Between responses the time goes on by the monotonic clock of this
// process, which nobody sets.
package apiclock

import (
	"sync"
	"time"

	"github.com/go-logr/logr"
)

const (
	// Tolerance is how far the clock of this machine may be off before people are told.
	Tolerance = 2 * time.Second

	// resolution is that of the header Date.
	resolution = time.Second
	// drift is by how much the bounds widen with time, because no two clocks run at the same speed: 200 parts per million.
	drift = 5000
	// jitter is by how much samples may contradict what is known and still be of the same clock: API servers of one cluster may
	// differ by as much.
	jitter = 2 * time.Second
	// stepSamples and stepTime are how many samples, over which time, it takes to believe that the clock of the API server, or of
	// this machine, has jumped.
	stepSamples = 3
	stepTime    = 5 * time.Second
	// warnAgain is the least time between two warnings.
	warnAgain = 10 * time.Minute
)

// bounds are the least and the greatest that the clock of the API server is ahead of the local one.
type bounds struct{ low, high time.Duration }

// meet returns what two bounds have in common; ok is false if that is nothing.
func (b bounds) meet(o bounds) (common bounds, ok bool) {
	common = bounds{max(b.low, o.low), min(b.high, o.high)}
	return common, common.low <= common.high
}

// gap returns what lies between two bounds that have nothing in common.
func (b bounds) gap(o bounds) bounds {
	return bounds{min(b.high, o.high), max(b.low, o.low)}
}

// nearest returns the value within the bounds that is nearest to 0: a machine whose clock may be right keeps it.
func (b bounds) nearest() time.Duration { return min(max(0, b.low), b.high) }

// Clock tells the time of the API server. Before the first response it tells that of this machine. Now never goes back. It is
// safe for concurrent use.
type Clock struct {
	// local is the clock of this machine, and start its first reading: the time since then is measured by the monotonic clock.
	local func() time.Time
	start time.Time
	// observe is told the distance to the clock of this machine after each sample; it may be nil.
	observe func(time.Duration)
	log     logr.Logger

	mu sync.Mutex
	// synced is set by the first sample. known are the bounds by then, as of the local time knownAt.
	synced  bool
	known   bounds
	knownAt time.Duration
	// other are the bounds of samples that contradict what is known, otherCount how many there are in a row, and otherSince the
	// local time of the first.
	other      bounds
	otherCount int
	otherSince time.Duration
	// told is what Now said last, and toldAt the local time at which it said so.
	told   time.Time
	toldAt time.Duration
	// warned is the distance that people were told last, warnedAt when; warnedAt is negative before.
	warned, warnedAt time.Duration
}

// New returns a clock that goes on by a local one. observe is told by how much the clock of the API server is ahead of the local
// one after each sample; it may be nil, and must not call the clock.
func New(local func() time.Time, observe func(time.Duration), log logr.Logger) *Clock {
	start := local()
	return &Clock{local: local, start: start, observe: observe, log: log, told: start.Round(0), warnedAt: -1}
}

// Now returns the time by the clock of the API server.
//
// It never goes back. Where the API server's clock was set back, time passes at half its speed until the two meet: what is
// measured meanwhile is too short by half at most, and not without end.
func (c *Clock) Now() time.Time {
	c.mu.Lock()
	defer c.mu.Unlock()
	at := c.elapsed()
	now := c.start.Round(0).Add(at)
	if c.synced {
		now = now.Add(c.known.nearest())
	}
	passed := max(0, at-c.toldAt)
	if slow := c.told.Add(passed / 2); now.Before(slow) {
		now = slow
	}
	c.told, c.toldAt = now, at
	return now
}

// Local returns a moment on the local clock, for a sample.
func (c *Clock) Local() time.Duration { return c.elapsed() }

// elapsed is the local time since the start. It needs no lock.
func (c *Clock) elapsed() time.Duration { return c.local().Sub(c.start) }

// Sample takes in that the API server wrote a date, in whole seconds, between two moments of Local.
func (c *Clock) Sample(date time.Time, sent, received time.Duration) {
	if received < sent {
		return // the local clock was set meanwhile
	}
	server := date.Sub(c.start.Round(0))
	sample := bounds{server - received, server + resolution - sent}
	c.mu.Lock()
	defer c.mu.Unlock()
	c.take(sample, received)
	offset := c.known.nearest()
	if c.observe != nil {
		c.observe(offset)
	}
	c.warn(offset, received)
}

// take brings a sample together with what is known.
func (c *Clock) take(sample bounds, at time.Duration) {
	if !c.synced {
		c.synced, c.told = true, c.start.Round(0).Add(at+sample.nearest())
		c.known, c.knownAt, c.toldAt = sample, at, at
		return
	}
	wider := max(0, at-c.knownAt) / drift
	known := bounds{c.known.low - wider, c.known.high + wider}
	common, agree := known.meet(sample)
	if !agree {
		between := known.gap(sample)
		if between.high-between.low > jitter {
			c.contradict(sample, at)
			return
		}
		common = between
	}
	c.known, c.knownAt, c.otherCount = common, at, 0
}

// contradict takes in a sample that is far from what is known. One alone may be of a machine whose clock is wrong, or of a proxy;
// several that agree mean that a clock has jumped.
func (c *Clock) contradict(sample bounds, at time.Duration) {
	common, agree := c.other.meet(sample)
	if c.otherCount == 0 || !agree {
		c.other, c.otherCount, c.otherSince = sample, 1, at
		return
	}
	c.other = common
	c.otherCount++
	if c.otherCount < stepSamples || at-c.otherSince < stepTime && at >= c.otherSince {
		return
	}
	c.log.Info("The clock of the API server and the clock of this machine have moved apart: following the API server",
		"before", c.known.nearest().String(), "now", c.other.nearest().String())
	c.known, c.knownAt, c.otherCount = c.other, at, 0
}

// warn tells people where the clock of this machine is off by more than Tolerance.
func (c *Clock) warn(offset, at time.Duration) {
	if offset.Abs() <= Tolerance {
		return
	}
	if c.warnedAt >= 0 && (at-c.warnedAt).Abs() < warnAgain && (offset-c.warned).Abs() <= Tolerance {
		return
	}
	c.warned, c.warnedAt = offset, max(0, at)
	c.log.Info("Warning: the clock of this machine differs from that of the API server, which is used instead: set it right, as with NTP",
		"offsetSeconds", offset.Seconds())
}
