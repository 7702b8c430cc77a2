package executor

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/go-logr/logr"
	"github.com/google/go-cmp/cmp"
	"k8s.io/apimachinery/pkg/api/meta"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/interceptor"

	"github.com/capstan-dev/capstan/api/v1alpha1"
	"github.com/capstan-dev/capstan/internal/approvals"
	"github.com/capstan-dev/capstan/internal/runtime/budget"
	"github.com/capstan-dev/capstan/internal/runtime/journal/journaltest"
	"github.com/capstan-dev/capstan/internal/runtime/memories"
	"github.com/capstan-dev/capstan/internal/runtime/model"
	"github.com/capstan-dev/capstan/internal/runtime/ranking"
	"github.com/capstan-dev/capstan/internal/runtime/task"
	"github.com/capstan-dev/capstan/internal/store"
)

// followUpModel is a model that answers Turns, and then questions about them. Each reply to a question uses 10 tokens.
type followUpModel struct {
	// replies maps a text to the reply to each question that contains the text.
	replies map[string]string
	// asked has, for each question so far, the key of replies that the question contains.
	asked []string
	// before is called before a question is answered, with the number of questions so far. If it returns an error, the
	// request fails with that error. It may be nil.
	before func(ctx context.Context, n int) error
	// after is called when the answer to a question is complete, with the number of questions so far. It may be nil.
	after func(n int)
}

func (m *followUpModel) Generate(ctx context.Context, r *model.Request) (*model.Reply, error) {
	for about, text := range m.replies {
		if !strings.Contains(r.Messages[0].Content, about) {
			continue
		}
		m.asked = append(m.asked, about)
		if m.before != nil {
			if err := m.before(ctx, len(m.asked)); err != nil {
				return nil, err
			}
		}
		if m.after != nil {
			m.after(len(m.asked))
		}
		return &model.Reply{Text: text, Usage: model.Usage{InputTokens: 7, OutputTokens: 3}, FinishReason: model.FinishStop}, nil
	}
	return &model.Reply{Text: "On floor 7.", FinishReason: model.FinishStop}, nil
}

// followUpHarness is an executor with a task that follows a Turn. Tests cut the attempts of the task off.
type followUpHarness struct {
	*Executor
	store *refusingStore
	model *followUpModel
	kind  task.Kind
}

// newFollowUpHarness runs a Turn of the Agent of surroundings, which is followed by a task of one kind.
func newFollowUpHarness(
	t *testing.T, kind task.Kind, m *followUpModel, change func(a *v1alpha1.Agent, p *v1alpha1.PromptProfile, t *v1alpha1.Turn),
) *followUpHarness {
	t.Helper()
	objects := surroundings()
	one := turnWith(inTalk, func(t *v1alpha1.Turn) { t.Spec.RequestedBy = &v1alpha1.Requester{Username: "ada"} })
	change(objects[0].(*v1alpha1.Agent), objects[1].(*v1alpha1.PromptProfile), one)
	e, journals := newExecutor(t, interceptor.Funcs{}, append(objects, talk(), one)...)
	w := &followUpHarness{Executor: e, store: &refusingStore{Store: &journals.Store}, model: m, kind: kind}
	e.Requesters = approvals.TrustRequesters
	e.Provider = func(*v1alpha1.ModelProvider) model.Provider { return m }
	e.Tasks = NewTasks(w.store, journals, 1, e.Now, logr.Discard())
	if got := runTurn(t, e); got.StateReason() != v1alpha1.TurnReasonCompleted {
		t.Fatalf("the Turn is %s: %s", got.StateReason(), got.Status.Conditions[0].Message)
	}
	return w
}

// claim claims the task, even if another claim of the task has not expired.
func (w *followUpHarness) claim(t *testing.T) *task.Task {
	t.Helper()
	at := now.AddDate(10, 0, 0)
	k, err := w.store.ClaimTask(t.Context(), task.Search{Now: at, Until: at})
	if err != nil || k == nil || k.Kind != w.kind {
		t.Fatalf("ClaimTask: %+v, %v; want a task of the kind %q", k, err, w.kind)
	}
	if k.Requester != "ada" || k.Session != "talk" {
		t.Fatalf("the task is of requester %q and session %q, want those of its Turn", k.Requester, k.Session)
	}
	return k
}

// attempt works on the task, and is not cut off.
func (w *followUpHarness) attempt(t *testing.T) {
	t.Helper()
	w.model.before, w.model.after = nil, nil
	w.Tasks.handle(t.Context(), w.Executor, w.claim(t))
}

// cuts are functions that make an attempt and cut it off while the model is asked the n-th question.
var cuts = map[string]func(t *testing.T, w *followUpHarness, n int){
	"the executor stops": func(t *testing.T, w *followUpHarness, n int) {
		ctx, stop := context.WithCancel(t.Context())
		w.model.before = func(ctx context.Context, asked int) error {
			if asked < n {
				return nil
			}
			stop()
			<-ctx.Done()
			return &model.Error{Kind: model.Cancelled, Message: "the request was aborted", Err: ctx.Err()}
		}
		w.Tasks.handle(ctx, w.Executor, w.claim(t))
	},
	"the executor is killed": func(t *testing.T, w *followUpHarness, n int) {
		w.model.before = func(_ context.Context, asked int) error {
			if asked == n {
				w.claim(t) // the attempt loses its claim, so the store refuses its further writes
			}
			return nil
		}
		w.Tasks.handle(t.Context(), w.Executor, w.claim(t))
	},
	"the store refuses the next request": func(t *testing.T, w *followUpHarness, n int) {
		begun := 0
		w.store.refuse = func(c task.Charge) error {
			if c.Next != nil {
				begun++
			}
			if begun == n {
				return errors.New("the store is away")
			}
			return nil
		}
		w.Tasks.handle(t.Context(), w.Executor, w.claim(t))
		w.store.refuse = nil
	},
}

// expenses returns the tokens of questions in the record of the Turn, and the number of their requests.
func (w *followUpHarness) expenses(t *testing.T) (tokens, requests int64) {
	t.Helper()
	all, _, err := w.store.Records(t.Context(), store.RecordQuery{})
	if err != nil || len(all) != 1 {
		t.Fatalf("Records: %d, %v", len(all), err)
	}
	for _, e := range all[0].Expenses {
		tokens, requests = tokens+e.Usage.InputTokens+e.Usage.OutputTokens, requests+e.Requests
	}
	return tokens, requests
}

// newThreeJudgeHarness runs a Turn whose answer three judges evaluate.
func newThreeJudgeHarness(t *testing.T) *followUpHarness {
	t.Helper()
	m := &followUpModel{replies: map[string]string{}}
	for i, about := range []string{"polite", "brief", "right"} {
		m.replies["The answer is "+about] = fmt.Sprintf(`{"score": 9%d, "reason": "It is %s."}`, i, about)
	}
	return newFollowUpHarness(t, task.Evaluate, m, func(a *v1alpha1.Agent, p *v1alpha1.PromptProfile, _ *v1alpha1.Turn) {
		a.Spec.Evaluation = &v1alpha1.AgentEvaluation{}
		for _, about := range []string{"polite", "brief", "right"} {
			p.Spec.Judges = append(p.Spec.Judges, v1alpha1.Judge{
				Name: about, Type: v1alpha1.JudgeCustom, Prompt: "The answer is " + about + ".", Threshold: "0.5",
			})
		}
	})
}

// verdicts returns the evaluations in the status of the Turn.
func (w *followUpHarness) verdicts(t *testing.T) (all []string) {
	t.Helper()
	for _, e := range stored(t, w.Executor).Status.Evaluations {
		line := e.Name + " " + string(e.Result)
		if e.Score != nil {
			line += " " + *e.Score
		}
		if e.Usage != nil {
			line += fmt.Sprintf(", %d tokens", e.Usage.TotalTokens)
		}
		all = append(all, line)
	}
	return all
}

// TestJudgesThatHaveRepliedAreNotAskedAgain checks that an attempt continues where the one before it was cut off.
func TestJudgesThatHaveRepliedAreNotAskedAgain(t *testing.T) {
	for name, cutOff := range cuts {
		t.Run(name, func(t *testing.T) {
			w := newThreeJudgeHarness(t)
			cutOff(t, w, 3)
			if got := w.verdicts(t); len(got) > 0 {
				t.Fatalf("the first attempt has published %q, want nothing before all judges have replied", got)
			}
			before := len(w.model.asked)
			w.attempt(t)
			if got := w.model.asked[before:]; !cmp.Equal(got, []string{"The answer is right"}) {
				t.Errorf("the second attempt asks %q, want only the third judge", got)
			}
			want := []string{"polite Passed 0.9, 10 tokens", "brief Passed 0.91, 10 tokens", "right Passed 0.92, 10 tokens"}
			if diff := cmp.Diff(want, w.verdicts(t)); diff != "" {
				t.Errorf("status.evaluations, -want +got:\n%s", diff)
			}
			records, _, err := w.store.Records(t.Context(), store.RecordQuery{})
			if err != nil || len(records) != 1 || len(records[0].Evaluations) != 3 {
				t.Errorf("the record has the evaluations %+v, %v; want those of three judges", records, err)
			}
		})
	}
}

// TestAReplyIsKeptWhenTheExecutorStops checks that a reply that is complete when the executor stops is not lost, even
// if it is the last one.
func TestAReplyIsKeptWhenTheExecutorStops(t *testing.T) {
	w := newThreeJudgeHarness(t)
	ctx, stop := context.WithCancel(t.Context())
	w.model.after = func(n int) {
		if n == 3 {
			stop()
		}
	}
	w.Tasks.handle(ctx, w.Executor, w.claim(t))
	w.attempt(t)
	if len(w.model.asked) != 3 || len(w.verdicts(t)) != 3 {
		t.Errorf("the judges were asked %q, and gave %q; want three questions and three verdicts", w.model.asked, w.verdicts(t))
	}
	if tokens, requests := w.expenses(t); tokens != 30 || requests != 3 {
		t.Errorf("the record has %d tokens of %d requests, want 30 of 3", tokens, requests)
	}
}

// TestOnlyRefusedJudgesAreAskedAgain checks that judges whose questions an endpoint or a Budget has refused are asked
// in later attempts, and that judges that have replied are not. Each attempt begins with a different judge, because a
// judge that waits may use up the time of all judges.
func TestOnlyRefusedJudgesAreAskedAgain(t *testing.T) {
	for name, refusal := range map[string]error{
		"the endpoint answers with 429":   &model.Error{Kind: model.RateLimited, Message: "slow down"},
		"the endpoint answers with 503":   &model.Error{Kind: model.Overloaded, Message: "busy"},
		"the endpoint accepts no request": &model.Error{Kind: model.Overloaded, Message: "the circuit is open", Unsent: true},
		"others have reserved a Budget":   &budget.Refusal{Refused: []budget.Refused{{Contended: true}}},
	} {
		t.Run(name, func(t *testing.T) {
			w := newThreeJudgeHarness(t)
			_, ofBudget := errors.AsType[*budget.Refusal](refusal)
			for i, attempt := range []struct {
				requests int
				refused  []int
			}{{3, []int{1, 3}}, {2, []int{2}}, {1, []int{1}}} {
				requests := 0
				refuse := func() error {
					if requests++; slices.Contains(attempt.refused, requests) {
						return refusal
					}
					return nil
				}
				if ofBudget {
					w.store.refuse = func(c task.Charge) error {
						if c.Next == nil {
							return nil
						}
						return refuse()
					}
				} else {
					w.model.before = func(context.Context, int) error { return refuse() }
				}
				w.Tasks.handle(t.Context(), w.Executor, w.claim(t))
				if got := w.verdicts(t); len(got) > 0 || requests != attempt.requests {
					t.Fatalf("attempt %d has sent %d requests and published %q; want %d, and nothing before all judges have replied",
						i+1, requests, got, attempt.requests)
				}
			}
			w.store.refuse = nil
			before := len(w.model.asked)
			w.attempt(t)
			// The second attempt began with the third judge, which replied. Only the first judge has not replied yet.
			if got := w.model.asked[before:]; !cmp.Equal(got, []string{"The answer is polite"}) {
				t.Errorf("the last attempt asks %q, want only the judge that was refused", got)
			}
			want := []string{"polite Passed 0.9, 10 tokens", "brief Passed 0.91, 10 tokens", "right Passed 0.92, 10 tokens"}
			if diff := cmp.Diff(want, w.verdicts(t)); diff != "" {
				t.Errorf("status.evaluations, -want +got:\n%s", diff)
			}
		})
	}
}

// TestVerdictsWaitUntilTheStatusCanBeWritten checks that a denial by admission, which may pass, does not delete
// verdicts that were paid for, until an hour after the end of the Turn. Another refusal deletes their reasons at once.
func TestVerdictsWaitUntilTheStatusCanBeWritten(t *testing.T) {
	for name, tc := range map[string]struct {
		after    time.Duration
		refusals []error
		// attempts is the number of attempts until the task is done.
		attempts, verdicts int
		reason             string
	}{
		"denied twice":                     {0, []error{denial, denial}, 3, 3, "It is polite."},
		"denied, with a conflict":          {0, []error{conflict, denial, conflict}, 2, 3, "It is polite."},
		"denied once an hour is over":      {retryAge, []error{denial}, 1, 3, ""},
		"always denied":                    {retryAge, []error{denial, denial}, 1, 0, ""},
		"invalid because of its texts":     {0, []error{refusal}, 1, 3, ""},
		"invalid whatever its texts are":   {0, []error{refusal, refusal}, 1, 0, ""},
		"invalid, and then denied":         {0, []error{refusal, denial}, 2, 3, "It is polite."},
		"the API server cannot be reached": {retryAge, []error{broken, broken}, 3, 3, "It is polite."},
	} {
		t.Run(name, func(t *testing.T) {
			w := newThreeJudgeHarness(t)
			w.Now = func() time.Time { return now.Add(tc.after) }
			w.Client = interceptor.NewClient(w.Client.(client.WithWatch), failing(tc.refusals...))
			for i := range tc.attempts {
				if got := w.verdicts(t); len(got) > 0 {
					t.Fatalf("after %d attempts, the status has %q, want nothing", i, got)
				}
				w.attempt(t)
			}
			at := now.AddDate(10, 0, 0)
			if k, err := w.store.ClaimTask(t.Context(), task.Search{Now: at, Until: at}); k != nil || err != nil {
				t.Errorf("the task %+v is open (%v), want that it is done", k, err)
			}
			all := stored(t, w.Executor).Status.Evaluations
			if len(all) != tc.verdicts || len(w.model.asked) != 3 {
				t.Fatalf("%+v after the questions %q, want %d verdicts and three questions", all, w.model.asked, tc.verdicts)
			}
			if len(all) > 0 && all[0].Reason != tc.reason {
				t.Errorf("the reason is %q, want %q", all[0].Reason, tc.reason)
			}
		})
	}
}

// TestVerdictsArePublishedWithoutFurtherQuestions checks that the verdicts so far are published if the remaining judges
// cannot be asked.
func TestVerdictsArePublishedWithoutFurtherQuestions(t *testing.T) {
	for name, c := range map[string]struct {
		then func(t *testing.T, w *followUpHarness)
		want []string
	}{
		"it was cut off too often": {
			func(t *testing.T, w *followUpHarness) {
				for range 2 {
					cuts["the executor is killed"](t, w, len(w.model.asked)+1)
				}
			},
			[]string{"polite Passed 0.9, 10 tokens", "brief Error", "right Error"},
		},
		"the limit of tokens is reached": {
			func(t *testing.T, w *followUpHarness) {
				changeAgent(t, w, func(a *v1alpha1.Agent) { a.Spec.Evaluation.MaxTokensPerDay = new(int64(1)) })
			},
			[]string{"polite Passed 0.9, 10 tokens"},
		},
	} {
		t.Run(name, func(t *testing.T) {
			w := newThreeJudgeHarness(t)
			cuts["the executor is killed"](t, w, 2)
			c.then(t, w)
			before := len(w.model.asked)
			w.attempt(t)
			if diff := cmp.Diff(c.want, w.verdicts(t)); diff != "" || len(w.model.asked) != before {
				t.Errorf("the judges were asked %q; status.evaluations, -want +got:\n%s", w.model.asked[before:], diff)
			}
		})
	}
}

// TestWorkWaitsForUnreadableModelProviders checks that the work after a Turn is tried again if a ModelProvider cannot
// be read for a moment.
func TestWorkWaitsForUnreadableModelProviders(t *testing.T) {
	const ofSession = "You read one turn of a conversation"
	for kind, newHarness := range map[task.Kind]func(t *testing.T) *followUpHarness{
		task.Evaluate: newThreeJudgeHarness,
		task.Learn: func(t *testing.T) *followUpHarness {
			m := &followUpModel{replies: map[string]string{ofSession: `{"memories": []}`}}
			return newFollowUpHarness(t, task.Learn, m, func(a *v1alpha1.Agent, _ *v1alpha1.PromptProfile, _ *v1alpha1.Turn) {
				a.Spec.Memory = &v1alpha1.AgentMemory{Learning: &v1alpha1.AgentLearning{
					Scopes: []v1alpha1.LearnedScope{v1alpha1.LearnedScopeSession},
				}}
			})
		},
	} {
		t.Run(string(kind), func(t *testing.T) {
			w := newHarness(t)
			readable := w.Client
			w.Client = withoutModelProviders(w.Executor)
			w.attempt(t)
			if got := w.verdicts(t); len(w.model.asked) > 0 || len(got) > 0 {
				t.Fatalf("while the ModelProvider cannot be read, %q was asked, and the status has %q", w.model.asked, got)
			}
			w.Client = readable
			w.attempt(t)
			if got := w.model.asked; len(got) != len(w.model.replies) {
				t.Errorf("then %q were asked, want %d questions", got, len(w.model.replies))
			}
		})
	}
}

func changeAgent(t *testing.T, w *followUpHarness, change func(*v1alpha1.Agent)) {
	t.Helper()
	var a v1alpha1.Agent
	err := w.Reader.Get(t.Context(), client.ObjectKey{Namespace: "helpdesk", Name: "support"}, &a)
	if err == nil {
		change(&a)
		err = w.Client.Update(t.Context(), &a)
	}
	if err != nil {
		t.Fatal(err)
	}
}

// TestScopesThatWereAskedForAreNotAskedForAgain checks that an attempt to learn continues where the one before it was
// cut off, and that each memory is kept once.
func TestScopesThatWereAskedForAreNotAskedForAgain(t *testing.T) {
	const ofSession, ofUser = "You read one turn of a conversation", "You read a message that a user has written"
	for name, cutOff := range cuts {
		t.Run(name, func(t *testing.T) {
			m := &followUpModel{replies: map[string]string{
				ofSession: `{"memories": [{"content": "The printer is on floor 7.", "scope": "Session", "confidence": 90}]}`,
				ofUser:    `{"memories": [{"content": "Has a printer.", "scope": "User", "confidence": 90}, 1]}`,
			}}
			w := newFollowUpHarness(t, task.Learn, m, func(a *v1alpha1.Agent, _ *v1alpha1.PromptProfile, _ *v1alpha1.Turn) {
				a.Spec.Memory = &v1alpha1.AgentMemory{Learning: &v1alpha1.AgentLearning{
					Scopes: []v1alpha1.LearnedScope{v1alpha1.LearnedScopeSession, v1alpha1.LearnedScopeUser},
				}}
			})
			cutOff(t, w, 2)
			before := len(m.asked)
			// A user deletes the memory of the Session in the meantime. It must not come back.
			sel := store.MemorySelector{Namespace: "helpdesk"}
			all, err := w.store.ListMemories(t.Context(), store.MemoryQuery{MemorySelector: sel})
			if err != nil || len(all) != 1 || all[0].Scope != memories.Session {
				t.Fatalf("after the first attempt, the memories are %+v, %v; want that of the Session", all, err)
			}
			sel.ID = all[0].ID
			if n, err := w.store.DeleteMemories(t.Context(), sel, now, 1); n != 1 || err != nil {
				t.Fatalf("DeleteMemories: %d, %v", n, err)
			}
			var result task.Learned
			w.Tasks.Store = &watchedTasks{refusingStore: w.store, finished: &result}
			w.attempt(t)
			if got := m.asked[before:]; !cmp.Equal(got, []string{ofUser}) {
				t.Errorf("the second attempt asks %q, want only the question about the user", got)
			}
			all, err = w.store.ListMemories(t.Context(), store.MemoryQuery{})
			if err != nil || len(all) != 1 || all[0].Scope != memories.User {
				t.Errorf("at the end, the memories are %+v, %v; want that of the user alone", all, err)
			}
			kept := map[memories.Scope]int{memories.Session: 1, memories.User: 1}
			if !cmp.Equal(result.Kept, kept) || result.Refused != 1 || result.Failed != 0 || result.Usage.InputTokens != 14 {
				t.Errorf("the result is %+v, want two memories, one refused entry, and the usage of both questions", result)
			}
		})
	}
}

// TestWorkThatIsCutOffTooOftenFails checks that no fourth attempt is made, and that the status says why.
func TestWorkThatIsCutOffTooOftenFails(t *testing.T) {
	const why = "was cut off 3 times: its executor stopped or was lost, or its results could not be stored"
	failAfterCuts := func(t *testing.T, w *followUpHarness) {
		t.Helper()
		for n := 1; n <= 3; n++ {
			cuts["the executor is killed"](t, w, n)
		}
		w.attempt(t)
		if len(w.model.asked) != 3 {
			t.Errorf("the model was asked %q, want one question in each of three attempts", w.model.asked)
		}
	}
	t.Run("evaluation", func(t *testing.T) {
		w := newThreeJudgeHarness(t)
		failAfterCuts(t, w)
		all := stored(t, w.Executor).Status.Evaluations
		if len(all) != 3 {
			t.Errorf("the evaluations are %+v, want three", all)
		}
		for _, e := range all {
			if e.Result != v1alpha1.EvaluationError || e.Reason != "the evaluation "+why {
				t.Errorf("judge %s: %s, %q; want an error that says why", e.Name, e.Result, e.Reason)
			}
		}
	})
	t.Run("learning", func(t *testing.T) {
		m := &followUpModel{replies: map[string]string{"You read a message that a user has written": `{"memories": []}`}}
		w := newFollowUpHarness(t, task.Learn, m, func(a *v1alpha1.Agent, _ *v1alpha1.PromptProfile, _ *v1alpha1.Turn) {
			a.Spec.Memory = &v1alpha1.AgentMemory{Learning: &v1alpha1.AgentLearning{
				Scopes: []v1alpha1.LearnedScope{v1alpha1.LearnedScopeUser},
			}}
		})
		failAfterCuts(t, w)
		c := meta.FindStatusCondition(stored(t, w.Executor).Status.Conditions, v1alpha1.ConditionFinalized)
		if c == nil || c.Reason != v1alpha1.TurnReasonLearningFailed || c.Message != "learning from the Turn failed: it "+why {
			t.Errorf("the condition is %+v, want that learning failed, and why", c)
		}
	})
}

// stuckLearner is a learner whose calls return only after the channel release is closed, even if their contexts end
// earlier.
type stuckLearner struct {
	release chan struct{}
	calls   atomic.Int32
}

func (s *stuckLearner) Observe(context.Context, memories.Observation) error {
	s.calls.Add(1)
	<-s.release
	return nil
}

// TestStuckLearnerDelaysTasksForALimitedTime checks that a learner whose calls do not return delays each task for
// a limited time, and keeps a limited number of goroutines.
func TestStuckLearnerDelaysTasksForALimitedTime(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		const slots = 2
		tasks := NewTasks(&journaltest.Store{}, &journaltest.Store{}, slots, nil, logr.Discard())
		stuck := &stuckLearner{release: make(chan struct{})}
		tasks.Learner = stuck
		observe := func() (failures []string, took time.Duration) {
			l := &learning{followUp: followUp{
				Tasks: tasks, executor: &Executor{}, task: &task.Task{Namespace: "helpdesk", Turn: "t"}, turn: *turnWith(),
			}}
			begun := time.Now()
			l.observe(t.Context(), memories.Memory{})
			return l.failures, time.Since(begun)
		}
		for i := range slots + maxStuck + 5 {
			want := observeTimeout
			if i >= slots+maxStuck {
				want = 0
			}
			if failures, took := observe(); len(failures) != 1 || took != want {
				t.Errorf("call %d takes %s and fails with %q, want a failure after %s", i+1, took, failures, want)
			}
		}
		if got := stuck.calls.Load(); got != slots+maxStuck {
			t.Errorf("%d calls are stuck, want %d", got, slots+maxStuck)
		}
		close(stuck.release)
		synctest.Wait()
		if failures, took := observe(); len(failures) > 0 || took > 0 {
			t.Errorf("a call after the others have returned takes %s and fails with %q", took, failures)
		}
	})
}

// brokenLearner is a learner that cannot store anything.
type brokenLearner struct{}

func (brokenLearner) Observe(context.Context, memories.Observation) error {
	return errors.New("the disk is full")
}

// TestLearnerFailureIsReportedIfLearningIsSkipped checks that the status says that the observation could not be stored,
// even if nothing is learned from the Turn for another reason.
func TestLearnerFailureIsReportedIfLearningIsSkipped(t *testing.T) {
	const notStored = "the observation of the Turn could not be stored"
	for why, change := range map[task.Skip]func(a *v1alpha1.Agent){
		task.TokenLimit: func(a *v1alpha1.Agent) { a.Spec.Memory.Learning.MaxTokensPerDay = new(int64(1)) },
		task.NotEnabled: func(a *v1alpha1.Agent) {
			a.Spec.Redaction = &v1alpha1.AgentRedaction{Patterns: []v1alpha1.RedactionPattern{{Name: "a", Pattern: "("}}}
		},
	} {
		t.Run(string(why), func(t *testing.T) {
			w := newFollowUpHarness(t, task.Learn, &followUpModel{}, func(a *v1alpha1.Agent, _ *v1alpha1.PromptProfile, _ *v1alpha1.Turn) {
				a.Spec.Memory = &v1alpha1.AgentMemory{Learning: &v1alpha1.AgentLearning{
					Scopes: []v1alpha1.LearnedScope{v1alpha1.LearnedScopeUser},
				}}
			})
			changeAgent(t, w, change)
			w.Tasks.Learner = brokenLearner{}
			k := w.claim(t)
			w.Tasks.handle(t.Context(), w.Executor, k)
			if k.Result == nil || k.Result.Skipped != why {
				t.Fatalf("the result is %+v, want that it was skipped", k.Result)
			}
			c := meta.FindStatusCondition(stored(t, w.Executor).Status.Conditions, v1alpha1.ConditionFinalized)
			if c == nil || c.Reason != v1alpha1.TurnReasonLearningFailed || !strings.Contains(c.Message, notStored) {
				t.Errorf("the condition is %+v, want that learning failed", c)
			}
		})
	}
}

// TestMemoriesAreUsedWithoutTasks checks that an executor that does no work after Turns still uses memories.
func TestMemoriesAreUsedWithoutTasks(t *testing.T) {
	m := &followUpModel{replies: map[string]string{
		"You read a message": `{"memories": [{"content": "Has a printer.", "scope": "User", "confidence": 90}]}`,
	}}
	w := newFollowUpHarness(t, task.Learn, m, func(a *v1alpha1.Agent, _ *v1alpha1.PromptProfile, _ *v1alpha1.Turn) {
		a.Spec.Memory = &v1alpha1.AgentMemory{Learning: &v1alpha1.AgentLearning{Scopes: []v1alpha1.LearnedScope{v1alpha1.LearnedScopeUser}}}
	})
	w.attempt(t)
	w.Tasks, w.Memories = nil, w.store
	var a v1alpha1.Agent
	if err := w.Reader.Get(t.Context(), client.ObjectKey{Namespace: "helpdesk", Name: "support"}, &a); err != nil {
		t.Fatal(err)
	}
	recall := w.recall(stored(t, w.Executor), &a, nil, func(text string) string { return text })
	if recall == nil {
		t.Fatal("no memories are used")
	}
	found, err := recall(t.Context(), "printer", ranking.Vector{})
	if err != nil || len(found.Memories) != 1 || found.Memories[0].Text != "Has a printer." {
		t.Errorf("the memories are %+v, %v; want the one that was learned", found.Memories, err)
	}
}

// watchedTasks is a store that copies the result of a finished task into finished.
type watchedTasks struct {
	*refusingStore
	finished *task.Learned
}

func (s *watchedTasks) FinishTask(ctx context.Context, h task.Held, r task.Result, used int64) error {
	*s.finished = *r.Learned
	return s.refusingStore.FinishTask(ctx, h, r, used)
}
