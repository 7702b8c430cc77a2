package cli_test

import (
	"strings"
	"testing"

	"github.com/capstan-dev/capstan/internal/cli/exit"
	"github.com/capstan-dev/capstan/internal/prices"
)

// TestPrices checks that the table shows each price with its day and its source.
func TestPrices(t *testing.T) {
	got := capstan(t, "prices")
	if got.code != exit.OK || got.err != "" {
		t.Fatalf("exit code %d, %s", got.code, got.err)
	}
	out := got.out
	lines := map[string]string{}
	for line := range strings.Lines(out) {
		if fields := strings.Fields(line); len(fields) > 2 {
			lines[fields[1]] = strings.Join(fields, " ")
		}
	}
	for _, e := range prices.All() {
		if !strings.HasSuffix(lines[e.Model], " "+e.Pricing.Date) || !strings.Contains(out, e.Service+": "+e.Source+"\n") {
			t.Errorf("%s of %s is not shown with its day and source", e.Model, e.Service)
		}
	}
	for model, want := range map[string]string{
		"gpt-4o-mini":      "OpenAI gpt-4o-mini 0.15 0.075 0.15 0.6 - 2026-07-30",
		"claude-haiku-5-5": "Anthropic claude-haiku-5-5 0.1 (0.5) 0.01 (0.05) 0.125 (0.625) 0.5 (2.5) > 100000 2026-10-24",
	} {
		if lines[model] != want {
			t.Errorf("%q, want %q", lines[model], want)
		}
	}
}
