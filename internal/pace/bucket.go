package pace

import (
	"math"
	"time"
)

// bucket limits an amount per minute. It fills at a constant rate, and can be overdrawn: an amount that is larger than
// the bucket is taken as soon as the bucket is full, and the next amount waits longer. golang.org/x/time/rate refuses
// such amounts, and an amount cannot be given back to it. A nil bucket has no limit.
type bucket struct {
	perSecond, size, level float64
	at                     time.Time
}

// newBucket returns a bucket for an amount per minute, or nil if perMinute is not positive. The bucket holds the amount
// of one second, at least 1, because servers also enforce their limits over short times. In any minute, at most the
// limit plus the last amount is taken. The bucket continues from the level of the earlier bucket, which may be nil.
func newBucket(perMinute float64, earlier *bucket, now time.Time) *bucket {
	if perMinute <= 0 {
		return nil
	}
	size := max(1, perMinute/60)
	b := &bucket{perSecond: (perMinute - size + 1) / 60, size: size, level: size, at: now}
	if earlier != nil {
		earlier.fill(now)
		b.level = min(size, earlier.level)
	}
	return b
}

func (b *bucket) fill(now time.Time) {
	b.level = min(b.size, b.level+max(0, now.Sub(b.at).Seconds())*b.perSecond)
	b.at = now
}

// isFull reports whether the bucket is like a new one.
func (b *bucket) isFull(now time.Time) bool { return b == nil || b.wait(now, b.size) == 0 }

// wait returns the time until an amount can be taken.
func (b *bucket) wait(now time.Time, amount float64) time.Duration {
	if b == nil {
		return 0
	}
	b.fill(now)
	return seconds((min(amount, b.size) - b.level) / b.perSecond)
}

// maxDebt bounds how far a bucket is overdrawn, as the time that it needs to fill again. An endpoint may report any
// usage.
const maxDebt = 10 * time.Minute

// take takes an amount. If the amount is negative, it is added.
func (b *bucket) take(amount float64) {
	if b != nil {
		b.level = max(b.level-amount, -b.perSecond*maxDebt.Seconds())
	}
}

// giveBack gives back an amount that was taken some time ago, minus the amount that has flowed in since then. The
// inflow may already have replaced the taken amount, and the same amount must not be added twice.
func (b *bucket) giveBack(amount float64, ago time.Duration) {
	if b != nil {
		b.take(-max(0, amount-b.perSecond*ago.Seconds()))
	}
}

// seconds returns a number of seconds as a duration, rounded up to microseconds so that a timer does not fire too
// early. It returns 0 if the number is not positive.
func seconds(s float64) time.Duration {
	if s <= 1e-9 { // sums of fractions are not exact
		return 0
	}
	return time.Duration(math.Ceil(min(s, maxPause.Seconds())*1e6)) * time.Microsecond
}
