package records

import (
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
)

func TestParseSince(t *testing.T) {
	now := time.Date(2026, 6, 11, 15, 4, 5, 0, time.UTC)
	for text, want := range map[string]time.Time{
		"": {}, "24h": now.Add(-24 * time.Hour), "7d": now.AddDate(0, 0, -7), "0s": now,
		"2026-06-01":           time.Date(2026, 6, 1, 0, 0, 0, 0, time.UTC),
		"2026-06-01T10:00:00Z": time.Date(2026, 6, 1, 10, 0, 0, 0, time.UTC),
	} {
		if got, err := ParseSince(text, now); err != nil || !got.Equal(want) {
			t.Errorf("ParseSince(%q) = %v, %v; want %v", text, got, err, want)
		}
	}
	for _, text := range []string{"-1h", "-3d", "1000000d", "yesterday", "d", "7"} {
		if got, err := ParseSince(text, now); err == nil {
			t.Errorf("ParseSince(%q) = %v, want an error", text, got)
		}
	}
}

// TestCSVContainsNoFormula checks that a spreadsheet does not take a name that a person chose for a formula.
func TestCSVContainsNoFormula(t *testing.T) {
	names := []string{"=HYPERLINK(1)", "+1", "-1", "@x", "\n=1", "\x00=1", "＝1", "＋1", "－1", "＠x", "ada@example.com", ""}
	want := []string{"'=HYPERLINK(1)", "'+1", "'-1", "'@x", "'\n=1", "'\x00=1", "'＝1", "'＋1", "'－1", "'＠x", "ada@example.com", ""}
	if diff := cmp.Diff(want, escapeFormulas(names)); diff != "" {
		t.Errorf("-want +got:\n%s", diff)
	}
}

func TestTableEscapesTabsAndLineFeeds(t *testing.T) {
	table := newTable("A", "B")
	table.row([]string{"x\ty\nz\x1b[31m", "1"})
	got := table.text()
	if strings.Count(got, "\n") != 2 || strings.ContainsAny(got, "\t\x1b") {
		t.Errorf("want two lines without tabs and escape characters, have %q", got)
	}
}
