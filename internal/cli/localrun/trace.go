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
	TraceID  string    `json:"traceID"`
	SpanSeed string    `json:"spanSeed"`
	Begun    time.Time `json:"begun"`
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
//
// joinTrace also returns the seed of the IDs of the spans: that of the first run, or a random one. Two Turns with the
// same UID may both be in the trace of one caller, so the UID cannot identify a span there. The seed is empty if an
// older version began the Turn: the IDs then follow from the UID.
func joinTrace(
	t *v1alpha1.Turn, before earlierRuns, lookup func(string) (string, bool), exported bool,
) (spanSeed string, err error) {
	if value, _ := lookup(traceVariable); value != "" {
		if err := tracing.Annotate(t, value); err != nil {
			return "", exit.WithCode(exit.Usage, fmt.Errorf("environment variable %s: %w", traceVariable, err))
		}
	}
	started := before.started()
	if spanSeed = started.SpanSeed; before.last.Seq == 0 {
		spanSeed = rand.Text()
	}
	if id, ok := span.ParseTraceID(started.TraceID); ok {
		t.Status.TraceID = id.String()
		return spanSeed, nil
	}
	if exported && span.Kept(t.Annotations) == nil {
		var id span.TraceID
		_, _ = rand.Read(id[:]) // never fails
		t.Status.TraceID = id.String()
	}
	return spanSeed, nil
}

// childSeed returns the seed of the Turn of a sub-agent. The UID of this Turn follows from that of its parent, so the
// seed follows from the parent's seed. It is empty if the parent has none.
func childSeed(parent, name string) string {
	if parent == "" {
		return ""
	}
	return string(derivedUID(parent, name))
}
