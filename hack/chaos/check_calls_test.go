package main

import (
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/capstan-dev/capstan/api/v1alpha1"
	"github.com/capstan-dev/capstan/internal/runtime/journal"
	"github.com/capstan-dev/capstan/internal/runtime/loop"
	"github.com/capstan-dev/capstan/internal/runtime/model"
	"github.com/capstan-dev/capstan/internal/runtime/tool"
)

func (s *scribe) requestApproval(step int, id, name string) {
	s.write(journal.ApprovalRequested, loop.Approval{Step: step, CallID: id, Name: name})
}

func (s *scribe) decide(step int, id string, approved bool) {
	s.write(journal.ApprovalDecided, loop.Decision{Step: step, CallID: id, Approved: approved, By: objectName})
}

func (s *scribe) refuse(step int, id, name string) {
	s.write(journal.ToolFinished, loop.CallResult{Step: step, CallID: id, Name: name, Outcome: loop.Refused, Class: tool.Denied})
}

// endCall writes the outcome of a call of a sub-agent.
func (s *scribe) endCall(step int, id, child string) {
	s.write(journal.ToolFinished, loop.CallResult{
		Step: step, CallID: id, Name: toolHelper, Outcome: loop.Succeeded,
		Spent: &tool.Spent{Turn: child, Usage: model.Usage{InputTokens: 20, OutputTokens: 4}},
	})
}

// summarise writes a request for a summary before a step, and its reply.
func (s *scribe) summarise(step int) {
	s.write(journal.ModelRequested, loop.Request{
		Step: step, Purpose: loop.ForCompaction, Attempt: 1,
		ID: fmt.Sprintf("%s/%d", s.turn(), len(s.entries)+1),
	})
	s.write(journal.ModelReplied, loop.Step{
		Step: step, Purpose: loop.ForCompaction,
		Reply: model.Reply{Text: "So far.", Usage: model.Usage{InputTokens: 10, OutputTokens: 2}},
	})
}

const childUID = "uid-2"

// saga returns the evidence of a Turn that uses every feature, and of the Turn of its sub-agent. A kill hit the parent
// once, in a wave.
func saga() evidence {
	s := &scribe{}
	s.run(1)
	s.write(journal.ToolsExposed, struct{}{})  // 2
	s.ask(1, 1)                                // 3
	s.reply(1, "a look", "b look", "c helper") // 4
	s.intend(1, "a", toolLook, 1)              // 5
	s.intend(1, "b", toolLook, 1)              // 6: in flight at the kill
	s.finish(1, "a", toolLook, loop.Succeeded) // 7
	s.run(2)                                   // 8
	s.intend(1, "b", toolLook, 2)              // 9
	s.finish(1, "b", toolLook, loop.Succeeded) // 10
	s.intend(1, "c", toolHelper, 1)            // 11
	s.park(0, "child")                         // 12
	s.run(3)                                   // 13
	s.intend(1, "c", toolHelper, 2)            // 14
	s.endCall(1, "c", "child")                 // 15
	s.ask(2, 1)                                // 16
	s.reply(2, "d wipe", "e wipe")             // 17
	s.requestApproval(2, "d", toolWipe)        // 18
	s.requestApproval(2, "e", toolWipe)        // 19
	s.park(2)                                  // 20
	s.run(4)                                   // 21
	s.decide(2, "d", true)                     // 22
	s.decide(2, "e", false)                    // 23
	s.intend(2, "d", toolWipe, 1)              // 24
	s.finish(2, "d", toolWipe, loop.Succeeded) // 25
	s.refuse(2, "e", toolWipe)                 // 26
	s.ask(3, 1)                                // 27
	s.reply(3, "f wipe")                       // 28
	s.refuse(3, "f", toolWipe)                 // 29: no second approval is requested
	s.summarise(4)                             // 30, 31
	s.write(journal.Compacted, loop.Compaction{From: 2, Summary: "So far."})
	s.ask(4, 1) // 33
	s.reply(4)  // 34
	s.end()     // 35

	child := &scribe{uid: childUID}
	child.run(1)
	child.ask(1, 1)                                 // 2
	child.reply(1, "x count")                       // 3
	child.intend(1, "x", toolCount, 1)              // 4
	child.finish(1, "x", toolCount, loop.Succeeded) // 5
	child.ask(2, 1)                                 // 6
	child.reply(2)                                  // 7
	child.end()

	done := func(name, uid string, epoch int64, steps v1alpha1.StepCounts, requests int64) *v1alpha1.Turn {
		return &v1alpha1.Turn{
			ObjectMeta: metav1.ObjectMeta{Name: name, UID: types.UID(uid)},
			Status: v1alpha1.TurnStatus{
				Executor: &v1alpha1.ExecutorBinding{Name: "e", Epoch: epoch},
				Conditions: []metav1.Condition{{
					Type: v1alpha1.ConditionSucceeded, Status: metav1.ConditionTrue,
					Reason: v1alpha1.TurnReasonCompleted,
				}},
				Steps: &steps, Usage: &v1alpha1.Usage{InputTokens: 10 * requests, OutputTokens: 2 * requests},
			},
		}
	}
	parent := done("t", uid, 4, v1alpha1.StepCounts{Count: 4, ModelRequests: 5, ToolCalls: 4, Resumes: 1, Compactions: 1}, 5)
	parent.Status.SubAgentUsage = &v1alpha1.Usage{InputTokens: 20, OutputTokens: 4}
	childTurn := done("child", childUID, 1, v1alpha1.StepCounts{Count: 2, ModelRequests: 2, ToolCalls: 1}, 2)
	childTurn.OwnerReferences = []metav1.OwnerReference{
		{APIVersion: v1alpha1.GroupVersion.String(), Kind: "Turn", Name: "t", UID: uid, Controller: new(true)},
	}
	e := evidence{
		Turns: []turnEvidence{{Entries: s.entries, Turn: parent}, {Entries: child.entries, Turn: childTurn}},
		Called: map[string]called{
			keyOf(uid, "/1/a"): {toolLook, 1}, keyOf(uid, "/1/b"): {toolLook, 2}, keyOf(uid, "/2/d"): {toolWipe, 1},
			keyOf(childUID, "/1/x"): {toolCount, 1},
		},
		Decided: map[string]v1alpha1.ApprovalDecision{uid + "/2/d": v1alpha1.ApprovalApproved, uid + "/2/e": v1alpha1.ApprovalDenied},
		Kills:   []kill{{at(7), at(8)}},
	}
	for _, id := range []string{uid + "/3", uid + "/16", uid + "/27", uid + "/30", uid + "/33", childUID + "/2", childUID + "/6"} {
		e.Asked = append(e.Asked, asked{ID: id, Billed: true, Input: 10, Output: 2})
	}
	return e
}

func TestIntactEvidenceOfAllFeaturesHasNoViolation(t *testing.T) {
	got, broken := check(saga())
	if len(broken) > 0 {
		t.Errorf("violations: %+v", broken)
	}
	want := figures{
		Turns: 2, Finished: 2, Resumes: 1, CutOff: 1, Parked: 2, Entries: 35 + 8, Requests: 7, Replies: 7, Asides: 1, Compactions: 1,
		Intended: 2, Made: 2, Repeatable: 2, RepeatableMade: 3, Waves: 1, Awaited: 2, Approved: 1, ApprovedMade: 1, Denied: 1,
		Delegated: 1, Children: 1, Billed: tokens{70, 14}, Reported: tokens{70, 14}, OfChildren: tokens{20, 4},
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("figures (-want +got):\n%s", diff)
	}
	p := newPhaseReport(saga())
	if p.checkFeatures(); len(p.Violations) > 0 {
		t.Errorf("got violations %+v, want none, because the Turn uses every feature", p.Violations)
	}
}

// TestPhaseWithoutAFeatureFails checks that a phase whose Turns leave out a feature fails, because it
// proves nothing about that feature.
func TestPhaseWithoutAFeatureFails(t *testing.T) {
	p := newPhaseReport(story())
	p.checkFeatures()
	if len(p.Violations) != 6 || !strings.Contains(p.Violations[0].What, "proves nothing") {
		t.Errorf("got violations %+v, want six", p.Violations)
	}
}

func TestBrokenGuaranteesOfCallsAreReported(t *testing.T) {
	remove := func(from, to int) func(*evidence) {
		return func(e *evidence) {
			rewrite(e, func(all []journal.Entry) []journal.Entry { return slices.Delete(all, from-1, to) })
		}
	}
	add := func(after int, epoch int64, write func(*scribe)) func(*evidence) {
		return func(e *evidence) { rewrite(e, insert(after, epoch, write)) }
	}
	for name, tc := range map[string]struct {
		reason string
		harm   func(*evidence)
		want   guarantee
		says   string
	}{
		"SummaryAgain": {
			"a summary that was bought twice", add(31, 4, func(s *scribe) { s.summarise(4) }), paidOnce,
			"(compaction) was made although",
		},
		"SummaryUsedTwice": {"a summary that replaces messages twice", add(32, 4, func(s *scribe) {
			s.write(journal.Compacted, loop.Compaction{})
		}), wholeJournals, "is replacement 2 of older messages, but there are only 1 summaries"},
		"Miscounts": {
			"a status without the compaction",
			func(e *evidence) { e.Turns[0].Turn.Status.Steps.Compactions = 0 }, everyTurnFinished, "its status counts",
		},
		"ExposedAgain": {
			"a tool list that is recorded again",
			add(8, 2, func(s *scribe) { s.write(journal.ToolsExposed, struct{}{}) }), wholeJournals, "records the tool list again",
		},

		"CutOffNotParked": {
			"a status that counts a park as a resume",
			func(e *evidence) { e.Turns[0].Turn.Status.Steps.Resumes = 3 }, everyTurnFinished, "its status counts",
		},
		"ParkedAtWork": {
			"a run that parks while a call is in flight", add(6, 1, func(s *scribe) { s.park(1) }),
			wholeJournals, "is in flight",
		},
		"ParkedForNothing": {
			"a run that parks without a cause", add(9, 2, func(s *scribe) { s.park(1) }), wholeJournals,
			"but 0 and 0 are open",
		},
		"ParkedAndWorks": {
			"a run that continues after its park",
			add(12, 2, func(s *scribe) { s.intend(1, "c", toolHelper, 2) }), wholeJournals, "follows the park",
		},

		"NotInAWave": {
			"a side-effecting call in a wave",
			add(6, 1, func(s *scribe) { s.intend(1, "c", toolCount, 1) }), wholeJournals, "is in flight in the same run",
		},
		"WaveCutOff": {
			"a call of a wave that was interrupted without a kill", func(e *evidence) { e.Kills = nil },
			knownOutcomes, "no process was killed",
		},
		"LookedAgain": {
			"a call of a wave that was made again although it had ended",
			add(8, 2, func(s *scribe) { s.intend(1, "a", toolLook, 2) }), calledOnce, "although it had ended",
		},

		"NotRequested": {"a decision without a request for approval", remove(18, 18), approvedOnly, "without a request for approval"},
		"NotApproved":  {"a call before its decision", remove(22, 22), approvedOnly, "no approval of it"},
		"DeniedAndMade": {
			"a call that was denied and is made",
			add(26, 4, func(s *scribe) { s.intend(2, "e", toolWipe, 1) }), approvedOnly, "no approval of it",
		},
		"DeniedArrived": {
			"a call that was denied and arrived",
			func(e *evidence) { e.Called[keyOf(uid, "/2/e")] = called{toolWipe, 1} }, approvedOnly, "which was not approved",
		},
		"Forged": {
			"an approval that is not in the API server", func(e *evidence) { delete(e.Decided, uid+"/2/d") },
			approvedOnly, `the decision at the API server is ""`,
		},
		"Overruled": {
			"a denial that the journal records as an approval",
			func(e *evidence) { e.Decided[uid+"/2/d"] = v1alpha1.ApprovalDenied }, approvedOnly,
			`the decision at the API server is "Denied"`,
		},
		"AskedTwice": {
			"an approval that was requested twice",
			add(19, 3, func(s *scribe) { s.requestApproval(2, "d", toolWipe) }), approvedOnly, "was requested twice",
		},
		"DecidedTwice": {
			"a decision that was made twice", add(23, 4, func(s *scribe) { s.decide(2, "d", false) }),
			approvedOnly, "was decided twice",
		},
		"Expired": {"an expired decision", func(e *evidence) {
			e.Turns[0].Entries[22].Payload = []byte(`{"step":2,"callID":"e","approved":false,"expired":true}`)
		}, approvedOnly, "has expired"},
		"Undecided":  {"a call that still waits", remove(23, 23), approvedOnly, "still waits for a decision"},
		"NotMade":    {"an approved call without an intent", remove(24, 25), approvedOnly, "but it has no intent"},
		"NeverAsked": {"a refusal without a denial", remove(23, 23), wholeJournals, "was Refused"},

		"NoChild": {"a child that does not exist", func(e *evidence) { e.Turns = e.Turns[:1] }, oneChild, "the child Turns are []"},
		"TwoChildren": {"a call that made two children", func(e *evidence) {
			twin := e.Turns[1]
			twin.Turn = twin.Turn.DeepCopy()
			twin.Turn.Name, twin.Turn.UID = "twin", "uid-3"
			e.Turns = append(e.Turns, twin)
		}, oneChild, `["child" "twin"]`},
		"Orphan": {
			"a child without a parent", func(e *evidence) { e.Turns[1].Turn.OwnerReferences[0].UID = "gone" },
			oneChild, "which does not exist",
		},
		"WrongChild": {"the answer of another Turn", func(e *evidence) {
			e.Turns[0].Entries[14].Payload = []byte(strings.Replace(string(e.Turns[0].Entries[14].Payload), `"child"`, `"other"`, 1))
		}, oneChild, `["other"]`},
		"ChildForFree": {
			"a status without the usage of a child",
			func(e *evidence) { e.Turns[0].Turn.Status.SubAgentUsage = nil }, exactUsage, "their statuses report {Input:20 Output:4}",
		},
		"CountedTwice": {
			"usage of a child, counted as the parent's own",
			func(e *evidence) { e.Turns[0].Turn.Status.Usage.InputTokens += 20 }, exactUsage, "its status has 70+10",
		},
		"ChildFails": {
			"a child that has not ended",
			func(e *evidence) { e.Turns[1].Turn.Status.Conditions[0].Status = "Unknown" }, everyTurnFinished, "its state is",
		},
	} {
		t.Run(name, func(t *testing.T) {
			e := saga()
			tc.harm(&e)
			_, broken := check(e)
			if !slices.ContainsFunc(broken, func(v violation) bool { return v.Guarantee == tc.want && strings.Contains(v.What, tc.says) }) {
				t.Errorf("%s was not detected: want %q with %q, got %+v", tc.reason, tc.want, tc.says, broken)
			}
		})
	}
}
