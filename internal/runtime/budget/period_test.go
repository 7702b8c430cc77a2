package budget_test

import (
	"testing"
	"time"

	"github.com/capstan-dev/capstan/internal/runtime/budget"
	"github.com/capstan-dev/capstan/internal/runtime/zone"
)

func TestPeriodAt(t *testing.T) {
	const hour, day, month = budget.Hour, budget.Day, budget.Month
	for name, tc := range map[string]struct {
		unit           budget.Unit
		zone           string
		at, start, end string
	}{
		"an hour":                    {hour, "UTC", "2026-11-25T15:59:59.9Z", "2026-11-25T15:00:00Z", "2026-11-25T16:00:00Z"},
		"an hour that starts at :30": {hour, "Asia/Kolkata", "2026-11-25T15:20:00Z", "2026-11-25T14:30:00Z", "2026-11-25T15:30:00Z"},
		"before half an hour is skipped": {
			hour, "Australia/Lord_Howe", "2026-10-03T15:20:00Z", "2026-10-03T14:30:00Z", "2026-10-03T15:30:00Z",
		},
		"after half an hour is skipped": {
			hour, "Australia/Lord_Howe", "2026-10-03T15:40:00Z", "2026-10-03T15:30:00Z", "2026-10-03T16:00:00Z",
		},
		"half an hour that is repeated": {
			hour, "Australia/Lord_Howe", "2026-04-04T15:10:00Z", "2026-04-04T15:00:00Z", "2026-04-04T15:30:00Z",
		},
		"half an hour before a change": {
			hour, "America/Caracas", "2016-05-01T06:45:00Z", "2016-05-01T06:30:00Z", "2016-05-01T07:00:00Z",
		},
		"a whole hour is skipped":     {hour, "Europe/Berlin", "2026-03-29T00:59:59Z", "2026-03-29T00:00:00Z", "2026-03-29T01:00:00Z"},
		"a change within an hour":     {hour, "America/St_Johns", "2010-03-14T03:40:00Z", "2010-03-14T03:30:00Z", "2010-03-14T04:30:00Z"},
		"a day":                       {day, "Europe/Berlin", "2026-11-25T23:00:00Z", "2026-11-25T23:00:00Z", "2026-11-26T23:00:00Z"},
		"a day of 23 hours":           {day, "Europe/Berlin", "2026-03-29T12:00:00Z", "2026-03-28T23:00:00Z", "2026-03-29T22:00:00Z"},
		"a day of 25 hours":           {day, "Europe/Berlin", "2026-10-25T00:30:00Z", "2026-10-24T22:00:00Z", "2026-10-25T23:00:00Z"},
		"a day that begins at 1:00":   {day, "Africa/Cairo", "2026-04-24T12:00:00Z", "2026-04-23T22:00:00Z", "2026-04-24T21:00:00Z"},
		"a day with two midnights":    {day, "America/Havana", "2026-11-01T12:00:00Z", "2026-11-01T04:00:00Z", "2026-11-02T05:00:00Z"},
		"before a skipped day":        {day, "Pacific/Apia", "2011-12-30T09:59:59Z", "2011-12-29T10:00:00Z", "2011-12-30T10:00:00Z"},
		"after a skipped day":         {day, "Pacific/Apia", "2011-12-30T10:00:00Z", "2011-12-30T10:00:00Z", "2011-12-31T10:00:00Z"},
		"a month":                     {month, "America/New_York", "2026-12-31T23:00:00Z", "2026-12-01T05:00:00Z", "2027-01-01T05:00:00Z"},
		"a month with a clock change": {month, "Europe/Berlin", "2026-03-31T21:59:59Z", "2026-02-28T23:00:00Z", "2026-03-31T22:00:00Z"},
	} {
		t.Run(name, func(t *testing.T) {
			got, err := budget.PeriodAt(tc.unit, load(t, tc.zone), parse(t, tc.at))
			if err != nil || got.Start.Format(time.RFC3339) != tc.start || got.End.Format(time.RFC3339) != tc.end {
				t.Errorf("PeriodAt(%s, %s, %s): %s to %s, %v; want %s to %s", tc.unit, tc.zone, tc.at, got.Start, got.End, err,
					tc.start, tc.end)
			}
		})
	}
	if p, err := budget.PeriodAt("Week", time.UTC, time.Now()); err == nil {
		t.Errorf("PeriodAt of an unknown unit: %v, want an error", p)
	}
}

// TestPeriodsAreSeamless checks over several years that each time is within its period, and that each period starts at
// the end of the previous period.
func TestPeriodsAreSeamless(t *testing.T) {
	for _, name := range []string{
		"UTC", "Europe/Berlin", "America/Sao_Paulo", "Africa/Cairo", "Asia/Beirut", "America/Havana", "Pacific/Apia", "Australia/Lord_Howe",
		"Asia/Kathmandu", "Africa/Casablanca", "Asia/Gaza",
	} {
		in := load(t, name)
		for u, walk := range map[budget.Unit]struct {
			from string
			step time.Duration // shorter than each period
		}{
			budget.Hour:  {"2024-01-01T00:00:00Z", 20 * time.Minute},
			budget.Day:   {"2009-01-01T00:00:00Z", 11 * time.Hour},
			budget.Month: {"2009-01-01T00:00:00Z", 300 * time.Hour},
		} {
			last := budget.Period{}
			for at := parse(t, walk.from); at.Year() < 2028; at = at.Add(walk.step) {
				p, err := budget.PeriodAt(u, in, at)
				if err != nil || at.Before(p.Start) || !at.Before(p.End) {
					t.Fatalf("%s %s: the period of %s is %v (error %v), which does not contain it", name, u, at, p, err)
				}
				if !last.End.IsZero() && p != last && !p.Start.Equal(last.End) {
					t.Fatalf("%s %s: %v follows %v, want no gap", name, u, p, last)
				}
				last = p
			}
		}
	}
}

func load(t *testing.T, name string) *time.Location {
	t.Helper()
	l, err := zone.Load(name)
	if err != nil {
		t.Fatal(err)
	}
	return l
}

func parse(t *testing.T, text string) time.Time {
	t.Helper()
	at, err := time.Parse(time.RFC3339, text)
	if err != nil {
		t.Fatal(err)
	}
	return at
}
