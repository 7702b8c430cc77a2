package main

import (
	"cmp"
	"encoding/json"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	gocmp "github.com/google/go-cmp/cmp"
	"github.com/shopspring/decimal"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/capstan-dev/capstan/api/v1alpha1"
	"github.com/capstan-dev/capstan/internal/runtime/budget"
	"github.com/capstan-dev/capstan/internal/runtime/journal"
	"github.com/capstan-dev/capstan/internal/runtime/loop"
	"github.com/capstan-dev/capstan/internal/runtime/model"
	"github.com/capstan-dev/capstan/internal/runtime/tool"
	"github.com/capstan-dev/capstan/internal/runtime/turn"
)

const uid = "uid-1"

// at returns the time that is this many seconds after noon, on the day of all stories.
func at(second int) time.Time { return time.Date(2026, 1, 1, 12, 0, second, 0, time.UTC) }

// scribe writes a journal with one entry per second.
type scribe struct {
	// uid is the UID of the Turn. If it is empty, the constant uid is used.
	uid     string
	entries []journal.Entry
	epoch   int64
}

// keyOf returns the idempotency key of a call in a story.
func keyOf(uid, call string) string { return uid + call + "/0123456789abcdef" }

func (s *scribe) turn() string { return cmp.Or(s.uid, uid) }

func (s *scribe) write(kind journal.Kind, payload any) {
	text, err := json.Marshal(payload)
	if err != nil {
		panic(err)
	}
	seq := len(s.entries) + 1
	s.entries = append(s.entries, journal.Entry{
		Seq: int64(seq), Epoch: s.epoch, Kind: kind, Version: 1, Time: at(seq), Payload: text,
	})
}

func (s *scribe) run(epoch int64) {
	s.epoch = epoch
	s.write(journal.RunStarted, struct{}{})
}

func (s *scribe) park(approvals int, turns ...string) {
	s.write(journal.RunParked, waiting{approvals, turns})
}

func (s *scribe) ask(step, attempt int) {
	s.write(journal.ModelRequested, loop.Request{
		Step: step, Provider: "p", Model: "m", Attempt: attempt,
		ID: fmt.Sprintf("%s/%d", s.turn(), len(s.entries)+1), EstimatedTokens: 9,
	})
}

func (s *scribe) reply(step int, calls ...string) {
	r := model.Reply{Text: "Done.", FinishReason: model.FinishStop, Usage: model.Usage{InputTokens: 10, OutputTokens: 2}}
	for _, c := range calls {
		r.Text, r.FinishReason = "", model.FinishToolCalls
		id, name, _ := strings.Cut(c, " ")
		r.ToolCalls = append(r.ToolCalls, model.ToolCall{ID: id, Name: name})
	}
	s.write(journal.ModelReplied, loop.Step{Step: step, Provider: "p", Model: "m", Reply: r})
}

func (s *scribe) intend(step int, id, name string, attempt int) {
	effect := tool.Destructive
	switch name {
	case toolLook:
		effect = tool.ReadOnly
	case toolHelper:
		effect = tool.Idempotent
	}
	s.write(journal.ToolIntended, loop.Intent{
		Step: step, CallID: id, Name: name, Effect: effect, Attempt: attempt,
		IdempotencyKey: keyOf(s.turn(), fmt.Sprintf("/%d/%s", step, id)),
	})
}

func (s *scribe) finish(step int, id, name string, outcome loop.Outcome) {
	f := loop.CallResult{Step: step, CallID: id, Name: name, Outcome: outcome}
	if outcome == loop.Unknown {
		f.Class = tool.OutcomeUnknown
	}
	s.write(journal.ToolFinished, f)
}

func (s *scribe) end() {
	s.write(journal.Finalized, turn.Result{Stop: turn.StopCompleted, Message: "the model answered"})
}

// story returns the evidence of a Turn whose manager was killed twice: during a request, and during a call that must
// not be made twice.
func story() evidence {
	s := &scribe{}
	s.run(1)
	s.ask(1, 1)                               // 2: in flight at the first kill
	s.run(2)                                  // 3
	s.ask(1, 2)                               // 4
	s.reply(1, "a look", "b count")           // 5
	s.intend(1, "a", "look", 1)               // 6
	s.finish(1, "a", "look", loop.Succeeded)  // 7
	s.intend(1, "b", "count", 1)              // 8: in flight at the second kill
	s.run(3)                                  // 9
	s.finish(1, "b", "count", loop.Unknown)   // 10
	s.ask(2, 1)                               // 11
	s.reply(2, "c count")                     // 12
	s.intend(2, "c", "count", 1)              // 13
	s.finish(2, "c", "count", loop.Succeeded) // 14
	s.ask(3, 1)                               // 15
	s.reply(3)                                // 16
	s.end()                                   // 17
	billed := func(seq, unknown int) asked {
		return asked{ID: fmt.Sprintf("%s/%d", uid, seq), Billed: true, Input: 10, Output: 2, Unknown: []string{"b"}[:unknown]}
	}
	return evidence{
		Turns: []turnEvidence{{Entries: s.entries, Turn: &v1alpha1.Turn{
			ObjectMeta: metav1.ObjectMeta{Name: "t", UID: types.UID(uid)},
			Status: v1alpha1.TurnStatus{
				Executor: &v1alpha1.ExecutorBinding{Name: "e", Epoch: 3},
				Conditions: []metav1.Condition{{
					Type: v1alpha1.ConditionSucceeded, Status: metav1.ConditionTrue,
					Reason: v1alpha1.TurnReasonCompleted,
				}},
				Steps: &v1alpha1.StepCounts{Count: 3, ModelRequests: 4, ModelRetries: 1, ToolCalls: 3, UnknownOutcomes: 1, Resumes: 2},
				// The request that was interrupted counts with its estimate, 9.
				Usage: &v1alpha1.Usage{InputTokens: 39, OutputTokens: 6, TotalTokens: 45, Estimated: true},
			},
		}}},
		Asked: []asked{billed(2, 0), billed(4, 0), billed(11, 1), billed(15, 1)},
		Called: map[string]called{
			keyOf(uid, "/1/a"): {Tool: "look", Times: 1}, keyOf(uid, "/1/b"): {Tool: "count", Times: 1},
			keyOf(uid, "/2/c"): {Tool: "count", Times: 1},
		},
		Kills: []kill{{at(2), at(3)}, {at(8), at(9)}},
	}
}

func TestIntactEvidenceHasNoViolation(t *testing.T) {
	got, broken := check(story())
	if len(broken) > 0 {
		t.Errorf("violations: %+v", broken)
	}
	want := figures{
		Turns: 1, Finished: 1, Resumes: 2, CutOff: 2, Entries: 17, Requests: 4, Replies: 3, LostSent: 1,
		Intended: 2, Made: 2, Unknown: 1, UnknownMade: 1, UnknownReported: 1, UnknownTold: 1, Repeatable: 1, RepeatableMade: 1,
		Billed: tokens{40, 8}, Reported: tokens{39, 6}, Lost: tokens{10, 2}, Estimated: tokens{9, 0},
	}
	if diff := gocmp.Diff(want, got); diff != "" {
		t.Errorf("figures (-want +got):\n%s", diff)
	}
}

// TestKillsWithoutVisibleEffect checks stories in which all guarantees hold: the request or the call in flight never
// arrived, or was rightly repeated.
func TestKillsWithoutVisibleEffect(t *testing.T) {
	e := story()
	e.Asked = e.Asked[1:]
	delete(e.Called, keyOf(uid, "/1/b"))
	got, broken := check(e)
	if len(broken) > 0 || got.LostUnsent != 1 || got.LostSent != 0 || got.UnknownMade != 0 || got.Made != 1 || got.Lost != (tokens{}) {
		t.Errorf("figures %+v, violations %+v", got, broken)
	}

	s := &scribe{}
	s.run(1)
	s.ask(1, 1)
	s.reply(1, "a look")
	s.intend(1, "a", "look", 1)
	s.run(2)
	s.intend(1, "a", "look", 2)
	s.finish(1, "a", "look", loop.Succeeded)
	if h := readHistory(uid, s.entries); len(h.broken) > 0 {
		t.Errorf("a harmless call may be made again: %+v", h.broken)
	}
}

// TestUnknownOutcomesOfEarlierTurnsOfTheSession checks a later Turn of the Session, which has the unknown
// outcome in its history. The outcome does not belong to that Turn, and in another Session it would be wrong.
func TestUnknownOutcomesOfEarlierTurnsOfTheSession(t *testing.T) {
	next := &scribe{uid: "uid-2"}
	next.run(1)
	next.ask(1, 1)
	next.reply(1)
	next.end()
	for session, want := range map[string]int{"talk": 0, "other": 1} {
		e := story()
		e.Turns[0].Turn.Spec.SessionRef = &v1alpha1.ObjectReference{Name: "talk"}
		second := e.Turns[0].Turn.DeepCopy()
		second.Name, second.UID, second.Spec.SessionRef.Name = "next", "uid-2", session
		second.Status.Executor.Epoch, second.Status.Steps = 1, &v1alpha1.StepCounts{Count: 1, ModelRequests: 1}
		second.Status.Usage = &v1alpha1.Usage{InputTokens: 10, OutputTokens: 2, TotalTokens: 12}
		e.Turns = append(e.Turns, turnEvidence{Turn: second, Entries: next.entries})
		e.Asked = append(e.Asked, asked{ID: "uid-2/2", Billed: true, Input: 10, Output: 2, Unknown: []string{"b"}})
		got, broken := check(e)
		if len(broken) != want || got.UnknownTold != 1+want {
			t.Errorf("Session %q: %d unknown outcomes shown, violations: %+v", session, got.UnknownTold, broken)
		}
	}
}

// TestABudgetEqualsTheUsageOfItsTurns checks that a difference between the ledger and the statuses is found.
func TestABudgetEqualsTheUsageOfItsTurns(t *testing.T) {
	for name, tc := range map[string]struct {
		ledger budget.Account
		says   string
	}{
		"equal":          {budget.Account{Tokens: 45, Turns: 1}, ""},
		"another cost":   {budget.Account{Tokens: 45, Turns: 1, Cost: decimal.New(7, 0)}, "a cost of 7, and 0 requests without one"},
		"no price":       {budget.Account{Tokens: 45, Turns: 1, Unpriced: 1}, "and 1 requests without one"},
		"a cost is held": {budget.Account{Tokens: 45, Turns: 1, ReservedCost: decimal.New(7, 0)}, "with a cost of 7"},
		"twice":          {budget.Account{Tokens: 57, Turns: 1}, "has counted 57 tokens, but the statuses have 45"},
		"never":          {budget.Account{}, "has counted 0 tokens"},
		"a Turn twice":   {budget.Account{Tokens: 45, Turns: 2}, "has counted 2 Turns, want 1"},
		"still reserved": {budget.Account{Tokens: 45, Turns: 1, ReservedTokens: 9}, "9 tokens are still reserved"},
	} {
		e := story()
		e.Budget = &tc.ledger
		_, broken := check(e)
		found := slices.ContainsFunc(broken, func(v violation) bool {
			return v.Guarantee == exactBudget && strings.Contains(v.What, tc.says)
		})
		if found != (tc.says != "") {
			t.Errorf("%s: violations %+v, want %q", name, broken, tc.says)
		}
	}
}

// rewrite replaces the journal of the story with the result of change, and numbers the entries again.
func rewrite(e *evidence, change func([]journal.Entry) []journal.Entry) {
	entries := change(slices.Clone(e.Turns[0].Entries))
	for i := range entries {
		entries[i].Seq = int64(i) + 1
	}
	e.Turns[0].Entries = entries
}

// insert inserts the entries that a scribe writes in an epoch after the first n entries.
func insert(n int, epoch int64, write func(*scribe)) func([]journal.Entry) []journal.Entry {
	return func(entries []journal.Entry) []journal.Entry {
		s := &scribe{epoch: epoch, entries: slices.Clone(entries[:n])}
		write(s)
		return append(s.entries, entries[n:]...)
	}
}

func TestEachBrokenGuaranteeIsReported(t *testing.T) {
	status := func(e *evidence) *v1alpha1.TurnStatus { return &e.Turns[0].Turn.Status }
	for name, tc := range map[string]struct {
		reason string
		harm   func(*evidence)
		want   guarantee
		says   string
	}{
		"StillRuns": {"a Turn that has not ended", func(e *evidence) {
			status(e).Conditions[0].Status, status(e).Conditions[0].Reason = "Unknown", "Running"
		}, everyTurnFinished, `"Running"`},
		"Failed": {"a Turn that ended without an answer", func(e *evidence) {
			status(e).Conditions[0].Status, status(e).Conditions[0].Reason = "False", "ModelFailed"
		}, everyTurnFinished, `"ModelFailed"`},
		"NoEnd": {
			"a journal without a result", func(e *evidence) { e.Turns[0].Entries = e.Turns[0].Entries[:16] },
			everyTurnFinished, "has no result",
		},
		"Miscounts": {
			"a status that counts other resumes", func(e *evidence) { status(e).Steps.Resumes = 1 },
			everyTurnFinished, "its status counts",
		},

		"RepliedStep": {"a request for a step that has its reply", func(e *evidence) {
			rewrite(e, insert(14, 3, func(s *scribe) { s.ask(2, 2) }))
		}, paidOnce, "for step 2 was made although the journal already had the reply"},
		"SentTwice": {"one request that arrived twice", func(e *evidence) { e.Asked = append(e.Asked, e.Asked[2]) }, paidOnce, "2 times"},
		"Stray": {
			"a request that no journal has",
			func(e *evidence) { e.Asked = append(e.Asked, asked{ID: uid + "/99"}) }, paidOnce, "which no journal has",
		},
		"Anonymous": {"a request without an ID", func(e *evidence) { e.Asked[0].ID = "" }, paidOnce, `request ""`},
		"Invented":  {"a reply that the model server never gave", func(e *evidence) { e.Asked = e.Asked[:3] }, paidOnce, "never received"},
		"TwoReplies": {
			"two replies for one step",
			func(e *evidence) { rewrite(e, insert(12, 3, func(s *scribe) { s.ask(2, 1); s.reply(2) })) }, paidOnce, "is a reply to step 2",
		},
		"WrongNumber": {"a request with the ID of another request", func(e *evidence) {
			e.Turns[0].Entries[10].Payload = []byte(strings.Replace(string(e.Turns[0].Entries[10].Payload), "/11", "/12", 1))
		}, paidOnce, "must have the ID"},

		"MadeTwice": {
			"a call that arrived twice",
			func(e *evidence) { e.Called[keyOf(uid, "/2/c")] = called{Tool: "count", Times: 2} }, calledOnce, "was made 2 times",
		},
		"UnknownTwice": {
			"a call of unknown outcome that arrived twice",
			func(e *evidence) { e.Called[keyOf(uid, "/1/b")] = called{Tool: "count", Times: 2} }, calledOnce, "was made 2 times",
		},
		"LookedTwice": {
			"a repeatable call that was made more often than intended",
			func(e *evidence) { e.Called[keyOf(uid, "/1/a")] = called{Tool: "look", Times: 2} }, calledOnce, "intended 1 times",
		},
		"NotIntended": {
			"a call that no journal has",
			func(e *evidence) { e.Called[keyOf(uid, "/3/x")] = called{Tool: "count", Times: 1} }, calledOnce, "which no journal has",
		},
		"NotInReply": {
			"a call that the newest reply does not contain",
			func(e *evidence) { rewrite(e, insert(14, 3, func(s *scribe) { s.intend(2, "x", "count", 1) })) }, calledOnce,
			"the newest reply does not contain it",
		},
		"IntendedTwice": {"a call that was intended once more", func(
			e *evidence,
		) {
			rewrite(e, insert(9, 3, func(s *scribe) { s.intend(1, "b", "count", 2) }))
		}, calledOnce, "was intended again"},
		"Harmless": {"a destructive call that is recorded as idempotent", func(e *evidence) {
			e.Turns[0].Entries[12].Payload = []byte(strings.Replace(string(e.Turns[0].Entries[12].Payload), "Destructive", "Idempotent", 1))
		}, calledOnce, "has the recorded effect Idempotent, which makes it repeatable: true, want false"},
		"EndedTwice": {"a call with two outcomes", func(e *evidence) {
			rewrite(e, insert(14, 3, func(s *scribe) { s.finish(2, "c", "count", loop.Unknown) }))
		}, calledOnce, "has two outcomes"},

		"NoKill": {
			"a call that was interrupted without a kill", func(e *evidence) { e.Kills = e.Kills[:1] },
			knownOutcomes, "no process was killed",
		},
		"KillBefore": {
			"a kill before the call began", func(e *evidence) { e.Kills[1] = kill{at(6), at(7)} },
			knownOutcomes, "no process was killed",
		},
		"KillAfter": {
			"a kill after the next run began", func(e *evidence) { e.Kills[0] = kill{at(4), at(5)} },
			knownOutcomes, "no process was killed",
		},
		"SameEpoch": {
			"a run that continues without a new epoch", func(e *evidence) { e.Turns[0].Entries[2].Epoch = 1 },
			knownOutcomes, "without a new epoch",
		},
		"NotReported": {
			"a status that does not report the unknown outcome", func(e *evidence) { status(e).Steps.UnknownOutcomes = 0 },
			knownOutcomes, "reports 0 unknown outcomes, want 1",
		},
		"NotTold": {
			"a model that does not see the outcome",
			func(e *evidence) { e.Asked[2].Unknown, e.Asked[3].Unknown = nil, nil }, knownOutcomes, "saw 0 unknown outcomes, want 1",
		},
		"ToldOfOther": {
			"a model that sees an unknown outcome of a call with a result",
			func(e *evidence) { e.Asked[3].Unknown = []string{"c"} }, knownOutcomes, "saw 2 unknown outcomes, want 1",
		},
		"Pretended": {
			"a result of a call that was interrupted", func(e *evidence) { e.Turns[0].Entries[9] = successOfB() },
			knownOutcomes, "was not in flight",
		},
		"Overcautious": {
			"an unknown outcome of a call that nothing interrupted",
			func(e *evidence) { e.Turns[0].Entries[13].Payload = unknownC() }, knownOutcomes,
			"is recorded as unknown, but the call was not intended, was not cut off, may be repeated, or has another class: " +
				"outcome_unknown",
		},
		"NeverCalled": {
			"a result of a call that never arrived", func(e *evidence) { delete(e.Called, keyOf(uid, "/2/c")) },
			knownOutcomes, "never received",
		},

		"StatusUsage": {
			"a status with other tokens than the journal",
			func(e *evidence) { status(e).Usage.InputTokens = 40 }, exactUsage, "its status has 40+6 tokens",
		},
		"NotEstimated": {
			"a request that was interrupted without an estimate",
			func(e *evidence) { status(e).Usage.InputTokens = 30 }, exactUsage, "its status has 30+6 tokens",
		},
		"NoUsage": {"a status without tokens", func(e *evidence) { status(e).Usage = nil }, exactUsage, "its status has 0+0 tokens"},
		"OtherBill": {
			"a reply that was billed for other tokens", func(e *evidence) { e.Asked[1].Output = 3 },
			exactUsage, "was billed 10+3 tokens",
		},
		"NotBilled": {"tokens that were not billed", func(e *evidence) { e.Asked[1].Billed = false }, exactUsage, "were billed"},
		"BilledStrays": {
			"tokens of a request that no journal has",
			func(e *evidence) { e.Asked = append(e.Asked, asked{ID: "x", Billed: true, Input: 1}) }, exactUsage, "no journal contains it",
		},

		"Gap": {
			"a journal that lacks an entry",
			func(e *evidence) { e.Turns[0].Entries = slices.Delete(e.Turns[0].Entries, 0, 1) }, wholeJournals, "has the number 2",
		},
		"OlderEpoch": {
			"an entry of an older epoch", func(e *evidence) { e.Turns[0].Entries[10].Epoch = 2 },
			wholeJournals, "is of epoch 2, after one of epoch 3",
		},
		"NoRun": {
			"an epoch that no run began", func(e *evidence) { e.Turns[0].Entries[10].Epoch = 4 },
			wholeJournals, "does not follow a run.started of that epoch",
		},
		"AfterEnd": {
			"an entry after the end",
			func(e *evidence) { rewrite(e, insert(17, 3, func(s *scribe) { s.ask(4, 1) })) }, wholeJournals, "follows the end",
		},
		"OldStatus": {
			"a status of an older epoch than the journal's",
			func(e *evidence) { status(e).Executor.Epoch = 2 }, wholeJournals, "its status has epoch 2",
		},
		"Continues": {"a run that continues while a request is in flight", func(e *evidence) {
			rewrite(e, func(all []journal.Entry) []journal.Entry { return slices.Delete(all, 11, 12) })
		}, wholeJournals, "is in flight"},
		"Unanswered": {"a request before all calls have ended", func(e *evidence) {
			rewrite(e, func(all []journal.Entry) []journal.Entry { return slices.Delete(all, 9, 10) })
		}, wholeJournals, "had ended"},
		"Unreadable": {
			"an entry that cannot be read", func(e *evidence) { e.Turns[0].Entries[4].Payload = []byte("{") },
			wholeJournals, "cannot be read",
		},
		"RefusedWithoutCause": {"a call that was refused", func(e *evidence) {
			rewrite(e, insert(14, 3, func(s *scribe) { s.finish(2, "d", "count", loop.Refused) }))
		}, wholeJournals, "was Refused"},
		"FailedWithoutCause": {"a call that failed", func(e *evidence) {
			e.Turns[0].Entries[13].Payload = []byte(strings.Replace(string(e.Turns[0].Entries[13].Payload), "Succeeded", "Failed", 1))
		}, knownOutcomes, "has failed"},
	} {
		t.Run(name, func(t *testing.T) {
			e := story()
			tc.harm(&e)
			_, broken := check(e)
			if !slices.ContainsFunc(broken, func(v violation) bool { return v.Guarantee == tc.want && strings.Contains(v.What, tc.says) }) {
				t.Errorf("%s was not detected: want %q with %q, got %+v", tc.reason, tc.want, tc.says, broken)
			}
		})
	}
}

// successOfB returns an entry in which call b succeeded, to replace the one with the unknown outcome.
func successOfB() journal.Entry {
	s := &scribe{epoch: 3, entries: make([]journal.Entry, 9)}
	s.finish(1, "b", "count", loop.Succeeded)
	return s.entries[9]
}

// unknownC returns an entry in which the outcome of call c is unknown.
func unknownC() json.RawMessage {
	s := &scribe{epoch: 3}
	s.finish(2, "c", "count", loop.Unknown)
	return s.entries[0].Payload
}

func TestKillsThatHitNoTurnAreAViolation(t *testing.T) {
	s := &scribe{}
	s.run(1)
	s.ask(1, 1)
	s.reply(1)
	s.end()
	e := story()
	e.Turns[0].Entries = s.entries
	e.Turns[0].Turn.Status.Steps = &v1alpha1.StepCounts{Count: 1, ModelRequests: 1}
	e.Turns[0].Turn.Status.Usage = &v1alpha1.Usage{InputTokens: 10, OutputTokens: 2}
	e.Asked, e.Called = []asked{{ID: uid + "/2", Billed: true, Input: 10, Output: 2}}, nil
	p := newPhaseReport(e)
	if len(p.Violations) != 1 || !strings.Contains(p.Violations[0].What, "proves nothing") {
		t.Errorf("got violations %+v, want one: the kills proved nothing", p.Violations)
	}
}
