package loop_test

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"
	"testing/synctest"

	"github.com/google/go-cmp/cmp"

	"github.com/capstan-dev/capstan/internal/runtime/journal"
	"github.com/capstan-dev/capstan/internal/runtime/journal/journaltest"
	"github.com/capstan-dev/capstan/internal/runtime/loop"
	"github.com/capstan-dev/capstan/internal/runtime/model"
	"github.com/capstan-dev/capstan/internal/runtime/prepare"
	"github.com/capstan-dev/capstan/internal/runtime/tool"
)

// failingModel asks for a call in the first step and fails from step failsFrom on. It counts its requests by step.
type failingModel struct {
	failsFrom int
	failure   model.Error
	asked     [3]int
}

// Generate computes the reply from the messages, so a repeated request changes nothing.
func (m *failingModel) Generate(_ context.Context, r *model.Request) (*model.Reply, error) {
	step := 1 + len(slices.DeleteFunc(slices.Clone(r.Messages), func(m model.Message) bool { return m.Role != model.RoleAssistant }))
	m.asked[step]++
	switch {
	case step >= m.failsFrom:
		return nil, new(m.failure)
	case step == 1:
		return new(asksFor("", call("c1", "find", `{}`)).reply), nil
	}
	return new(says("Done.").reply), nil
}

// TestKilledInAChain kills a run at each append of a Turn whose first model fails, before or after it has called a
// tool. The next run continues with the next model. It asks no model again that an earlier run has given up, and buys
// no reply twice.
func TestKilledInAChain(t *testing.T) {
	timeout := model.Error{Kind: model.Timeout, Message: "slow", MayBeBilled: true}
	unknown := model.Error{Kind: model.InvalidRequest, Message: "no such model"}
	for name, tc := range map[string]struct {
		failsFrom int
		failure   model.Error
		second    int // step from which the second model fails, too
		one, two  [3]int
		err       string
	}{
		"first request": {1, model.Error{Kind: model.Auth, Message: "refused"}, 9, [3]int{0, 1, 0}, [3]int{0, 1, 1}, ""},
		"after a tool": {
			2, model.Error{Kind: model.InvalidRequest, Message: "refused"}, 9, [3]int{0, 1, 1}, [3]int{0, 0, 1}, "",
		},
		"retried":  {2, model.Error{Kind: model.Overloaded, Message: "busy"}, 9, [3]int{0, 1, 3}, [3]int{0, 0, 1}, ""},
		"billed":   {2, timeout, 9, [3]int{0, 1, 2}, [3]int{0, 0, 1}, ""},
		"too long": {2, model.Error{Kind: model.ContextLength, Message: "too long"}, 9, [3]int{0, 1, 1}, [3]int{0, 0, 1}, ""},
		"both fail": {
			2,
			model.Error{Kind: model.Auth, Message: "refused"},
			2,
			[3]int{0, 1, 1},
			[3]int{0, 0, 1},
			"none of the 2 models that were tried answered; one/m: refused; two/m: no such model",
		},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				for at := 0; ; at++ {
					for _, written := range []bool{false, true} {
						k := &killedChain{
							j:   &journaltest.Store{},
							one: failingModel{failsFrom: tc.failsFrom, failure: tc.failure},
							two: failingModel{failsFrom: tc.second, failure: unknown},
						}
						killed, err := k.run(t, 1, at, written)
						if errors.Is(err, errCutOff) {
							_, err = k.run(t, 2, -1, false)
						}
						if got := fmt.Sprint(err); tc.err != "" && got != tc.err || tc.err == "" && err != nil {
							t.Errorf("killed at append %d (written %t): %v, want %q", at, written, err, tc.err)
						}
						one, two := tc.one, tc.two
						if lost := killed.lost; lost != nil { // the end of this request was not written
							map[string]*[3]int{"one": &one, "two": &two}[lost.Provider][lost.Step]++
						}
						if exceeds(k.one.asked, one) || exceeds(k.two.asked, two) {
							t.Errorf("killed at append %d (written %t): asked %v and %v, want at most %v and %v", at, written,
								k.one.asked, k.two.asked, one, two)
						}
						if killed.done {
							return
						}
					}
				}
			})
		})
	}
}

// exceeds reports whether a step has more requests than wanted.
func exceeds(got, want [3]int) bool { return got[1] > want[1] || got[2] > want[2] }

// killedChain runs a Turn with two models. start is the index of the model with the newest prompt.
type killedChain struct {
	j        *journaltest.Store
	one, two failingModel
	start    int
}

// kill describes the kill of a run.
type kill struct {
	// done is true if the run was not killed. lost is the request whose end was not written, or nil.
	done bool
	lost *loop.Request
}

// run runs the Turn. It kills the run at the append with this index, or at no append if the index is negative. If
// written is true, the records of that append still reach the journal.
func (k *killedChain) run(t *testing.T, epoch int64, at int, written bool) (kill, error) {
	one, two := k.candidate("one", &k.one, 1000), k.candidate("two", &k.two, 2000)
	find, _ := toolOf("find", tool.ReadOnly, result{content: "found"})
	in := withTools(inputOf(t, k.j, epoch, one, two), find)
	prepareIt := in.Prepare
	in.Start, in.Prepare = k.start, func(ctx context.Context, c loop.Candidate) (*prepare.Prompt, error) {
		k.start = slices.Index([]string{"one", "two"}, c.ProviderName)
		return prepareIt(ctx, c)
	}
	record, n, killed := in.Record, 0, kill{done: true}
	in.Record = func(records ...journal.Record) error {
		if n++; at < 0 || n <= at {
			return record(records...)
		}
		killed.done = false
		if written {
			return errors.Join(record(records...), errCutOff)
		}
		if kind := records[0].Kind; kind == journal.ModelFailed || kind == journal.ModelReplied {
			killed.lost = &in.State.Requests[len(in.State.Requests)-1]
		}
		return errCutOff
	}
	_, err := loop.Run(t.Context(), &in)
	return killed, err
}

func (k *killedChain) candidate(name string, m *failingModel, window int64) loop.Candidate {
	c, _ := candidate(name, 3)
	c.Provider, c.ContextWindow = m, window
	return c
}

// TestUnusableModels checks that a model without a provider costs neither a prompt nor a wait, and that the journal and
// the error name it.
func TestUnusableModels(t *testing.T) {
	missing := func(name string) loop.Candidate {
		c, _ := candidate(name, 1, answer{err: &model.Error{Kind: model.Unusable, Message: name + " does not exist", Unsent: true}})
		c.Unusable, c.Parameters.MaxOutputTokens = true, new(1_000_000)
		return c
	}
	good, _ := candidate("two", 1, says("Two."))
	small, _ := candidate("one", 1, fails(model.ContextLength))
	small.ContextWindow = 1000
	smaller, _ := candidate("three", 1, says("Three."))
	smaller.ContextWindow = 500
	for name, tc := range map[string]struct {
		reason   string
		chain    []loop.Candidate
		prepared []string
		err      string
	}{
		"the first": {"the next model is asked immediately", []loop.Candidate{missing("one"), good}, []string{"two"}, ""},
		"all": {
			"the error names all",
			[]loop.Candidate{missing("one"), missing("two")},
			nil,
			"none of the 2 models that were tried answered; one/m: one does not exist; two/m: two does not exist",
		},
		"between two windows": {
			"the last model has a smaller window", []loop.Candidate{small, missing("two"), smaller}, []string{"one"}, "it is ContextLength",
		},
	} {
		t.Run(name, func(t *testing.T) {
			in := input(t, tc.chain...)
			in.Limits.MaxTokens = 1000 // less than the reply that the missing model might give
			var prepared []string
			prepareIt := in.Prepare
			in.Prepare = func(ctx context.Context, c loop.Candidate) (*prepare.Prompt, error) {
				if !slices.Contains(prepared, c.ProviderName) {
					prepared = append(prepared, c.ProviderName)
				}
				return prepareIt(ctx, c)
			}
			_, err := loop.Run(t.Context(), &in)
			if got := fmt.Sprint(err); tc.err != "" && got != tc.err || tc.err == "" && err != nil {
				t.Errorf("Run: %v, want %q: %s", err, tc.err, tc.reason)
			}
			if diff := cmp.Diff(tc.prepared, prepared); diff != "" {
				t.Errorf("prompts are made for: %s: -want +got:\n%s", tc.reason, diff)
			}
			for _, f := range in.State.FailedRequests {
				if f.Unsent != (f.Kind == model.Unusable) || f.GaveUp == "" {
					t.Errorf("the journal has %+v, want that nothing was sent, and that the model is given up", f)
				}
			}
		})
	}
}

// TestKindOfAChainThatFails checks that the error of a chain has the kind ContextLength only if the prompt was too long
// for each model.
func TestKindOfAChainThatFails(t *testing.T) {
	for name, tc := range map[string]struct {
		reason string
		kinds  []model.ErrorKind
		want   model.ErrorKind
	}{
		"a smaller fallback": {
			"the first model might accept the prompt",
			[]model.ErrorKind{model.QuotaExceeded, model.ContextLength},
			model.QuotaExceeded,
		},
		"all too long":      {"the prompt is too long", []model.ErrorKind{model.ContextLength, model.ContextLength}, model.ContextLength},
		"a filter last":     {"the filter ended the chain", []model.ErrorKind{model.Auth, model.ContentFiltered}, model.ContentFiltered},
		"a larger fallback": {"the last model might accept the prompt", []model.ErrorKind{model.ContextLength, model.Auth}, model.Auth},
	} {
		t.Run(name, func(t *testing.T) {
			var chain []loop.Candidate
			for i, kind := range tc.kinds {
				c, _ := candidate(fmt.Sprint("p", i), 1, fails(kind))
				chain = append(chain, c)
			}
			_, err := loop.Run(t.Context(), new(input(t, chain...)))
			if failure, ok := errors.AsType[*loop.Error](err); !ok || failure.Kind != tc.want {
				t.Errorf("Run: %#v, want kind %s: %s", err, tc.want, tc.reason)
			}
		})
	}
}

// TestEndOfAChainNamesModelsThatWereCutOff checks that the error of a chain names a model whose requests were all cut
// off.
func TestEndOfAChainNamesModelsThatWereCutOff(t *testing.T) {
	j := &journaltest.Store{}
	one, _ := candidate("one", 1, says("never kept"))
	for epoch := range int64(9) {
		if _, err := runCutOff(t, j, epoch+1, loop.Limits{}, one); !errors.Is(err, errCutOff) {
			t.Fatalf("run %d: %v, want a request that is cut off", epoch+1, err)
		}
	}
	two, _ := candidate("two", 1, fails(model.Auth))
	_, err := loop.Run(t.Context(), new(inputOf(t, j, 10, one, two)))
	const want = "none of the 2 models that were tried answered; one/m: stopped after 9 requests for one step, because 9 of " +
		"them were cut off when their run ended: the logs of the executor show the cause; two/m: it is Auth"
	if err == nil || err.Error() != want {
		t.Errorf("Run: %v, want %q", err, want)
	}
}

// TestRequestsThatTheirRunsCancelledAreCutOff checks that the error of a model also counts the requests that were
// cancelled because their runs ended, as at each restart that is graceful.
func TestRequestsThatTheirRunsCancelledAreCutOff(t *testing.T) {
	j := &journaltest.Store{}
	for epoch := range int64(9) {
		one, _ := candidate("one", 1, fails(model.Cancelled))
		in := inputOf(t, j, epoch+1, one)
		if _, err := loop.Run(t.Context(), &in); err == nil {
			t.Fatalf("run %d: no error, want a request that is cancelled", epoch+1)
		}
	}
	one, s := candidate("one", 1, says("Done."))
	_, err := loop.Run(t.Context(), new(inputOf(t, j, 10, one)))
	const want = "stopped after 9 requests for one step, because 9 of them were cut off"
	if err == nil || !strings.Contains(err.Error(), want) || len(s.requests) > 0 {
		t.Errorf("Run: %v after %d requests, want %q", err, len(s.requests), want)
	}
}

// TestRunStopsWithoutSpace checks that a run stops after an answer that was not received for want of space, and asks
// neither the same model again nor the next one. The next run asks the same model.
func TestRunStopsWithoutSpace(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		j := &journaltest.Store{}
		noSpace := answer{err: &model.Error{
			Kind: model.Overloaded, Message: "no space", MayBeBilled: true, Err: errors.Join(model.ErrOwnMemory, model.ErrNoSpace),
		}}
		one, first := candidate("one", 3, noSpace, says("Done."))
		two, second := candidate("two", 3, says("Wrong."))
		run := func(epoch int64) (*loop.End, error) {
			in := inputOf(t, j, epoch, one, two)
			return loop.Run(t.Context(), &in)
		}
		if _, err := run(1); !errors.Is(err, loop.ErrInterrupted) || len(first.requests) != 1 {
			t.Fatalf("the first run: %v after %d requests, want it to stop after one", err, len(first.requests))
		}
		if end, err := run(2); err != nil || end.Reason != loop.Answered {
			t.Fatalf("the second run: %+v, %v, want an answer", end, err)
		}
		if len(first.requests) != 2 || len(second.requests) != 0 {
			t.Errorf("the models got %d and %d requests, want 2 and none", len(first.requests), len(second.requests))
		}
	})
}
