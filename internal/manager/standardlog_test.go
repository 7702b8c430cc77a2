package manager

import (
	"log"
	"strings"
	"testing"

	"github.com/go-logr/logr/funcr"
)

func TestStandardLog(t *testing.T) {
	for verbosity, want := range []int{0, 1} {
		var lines []string
		to := funcr.New(func(_, args string) { lines = append(lines, args) }, funcr.Options{Verbosity: verbosity})
		l := log.New(StandardLog(to), "", 0)
		l.Printf("Unsolicited response: %s\nERROR forged line", strings.Repeat("x", 10_000))
		if len(lines) != want {
			t.Errorf("at the verbosity %d there are %d lines, want %d", verbosity, len(lines), want)
		}
		for _, line := range lines {
			if len(line) > 700 || strings.Contains(line, "\n") || !strings.Contains(line, "Unsolicited response: xxx") {
				t.Errorf("the line has %d bytes: %.100s", len(line), line)
			}
		}
	}
}
