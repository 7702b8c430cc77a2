package budget

import (
	"fmt"
	"time"
)

// Unit is the length of the periods of a budget.
type Unit string

const (
	// Hour is a unit from one full hour to the next in the time zone of the budget. It is shorter if the clocks change
	// by a part of an hour, such as 30 minutes.
	Hour Unit = "Hour"
	// Day is a unit from midnight to midnight in the time zone of the budget. A day on which the clocks change is
	// longer or shorter than 24 hours, usually by one hour.
	Day Unit = "Day"
	// Month is a calendar month in the time zone of the budget.
	Month Unit = "Month"
)

// Period is one period of a budget: from Start up to, but not including, End.
type Period struct{ Start, End time.Time }

// PeriodAt returns the period that contains a time. It returns an error for an unknown unit.
func PeriodAt(u Unit, zone *time.Location, at time.Time) (Period, error) {
	local := at.In(zone)
	year, month, day := local.Date()
	switch u {
	case Hour:
		return hourAt(local), nil
	case Day:
		return Period{startOfDay(year, month, day, zone), startOfDay(year, month, day+1, zone)}, nil
	case Month:
		return Period{startOfDay(year, month, 1, zone), startOfDay(year, month+1, 1, zone)}, nil
	}
	return Period{}, fmt.Errorf("unknown period %q", u)
}

// hourAt returns the hour that contains a local time.
func hourAt(local time.Time) Period {
	_, offset := local.Zone()
	past := time.Duration(mod(local.Unix()+int64(offset), 3600))*time.Second + time.Duration(local.Nanosecond())
	start := local.Add(-past)
	end := start.Add(time.Hour)
	// If a change of the clocks moves the full hours, the hour begins or ends with the change: otherwise the hours
	// before and after it would overlap.
	before, after := local.ZoneBounds()
	if before.After(start) && movesFullHours(before) {
		start = before
	}
	if after.Before(end) && movesFullHours(after) {
		end = after
	}
	return Period{start.UTC(), end.UTC()}
}

// movesFullHours reports whether a change of the clocks is not a number of whole hours. It returns false for the zero
// time, which stands for no change.
func movesFullHours(change time.Time) bool {
	if change.IsZero() {
		return false
	}
	_, before := change.Add(-1).Zone()
	_, after := change.Zone()
	return (after-before)%3600 != 0
}

// mod returns the remainder of a division, which is never negative.
func mod(n, by int64) int64 { return (n%by + by) % by }

// startOfDay returns the first instant of a day in a zone, in UTC. If the clocks skip midnight, the day starts with the
// change. If there are two midnights, it starts at the first one.
func startOfDay(year int, month time.Month, day int, zone *time.Location) time.Time {
	wall := time.Date(year, month, day, 0, 0, 0, 0, time.UTC)
	var first time.Time
	for _, probe := range []time.Duration{-26 * time.Hour, 26 * time.Hour} {
		_, offset := wall.Add(probe).In(zone).Zone()
		at := wall.Add(-time.Duration(offset) * time.Second)
		if hasWallTime(at.In(zone), wall) && (first.IsZero() || at.Before(first)) {
			first = at
		}
	}
	if !first.IsZero() {
		return first
	}
	// The clocks skip midnight, so the day starts when they change.
	_, change := wall.Add(-26 * time.Hour).In(zone).ZoneBounds()
	return change.UTC()
}

// hasWallTime reports whether the local date and time of a time are those of wall.
func hasWallTime(local, wall time.Time) bool {
	year, month, day := local.Date()
	y, m, d := wall.Date()
	return year == y && month == m && day == d && local.Hour() == wall.Hour() && local.Minute() == wall.Minute() &&
		local.Second() == wall.Second()
}
