package zone_test

import (
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/capstan-dev/capstan/internal/runtime/zone"
)

func TestLoad(t *testing.T) {
	t.Setenv("ZONEINFO", t.TempDir()) // the settings of the machine do not count
	at := time.Date(2026, 6, 11, 15, 4, 0, 0, time.UTC)
	for name, want := range map[string]string{
		"UTC": "15:04 UTC", "Europe/Berlin": "17:04 CEST", "Asia/Kathmandu": "20:49 +0545",
		"America/Sao_Paulo": "12:04 -03", "Etc/GMT+12": "03:04 -12",
	} {
		t.Run(name, func(t *testing.T) {
			loc, err := zone.Load(name)
			if err != nil {
				t.Fatalf("Load: %v", err)
			}
			if diff := cmp.Diff(want, at.In(loc).Format("15:04 MST")); diff != "" {
				t.Errorf("the time in the zone: -want +got:\n%s", diff)
			}
			if loc.String() != name {
				t.Errorf("the zone has the name %q, want %q, because a journal keeps the name", loc, name)
			}
		})
	}
}

func TestLoadRejectsInvalidNames(t *testing.T) {
	for _, name := range []string{
		"", "Local", "Europe", "Europe/", "europe/berlin", "posixrules", "../zone.go",
		"/etc/localtime", "Mars/Olympus",
	} {
		if loc, err := zone.Load(name); err == nil {
			t.Errorf("Load(%q) = %v, want an error: the database has no such zone", name, loc)
		}
	}
}
