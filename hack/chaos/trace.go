package main

import (
	"bufio"
	"encoding/json"
	"fmt"
	"os"
	"slices"
	"strings"
	"time"

	"github.com/capstan-dev/capstan/hack/chaos/failpoint"
	"github.com/capstan-dev/capstan/internal/runtime/journal"
)

// checkAttempts checks, by the trace of the first executor, that none of its writes to these Turns after it woke up
// succeeded.
func (c *executorsPhase) checkAttempts(uids map[string]bool, asleep, awake time.Time, finished int) error {
	steps, err := readTrace(c.trace(c.first.spec.name))
	if err != nil {
		return err
	}
	fenced, conflicts := 0, 0
	own := map[string]bool{} // Turns that were bound to this executor again: it has started a new run of them
	for _, s := range steps {
		if !uids[s.Turn] || s.End.Before(awake) || own[s.Turn] {
			continue
		}
		if s.Error == "" && s.Effect == failpoint.Append && slices.Contains(s.Details, string(journal.RunStarted)) {
			own[s.Turn] = true
			continue
		}
		switch {
		case s.Effect == failpoint.Append && strings.Contains(s.Error, journal.ErrFenced.Error()):
			fenced++
		case s.Effect == failpoint.Write && s.Error != "":
			conflicts++
		case s.Begin.Before(asleep) || s.Error != "":
			// An effect that began before the sleep may have succeeded before the sleep.
		case s.Effect == failpoint.Append || s.Effect == failpoint.Write:
			c.wrong(fencedZombie, s.Turn, "%s %q, which it began at %s, after its sleep, succeeded", s.Effect, s.Details,
				s.Begin.Format("15:04:05.000"))
		}
	}
	c.fact("  Turns that had ended when it woke up", "%d", finished)
	c.fact("  appends to the journal that failed after it woke up", "%d", fenced)
	c.fact("  writes of a status that failed after it woke up", "%d", conflicts)
	if fenced == 0 || conflicts == 0 {
		return fmt.Errorf("%d appends and %d writes of a status by the executor failed after it woke up, want at least one of each: "+
			"this proves nothing", fenced, conflicts)
	}
	return nil
}

// readTrace reads the trace of a manager. If the manager was killed, the last line may be cut off and is skipped.
func readTrace(path string) ([]failpoint.Step, error) {
	f, err := os.Open(path)
	if err != nil {
		return nil, fmt.Errorf("failed to open the trace of a manager: %w", err)
	}
	defer f.Close() //nolint:errcheck // because it was only read
	var steps []failpoint.Step
	lines := bufio.NewScanner(f)
	lines.Buffer(nil, 1<<20)
	for lines.Scan() {
		var s failpoint.Step
		if json.Unmarshal(lines.Bytes(), &s) == nil {
			steps = append(steps, s)
		}
	}
	return steps, lines.Err()
}
