package turn_test

import (
	"context"
	"errors"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/capstan-dev/capstan/internal/runtime/finalize"
	"github.com/capstan-dev/capstan/internal/runtime/journal"
	"github.com/capstan-dev/capstan/internal/runtime/journal/journaltest"
	"github.com/capstan-dev/capstan/internal/runtime/loop"
	"github.com/capstan-dev/capstan/internal/runtime/model"
	"github.com/capstan-dev/capstan/internal/runtime/prepare"
	"github.com/capstan-dev/capstan/internal/runtime/turn"
)

// outcome is the part of a result that these tests compare.
type outcome struct {
	Stop          turn.Stop
	Message, Text string
	Counts        turn.Counts
	Usage         model.Usage
	Cost          *finalize.Cost
	Provider      string
	Fallback      *turn.Fallback
	Citations     []string
	Decided       bool
}

func outcomeOf(r *turn.Result) outcome {
	return outcome{
		Stop: r.Stop, Message: r.Message, Text: r.Text, Counts: r.Counts, Usage: r.Record.Usage, Cost: r.Record.Cost,
		Provider: r.Provider, Fallback: r.Fallback, Citations: r.Record.Citations,
		Decided: r.Record.Decision != nil && r.Record.Decision.Strategy != "",
	}
}

func TestEnds(t *testing.T) {
	cut := says("half an ans")
	cut.reply.FinishReason = model.FinishLength
	long := cut
	long.reply.TooLong = true
	slow := says("late")
	slow.after = 2 * time.Minute
	for name, tc := range map[string]struct {
		reason string
		chain  [][]answer
		change func(*turn.Input)
		want   outcome
	}{
		"answered": {
			"one request gets one answer",
			[][]answer{{says("Nothing.")}},
			nil,
			outcome{
				Stop: turn.StopCompleted, Message: "the model answered", Text: "Nothing.", Counts: turn.Counts{Steps: 1, ModelRequests: 1},
				Usage: model.Usage{InputTokens: 1000, OutputTokens: 100}, Cost: &finalize.Cost{Amount: "0.002", Currency: "USD"},
				Provider: "p0", Citations: []string{"notes/a.md"}, Decided: true,
			},
		},
		"answered by the fallback": {
			"failed attempts of all models are counted and paid for",
			[][]answer{{fails(model.Overloaded)}, {fails(model.Malformed), says("Nothing.")}},
			nil,
			outcome{
				Stop: turn.StopCompleted, Message: "the model answered", Text: "Nothing.",
				Counts: turn.Counts{Steps: 1, ModelRequests: 4, ModelRetries: 2},
				Usage:  model.Usage{InputTokens: 1030, OutputTokens: 100}, Cost: &finalize.Cost{Amount: "0.00203", Currency: "USD"},
				Provider: "p1", Fallback: &turn.Fallback{From: "p0/m", To: "p1/m", Reason: model.Overloaded},
				Citations: []string{"notes/a.md"}, Decided: true,
			},
		},
		"the first model has no provider": {
			"no request is counted for it",
			[][]answer{{{err: &model.Error{Kind: model.Unusable, Message: "no provider", Unsent: true}}}, {says("Nothing.")}},
			func(in *turn.Input) { in.Chain[0].Unusable = true },
			outcome{
				Stop: turn.StopCompleted, Message: "the model answered", Text: "Nothing.", Counts: turn.Counts{Steps: 1, ModelRequests: 1},
				Usage: model.Usage{InputTokens: 1000, OutputTokens: 100}, Cost: &finalize.Cost{Amount: "0.002", Currency: "USD"},
				Provider: "p1", Fallback: &turn.Fallback{From: "p0/m", To: "p1/m", Reason: model.Unusable},
				Citations: []string{"notes/a.md"}, Decided: true,
			},
		},
		"two currencies": {
			"amounts of different currencies cannot be added",
			[][]answer{{fails(model.RateLimited)}, {says("Nothing.")}},
			func(in *turn.Input) { in.Chain[0].Pricing.Currency = "EUR" },
			outcome{
				Stop: turn.StopCompleted, Message: "the model answered", Text: "Nothing.",
				Counts: turn.Counts{Steps: 1, ModelRequests: 3, ModelRetries: 1}, Usage: model.Usage{InputTokens: 1020, OutputTokens: 100},
				Provider: "p1", Fallback: &turn.Fallback{From: "p0/m", To: "p1/m", Reason: model.RateLimited},
				Citations: []string{"notes/a.md"}, Decided: true,
			},
		},
		"cut off": {
			"the received part is kept, but it is not an answer",
			[][]answer{{cut}},
			nil,
			outcome{
				Stop: turn.StopMaxOutputTokens,
				Message: "the model's answer was cut off after 100 output tokens: raise the agent's " +
					"parameters.maxOutputTokens, or ask for a shorter answer",
				Text: "half an ans", Counts: turn.Counts{Steps: 1, ModelRequests: 1},
				Usage: model.Usage{InputTokens: 1000, OutputTokens: 100},
				Cost:  &finalize.Cost{Amount: "0.002", Currency: "USD"}, Provider: "p0",
			},
		},
		"cut off by the context window": {
			"no budget is reached, and a higher limit would not help",
			[][]answer{{cut}},
			func(in *turn.Input) { in.Chain[0].MaxOutputTokens, in.Chain[0].ContextWindow = 8000, 8000 },
			outcome{
				Stop: turn.StopMaxOutputTokens,
				Message: "the model's answer was cut off after 100 output tokens, because the model's context window left no more: " +
					"shorten history or context, use a model with a larger window, or ask for a shorter answer",
				Text: "half an ans", Counts: turn.Counts{Steps: 1, ModelRequests: 1},
				Usage: model.Usage{InputTokens: 1000, OutputTokens: 100},
				Cost:  &finalize.Cost{Amount: "0.002", Currency: "USD"}, Provider: "p0",
			},
		},
		"too long": {
			"Capstan keeps a part of a long answer, but counts all its tokens",
			[][]answer{{long}},
			nil,
			outcome{
				Stop: turn.StopMaxOutputTokens,
				Message: "the model's answer is longer than Capstan keeps, and was cut off after 11 bytes: " +
					"lower the agent's parameters.maxOutputTokens, or ask for a shorter answer",
				Text: "half an ans", Counts: turn.Counts{Steps: 1, ModelRequests: 1},
				Usage: model.Usage{InputTokens: 1000, OutputTokens: 100},
				Cost:  &finalize.Cost{Amount: "0.002", Currency: "USD"}, Provider: "p0",
			},
		},
		"prepared": {
			"no model is asked",
			[][]answer{{says("never")}},
			func(in *turn.Input) { in.PrepareOnly = true },
			outcome{Stop: turn.StopPrepared, Message: "the prompt was prepared; no model was asked", Provider: "p0"},
		},
		"not prepared": {
			"no model is asked without a prompt",
			[][]answer{{says("never")}},
			func(in *turn.Input) { in.Preparation = preparationOf(func(m *prepare.Input) { m.Turn.Message = " " }) },
			outcome{Stop: turn.StopPreparationError, Message: "Turn spec.message: must not be blank"},
		},
		"out of time": {
			"the request ends with the Turn, and counts",
			[][]answer{{slow}},
			nil,
			outcome{
				Stop: turn.StopDeadline,
				Message: `the turn reached its time limit of 1m0s while model "m" of provider "p0" worked: ` +
					`raise limits.timeoutSeconds or ask for less`,
				Counts: turn.Counts{ModelRequests: 1}, Provider: "p0",
			},
		},
		"out of time after a failure of an earlier request": {
			"the step has an answer, so the failure did not cost the time",
			[][]answer{{fails(model.Overloaded), asks("gone", "{}"), slow}},
			nil,
			outcome{
				Stop: turn.StopDeadline,
				Message: `the turn reached its time limit of 1m0s while model "m" of provider "p0" worked: ` +
					`raise limits.timeoutSeconds or ask for less`,
				Counts: turn.Counts{Steps: 1, ModelRequests: 3, ModelRetries: 1},
				Usage:  model.Usage{InputTokens: 1010, OutputTokens: 100}, Cost: &finalize.Cost{Amount: "0.00201", Currency: "USD"},
				Provider: "p0",
			},
		},
		"out of time after a failure of the same request": {
			"the failure cost time, too",
			[][]answer{{fails(model.Overloaded), slow}},
			nil,
			outcome{
				Stop: turn.StopDeadline,
				Message: `the turn reached its time limit of 1m0s while model "m" of provider "p0" worked: ` +
					`raise limits.timeoutSeconds or ask for less; an earlier request failed: it is Overloaded`,
				Counts: turn.Counts{ModelRequests: 2, ModelRetries: 1},
				Usage:  model.Usage{InputTokens: 10}, Cost: &finalize.Cost{Amount: "0.00001", Currency: "USD"},
				Provider: "p0",
			},
		},
		"out of time after a failure that is not repeated": {
			"it cost no time",
			[][]answer{{fails(model.Auth)}, {slow}},
			nil,
			outcome{
				Stop: turn.StopDeadline,
				Message: `the turn reached its time limit of 1m0s while model "m" of provider "p1" worked: ` +
					`raise limits.timeoutSeconds or ask for less`,
				Counts: turn.Counts{ModelRequests: 2},
				Usage:  model.Usage{InputTokens: 10}, Cost: &finalize.Cost{Amount: "0.00001", Currency: "USD"},
				Provider: "p1",
			},
		},
		"out of time at the gate after a failure": {
			"the failure is the reason why the circuit breaker is open",
			[][]answer{{fails(model.Overloaded)}},
			func(in *turn.Input) { in.Chain[0].Provider = &closingGate{Provider: in.Chain[0].Provider} },
			outcome{
				Stop: turn.StopDeadline,
				Message: `the turn reached its time limit of 1m0s while the next request waited for ModelProvider "p0", whose ` +
					`rate limits or circuit breaker held it back; an earlier request failed: it is Overloaded`,
				Counts: turn.Counts{ModelRequests: 1},
				Usage:  model.Usage{InputTokens: 10}, Cost: &finalize.Cost{Amount: "0.00001", Currency: "USD"},
				Provider: "p0",
			},
		},
		"no time left": {
			"no model is asked after the deadline",
			[][]answer{{says("never")}},
			func(in *turn.Input) { in.Timeout = -time.Second },
			outcome{
				Stop:     turn.StopDeadline,
				Message:  "the turn reached its time limit of 1m0s: raise limits.timeoutSeconds or ask for less",
				Provider: "p0",
			},
		},
		"unpriced": {
			"the total is unknown if one cost is unknown",
			[][]answer{{fails(model.Auth)}, {says("Nothing.")}},
			func(in *turn.Input) { in.Chain[0].Pricing = nil },
			outcome{
				Stop: turn.StopCompleted, Message: "the model answered", Text: "Nothing.", Counts: turn.Counts{Steps: 1, ModelRequests: 2},
				Usage:    model.Usage{InputTokens: 1010, OutputTokens: 100},
				Provider: "p1", Fallback: &turn.Fallback{From: "p0/m", To: "p1/m", Reason: model.Auth},
				Citations: []string{"notes/a.md"}, Decided: true,
			},
		},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				in := input()
				for i, answers := range tc.chain {
					c, _ := candidate([]string{"p0", "p1"}[i], 2, answers...)
					in.Chain = append(in.Chain, c)
				}
				if tc.change != nil {
					tc.change(&in)
				}
				result, err := engine(&journaltest.Store{}).Run(t.Context(), new(in))
				if err != nil {
					t.Fatalf("Run: %v", err)
				}
				if diff := cmp.Diff(tc.want, outcomeOf(result)); diff != "" {
					t.Errorf("%s: -want +got:\n%s", tc.reason, diff)
				}
			})
		})
	}
}

// closingGate is a gate that admits one request.
type closingGate struct {
	model.Provider
	closed bool
}

// Enter waits until ctx ends if the gate has admitted a request.
func (g *closingGate) Enter(ctx context.Context, _ model.Wait) (model.Ticket, error) {
	if g.closed {
		<-ctx.Done()
		return nil, ctx.Err()
	}
	g.closed = true
	return g, nil
}

// Leave does nothing.
func (g *closingGate) Leave() {}

func TestStopOfEachKind(t *testing.T) {
	for kind, want := range map[model.ErrorKind]turn.Stop{
		model.RateLimited: turn.StopModelError, model.Overloaded: turn.StopModelError, model.Timeout: turn.StopModelError,
		model.Network: turn.StopModelError, model.Malformed: turn.StopModelError, model.Auth: turn.StopModelError,
		model.InvalidRequest: turn.StopModelError, model.Cancelled: turn.StopModelError,
		model.ContextLength: turn.StopContextLength, model.ContentFiltered: turn.StopContentFilter,
		model.ReplyTooLong: turn.StopMaxOutputTokens,
	} {
		t.Run(string(kind), func(t *testing.T) {
			c, _ := candidate("p0", 1, fails(kind))
			result, err := engine(&journaltest.Store{}).Run(t.Context(), new(input(c)))
			if err != nil {
				t.Fatalf("Run: %v", err)
			}
			want := outcome{
				Stop: want, Message: "it is " + string(kind), Counts: turn.Counts{ModelRequests: 1}, Provider: "p0",
				Usage: model.Usage{InputTokens: 10}, Cost: &finalize.Cost{Amount: "0.00001", Currency: "USD"},
			}
			if diff := cmp.Diff(want, outcomeOf(result)); diff != "" {
				t.Errorf("-want +got:\n%s", diff)
			}
		})
	}
}

func TestPromptIsMadeForTheModelThatAnswers(t *testing.T) {
	one, first := candidate("p0", 1, fails(model.InvalidRequest))
	two, second := candidate("p1", 1, says("Nothing."))
	two.Model = "other"
	j := &journaltest.Store{}
	result, err := engine(j).Run(t.Context(), new(input(one, two)))
	if err != nil {
		t.Fatal(err)
	}
	for name, tc := range map[string]struct {
		s    *script
		want string
	}{"first": {first, "- provider: p0\n- model: m\n"}, "second": {second, "- provider: p1\n- model: other\n"}} {
		metadata := tc.s.requests[0].Messages[1].Content
		if want := "Facts about this run, from the system that runs it:\n" + tc.want; !strings.HasPrefix(metadata, want) {
			t.Errorf("%s model received %q, want %q", name, metadata, want)
		}
	}
	if result.Provider != "p1" || result.Model != "other" || result.MessageCount != 4 {
		t.Errorf("result has %s/%s and %d messages, want the model and the prompt of the answer",
			result.Provider, result.Model, result.MessageCount)
	}
	want := []journal.Kind{
		"run.started", "tools.exposed", "preparation.input", "prompt.rendered", "prepared", "model.requested",
		"model.failed", "prompt.rendered", "prepared", "model.requested", "model.replied", "finalized",
	}
	if diff := cmp.Diff(want, kinds(t, j)); diff != "" {
		t.Errorf("journal: -want +got:\n%s", diff)
	}
}

func TestCancelAndInterrupt(t *testing.T) {
	slow := says("late")
	slow.after = 30 * time.Second
	busy := answer{err: &model.Error{Kind: model.RateLimited, Message: "busy", RetryAfter: 30 * time.Second}}
	stop := errors.New("the executor stops")
	for name, tc := range map[string]struct {
		reason string
		answer answer
		do     func(*controls)
		stop   turn.Stop
		err    error
		after  time.Duration
	}{
		"cancelled": {
			"a cancelled Turn ends immediately", slow, (*controls).cancel, turn.StopCancelled, nil, time.Second,
		},
		"cancelled between attempts": {
			"a cancelled Turn ends immediately, even between two attempts", busy, (*controls).cancel, turn.StopCancelled, nil,
			time.Second,
		},
		"executor stops": {
			"a later run continues the Turn after the end of this run", slow, func(c *controls) { c.abandon(stop) }, "",
			stop, time.Second,
		},
		"executor stops between attempts": {
			"a later run continues the Turn after a stop between two attempts", busy, func(c *controls) { c.abandon(stop) },
			"", stop, time.Second,
		},
		"interrupted": {
			"an interrupted run waits for the current request, and its answer ends the Turn", slow, (*controls).interrupt,
			turn.StopCompleted, nil, 30 * time.Second,
		},
		"interrupted between attempts": {
			"an interrupted run stops between two attempts", busy, (*controls).interrupt, "", loop.ErrInterrupted,
			time.Second,
		},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				c, s := candidate("p0", 3, tc.answer)
				in := input(c)
				ctx, ctl := control(t, &in)
				begin := time.Now()
				time.AfterFunc(time.Second, func() { tc.do(ctl) })
				result, err := engine(&journaltest.Store{}).Run(ctx, new(in))
				if !errors.Is(err, tc.err) || (result == nil) != (tc.stop == "") || result != nil && result.Stop != tc.stop {
					t.Fatalf("Run = %+v, %v; want %q, %v: %s", result, err, tc.stop, tc.err, tc.reason)
				}
				if took := time.Since(begin); took != tc.after || s.asked() != 1 {
					t.Errorf("the run took %s and %d requests, want %s and 1: %s", took, s.asked(), tc.after, tc.reason)
				}
				if result != nil && result.Counts.ModelRequests != 1 {
					t.Errorf("counts %+v, want the request that was sent", result.Counts)
				}
			})
		})
	}
}

// TestRepliesThatBreakOff checks that the usage of an interrupted reply is an estimate of the prompt and of the
// received part.
func TestRepliesThatBreakOff(t *testing.T) {
	c, _ := candidate("p0", 2, answer{err: &model.Error{Kind: model.Network, Message: "it broke", Received: 4000}})
	r, err := engine(&journaltest.Store{}).Run(t.Context(), new(input(c)))
	if err != nil {
		t.Fatal(err)
	}
	u := r.Record.Usage
	want := c.Pricing.Cost(u).Amount.String()
	if r.Stop != turn.StopModelError || u.InputTokens == 0 || u.OutputTokens != 2000 || r.Record.Cost == nil ||
		r.Record.Cost.Amount != want {
		t.Errorf("%s with %+v for %+v, want an estimate of the prompt and of 1000 output tokens for each of two attempts, for %s",
			r.Stop, u, r.Record.Cost, want)
	}
}
