package loop_test

import (
	"context"
	"errors"
	"fmt"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/shopspring/decimal"

	"github.com/capstan-dev/capstan/internal/runtime/journal"
	"github.com/capstan-dev/capstan/internal/runtime/journal/journaltest"
	"github.com/capstan-dev/capstan/internal/runtime/loop"
	"github.com/capstan-dev/capstan/internal/runtime/model"
	"github.com/capstan-dev/capstan/internal/runtime/tool"
)

// eventLog records events of concurrent calls in order.
type eventLog struct {
	mu    sync.Mutex
	lines []string
}

func (d *eventLog) add(line string) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.lines = append(d.lines, line)
}

// loggingTool returns a tool whose calls take some time and are recorded in an eventLog.
func loggingTool(d *eventLog, name string, effect tool.Effect, takes time.Duration) tool.Tool {
	return loggingToolFunc(d, name, effect, func(string) time.Duration { return takes })
}

// loggingToolFunc is like loggingTool. takes returns the duration of the call with an ID.
func loggingToolFunc(d *eventLog, name string, effect tool.Effect, takes func(callID string) time.Duration) tool.Tool {
	t, _ := toolOf(name, effect)
	t.Caller = tool.CallerFunc(func(ctx context.Context, c tool.Call) (tool.Result, error) {
		d.add("begin " + c.CallID)
		select {
		case <-time.After(takes(c.CallID)):
		case <-ctx.Done():
			d.add("cut off " + c.CallID)
			return tool.Result{}, ctx.Err()
		}
		d.add("end " + c.CallID)
		return tool.Result{Content: "of " + c.CallID}, nil
	})
	return t
}

// logRecords makes Record write intents and ends of calls into the log.
func logRecords(d *eventLog, in *loop.Input) {
	record := in.Record
	in.Record = func(records ...journal.Record) error {
		line := ""
		for _, r := range records {
			switch p := r.Payload.(type) {
			case loop.Intent:
				line += " intend " + p.CallID
			case loop.CallResult:
				line += " finish " + p.CallID
			}
		}
		if line != "" {
			d.add("write" + line)
		}
		return record(records...)
	}
}

func TestWaves(t *testing.T) {
	reply := asksFor("", call("a", "slow", `{"n":1}`), call("b", "quick", `{"n":1}`), call("c", "write", `{"n":1}`),
		call("d", "write", `{"n":2}`), call("e", "quick", `{"n":2}`), call("f", "gone", `{}`), call("g", "slow", `{"n":3}`))
	for name, tc := range map[string]struct {
		reason string
		policy loop.Policy
		want   []string
		took   time.Duration
	}{
		"parallel": {
			"neighboring read-only calls are one wave, results are recorded as they arrive, and a refused call splits no wave",
			loop.Policy{},
			[]string{
				"write intend a intend b", "begin", "begin", "end b", "write finish b", "end a", "write finish a",
				"write intend c", "begin", "end c", "write finish c",
				"write intend d", "begin", "end d", "write finish d",
				"write finish f intend e intend g", "begin", "begin", "end e", "write finish e", "end g", "write finish g",
			},
			(5 + 2 + 2 + 5) * time.Second,
		},
		"sequential": {
			"one after another",
			loop.Policy{Sequential: true},
			[]string{
				"write intend a", "begin", "end a", "write finish a", "write intend b", "begin", "end b", "write finish b",
				"write intend c", "begin", "end c", "write finish c", "write intend d", "begin", "end d", "write finish d",
				"write intend e", "begin", "end e", "write finish e", "write finish f intend g", "begin", "end g", "write finish g",
			},
			(5 + 1 + 2 + 2 + 1 + 5) * time.Second,
		},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				d := &eventLog{}
				c, s := candidate("one", 1, reply, says("Done."))
				in := withTools(input(t, c), loggingTool(d, "slow", tool.ReadOnly, 5*time.Second),
					loggingTool(d, "quick", tool.ReadOnly, time.Second), loggingTool(d, "write", tool.Idempotent, 2*time.Second))
				in.Policy = tc.policy
				logRecords(d, &in)
				begin := time.Now()
				if _, err := loop.Run(t.Context(), &in); err != nil || time.Since(begin) != tc.took {
					t.Fatalf("Run: %v after %s, want %s", err, time.Since(begin), tc.took)
				}
				ok := len(d.lines) == len(tc.want)
				for i := range min(len(d.lines), len(tc.want)) {
					ok = ok && (d.lines[i] == tc.want[i] || len(d.lines[i]) > len(tc.want[i]) &&
						d.lines[i][:len(tc.want[i])+1] == tc.want[i]+" ")
				}
				if !ok {
					t.Errorf("%s: -want +got:\n%s", tc.reason, cmp.Diff(tc.want, d.lines))
				}
				want := []string{
					"tool a: of a", "tool b: of b", "tool c: of c", "tool d: of d", "tool e: of e",
					`tool f: error (unavailable): there is no tool "gone": use one of slow, quick, write`, "tool g: of g",
				}
				if diff := cmp.Diff(want, transcript(s.requests[1])[1:]); diff != "" {
					t.Errorf("the model received the results, in the order of its calls: -want +got:\n%s", diff)
				}
			})
		})
	}
}

// manyCalls returns n calls of a tool with different arguments. Their IDs are c00, c01, and so on.
func manyCalls(name string, n int) []model.ToolCall {
	var all []model.ToolCall
	for i := range n {
		all = append(all, call(fmt.Sprintf("c%02d", i), name, fmt.Sprintf(`{"n":%d}`, i)))
	}
	return all
}

func TestLargeWaveIsBounded(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		d := &eventLog{}
		c, _ := candidate("one", 1, asksFor("", manyCalls("find", 20)...), says("Done."))
		in := withTools(input(t, c), loggingTool(d, "find", tool.ReadOnly, time.Second))
		begin := time.Now()
		if _, err := loop.Run(t.Context(), &in); err != nil || time.Since(begin) != 3*time.Second ||
			in.State.Outcomes()[loop.Succeeded] != 20 {
			t.Errorf("Run: %v after %s with outcomes %v; want 20 calls, 8 at a time, in 3s", err, time.Since(begin), in.State.Outcomes())
		}
	})
}

// TestRunEndsDuringAWave checks that no call keeps running after the end of a run, and that each call that began has a
// result or is made again by the next run. The first call takes 10 s, and each further call a second longer.
func TestRunEndsDuringAWave(t *testing.T) {
	cause := errors.New("so it ended")
	broken := errors.New("the journal is away")
	for name, tc := range map[string]struct {
		reason    string
		abandoned bool
		interrupt bool
		// journalFails is true if Record fails for the first result.
		journalFails bool
		want         error
		outcomes     map[loop.Outcome]int
		// begun is the number of calls that began, and cutOff the number of those that were cut off.
		begun, cutOff int
	}{
		"cancelled": {
			"running calls are cut off, the other calls are refused", false, false, false, cause,
			map[loop.Outcome]int{loop.Failed: 8, loop.Refused: 2},
			8, 8,
		},
		"abandoned": {"the next run repeats the calls", true, false, false, cause, map[loop.Outcome]int{}, 8, 8},
		"interrupted": {
			"running calls finish, the next run makes the others", false, true, false, loop.ErrInterrupted,
			map[loop.Outcome]int{loop.Succeeded: 8},
			8, 0,
		},
		"journal fails": {"the calls that still run are cut off", false, false, true, broken, map[loop.Outcome]int{}, 8, 7},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				ctx, cancel := context.WithCancelCause(t.Context())
				defer cancel(nil)
				interrupt := make(chan struct{})
				d, j := &eventLog{}, &journaltest.Store{}
				c, _ := candidate("one", 1, asksFor("", manyCalls("find", 10)...), says("Done."))
				find := loggingToolFunc(d, "find", tool.ReadOnly, func(callID string) time.Duration {
					number, err := strconv.Atoi(callID[1:])
					if err != nil {
						t.Error(err)
					}
					return 10*time.Second + time.Duration(number)*time.Second
				})
				in := withTools(inputOf(t, j, 1, c), find)
				in.Interrupt, in.Abandoned = interrupt, func() bool { return tc.abandoned && ctx.Err() != nil }
				record := in.Record
				in.Record = func(records ...journal.Record) error {
					if tc.journalFails && records[0].Kind == journal.ToolFinished {
						return broken
					}
					return record(records...)
				}
				time.AfterFunc(3*time.Second, func() {
					switch {
					case tc.interrupt:
						close(interrupt)
					case !tc.journalFails:
						cancel(cause)
					}
				})
				if _, err := loop.Run(ctx, &in); !errors.Is(err, tc.want) {
					t.Errorf("Run: %v, want %v", err, tc.want)
				}
				begun, cutOff := 0, 0
				for _, line := range d.lines {
					if strings.HasPrefix(line, "begin ") {
						begun++
					}
					if strings.HasPrefix(line, "cut off ") {
						cutOff++
					}
				}
				if diff := cmp.Diff(tc.outcomes, in.State.Outcomes()); diff != "" || begun != tc.begun || cutOff != tc.cutOff ||
					len(in.State.Intents) != 10 {
					t.Errorf("%s: %d of %d calls have begun, and %d were cut off; want %d of 10 and %d; outcomes: -want +got:\n%s",
						tc.reason, begun, len(in.State.Intents), cutOff, tc.begun, tc.cutOff, diff)
				}
				if tc.outcomes[loop.Refused] > 0 {
					return
				}
				again := withTools(inputOf(t, j, 2, c), find)
				if _, err := loop.Run(t.Context(), &again); err != nil || again.State.Outcomes()[loop.Succeeded] != 10 ||
					again.State.ToolCalls() != 10 {
					t.Errorf("the next run: %v with %v and %d calls counted, want all ten to succeed, counted once", err,
						again.State.Outcomes(), again.State.ToolCalls())
				}
			})
		})
	}
}

// TestBrokenCallOfAWave checks that a broken call does not affect the other calls of its wave.
func TestBrokenCallOfAWave(t *testing.T) {
	for name, bad := range map[string]func(){"panics": func() { panic("boom") }, "ends its goroutine": runtime.Goexit} {
		t.Run(name, func(t *testing.T) {
			c, s := candidate("one", 1, asksFor("", call("a", "find", `{}`), call("b", "bad", `{}`), call("c", "find", `{"n":1}`)),
				says("Done."))
			find, _ := toolOf("find", tool.ReadOnly, result{content: "found"})
			broken, _ := toolOf("bad", tool.ReadOnly, result{do: bad})
			in := withTools(input(t, c), find, broken)
			if end, err := loop.Run(t.Context(), &in); err != nil || end.Reason != loop.Answered || len(s.requests) != 2 {
				t.Fatalf("Run = %+v, %v; want the answer", end, err)
			}
			if diff := cmp.Diff(map[loop.Outcome]int{loop.Succeeded: 2, loop.Failed: 1}, in.State.Outcomes()); diff != "" {
				t.Errorf("-want +got:\n%s", diff)
			}
		})
	}
}

func TestRetryOnTimeout(t *testing.T) {
	slow, quick := result{after: time.Hour}, result{content: "found"}
	for name, tc := range map[string]struct {
		reason  string
		effect  tool.Effect
		retry   bool
		turn    time.Duration // time limit of the Turn
		results []result
		calls   int
		outcome loop.Outcome
		took    time.Duration
	}{
		"second try": {
			"the second call returns the result", tool.ReadOnly, true, time.Hour,
			[]result{slow, quick},
			2,
			loop.Succeeded, 10 * time.Second,
		},
		"idempotent": {
			"an idempotent call is repeated", tool.Idempotent, true, time.Hour,
			[]result{slow, quick},
			2,
			loop.Succeeded, 10 * time.Second,
		},
		"own timeout": {
			"a time-out of the tool itself counts too", tool.ReadOnly, true, time.Hour,
			[]result{{err: &tool.Error{Class: tool.Timeout, Message: "slow"}}, quick},
			2, loop.Succeeded, 0,
		},
		"no third": {
			"there is only one retry", tool.ReadOnly, true, time.Hour,
			[]result{slow, slow, quick},
			2,
			loop.Failed, 20 * time.Second,
		},
		"not asked for": {
			"the tool must allow the retry", tool.ReadOnly, false, time.Hour,
			[]result{slow, quick},
			1,
			loop.Failed, 10 * time.Second,
		},
		"destructive tool": {
			"a harmful call is not repeated", tool.Destructive, true, time.Hour,
			[]result{slow, quick},
			1,
			loop.Unknown, 10 * time.Second,
		},
		"another error": {
			"another failure is not retried", tool.ReadOnly, true, time.Hour,
			[]result{{err: &tool.Error{Class: tool.Unavailable, Message: "away"}}, quick},
			1, loop.Failed, 0,
		},
		"no time": {
			"less than a second is left", tool.ReadOnly, true, 10*time.Second + 900*time.Millisecond,
			[]result{slow, quick},
			1, loop.Failed, 10 * time.Second,
		},
		"little time": {
			"one second is enough", tool.ReadOnly, true, 11 * time.Second,
			[]result{slow, quick},
			2,
			loop.Succeeded, 10 * time.Second,
		},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				ctx, cancel := context.WithTimeout(t.Context(), tc.turn)
				defer cancel()
				c, _ := candidate("one", 1, asksFor("", call("c1", "find", `{}`)), says("Done."))
				find, found := toolOf("find", tc.effect, tc.results...)
				find.Timeout, find.RetryOnTimeout = 10*time.Second, tc.retry
				in := withTools(input(t, c), find)
				in.Limits.MaxToolCalls = 1
				begin := time.Now()
				if _, err := loop.Run(ctx, &in); err != nil || time.Since(begin) != tc.took {
					t.Fatalf("Run: %v after %s, want %s", err, time.Since(begin), tc.took)
				}
				f := in.State.CallResults[0]
				if len(found.calls) != tc.calls || f.Outcome != tc.outcome || in.State.ToolCalls() != 1 ||
					in.State.ToolRetries() != tc.calls-1 || f.DurationMS != tc.took.Milliseconds() {
					t.Errorf("%d calls, %d retries, %+v; want %d and %s: %s", len(found.calls), in.State.ToolRetries(), f,
						tc.calls, tc.outcome, tc.reason)
				}
				if keys := found.keys(); len(slices.Compact(keys)) != 1 {
					t.Errorf("idempotency keys %q, want the same key for each call", keys)
				}
			})
		})
	}
}

// TestInterruptedRetry checks that the next run repeats an interrupted retry, and makes no further retry.
func TestInterruptedRetry(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		j := &journaltest.Store{}
		first := inputOf(t, j, 1)
		err := first.Record(
			journal.Record{Kind: journal.ModelReplied, Payload: loop.Step{Step: 1, Reply: asksFor("", call("c1", "find", `{}`)).reply}},
			journal.Record{
				Kind:    journal.ToolIntended,
				Payload: loop.Intent{Step: 1, CallID: "c1", Name: "find", Arguments: []byte(`{}`), Effect: tool.ReadOnly, Attempt: 1},
			},
			journal.Record{Kind: journal.ToolIntended, Payload: loop.Intent{
				Step: 1, CallID: "c1", Name: "find",
				Arguments: []byte(`{}`), Effect: tool.ReadOnly, Attempt: 2, Retry: true,
			}},
		)
		if err != nil {
			t.Fatal(err)
		}
		c, _ := candidate("one", 1, says("Done."))
		find, found := toolOf("find", tool.ReadOnly, result{after: time.Hour})
		find.RetryOnTimeout = true
		in := withTools(inputOf(t, j, 2, c), find)
		if _, err := loop.Run(t.Context(), &in); err != nil || len(found.calls) != 1 || in.State.ToolRetries() != 1 ||
			in.State.ToolCalls() != 1 {
			t.Errorf("Run: %v after %d calls and %d retries, want one more call", err, len(found.calls), in.State.ToolRetries())
		}
	})
}

// TestNoRetryByARunThatStops checks that a run that must stop does not repeat a call that gave no result in time. The
// next run repeats the call, once.
func TestNoRetryByARunThatStops(t *testing.T) {
	noMemory := errors.New("the memory is used up")
	for name, want := range map[string]error{"interrupted": loop.ErrInterrupted, "no memory for a result": noMemory} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				j, interrupt := &journaltest.Store{}, make(chan struct{})
				c, _ := candidate("one", 1, asksFor("", call("a", "quick", `{}`), call("b", "slow", `{}`)), says("Done."))
				quick, _ := toolOf("quick", tool.ReadOnly, result{after: time.Second, content: "found"})
				slow, made := toolOf("slow", tool.ReadOnly, result{after: time.Hour})
				slow.Timeout, slow.RetryOnTimeout = 10*time.Second, true
				in := withTools(inputOf(t, j, 1, c), quick, slow)
				in.Interrupt = interrupt
				if errors.Is(want, noMemory) {
					in.Hold = func(int64) error {
						if len(in.State.CallResults) == 1 {
							return noMemory
						}
						return nil
					}
				} else {
					time.AfterFunc(5*time.Second, func() { close(interrupt) })
				}
				if end, err := loop.Run(t.Context(), &in); !errors.Is(err, want) || len(made.calls) != 1 {
					t.Errorf("Run = %+v, %v after %d calls; want %v after one", end, err, len(made.calls), want)
				}
				in = withTools(inputOf(t, j, 2, c), quick, slow)
				if _, err := loop.Run(t.Context(), &in); err != nil || len(made.calls) != 2 || in.State.ToolRetries() != 1 {
					t.Errorf("the next run: %v after %d calls with %d retries, want one more call", err, len(made.calls),
						in.State.ToolRetries())
				}
			})
		})
	}
}

// TestCallInput checks the values that a tool receives besides the arguments.
func TestCallInput(t *testing.T) {
	for effect, repeatable := range map[tool.Effect]bool{tool.ReadOnly: true, tool.Idempotent: true, tool.Destructive: false, "": false} {
		t.Run(string(effect), func(t *testing.T) { testCallInput(t, effect, repeatable) })
	}
}

func testCallInput(t *testing.T, effect tool.Effect, repeatable bool) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) {
		ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
		defer cancel()
		c, _ := candidate("one", 1, withUsage(asksFor("", call("c1", "find", `{}`)), 1000, 100),
			withUsage(asksFor("", call("c2", "find", `{"n":1}`)), 10, 1), says("Done."))
		c.Pricing = pricing(1, 10)
		spent := &tool.Spent{
			Turn: "child", Usage: model.Usage{InputTokens: 300, OutputTokens: 20},
			Cost: &model.Cost{Amount: decimal.RequireFromString("0.5"), Currency: "USD"},
		}
		find, found := toolOf("find", effect, result{after: 10 * time.Second, content: "found"})
		find.Caller = tool.CallerFunc(func(ctx context.Context, c tool.Call) (tool.Result, error) {
			r, err := found.Call(ctx, c)
			r.Spent = spent
			return r, err
		})
		in := withTools(input(t, c), find)
		in.Limits.MaxTokens, in.Limits.MaxCost = 5000, decimal.NewFromInt(1)
		if _, err := loop.Run(ctx, &in); err != nil {
			t.Fatal(err)
		}
		want := []tool.Call{
			{
				IdempotencyKey: keyOf("uid/1/c1"), Step: 1, CallID: "c1", Attempt: 1, Repeatable: repeatable, Arguments: []byte(`{}`),
				Left: tool.Left{Time: time.Minute, Tokens: new(int64(3900)), Cost: new(decimal.RequireFromString("0.998"))},
			},
			{
				IdempotencyKey: keyOf("uid/2/c2"), Step: 2, CallID: "c2", Attempt: 1, Repeatable: repeatable, Arguments: []byte(`{"n":1}`),
				Left: tool.Left{Time: 50 * time.Second, Tokens: new(int64(3569)), Cost: new(decimal.RequireFromString("0.49798"))},
			},
		}
		if diff := cmp.Diff(want, found.calls); diff != "" {
			t.Errorf("the tool received: -want +got:\n%s", diff)
		}
		if f := in.State.CallResults[1]; f.Spent == nil || f.Spent.Turn != "child" {
			t.Errorf("the journal has %+v, want the usage of the sub-agent", f)
		}
	})
}

// TestSubAgentsCount checks that the usage of sub-agents counts against limits.maxTokens, even if their calls fail.
func TestSubAgentsCount(t *testing.T) {
	for name, err := range map[string]error{"succeeded": nil, "failed": &tool.Error{Class: tool.Failed, Message: "it gave up"}} {
		t.Run(name, func(t *testing.T) {
			c, s := candidate("one", 1, asksFor("", call("c1", "agent", `{}`), call("c2", "agent", `{"n":1}`)), says("Done."))
			agent, _ := toolOf("agent", tool.Idempotent)
			calls := 0
			agent.Caller = tool.CallerFunc(func(context.Context, tool.Call) (tool.Result, error) {
				calls++
				return tool.Result{Content: "done", Spent: &tool.Spent{Usage: model.Usage{InputTokens: 900, OutputTokens: 100}}}, err
			})
			in := withTools(input(t, c), agent)
			in.Limits.MaxTokens = 1000
			end, err := loop.Run(t.Context(), &in)
			want := "the turn used 1006 tokens, which is more than its budget of 1000 tokens: no further tools were called"
			if err != nil || end.Reason != loop.OverBudget || end.Message != want || calls != 1 || len(s.requests) != 1 {
				t.Errorf("Run = %+v, %v after %d calls and %d requests; want %q after one of each", end, err, calls, len(s.requests), want)
			}
		})
	}
}

// TestWaveWithoutMemoryForItsResults checks that a run makes no further calls after Hold has refused memory for a
// result, even if Hold grants it for the next result. The run records the results of the calls that are running. The
// next run makes the remaining calls, each once.
func TestWaveWithoutMemoryForItsResults(t *testing.T) {
	for name, fails := range map[string]func(results int) bool{
		"for all results":      func(results int) bool { return results > 0 },
		"for the first result": func(results int) bool { return results == 1 },
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) { testWaveWithoutMemory(t, fails) })
		})
	}
}

// testWaveWithoutMemory makes 20 calls. fails reports whether Hold fails after this number of results.
func testWaveWithoutMemory(t *testing.T, fails func(results int) bool) {
	t.Helper()
	const number = 20
	j, noMemory := &journaltest.Store{}, errors.New("the memory is used up")
	c, _ := candidate("one", 1, asksFor("", manyCalls("find", number)...), says("Done."))
	find, server := toolOf("find", tool.ReadOnly, result{after: time.Second, content: "found"})
	in := withTools(inputOf(t, j, 1, c), find)
	in.Hold = func(int64) error {
		if fails(len(in.State.CallResults)) {
			return noMemory
		}
		return nil
	}
	if _, err := loop.Run(t.Context(), &in); !errors.Is(err, noMemory) {
		t.Errorf("Run: %v, want the error of Hold", err)
	}
	if made, kept := len(server.keys()), len(in.State.CallResults); made != 8 || kept != made {
		t.Errorf("%d calls were made and %d have a result, want 8 calls and all their results", made, kept)
	}
	in = withTools(inputOf(t, j, 2, c), find)
	if end, err := loop.Run(t.Context(), &in); err != nil || end.Reason != loop.Answered {
		t.Errorf("Run: %+v, %v, want an answer", end, err)
	}
	keys := server.keys()
	slices.Sort(keys)
	if len(slices.Compact(keys)) != number || len(server.keys()) != number {
		t.Errorf("%d calls were made, want each of the %d once", len(server.keys()), number)
	}
}

// TestParallelCallsReserveMemory checks that a call runs at the same time as others only if there is memory for it, and
// that all memory is released, however the run ends.
func TestParallelCallsReserveMemory(t *testing.T) {
	stopped := errors.New("the journal is gone")
	for name, tc := range map[string]struct {
		reservations, most int
		took               time.Duration
		// failsAt is the call of Record that fails, counted from 1. If it is 0, none fails.
		failsAt int
		want    error
	}{
		"memory for no further call":   {reservations: 0, most: 1, took: 20 * time.Second},
		"memory for three":             {reservations: 3, most: 4, took: 5 * time.Second},
		"memory for more than may run": {reservations: 100, most: 8, took: 3 * time.Second},
		"journal fails":                {reservations: 100, most: 8, took: time.Second, failsAt: 4, want: stopped},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				var mu sync.Mutex
				held, running, most := 0, 0, 0
				count := func(n *int, more int) {
					mu.Lock()
					defer mu.Unlock()
					*n += more
					most = max(most, running)
				}
				find, _ := toolOf("find", tool.ReadOnly)
				find.Caller = tool.CallerFunc(func(context.Context, tool.Call) (tool.Result, error) {
					count(&running, 1)
					defer count(&running, -1)
					time.Sleep(time.Second)
					return tool.Result{Content: "found"}, nil
				})
				c, _ := candidate("one", 1, asksFor("", manyCalls("find", 20)...), says("Done."))
				in := withTools(input(t, c), find)
				record, records := in.Record, 0
				in.Record = func(all ...journal.Record) error {
					if records++; records == tc.failsAt {
						return stopped
					}
					return record(all...)
				}
				in.ReserveCall = func() func() {
					if held == tc.reservations {
						return nil
					}
					count(&held, 1)
					return func() { count(&held, -1) }
				}
				begin := time.Now()
				if _, err := loop.Run(t.Context(), &in); !errors.Is(err, tc.want) {
					t.Errorf("Run: %v, want %v", err, tc.want)
				}
				if took := time.Since(begin); took != tc.took || most != tc.most || held != 0 {
					t.Errorf("%d calls ran at the same time, for %s, and %d reservations are held; want %d, %s and none", most, took, held,
						tc.most, tc.took)
				}
			})
		})
	}
}

// TestMemoryIsReservedBeforeIntents checks that a call for which there is no memory is neither recorded nor made. If
// only its intent were recorded, the outcome of the call would be unknown.
func TestMemoryIsReservedBeforeIntents(t *testing.T) {
	noMemory := errors.New("the memory is used up")
	c, _ := candidate("one", 1, asksFor("", call("a", "send", `{"n":1}`)))
	send, server := toolOf("send", tool.Destructive, result{content: "sent"})
	in := withTools(input(t, c), send)
	in.Hold = func(more int64) error {
		if more > 0 {
			return noMemory
		}
		return nil
	}
	if _, err := loop.Run(t.Context(), &in); !errors.Is(err, noMemory) || len(server.keys()) != 0 || len(in.State.Intents) != 0 {
		t.Errorf("Run: %v with %d calls and %d intents, want the error of Hold and neither", err, len(server.keys()), len(in.State.Intents))
	}
}

// TestMemoryIsReservedForReusedResults checks that a run reserves the memory for the results of earlier calls that it
// uses again, before it records them again.
func TestMemoryIsReservedForReusedResults(t *testing.T) {
	const length, again = 10_000, 5
	calls := func(step, number int) []model.ToolCall {
		var all []model.ToolCall
		for i := range number {
			all = append(all, call(fmt.Sprintf("c%d-%d", step, i), "find", `{"n":1}`))
		}
		return all
	}
	c, _ := candidate("one", 1, asksFor("", calls(1, 1)...), asksFor("", calls(2, again)...), says("Done."))
	find, _ := toolOf("find", tool.ReadOnly, result{content: strings.Repeat("r", length)})
	in := withTools(input(t, c), find)
	largest := int64(0)
	in.Hold = func(more int64) error {
		largest = max(largest, more)
		return nil
	}
	if end, err := loop.Run(t.Context(), &in); err != nil || end.Reason != loop.Answered {
		t.Fatalf("Run: %+v, %v, want an answer", end, err)
	}
	if got := in.State.CallResults; len(got) != 1+again || got[again].Outcome != loop.Reused || largest < again*length {
		t.Errorf("%d calls ended, the last as %s, and the largest reservation was %d bytes; want %d, %s and at least %d",
			len(got), got[len(got)-1].Outcome, largest, 1+again, loop.Reused, again*length)
	}
}
