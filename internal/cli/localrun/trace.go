package localrun

import (
	"crypto/rand"
	"encoding/json"
	"fmt"
	"time"

	"github.com/capstan-dev/capstan/api/v1alpha1"
	"github.com/capstan-dev/capstan/internal/cli/exit"
	"github.com/capstan-dev/capstan/internal/runtime/span"
	"github.com/capstan-dev/capstan/internal/tracing"
)

// traceVariable is the environment variable with the trace of the caller, in the form of the header traceparent.
const traceVariable = "TRACEPARENT"

// firstRun is the payload of the entry for the start of the first run of a Turn.
type firstRun struct {
	TraceID string    `json:"traceID"`
	Begun   time.Time `json:"begun"`
}

// started returns the payload of the entry for the start of the first run. It is the zero value if there was no earlier
// run.
func (p earlierRuns) started() (s firstRun) {
	if len(p.first.Payload) > 0 {
		_ = json.Unmarshal(p.first.Payload, &s) // the engine reports a damaged journal
	}
	if s.Begun.IsZero() { // an older version does not record it
		s.Begun = p.first.Time
	}
	return s
}

// joinTrace decides which trace a Turn belongs to: the trace of its earlier runs, the trace in its annotation, the
// trace in the environment, or a new one. The command line computes the UID of a Turn from its manifests, and the same
// Turn may run many times, so the UID cannot identify an exported trace. If nothing is exported, the trace ID is
// computed from the UID, so that the same Turn prints the same status.
func joinTrace(t *v1alpha1.Turn, before earlierRuns, lookup func(string) (string, bool), exported bool) error {
	if value, _ := lookup(traceVariable); value != "" {
		if err := tracing.Annotate(t, value); err != nil {
			return exit.WithCode(exit.Usage, fmt.Errorf("environment variable %s: %w", traceVariable, err))
		}
	}
	if id, ok := span.ParseTraceID(before.started().TraceID); ok {
		t.Status.TraceID = id.String()
		return nil
	}
	if exported && span.Kept(t.Annotations) == nil {
		var id span.TraceID
		_, _ = rand.Read(id[:]) // never fails
		t.Status.TraceID = id.String()
	}
	return nil
}
