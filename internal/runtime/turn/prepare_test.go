package turn_test

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/capstan-dev/capstan/internal/runtime/invalid"
	"github.com/capstan-dev/capstan/internal/runtime/journal"
	"github.com/capstan-dev/capstan/internal/runtime/journal/journaltest"
	"github.com/capstan-dev/capstan/internal/runtime/loop"
	"github.com/capstan-dev/capstan/internal/runtime/model"
	"github.com/capstan-dev/capstan/internal/runtime/prepare"
	"github.com/capstan-dev/capstan/internal/runtime/prompt"
	"github.com/capstan-dev/capstan/internal/runtime/turn"
	"github.com/capstan-dev/capstan/internal/runtime/turncontext"
)

var errGone = errors.New("the profile is gone")

// mustNotPrepare returns a preparation that must not be called, because the journal has everything that is needed.
func mustNotPrepare(t *testing.T) func(context.Context) (prepare.Input, error) {
	t.Helper()
	return func(context.Context) (prepare.Input, error) {
		t.Error("the run prepared although the journal has the input")
		return prepare.Input{}, errGone
	}
}

func TestPreparationThatFails(t *testing.T) {
	invalidZone := invalid.Field("Agent spec.timeZone", "no such zone")
	for name, tc := range map[string]struct {
		reason string
		err    error
		stop   turn.Stop
	}{
		"invalid input": {
			"an error in the input ends the Turn, because only another input resolves it", invalidZone,
			turn.StopPreparationError,
		},
		"wrapped": {
			"a wrapped error in the input ends the Turn, too", errors.Join(errors.New("context"), invalidZone),
			turn.StopPreparationError,
		},
		"unavailable": {"a later run may succeed", errGone, ""},
		"cut off":     {"a later run may succeed if this one was stopped", context.Canceled, ""},
	} {
		for _, only := range []bool{false, true} {
			t.Run(name, func(t *testing.T) {
				j := &journaltest.Store{}
				c, s := candidate("p0", 2, says("never asked"))
				d, _ := candidate("p1", 2, says("never asked"))
				in := input(c, d)
				in.PrepareOnly = only
				in.Preparation = func(context.Context) (prepare.Input, error) { return prepare.Input{}, tc.err }
				result, err := engine(j).Run(t.Context(), new(in))
				if s.asked() != 0 {
					t.Errorf("the model was asked %d times without a prompt", s.asked())
				}
				if tc.stop == "" {
					if result != nil || !errors.Is(err, tc.err) || len(kinds(t, j)) != 0 {
						t.Errorf("Run = %+v, %v with %v in the journal; want the error and nothing recorded: %s",
							result, err, kinds(t, j), tc.reason)
					}
					return
				}
				if err != nil || result.Stop != tc.stop || result.Message != "Agent spec.timeZone: no such zone" ||
					result.Preparation != nil {
					t.Errorf("Run = %+v, %v; want stop %s and the field: %s", result, err, tc.stop, tc.reason)
				}
				if diff := cmp.Diff([]journal.Kind{"run.started", "finalized"}, kinds(t, j)); diff != "" {
					t.Errorf("journal: -want +got:\n%s", diff)
				}
			})
		}
	}
}

// TestInputThatCannotBeRendered checks an error that the engine finds after the preparation.
func TestInputThatCannotBeRendered(t *testing.T) {
	c, s := candidate("p0", 2, says("never asked"))
	in := input(c)
	in.Preparation = preparationOf(func(m *prepare.Input) { m.Profile.Instructions = "Hi {{ .nobody }}" })
	result, err := engine(&journaltest.Store{}).Run(t.Context(), new(in))
	if err != nil || result.Stop != turn.StopPreparationError ||
		!strings.HasPrefix(result.Message, "PromptProfile spec.instructions:1:7: ") || s.asked() != 0 {
		t.Errorf("Run = %+v, %v after %d requests; want the position of the error", result, err, s.asked())
	}
}

func TestJournalKeepsTheInputForAFallback(t *testing.T) {
	for name, tc := range map[string]struct {
		reason string
		chain  int
		only   bool
		want   []journal.Kind
	}{
		"one model": {
			"the agent may have a second model in a later run", 1, false,
			[]journal.Kind{
				"run.started", "tools.exposed", "preparation.input", "prompt.rendered", "prepared", "model.requested",
				"model.replied", "finalized",
			},
		},
		"two models": {
			"the second model may be needed", 2, false,
			[]journal.Kind{
				"run.started", "tools.exposed", "preparation.input", "prompt.rendered", "prepared", "model.requested",
				"model.replied", "finalized",
			},
		},
		"prepare only": {
			"no model is asked, so no model can fail", 2, true,
			[]journal.Kind{"run.started", "tools.exposed", "prompt.rendered", "prepared", "finalized"},
		},
	} {
		t.Run(name, func(t *testing.T) {
			var chain []loop.Candidate
			for _, provider := range []string{"p0", "p1"}[:tc.chain] {
				c, _ := candidate(provider, 1, says("Nothing."))
				chain = append(chain, c)
			}
			in := input(chain...)
			in.PrepareOnly = tc.only
			j := &journaltest.Store{}
			if _, err := engine(j).Run(t.Context(), new(in)); err != nil {
				t.Fatal(err)
			}
			if diff := cmp.Diff(tc.want, kinds(t, j)); diff != "" {
				t.Errorf("journal: %s: -want +got:\n%s", tc.reason, diff)
			}
		})
	}
}

// rich sets fields of an input whose values JSON could lose.
func rich(t *testing.T) func(*prepare.Input) {
	t.Helper()
	zone, err := time.LoadLocation("America/New_York") // the zone has a name for its offset, which JSON does not keep
	if err != nil {
		t.Fatal(err)
	}
	return func(m *prepare.Input) {
		m.Now = at.Add(123456789).In(zone)
		m.Agent.MaxMemories = 1
		m.Profile.Behavior = new("")
		m.Profile.Identity.Traits.Voice = "Concise"
		m.Profile.Variables = []prepare.Variable{{Name: "user", Required: true}, {Name: "tier", Trusted: true}}
		m.Profile.Instructions = "For {{ .user }}, {{ .tier }}, in {{ .Session.Name }}."
		m.Tools = []prompt.Tool{{Name: "find", Parameters: []prompt.Parameter{{Name: "n", Default: []byte("1.0")}}}}
		m.Turn.Parameters = map[string]string{"user": "<Bob>", "tier": "gold"}
		m.Turn.Session = &turncontext.Session{
			ID: "s-1", Subject: "Order 1042", Momentum: turncontext.Low, UnresolvedQuestions: []string{"Who?"},
		}
		m.Turn.Memories = []turncontext.Memory{{ID: "m1", Text: "x", Relevance: 0.1}, {ID: "m2", Text: "y", Relevance: 0.30000000000000004}}
		m.Turn.Enrichments = []turncontext.Enrichment{
			{ID: "e1", Content: "for people", Audience: "Product"}, {ID: "e2", Title: "T", Content: "z", Audience: "Mixed"},
		}
		m.Turn.Shaping.ResponseStyle.PreferMarkdown = new(false)
	}
}

func TestFallbackUsesTheSameInput(t *testing.T) {
	for name, change := range map[string]func(*prepare.Input){
		"rich":         rich(t),
		"no sections":  func(m *prepare.Input) { m.Profile.Sections = []string{} },
		"two sections": func(m *prepare.Input) { m.Profile.Sections = []string{"environment", "agent"} },
	} {
		for _, restart := range []bool{false, true} {
			for store, open := range journals {
				t.Run(name+"/"+store, func(t *testing.T) {
					one, _ := candidate("p0", 1, fails(model.Auth))
					two, second := candidate("p1", 1, says("Nothing."))
					in := input(one, two)
					calls := 0
					made := preparationOf(change)
					in.Preparation = func(ctx context.Context) (prepare.Input, error) {
						if calls++; calls > 1 {
							t.Error("the run prepared twice")
						}
						return made(ctx)
					}
					if _, err := engine(open(t)).Run(t.Context(), new(in)); err != nil {
						t.Fatal(err)
					}
					if restart { // after the first model has failed, without another preparation
						first := &journaltest.Store{}
						in.Preparation = preparationOf(change)
						if _, err := engine(first).Run(t.Context(), new(in)); err != nil {
							t.Fatal(err)
						}
						in.Epoch, in.Preparation = 2, mustNotPrepare(t)
						two, second = candidate("p1", 1, says("Nothing."))
						in.Chain = []loop.Candidate{one, two}
						if _, err := engine(copyOf(t, first, open(t), 7)).Run(t.Context(), new(in)); err != nil {
							t.Fatal(err)
						}
					}
					want, err := preparationOf(change)(t.Context())
					if err != nil {
						t.Fatal(err)
					}
					want.Provider, want.Model = "p1", "m"
					prepared, err := prepare.Prepare(want)
					if err != nil {
						t.Fatal(err)
					}
					if diff := cmp.Diff(prepared.Messages, second.requests[0].Messages); diff != "" {
						t.Errorf("the second model received (restart %t): -want +got:\n%s", restart, diff)
					}
				})
			}
		}
	}
}

// TestNewModelOfAnAgentReceivesTheSamePrompt continues a Turn whose Agent now has a second model.
func TestNewModelOfAnAgentReceivesTheSamePrompt(t *testing.T) {
	one, _ := candidate("p0", 1, fails(model.Auth))
	first := &journaltest.Store{}
	if _, err := engine(first).Run(t.Context(), new(input(one))); err != nil {
		t.Fatal(err)
	}
	one, _ = candidate("p0", 1, fails(model.Auth))
	two, second := candidate("p1", 1, says("Nothing."))
	in := input(one, two)
	in.Epoch, in.Preparation = 2, mustNotPrepare(t)
	result, err := engine(copyOf(t, first, &journaltest.Store{}, 7)).Run(t.Context(), new(in))
	if err != nil || result.Stop != turn.StopCompleted || second.asked() != 1 {
		t.Errorf("Run = %+v, %v, the second model was asked %d times; want its answer to the frozen prompt",
			result, err, second.asked())
	}
}

// TestCitationsComeFromThePreparedRecord continues a Turn after its prompt was recorded, without another preparation.
func TestCitationsComeFromThePreparedRecord(t *testing.T) {
	from, _ := whole(t)
	c, _ := candidate("p0", 2, says("Nothing."))
	in := input(c)
	in.Epoch, in.Preparation = 2, mustNotPrepare(t)
	result, err := engine(copyOf(t, from, &journaltest.Store{}, 5)).Run(t.Context(), new(in))
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff([]string{"notes/a.md"}, result.Record.Citations); diff != "" {
		t.Errorf("citations: -want +got:\n%s", diff)
	}
}

func TestPromptRendered(t *testing.T) {
	j := &journaltest.Store{}
	c, _ := candidate("p0", 1, says("Nothing."))
	in := input(c)
	in.Preparation = preparationOf(rich(t), func(m *prepare.Input) { m.Profile.Tags = []string{"de"} })
	result, err := engine(j).Run(t.Context(), new(in))
	if err != nil {
		t.Fatal(err)
	}
	got := payloads[map[string]any](t, j, journal.PromptRendered)[0]
	want := map[string]any{
		"name": "support", "id": "support.default", "version": "1.0.0", "tags": []any{"de"}, "variables": []any{"tier", "user"},
		"renderHash": result.Preparation.RenderHash, "promptHash": result.Preparation.PromptHash,
		"contextHash": result.Preparation.ContextHash,
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("the entry must name the prompt and its hashes, and must have no value of a variable: -want +got:\n%s", diff)
	}
}

// TestThePreparationIsBoundedByTheTurn has a preparation that blocks until its context ends.
func TestThePreparationIsBoundedByTheTurn(t *testing.T) {
	stopping := errors.New("the executor stops")
	for name, tc := range map[string]struct {
		reason    string
		cancelled bool
		end       error // the end of the run's lifetime; nil means that the deadline ends the run
		stop      turn.Stop
		err       error
	}{
		"deadline":  {"the preparation counts against the time of the Turn", false, nil, turn.StopDeadline, nil},
		"cancelled": {"a cancelled Turn ends immediately", true, nil, turn.StopCancelled, nil},
		"stopping":  {"a later run continues the Turn after the end of this run", false, stopping, "", stopping},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				ctx, abandon := context.WithCancelCause(t.Context())
				defer abandon(nil)
				c, s := candidate("p0", 1, says("never asked"))
				in := input(c)
				var cancel context.CancelFunc
				in.Cancel, cancel = context.WithCancel(t.Context())
				in.Preparation = func(ctx context.Context) (prepare.Input, error) {
					if tc.cancelled {
						cancel()
					}
					if tc.end != nil {
						abandon(tc.end)
					}
					<-ctx.Done()
					return prepare.Input{}, fmt.Errorf("failed to read: %w", ctx.Err())
				}
				result, err := engine(&journaltest.Store{}).Run(ctx, new(in))
				if !errors.Is(err, tc.err) || (result == nil) != (tc.stop == "") || result != nil &&
					result.Stop != tc.stop || s.asked() != 0 {
					t.Errorf("Run = %+v, %v after %d requests; want %q, %v: %s", result, err, s.asked(), tc.stop, tc.err, tc.reason)
				}
			})
		})
	}
}

// TestReportDescribesThePromptOfTheModelThatAnswered also checks a run that was killed after the first model had
// failed, before it made a prompt for the second model.
func TestReportDescribesThePromptOfTheModelThatAnswered(t *testing.T) {
	want, err := preparationOf()(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	want.Provider, want.Model = "p1", "m1"
	prepared, err := prepare.Prepare(want)
	if err != nil {
		t.Fatal(err)
	}
	for _, killed := range []bool{false, true} {
		one, first := candidate("p0", 1, fails(model.Auth))
		two, _ := candidate("p1", 1, says("Nothing."))
		one.Model, two.Model = "m0", "m1"
		in, j := input(one, two), &journaltest.Store{}
		result, err := engine(j).Run(t.Context(), new(in))
		if killed {
			two, _ = candidate("p1", 1, says("Nothing."))
			two.Model = "m1"
			in.Chain, in.Epoch, in.Preparation = []loop.Candidate{one, two}, 2, mustNotPrepare(t)
			result, err = engine(copyOf(t, j, &journaltest.Store{}, 7)).Run(t.Context(), new(in))
		}
		if err != nil || first.asked() != 1 {
			t.Fatalf("Run (killed %t): %v after %d requests to the first model, want 1", killed, err, first.asked())
		}
		if diff := cmp.Diff(&prepared.Report, result.Preparation); diff != "" || result.Provider != "p1" || result.Model != "m1" {
			t.Errorf("the report of %s/%s (killed %t): -want +got:\n%s", result.Provider, result.Model, killed, diff)
		}
		if d := result.Record.Decision; d == nil || d.PromptRenderHash != prepared.Report.RenderHash {
			t.Errorf("the decision record is %+v (killed %t), want the hash %s", d, killed, prepared.Report.RenderHash)
		}
		if f := result.Fallback; f == nil || *f != (turn.Fallback{From: "p0/m0", To: "p1/m1", Reason: model.Auth}) {
			t.Errorf("the fallback is %+v (killed %t), want one from the first model", f, killed)
		}
	}
}
