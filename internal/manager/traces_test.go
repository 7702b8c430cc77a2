package manager

import (
	"errors"
	"strings"
	"testing"

	"github.com/go-logr/logr/funcr"
)

// TestRareErrors checks that errors of the exporter within a minute make one log line.
func TestRareErrors(t *testing.T) {
	var lines []string
	r := rareErrors{log: funcr.New(func(_, args string) { lines = append(lines, args) }, funcr.Options{})}
	r.add(errors.New("the first batch failed"))
	r.add(errors.New("the second batch failed"))
	if len(lines) != 1 || !strings.Contains(lines[0], "the first batch failed") {
		t.Errorf("the log is %q, want only the first error", lines)
	}
	r.last = r.last.Add(-errorInterval)
	r.add(errors.New("the third batch failed"))
	if len(lines) != 2 || !strings.Contains(lines[1], "the third batch failed") {
		t.Errorf("the log is %q, want also the error after a minute", lines)
	}
}
