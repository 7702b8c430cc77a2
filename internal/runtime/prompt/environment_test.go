package prompt_test

import (
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/capstan-dev/capstan/internal/runtime/prompt"
)

func TestEnvironment(t *testing.T) {
	for name, tc := range map[string]struct {
		reason, zone, utc, want string
	}{
		"midday": {
			"the plain case", "UTC", "2026-06-11T12:00:00Z",
			"Thursday, June 11, 2026 (2026-06-11)|12:00 UTC|Wednesday, June 10, 2026 (2026-06-10)|Friday, June 12, 2026 (2026-06-12)",
		},
		"leap day": {
			"February 29 is followed by March", "UTC", "2024-02-29T23:59:59Z",
			"Thursday, February 29, 2024 (2024-02-29)|23:59 UTC|Wednesday, February 28, 2024 " +
				"(2024-02-28)|Friday, March 1, 2024 (2024-03-01)",
		},
		"no leap day": {
			"a year of 365 days has no leap day", "UTC", "2026-03-01T00:00:00Z",
			"Sunday, March 1, 2026 (2026-03-01)|00:00 UTC|Saturday, February 28, 2026 (2026-02-28)|Monday, March 2, 2026 (2026-03-02)",
		},
		"year end": {
			"tomorrow is in the next year", "UTC", "2026-12-31T21:45:00Z",
			"Thursday, December 31, 2026 (2026-12-31)|21:45 UTC|Wednesday, December 30, 2026 " +
				"(2026-12-30)|Friday, January 1, 2027 (2027-01-01)",
		},
		"zone ahead": {
			"the day in the agent's zone counts", "Asia/Tokyo", "2026-12-31T15:30:00Z",
			"Friday, January 1, 2027 (2027-01-01)|00:30 JST|Thursday, December 31, 2026 (2026-12-31)|Saturday, " +
				"January 2, 2027 (2027-01-02)",
		},
		"far ahead": {
			"a zone may be 14 hours ahead", "Pacific/Kiritimati", "2026-06-11T10:00:00Z",
			"Friday, June 12, 2026 (2026-06-12)|00:00 +14|Thursday, June 11, 2026 (2026-06-11)|Saturday, June 13, 2026 (2026-06-13)",
		},
		"far behind": {
			"a zone may be 11 hours behind", "Pacific/Pago_Pago", "2026-06-11T10:59:00Z",
			"Wednesday, June 10, 2026 (2026-06-10)|23:59 SST|Tuesday, June 9, 2026 (2026-06-09)|Thursday, June 11, 2026 (2026-06-11)",
		},
		"zone behind": {
			"the day in a zone may be yesterday's", "America/Los_Angeles", "2026-06-11T05:00:00Z",
			"Wednesday, June 10, 2026 (2026-06-10)|22:00 PDT|Tuesday, June 9, 2026 (2026-06-09)|Thursday, June 11, 2026 (2026-06-11)",
		},
		"half hours": {
			"an offset may have half an hour", "Asia/Kolkata", "2026-03-07T19:00:00Z",
			"Sunday, March 8, 2026 (2026-03-08)|00:30 IST|Saturday, March 7, 2026 (2026-03-07)|Monday, March 9, 2026 (2026-03-09)",
		},
		"quarters": {
			"a zone may have quarters of an hour", "Asia/Kathmandu", "2026-06-10T18:15:00Z",
			"Thursday, June 11, 2026 (2026-06-11)|00:00 +0545|Wednesday, June 10, 2026 (2026-06-10)|Friday, June 12, 2026 (2026-06-12)",
		},
		"summer begins": {
			"a day of 23 hours is one day", "Europe/Berlin", "2026-03-28T23:30:00Z",
			"Sunday, March 29, 2026 (2026-03-29)|00:30 CET|Saturday, March 28, 2026 (2026-03-28)|Monday, March 30, 2026 (2026-03-30)",
		},
		"summer ends": {
			"a day of 25 hours is one day", "Europe/Berlin", "2026-10-25T22:30:00Z",
			"Sunday, October 25, 2026 (2026-10-25)|23:30 CET|Saturday, October 24, 2026 (2026-10-24)|Monday, " +
				"October 26, 2026 (2026-10-26)",
		},
		"half of an hour": {
			"clocks may change by half an hour", "Australia/Lord_Howe", "2026-10-03T15:30:00Z",
			"Sunday, October 4, 2026 (2026-10-04)|02:30 +11|Saturday, October 3, 2026 (2026-10-03)|Monday, October 5, 2026 (2026-10-05)",
		},
		"no midnight": {
			"the first hour of tomorrow may not exist", "America/Santiago", "2026-09-05T04:30:00Z",
			"Saturday, September 5, 2026 (2026-09-05)|00:30 -04|Friday, September 4, 2026 (2026-09-04)|Sunday, " +
				"September 6, 2026 (2026-09-06)",
		},
		"after no midnight": {
			"the first hour of yesterday may not exist", "America/Santiago", "2026-09-07T03:30:00Z",
			"Monday, September 7, 2026 (2026-09-07)|00:30 -03|Sunday, September 6, 2026 (2026-09-06)|Tuesday, " +
				"September 8, 2026 (2026-09-08)",
		},
		"day without midnight": {
			"the first hour of today may not exist", "America/Santiago", "2026-09-06T04:00:00Z",
			"Sunday, September 6, 2026 (2026-09-06)|01:00 -03|Saturday, September 5, 2026 (2026-09-05)|Monday, " +
				"September 7, 2026 (2026-09-07)",
		},
	} {
		t.Run(name, func(t *testing.T) {
			zone, err := time.LoadLocation(tc.zone)
			if err != nil {
				t.Fatal(err)
			}
			now, err := time.Parse(time.RFC3339, tc.utc)
			if err != nil {
				t.Fatal(err)
			}
			part := strings.Split(tc.want, "|")
			want := "- Today: " + part[0] + "\n- Current time: " + part[1] + "\n- Yesterday: " + part[2] + "\n- Tomorrow: " + part[3]
			got, _ := section(mustRender(t, input(func(in *prompt.Input) { in.Now = now.In(zone) })).Text, "environment")
			if diff := cmp.Diff(want, got); diff != "" {
				t.Errorf("%s: -want +got:\n%s", tc.reason, diff)
			}
		})
	}
}

func TestConsecutiveDays(t *testing.T) {
	for _, name := range []string{
		"UTC", "America/Santiago", "Europe/Berlin", "Africa/Cairo", "Asia/Beirut",
		"America/Havana", "Australia/Lord_Howe",
	} {
		zone, err := time.LoadLocation(name)
		if err != nil {
			t.Fatal(err)
		}
		for hour := range 366 * 24 {
			now := time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC).Add(time.Duration(hour) * time.Hour).In(zone)
			if got := prompt.Day(now, 0).Format(time.DateOnly); got != now.Format(time.DateOnly) {
				t.Fatalf("%s: the day of %s is %s, want that of the zone", name, now, got)
			}
			for offset := -1; offset <= 1; offset++ {
				if got := prompt.Day(prompt.Day(now, offset), -offset); !got.Equal(prompt.Day(now, 0)) {
					t.Fatalf("%s: %d days from %s and back is %s, want the same day", name, offset, now, got)
				}
			}
			if gap := prompt.Day(now, 1).Sub(prompt.Day(now, -1)); gap != 48*time.Hour {
				t.Fatalf("%s: from the day before to the day after %s are %s, want two days", name, now, gap)
			}
		}
	}
}
