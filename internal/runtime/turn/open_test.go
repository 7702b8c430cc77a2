package turn_test

import (
	"context"
	"errors"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/capstan-dev/capstan/internal/runtime/journal"
	"github.com/capstan-dev/capstan/internal/runtime/journal/journaltest"
	"github.com/capstan-dev/capstan/internal/runtime/loop"
	"github.com/capstan-dev/capstan/internal/runtime/prompt"
	"github.com/capstan-dev/capstan/internal/runtime/tool"
	"github.com/capstan-dev/capstan/internal/runtime/turn"
)

// TestCallsThatAreOpenAtTheEnd kills a run during its calls. The next run ends the Turn before it continues with these
// calls. Each call must have the same outcome in the result and in the journal.
func TestCallsThatAreOpenAtTheEnd(t *testing.T) {
	const (
		refused = "error (denied): the tool was not called, because the turn had ended"
		failed  = "error (failed): the turn ended during the call"
		unknown = "error (outcome_unknown): the outcome of this call is unknown: the turn ended during the call"
	)
	endings := map[turn.Stop]func(*turn.Input){
		turn.StopCancelled: func(in *turn.Input) {
			in.Cancel = cancelled()
		},
		turn.StopDeadline:         func(in *turn.Input) { in.Timeout = 0 },
		turn.StopPreparationError: func(in *turn.Input) { in.Output = []byte(`{"type":1}`) },
	}
	for name, tc := range map[string]struct {
		reason   string
		dies     string            // the tool whose call kills the first run
		contents map[string]string // the content of each call's result, or "" for a success
		unknown  int
	}{
		"reading": {"the interrupted read-only call has no result, and the later calls were not made", "find", map[string]string{
			"r1": failed, "r2": failed, "i1": refused, "d1": refused, "d2": refused,
		}, 0},
		"storing": {
			"the interrupted idempotent call has no result, and the later calls were not made", "store",
			map[string]string{"r1": "", "r2": "", "i1": failed, "d1": refused, "d2": refused},
			0,
		},
		"sending": {
			"the outcome of the interrupted destructive call is unknown", "send",
			map[string]string{"r1": "", "r2": "", "i1": "", "d1": unknown, "d2": refused},
			1,
		},
	} {
		for stop, end := range endings {
			t.Run(name+", "+string(stop), func(t *testing.T) {
				j := &journaltest.Store{}
				c, _ := candidate("p0", 1, answer{reply: calls("", call("r1", "find"), call("r2", "find"),
					call("i1", "store"), call("d1", "send"), call("d2", "send"))})
				in := inTalk("uid", "Send it.", c)
				ctx, run := control(t, &in)
				do := func(name string, effect tool.Effect) tool.Tool {
					return named(name, effect, func(ctx context.Context, _ tool.Call) (tool.Result, error) {
						if name == tc.dies {
							run.abandon(errKilled)
							<-ctx.Done()
						}
						return tool.Result{Content: "done"}, ctx.Err()
					})
				}
				in.Tools = []tool.Tool{do("find", tool.ReadOnly), do("store", tool.Idempotent), do("send", tool.Destructive)}
				if _, err := engine(j).Run(ctx, new(in)); !errors.Is(err, errKilled) {
					t.Fatalf("Run = %v, want the run to be killed", err)
				}
				in.Epoch = 2
				end(&in)
				result := mustRun(t, j, in)
				if result.Stop != stop || result.Counts.UnknownOutcomes != tc.unknown {
					t.Errorf("the Turn ends as %s with %d unknown outcomes, want %s and %d",
						result.Stop, result.Counts.UnknownOutcomes, stop, tc.unknown)
				}
				want := map[string]loop.Outcome{}
				for id, content := range tc.contents {
					want[id] = map[string]loop.Outcome{
						"": loop.Succeeded, refused: loop.Refused, failed: loop.Failed,
						unknown: loop.Unknown,
					}[content]
				}
				listed, kept, contents := map[string]loop.Outcome{}, map[string]loop.Outcome{}, map[string]string{}
				for _, c := range result.Calls {
					listed[c.CallID] = c.Outcome
				}
				for _, f := range payloads[loop.CallResult](t, j, journal.ToolFinished) {
					kept[f.CallID], contents[f.CallID] = f.Outcome, f.Content
					if f.Outcome == loop.Succeeded {
						contents[f.CallID] = ""
					}
				}
				if diff := cmp.Diff(want, listed); diff != "" {
					t.Errorf("%s: outcomes in the result: -want +got:\n%s", tc.reason, diff)
				}
				if diff := cmp.Diff(want, kept); diff != "" {
					t.Errorf("%s: outcomes in the journal: -want +got:\n%s", tc.reason, diff)
				}
				if diff := cmp.Diff(tc.contents, contents); diff != "" {
					t.Errorf("%s: the calls in the journal: -want +got:\n%s", tc.reason, diff)
				}
				in.Epoch = 3
				if diff := cmp.Diff(asJSON(t, result), asJSON(t, mustRun(t, j, in))); diff != "" {
					t.Errorf("another run returns another result: -want +got:\n%s", diff)
				}
			})
		}
	}
}

// TestAnOpenContextPackAtTheEnd checks that an open call of a context pack ends like any other call.
func TestAnOpenContextPackAtTheEnd(t *testing.T) {
	for _, tc := range []struct {
		effect tool.Effect
		want   loop.Outcome
	}{{tool.ReadOnly, loop.Failed}, {tool.Destructive, loop.Unknown}} {
		t.Run(string(tc.effect), func(t *testing.T) {
			j := &journaltest.Store{}
			intent := loop.Intent{
				CallID: "context-pack-1", Name: "recall", Arguments: []byte("{}"), Effect: tc.effect,
				IdempotencyKey: "uid/0/context-pack-1", Attempt: 1,
			}
			writeRun(t, j, journal.Record{Kind: journal.ToolsExposed, Payload: tool.Exposure{Nonce: "N"}},
				journal.Record{Kind: journal.ToolIntended, Payload: intent})
			c, _ := candidate("p0", 1, says("never"))
			in := input(c)
			in.Epoch = 2
			in.Cancel = cancelled()
			result := mustRun(t, j, in)
			if len(result.Calls) != 1 || result.Calls[0].Outcome != tc.want ||
				(result.Counts.UnknownOutcomes == 1) != (tc.want == loop.Unknown) {
				t.Errorf("calls %+v and %d unknown outcomes, want one call with the outcome %s",
					result.Calls, result.Counts.UnknownOutcomes, tc.want)
			}
		})
	}
}

// TestOpenContextPackWithAnEffect continues a Turn in which an older version called a context pack that is not
// read-only. The context pack must not be called again, and its outcome must be unknown.
func TestOpenContextPackWithAnEffect(t *testing.T) {
	for _, effect := range []tool.Effect{tool.Idempotent, tool.Destructive} {
		j := &journaltest.Store{}
		writeRun(t, j, journal.Record{Kind: journal.ToolsExposed, Payload: tool.Exposure{
			Nonce: "N", EffectsDeclared: true,
			ContextTools: []tool.Tool{{Tool: prompt.Tool{Name: "recall"}, Effect: effect, Role: tool.ContextPack}},
		}},
			journal.Record{Kind: journal.ToolIntended, Payload: loop.Intent{
				CallID: "context-pack-1", Name: "recall", Arguments: []byte("{}"), Effect: effect,
				IdempotencyKey: "uid/0/context-pack-1", Attempt: 1,
			}})
		c, _ := candidate("p0", 1, says("Done."))
		in := input(c)
		in.Epoch = 2
		result := mustRun(t, j, in)
		if len(result.Calls) != 1 || result.Calls[0].Outcome != loop.Unknown || result.Stop != turn.StopCompleted {
			t.Errorf("%s: %s with the calls %+v, want one call with an unknown outcome", effect, result.Stop, result.Calls)
		}
	}
}

// writeRun writes the records of an earlier run.
func writeRun(t *testing.T, j journal.Journal, records ...journal.Record) {
	t.Helper()
	log, err := journal.Open(t.Context(), "uid", 1,
		journal.Options{Journal: j, Now: engine(j).Now, Apply: func(journal.Entry) error { return nil }})
	if err == nil {
		err = log.Append(t.Context(), records...)
	}
	if err != nil {
		t.Fatal(err)
	}
}

// TestCallsBeyondTheBudget checks that calls have a result even if the budget ends the Turn before they are made.
func TestCallsBeyondTheBudget(t *testing.T) {
	c, _ := candidate("p0", 1, answer{reply: calls("I send it.", call("d1", "send"))})
	in := input(c)
	in.Limits.MaxTokens = 1050
	in.Tools = []tool.Tool{named("send", tool.Destructive, saying("never"))}
	j := &journaltest.Store{}
	result := mustRun(t, j, in)
	if result.Stop != turn.StopBudget || len(result.Calls) != 1 || result.Calls[0].Outcome != loop.Refused || result.Text != "I send it." {
		t.Errorf("result %+v, want the end by the budget with one refused call", result)
	}
	if f := payloads[loop.CallResult](t, j, journal.ToolFinished); len(f) != 1 || !strings.Contains(f[0].Content, "was not called") {
		t.Errorf("the journal has the results %+v, want one that says that the tool was not called", f)
	}
}
