package turn_test

import (
	"fmt"
	"slices"
	"sync/atomic"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/capstan-dev/capstan/internal/runtime/journal/journaltest"
	"github.com/capstan-dev/capstan/internal/runtime/loop"
	"github.com/capstan-dev/capstan/internal/runtime/model"
	"github.com/capstan-dev/capstan/internal/runtime/outputpolicy"
	"github.com/capstan-dev/capstan/internal/runtime/prepare"
	"github.com/capstan-dev/capstan/internal/runtime/turn"
)

// checked is a Turn whose answer violates an output policy that only reports violations.
var checked = ending{
	limits: loop.Limits{MaxSteps: 3},
	change: func(_ *process, in *turn.Input) {
		in.Tools = nil
		in.Preparation = preparationOf(func(m *prepare.Input) {
			m.Profile.OutputPolicies = []outputpolicy.Policy{{Name: "polite", Prompt: "Be polite.", OnViolation: outputpolicy.Report}}
		})
	},
	asked: func(messages []model.Message) (int, loop.Purpose) {
		if slices.ContainsFunc(messages, func(m model.Message) bool { return m.Name == loop.MessagePolicy }) {
			return 1, loop.ForPolicy
		}
		return 1, loop.ForStep
	},
	reply: func(_ int, purpose loop.Purpose) model.Reply {
		if purpose == loop.ForPolicy {
			return says(`{"verdicts":[{"rule":"polite","violated":true,"reason":"It is short."}]}`).reply
		}
		return says("Done.").reply
	},
}

// ticking returns a clock that advances by a millisecond with each call.
func ticking() func() time.Time {
	var n atomic.Int64
	return func() time.Time { return at.Add(time.Duration(n.Add(1)) * time.Millisecond) }
}

// checkParts checks that all parts form one tree below the Turn, and that the time of each part is within the time of
// its parent. The observer has already checked that no two runs observed different parts with the same key.
func (w *world) checkParts(t *testing.T) {
	t.Helper()
	for key, part := range w.parts {
		parent, known := w.parts[part.Parent]
		switch {
		case part.End.Before(part.Start):
			t.Errorf("the part %s ends at %s, before its start at %s", key, part.End, part.Start)
		case part.Parent == "":
		case !known:
			t.Errorf("the part %s has the parent %q, which was not observed", key, part.Parent)
		case part.Start.Before(parent.Start) || part.End.After(parent.End):
			t.Errorf("the part %s is from %s to %s, its parent %s from %s to %s",
				key, part.Start, part.End, part.Parent, parent.Start, parent.End)
		}
	}
}

// TestPartsOfKilledTurns kills processes at each moment, and then runs the Turn to its end, twice.
func TestPartsOfKilledTurns(t *testing.T) {
	for name, tc := range map[string]struct {
		ending ending
		want   map[turn.SpanKind]int // the number of parts of a Turn without crashes
	}{
		"everything": {everything, map[turn.SpanKind]int{
			turn.SpanPreparation: 2, turn.SpanStep: 5, turn.SpanCall: 9, turn.SpanApproval: 1, turn.SpanRequest: 9,
			turn.SpanFinalization: 1, turn.SpanHistory: 1,
		}},
		"checked": {checked, map[turn.SpanKind]int{
			turn.SpanPreparation: 1, turn.SpanStep: 1, turn.SpanCheck: 1, turn.SpanRequest: 3,
			turn.SpanFinalization: 1, turn.SpanHistory: 1,
		}},
	} {
		t.Run(name, func(t *testing.T) {
			calm := newWorld(t, &journaltest.Store{}, "uid", tc.ending)
			calm.now = ticking()
			_, _, moments, err := calm.run(1, false, nil)
			if err != nil {
				t.Fatal(err)
			}
			calm.checkParts(t)
			kinds := map[turn.SpanKind]int{}
			for _, part := range calm.parts {
				kinds[part.Kind]++
			}
			if diff := cmp.Diff(tc.want, kinds); diff != "" {
				t.Errorf("parts: -want +got:\n%s", diff)
			}
			for moment := 1; moment <= moments; moment++ {
				w := newWorld(t, &journaltest.Store{}, "uid", tc.ending)
				w.now = ticking()
				last, _, _ := survive(t, w, moment)
				if _, err := w.process(last.epoch+1, nil).run(); err != nil {
					t.Fatal(err)
				}
				w.checkParts(t)
				for _, key := range []string{"finalize", "history"} {
					if _, known := w.parts[key]; !known {
						t.Errorf("the part %s is missing", key)
					}
				}
				if t.Failed() {
					t.Fatalf("when killed at %d", moment)
				}
			}
		})
	}
}

// TestCheckOfAnAnswer checks the part of an output policy.
func TestCheckOfAnAnswer(t *testing.T) {
	w := newWorld(t, &journaltest.Store{}, "uid", checked)
	w.now = ticking()
	if _, _, _, err := w.run(1, false, nil); err != nil {
		t.Fatal(err)
	}
	checks := 0
	for _, part := range w.parts {
		if part.Kind != turn.SpanCheck {
			continue
		}
		checks++
		if part.Parent != turn.StepKey(1) || part.Failure != "" || !part.End.After(part.Start) {
			t.Errorf("the check is %s, want a part of step 1 that takes time and has no failure", fmt.Sprint(part))
		}
	}
	if checks != 1 {
		t.Errorf("%d checks were observed, want one", checks)
	}
}
