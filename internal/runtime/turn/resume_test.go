package turn_test

import (
	"context"
	"encoding/json"
	"errors"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/shopspring/decimal"

	"github.com/capstan-dev/capstan/internal/runtime/finalize"
	"github.com/capstan-dev/capstan/internal/runtime/journal"
	"github.com/capstan-dev/capstan/internal/runtime/journal/journaltest"
	"github.com/capstan-dev/capstan/internal/runtime/loop"
	"github.com/capstan-dev/capstan/internal/runtime/model"
	"github.com/capstan-dev/capstan/internal/runtime/prompt"
	"github.com/capstan-dev/capstan/internal/runtime/tool"
	"github.com/capstan-dev/capstan/internal/runtime/turn"
	"github.com/capstan-dev/capstan/internal/runtime/untrusted"
)

// whole runs a Turn whose first request fails, and returns its journal and its result.
func whole(t *testing.T) (journal.Journal, *turn.Result) {
	t.Helper()
	c, _ := candidate("p0", 2, fails(model.Overloaded), says("Nothing."))
	j := &journaltest.Store{}
	result, err := engine(j).Run(t.Context(), new(input(c)))
	if err != nil {
		t.Fatal(err)
	}
	want := []journal.Kind{
		"run.started", "tools.exposed", "preparation.input", "prompt.rendered", "prepared", "model.requested",
		"model.failed", "model.requested", "model.replied", "finalized",
	}
	if diff := cmp.Diff(want, kinds(t, j)); diff != "" {
		t.Fatalf("journal: -want +got:\n%s", diff)
	}
	return j, result
}

func TestResume(t *testing.T) {
	for name, tc := range map[string]struct {
		reason   string
		entries  int // the number of entries that the earlier run has written
		asked    int // the number of requests that the next run sends
		requests int // the number of requests that the result counts
		resumes  int
	}{
		"empty journal": {"the Turn starts", 0, 2, 2, 0},
		"prepared":      {"the prompt is not made again", 5, 2, 2, 1},
		"failed":        {"the failed request still counts", 7, 1, 2, 1},
		"cut off":       {"an interrupted request counts, too", 8, 1, 3, 1},
		"replied":       {"a reply is not paid for twice", 9, 0, 2, 1},
		"finalized":     {"the recorded end stays the same", 10, 0, 2, 0},
	} {
		for store, open := range journals {
			t.Run(name+"/"+store, func(t *testing.T) {
				from, want := whole(t)
				j := copyOf(t, from, open(t), tc.entries)
				answers := []answer{fails(model.Overloaded), says("Nothing.")}
				c, s := candidate("p0", 2, answers[2-min(tc.asked, 2):]...)
				if tc.asked == 0 {
					c, s = candidate("p0", 2, says("never asked"))
				}
				in := input(c)
				in.Epoch = 2
				if tc.entries >= 5 {
					in.Preparation = mustNotPrepare(t) // the frozen input stays frozen
				}
				got, err := engine(j).Run(t.Context(), new(in))
				if err != nil {
					t.Fatalf("Run: %v", err)
				}
				if s.asked() != tc.asked {
					t.Errorf("the model was asked %d times, want %d: %s", s.asked(), tc.asked, tc.reason)
				}
				expected := *want
				expected.Counts.Resumes = tc.resumes
				expected.Counts.ModelRequests, expected.Counts.ModelRetries = tc.requests, tc.requests-1
				if tc.entries > 0 {
					if last := entries(t, from, "uid")[tc.entries-1]; last.Kind == journal.ModelRequested {
						addEstimate(t, &expected, decoded[loop.Request](t, last))
					}
				}
				if diff := cmp.Diff(asJSON(t, expected), asJSON(t, got)); diff != "" {
					t.Errorf("result: %s: -want +got:\n%s", tc.reason, diff)
				}
				again, err := engine(j).Run(t.Context(), new(in))
				if diff := cmp.Diff(got, again); diff != "" || err != nil {
					t.Errorf("the run of a finished Turn (error %v): -first +second:\n%s", err, diff)
				}
			})
		}
	}
}

// addEstimate adds an interrupted request to an expected result: the endpoint may have billed its prompt.
func addEstimate(t *testing.T, r *turn.Result, cutOff loop.Request) {
	t.Helper()
	estimate := model.Usage{InputTokens: cutOff.EstimatedTokens, Estimated: true}
	amount, err := decimal.NewFromString(r.Record.Cost.Amount)
	if err != nil {
		t.Fatal(err)
	}
	r.Record.Usage = r.Record.Usage.Add(estimate)
	r.Record.Cost = &finalize.Cost{Amount: amount.Add(cutOff.EstimatedCost.Amount).String(), Currency: r.Record.Cost.Currency}
	r.Spent = slices.Clone(r.Spent)
	r.Spent[0].Usage = r.Spent[0].Usage.Add(estimate)
}

func TestResumeContinuesWithTheFallback(t *testing.T) {
	one, _ := candidate("p0", 1, fails(model.Auth))
	two, _ := candidate("p1", 1, says("Nothing."))
	whole := &journaltest.Store{}
	if _, err := engine(whole).Run(t.Context(), new(input(one, two))); err != nil {
		t.Fatal(err)
	}
	one, first := candidate("p0", 1, fails(model.Auth))
	two, second := candidate("p1", 1, says("Nothing."))
	in := input(one, two)
	in.Epoch, in.Preparation = 2, mustNotPrepare(t)
	result, err := engine(copyOf(t, whole, &journaltest.Store{}, 9)).Run(t.Context(), new(in))
	if err != nil || first.asked() != 0 || second.asked() != 1 {
		t.Fatalf("Run: %v, asked the models %d and %d times; want only the model that the earlier run had reached",
			err, first.asked(), second.asked())
	}
	if diff := cmp.Diff(&turn.Fallback{From: "p0/m", To: "p1/m", Reason: model.Auth}, result.Fallback); diff != "" {
		t.Errorf("fallback: -want +got:\n%s", diff)
	}
	if want := (turn.Counts{Steps: 1, ModelRequests: 2, Resumes: 1}); result.Counts != want {
		t.Errorf("counts %+v, want %+v", result.Counts, want)
	}
}

// TestFallbackBecauseOfTheBudget checks the result of a Turn whose first model is too expensive for its budget.
func TestFallbackBecauseOfTheBudget(t *testing.T) {
	one, first := candidate("p0", 1, says("Never."))
	one.Pricing.Input = decimal.NewFromInt(1_000_000_000)
	two, _ := candidate("p1", 1, says("Nothing."))
	in := input(one, two)
	in.Limits.MaxCost = decimal.NewFromInt(1)
	result, err := engine(&journaltest.Store{}).Run(t.Context(), new(in))
	if err != nil || result.Stop != turn.StopCompleted || first.asked() != 0 {
		t.Fatalf("Run = %+v, %v, asked the first model %d times; want the answer of the second one", result, err, first.asked())
	}
	if diff := cmp.Diff(&turn.Fallback{From: "p0/m", To: "p1/m", Reason: model.OverBudget}, result.Fallback); diff != "" {
		t.Errorf("fallback: -want +got:\n%s", diff)
	}
	if want := (turn.Counts{Steps: 1, ModelRequests: 1}); result.Counts != want {
		t.Errorf("counts %+v, want %+v", result.Counts, want)
	}
}

// TestAnswerThatTheBudgetCutsOff checks that the result has the text before the cut.
func TestAnswerThatTheBudgetCutsOff(t *testing.T) {
	cut := says("It is a long")
	cut.reply.FinishReason = model.FinishLength
	one, _ := candidate("p0", 1, cut)
	in := input(one)
	in.Limits.MaxTokens = 3000
	result, err := engine(&journaltest.Store{}).Run(t.Context(), new(in))
	if err != nil || result.Stop != turn.StopBudget || result.Text != "It is a long" {
		t.Errorf("Run = %+v, %v; want the end by the budget and the text before the cut", result, err)
	}
}

// TestResumeInAChainWithAModelTwice cuts off a run after each of its entries. The chain has the first model again at
// the end. The next run must not ask a place of the chain again that has failed before.
func TestResumeInAChainWithAModelTwice(t *testing.T) {
	chain := func() (all []loop.Candidate, asked func() []int) {
		one, first := candidate("p0", 1, fails(model.Auth))
		two, second := candidate("p1", 1, fails(model.Auth))
		again, third := candidate("p0", 1, says("Nothing."))
		return []loop.Candidate{one, two, again}, func() []int { return []int{first.asked(), second.asked(), third.asked()} }
	}
	whole := &journaltest.Store{}
	candidates, _ := chain()
	if result, err := engine(whole).Run(t.Context(), new(input(candidates...))); err != nil || result.Stop != turn.StopCompleted {
		t.Fatalf("Run = %+v, %v; want the answer of the last model", result, err)
	}
	all := entries(t, whole, "uid")
	for n := range all {
		want := []int{1, 1, 1}
		failed := 0
		for _, e := range all[:n] {
			switch e.Kind { //nolint:exhaustive // because the other kinds do not matter
			case journal.ModelFailed:
				want[failed] = 0
				failed++
			case journal.ModelReplied:
				want[failed] = 0
			}
		}
		candidates, asked := chain()
		in := input(candidates...)
		in.Epoch = 2
		result, err := engine(copyOf(t, whole, &journaltest.Store{}, n)).Run(t.Context(), new(in))
		if err != nil || result.Stop != turn.StopCompleted || !slices.Equal(asked(), want) {
			t.Errorf("after %d entries: %+v, %v, asked %v; want the answer, and %v", n, result, err, asked(), want)
		}
	}
}

func TestFencedRun(t *testing.T) {
	for store, open := range journals {
		t.Run(store, func(t *testing.T) {
			j := open(t)
			c, s := candidate("p0", 1, says("Nothing."))
			newer := input(c)
			newer.Epoch = 2
			if _, err := engine(j).Run(t.Context(), new(newer)); err != nil {
				t.Fatal(err)
			}
			if result, err := engine(j).Run(t.Context(), new(input(c))); !errors.Is(err, journal.ErrFenced) || result != nil ||
				s.asked() != 1 {
				t.Errorf("Run of the old epoch = %+v, %v, %d requests; want ErrFenced and no more requests", result, err, s.asked())
			}
		})
	}
}

func TestFencedWhileItRuns(t *testing.T) {
	j := &journaltest.Store{}
	newer, _ := candidate("p0", 1, says("the newer answer"))
	takenOver := false
	c, _ := candidate("p0", 1, says("the older answer"))
	in := input(c)
	in.HoldAnswer = func() bool { // called when the answer is in the journal
		takenOver = true
		over := input(newer)
		over.Epoch = 2
		if result, err := engine(j).Run(t.Context(), new(over)); err != nil || result.Text != "the older answer" {
			t.Errorf("the newer run = %+v, %v; want the answer that is in the journal", result, err)
		}
		return false
	}
	if _, err := engine(j).Run(t.Context(), new(in)); !errors.Is(err, journal.ErrFenced) || !takenOver {
		t.Errorf("Run: %v, want ErrFenced: another run has ended the Turn", err)
	}
}

func TestHoldAnswer(t *testing.T) {
	j := &journaltest.Store{}
	c, s := candidate("p0", 1, says("Nothing."))
	in := input(c)
	in.HoldAnswer = func() bool { return true }
	if result, err := engine(j).Run(t.Context(), new(in)); !errors.Is(err, loop.ErrInterrupted) || result != nil {
		t.Fatalf("Run = %+v, %v; want ErrInterrupted", result, err)
	}
	if diff := cmp.Diff([]journal.Kind{
		"run.started", "tools.exposed", "preparation.input", "prompt.rendered", "prepared",
		"model.requested", "model.replied",
	}, kinds(t, j)); diff != "" {
		t.Errorf("journal: -want +got:\n%s", diff)
	}
	in.Epoch, in.HoldAnswer, in.Timeout = 2, nil, -1
	result, err := engine(j).Run(t.Context(), new(in))
	if err != nil || result.Text != "Nothing." || result.Counts.Resumes != 1 || s.asked() != 1 {
		t.Errorf("the next run = %+v, %v after %d requests; want the kept answer, although the time is over", result, err, s.asked())
	}
}

func TestResultSurvivesJSON(t *testing.T) {
	j, result := whole(t)
	back := payloads[turn.Result](t, j, journal.Finalized)[0]
	if diff := cmp.Diff(result, &back); diff != "" {
		t.Errorf("the result in the journal: -want +got:\n%s", diff)
	}
}

func TestResultOfACancelledTurn(t *testing.T) {
	from, whole := whole(t)
	for name, tc := range map[string]struct {
		entries  int
		requests int
		text     string
	}{
		"before anything":   {0, 0, ""},
		"after the request": {6, 1, ""},
		"after the reply":   {9, 2, "Nothing."},
	} {
		t.Run(name, func(t *testing.T) {
			c, s := candidate("p0", 2, says("never asked"))
			in := input(c)
			in.Epoch = 2
			ctx, ctl := control(t, &in)
			ctl.cancel()
			got, err := engine(copyOf(t, from, &journaltest.Store{}, tc.entries)).Run(ctx, new(in))
			if err != nil || got.Stop != turn.StopCancelled || got.Text != tc.text ||
				got.Counts.ModelRequests != tc.requests || s.asked() != 0 {
				t.Fatalf("Run = %+v, %v after %d requests; want a result from the journal, and no request", got, err, s.asked())
			}
			if tc.text != "" && got.Record.Usage != whole.Record.Usage {
				t.Errorf("usage %+v, want %+v, which was paid for", got.Record.Usage, whole.Record.Usage)
			}
		})
	}
}

func TestRequestsThatNeverLeftDoNotCount(t *testing.T) {
	unsent := answer{err: &model.Error{Kind: model.Network, Message: "no Secret", Unsent: true}}
	notReached := answer{err: &model.Error{Kind: model.Network, Message: "connection refused", NotReached: true}}
	c, _ := candidate("p0", 3, unsent, notReached, says("Nothing."))
	got, err := engine(&journaltest.Store{}).Run(t.Context(), new(input(c)))
	if want := (turn.Counts{Steps: 1, ModelRequests: 1}); err != nil || got.Counts != want {
		t.Errorf("counts %+v, %v; want %+v", got.Counts, err, want)
	}
}

func TestAPanicOfAnAdapterIsAnErrorOfThatRequest(t *testing.T) {
	one, _ := candidate("p0", 3)
	one.Provider = modelFunc(func(context.Context, *model.Request) (*model.Reply, error) { panic("a secret of the prompt") })
	two, _ := candidate("p1", 1, says("Nothing."))
	j := &journaltest.Store{}
	got, err := engine(j).Run(t.Context(), new(input(one, two)))
	if err != nil || got.Stop != turn.StopCompleted || got.Fallback == nil {
		t.Errorf("Run = %+v, %v; want the answer of the next model", got, err)
	}
	failed := payloads[loop.FailedRequest](t, j, journal.ModelFailed)[0]
	if !strings.Contains(failed.Stack, "TestAPanicOfAnAdapter") || strings.Contains(failed.Stack+failed.Message, "a secret of the prompt") {
		t.Errorf("the journal has %+v; want the stack of the panic without its value", failed)
	}
}

// abreast is the journal of one of several runs. It delays the first append of its run until all runs have reached
// their first append.
type abreast struct {
	journal.Journal
	all *sync.WaitGroup
	own sync.Once
}

// Append waits before the first append.
func (a *abreast) Append(ctx context.Context, uid string, entries ...journal.Entry) error {
	a.own.Do(func() {
		a.all.Done()
		a.all.Wait()
	})
	return a.Journal.Append(ctx, uid, entries...)
}

// TestTwoRunsOfOneEpoch starts two equal runs at the same time. One run continues, and the other stops with
// ErrSequence.
func TestTwoRunsOfOneEpoch(t *testing.T) {
	for store, open := range journals {
		t.Run(store, func(t *testing.T) {
			j := open(t)
			var all, ended sync.WaitGroup
			var asked, called, refused atomic.Int64
			all.Add(2)
			for range 2 {
				ended.Go(func() {
					c, s := candidate("p0", 1, asks("send", "{}"), says("Done."))
					in := input(c)
					in.Tools = []tool.Tool{named("send", tool.Destructive, func(context.Context, tool.Call) (tool.Result, error) {
						called.Add(1)
						return tool.Result{Content: "sent"}, nil
					})}
					result, err := engine(&abreast{Journal: j, all: &all}).Run(t.Context(), new(in))
					if errors.Is(err, journal.ErrSequence) {
						refused.Add(1)
					} else if err != nil || result.Text != "Done." {
						t.Errorf("Run = %+v, %v; want the answer or ErrSequence", result, err)
					}
					asked.Add(int64(s.asked()))
				})
			}
			ended.Wait()
			if asked.Load() != 2 || called.Load() != 1 || refused.Load() != 1 {
				t.Errorf("%d requests, %d calls and %d runs refused; want 2, 1 and 1",
					asked.Load(), called.Load(), refused.Load())
			}
		})
	}
}

// TestRunsAreDistinguishable checks that the first entries of two runs differ. A run that does not know the outcome of
// its first append must not mistake the entry of another run for its own.
func TestRunsAreDistinguishable(t *testing.T) {
	var first [2]json.RawMessage
	for i := range first {
		j, _ := whole(t)
		first[i] = entries(t, j, "uid")[0].Payload
	}
	if string(first[0]) == string(first[1]) {
		t.Errorf("two runs both begin with %s", first[0])
	}
}

// TestAJournalOfAnOlderVersion continues from a journal without the beginning of a run, tools, a number of the Turn and
// costs.
func TestAJournalOfAnOlderVersion(t *testing.T) {
	from, want := whole(t)
	j := &journaltest.Store{}
	for _, e := range entries(t, from, "uid")[2:9] { // up to the reply
		e.Seq -= 2
		var payload map[string]any
		if err := json.Unmarshal(e.Payload, &payload); err != nil {
			t.Fatal(err)
		}
		delete(payload, "cost")
		delete(payload, "number")
		e.Payload = []byte(asJSON(t, payload))
		if err := j.Append(t.Context(), "uid", e); err != nil {
			t.Fatal(err)
		}
	}
	c, s := candidate("p0", 2, says("never asked"))
	in := input(c)
	in.Epoch, in.ReflectEvery = 2, 1
	result, err := engine(j).Run(t.Context(), new(in))
	if err != nil || s.asked() != 0 || result.Counts.Resumes != 1 || result.Text != want.Text {
		t.Fatalf("Run = %+v, %v after %d requests; want the reply of the earlier run, and one resume", result, err, s.asked())
	}
	if diff := cmp.Diff(want.Record, result.Record); diff != "" || want.Record.Cost == nil {
		t.Errorf("the record must have costs from the current prices: -want +got:\n%s", diff)
	}
}

// inOtherWords copies the entries of a journal up to the last entry of a kind, with replaced texts, as another version
// would have written them.
func inOtherWords(t *testing.T, from journal.Journal, last journal.Kind, words *strings.Replacer) *journaltest.Store {
	t.Helper()
	to, all := &journaltest.Store{}, entries(t, from, "uid")
	for len(all) > 0 && all[len(all)-1].Kind != last {
		all = all[:len(all)-1]
	}
	for _, e := range all {
		e.Payload = []byte(words.Replace(string(e.Payload)))
		if err := to.Append(t.Context(), "uid", e); err != nil {
			t.Fatal(err)
		}
	}
	return to
}

// TestResumeKeepsTheTextsOfAnOlderVersion continues a Turn whose prompt, notices and repairs an older version wrote in
// other words. The model must receive the same words again, and the Turn must keep the hashes of its prompt.
func TestResumeKeepsTheTextsOfAnOlderVersion(t *testing.T) {
	const repaired = "The arguments were changed before the call: /n: read the text as the number 1.\n"
	find := remote("find", "Finds.", tool.ReadOnly)
	find.Schema = json.RawMessage(`{"type":"object","properties":{"n":{"type":"integer"}}}`)
	from := &journaltest.Store{}
	c, before := candidate("p0", 1, asks("find", `{"n":"1"}`), says("Done."))
	in := input(c)
	in.Toolbox = server("web", find)
	first := mustRun(t, from, in)
	words := strings.NewReplacer(
		"Text in data blocks", "Words in data blocks", untrusted.ToolNotice, "This is data.", "converted the text to", "read the text as",
		first.Preparation.RenderHash, strings.Repeat("0", 64), first.Preparation.PromptHash, strings.Repeat("1", 64),
	)
	c, s := candidate("p0", 1, asks("find", `{"n":1}`), says("Done."))
	in.Chain, in.Epoch, in.Preparation = []loop.Candidate{c}, 2, mustNotPrepare(t)
	result := mustRun(t, inOtherWords(t, from, journal.ToolFinished, words), in)

	want := slices.Clone(before.requests[1].Messages)
	for i := range want {
		want[i].Content = words.Replace(want[i].Content)
	}
	if diff := cmp.Diff(want, s.requests[0].Messages); diff != "" {
		t.Errorf("the messages after the restart: -want +got:\n%s", diff)
	}
	answer, found := strings.CutPrefix(want[len(want)-1].Content, repaired)
	if got := s.requests[1].Messages; !found || got[len(got)-1].Content != answer {
		t.Errorf("the reused result is %q, want %q without the repair of the earlier call", got[len(got)-1].Content,
			want[len(want)-1].Content)
	}
	if r := result.Preparation; r.RenderHash != strings.Repeat("0", 64) || r.PromptHash != strings.Repeat("1", 64) {
		t.Errorf("the hashes of the prompt are %s and %s, want those in the journal", r.RenderHash, r.PromptHash)
	}
}

// TestApprovalOfASubAgentOutlivesANewDescription approves a call for which an older version requested the approval. In
// that version, the parameters of sub-agents had other descriptions, and so another hash.
func TestApprovalOfASubAgentOutlivesANewDescription(t *testing.T) {
	helper := tool.Tool{
		Tool: prompt.SubAgent("helper", "Helps."), Effect: tool.Idempotent, Source: tool.Source{Agent: "helper", UID: "a"},
	}
	from := &journaltest.Store{}
	c, _ := candidate("p0", 1, asks("helper", `{"task":"Help."}`), says("Done."))
	in := input(c)
	in.Toolbox = &box{offers: []tool.Offer{{Tools: []tool.Tool{helper}, RequireApproval: []string{"*"}}}}
	in.Limits.ApprovalTimeout = time.Hour
	_, err := engine(from).Run(t.Context(), new(in))
	if _, parked := asParked(err); !parked {
		t.Fatalf("Run = %v, want a Turn that waits for the approval", err)
	}
	older := helper
	older.Parameters = slices.Clone(helper.Parameters)
	older.Parameters[0].Description = "What is to be done."
	words := strings.NewReplacer(helper.Parameters[0].Description, older.Parameters[0].Description, helper.SchemaHash(), older.SchemaHash())
	in.Epoch, in.Decide = 2, deciding(0, true)
	result := mustRun(t, inOtherWords(t, from, journal.RunParked, words), in)
	if len(result.Calls) != 1 || result.Calls[0].Outcome != loop.Succeeded || helper.SchemaHash() == older.SchemaHash() {
		t.Errorf("the calls are %+v, want the approved one to succeed", result.Calls)
	}
}
