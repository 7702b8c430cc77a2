package executor

import (
	"context"
	"errors"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/interceptor"

	"github.com/capstan-dev/capstan/api/v1alpha1"
	"github.com/capstan-dev/capstan/internal/fairgate"
	"github.com/capstan-dev/capstan/internal/runtime/journal"
	"github.com/capstan-dev/capstan/internal/runtime/loop"
	"github.com/capstan-dev/capstan/internal/runtime/model"
	"github.com/capstan-dev/capstan/internal/runtime/prepare"
	"github.com/capstan-dev/capstan/internal/translate"
)

func contributesFrom(name string) func(*v1alpha1.Turn) {
	return func(t *v1alpha1.Turn) {
		t.Spec.Context = &v1alpha1.TurnContext{Contributions: []v1alpha1.Contribution{{
			Name: name, ConfigMapKeyRef: &v1alpha1.ConfigMapKeyReference{Name: name, Key: "text"},
		}}}
	}
}

// reading makes an executor read ConfigMaps with the function read.
func reading(e *Executor, read translate.ConfigMaps) {
	e.ConfigMaps = func(string) translate.ConfigMaps { return read }
}

// runTurn runs the Turn and returns it as stored.
func runTurn(t *testing.T, e *Executor) *v1alpha1.Turn {
	t.Helper()
	e.observe(t.Context(), stored(t, e))
	e.all.Wait()
	return stored(t, e)
}

func TestPreparationThatFails(t *testing.T) {
	for name, tc := range map[string]struct {
		change func(*v1alpha1.Turn)
		read   translate.ConfigMaps
		want   string
	}{
		"a key that is missing": {
			change: contributesFrom("notes"),
			read: func(_ context.Context, ref v1alpha1.ConfigMapKeyReference) (string, error) {
				return translate.ConfigMapValue(ref, map[string]string{})
			},
			want: `Turn spec.context.contributions[0].configMapKeyRef: ConfigMap "notes" has no key "text" in its data`,
		},
		"a model that the agent does not have": {
			change: func(t *v1alpha1.Turn) { t.Spec.Model = "other:m" }, read: noConfigMaps,
			want: `Turn spec.model: "other:m" is not a model of the agent's chain: use one of demo:m`,
		},
	} {
		t.Run(name, func(t *testing.T) {
			e, _ := newExecutor(t, interceptor.Funcs{}, append(surroundings(), turnWith(tc.change))...)
			reading(e, tc.read)
			got := runTurn(t, e)
			if message := got.Status.Conditions[0].Message; got.StateReason() != v1alpha1.TurnReasonPreparationFailed ||
				!strings.HasPrefix(message, tc.want) {
				t.Errorf("the Turn is %s: %s\nwant PreparationFailed: %s", got.StateReason(), message, tc.want)
			}
		})
	}
}

// TestModelProvidersThatAreGone runs a Turn whose ModelProviders were deleted after it was bound. Nothing is sent,
// and no prompt is made.
func TestModelProvidersThatAreGone(t *testing.T) {
	objects := surroundings()
	agent := objects[0].(*v1alpha1.Agent)
	agent.Spec.Models = append(agent.Spec.Models, agent.Spec.Models[0])
	agent.Spec.Models[1].ProviderRef.Name = "spare"
	asks := func(t *v1alpha1.Turn) { t.Spec.Execution = v1alpha1.ExecutionRun }
	e, _ := newExecutor(t, interceptor.Funcs{}, objects[0], objects[1], turnWith(asks))
	got := runTurn(t, e)
	const want = `none of the 2 models that were tried answered; demo/m: provider "demo": the ModelProvider does not exist; ` +
		`spare/m: provider "spare": the ModelProvider does not exist`
	if message := got.Status.Conditions[0].Message; got.StateReason() != v1alpha1.TurnReasonModelFailed || message != want {
		t.Errorf("the Turn is %s: %s\nwant ModelFailed: %s", got.StateReason(), message, want)
	}
	if p, n := got.Status.Preparation, got.Status.Steps; p != nil || n == nil || n.ModelRequests != 0 {
		t.Errorf("preparation %+v, steps %+v; want no prompt and no request", p, n)
	}
}

// TestUnreadableModelProvidersAreReadAgain checks that a run tries again if a ModelProvider cannot be read, because
// this says nothing about the model. A Turn that only has to end needs no model, and ends.
func TestUnreadableModelProvidersAreReadAgain(t *testing.T) {
	for name, change := range map[string]func(*v1alpha1.Agent){
		"of the chain": func(*v1alpha1.Agent) {},
		"for vectors": func(a *v1alpha1.Agent) {
			a.Spec.Embeddings = &v1alpha1.AgentEmbeddings{ProviderRef: a.Spec.Models[0].ProviderRef, Model: "vectors"}
			a.Spec.Models = nil
		},
	} {
		t.Run(name, func(t *testing.T) {
			objects := surroundings()
			change(objects[0].(*v1alpha1.Agent))
			e, _ := newExecutor(t, interceptor.Funcs{}, append(objects, turnWith())...)
			readable := e.Client
			e.Client = withoutModelProviders(e)
			if _, err := newRun(t, e).input(t.Context()); !errors.Is(err, broken) || !isRetryError(err) {
				t.Errorf("input: %v, want a *retryError with the cause", err)
			}
			r := newRun(t, e)
			r.turn.Spec.DesiredState = v1alpha1.DesiredStateCancelled
			if _, err := r.input(t.Context()); err != nil {
				t.Errorf("input of a cancelled Turn: %v", err)
			}
			e.Client = readable
			if _, err := newRun(t, e).input(t.Context()); err != nil {
				t.Errorf("input when the ModelProvider can be read again: %v", err)
			}
		})
	}
}

// withoutModelProviders returns the client of an executor, but each read of a ModelProvider fails.
func withoutModelProviders(e *Executor) client.Client {
	return interceptor.NewClient(e.Client.(client.WithWatch), interceptor.Funcs{
		Get: func(ctx context.Context, c client.WithWatch, key client.ObjectKey, o client.Object, opts ...client.GetOption) error {
			if _, ok := o.(*v1alpha1.ModelProvider); ok {
				return broken
			}
			return c.Get(ctx, key, o, opts...)
		},
	})
}

func isRetryError(err error) bool {
	_, ok := errors.AsType[*retryError](err)
	return ok
}

func TestUnreadableConfigMapIsReadAgain(t *testing.T) {
	e, _ := newExecutor(t, interceptor.Funcs{}, append(surroundings(), turnWith(contributesFrom("notes")))...)
	reads := 0
	reading(e, func(context.Context, v1alpha1.ConfigMapKeyReference) (string, error) {
		if reads++; reads == 1 {
			return "", broken
		}
		return "read", nil
	})
	if got := runTurn(t, e); got.StateReason() != v1alpha1.TurnReasonPrepared || got.Epoch() != 1 {
		t.Errorf("the status is %+v, want the same run to continue", got.Status)
	}
}

func TestUnreadableConfigMapEndsTheTurnAtItsDeadline(t *testing.T) {
	start := metav1.NewMicroTime(now.Add(50*time.Millisecond - time.Minute))
	e, _ := newExecutor(t, interceptor.Funcs{}, append(surroundings(), turnWith(contributesFrom("notes"), func(t *v1alpha1.Turn) {
		t.Status.StartTime = &start
	}))...)
	reading(e, func(ctx context.Context, _ v1alpha1.ConfigMapKeyReference) (string, error) {
		<-ctx.Done()
		return "", ctx.Err()
	})
	got := runTurn(t, e)
	want := "the turn reached its time limit of 1m0s: raise limits.timeoutSeconds or ask for less"
	if message := got.Status.Conditions[0].Message; got.StateReason() != v1alpha1.TurnReasonDeadlineExceeded || message != want {
		t.Errorf("the Turn is %s: %s\nwant DeadlineExceeded: %s", got.StateReason(), message, want)
	}
}

// TestTurnThatCannotBeginSaysWhy checks that a Turn whose attempts failed until its deadline names the last failure.
func TestTurnThatCannotBeginSaysWhy(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		e, _ := newExecutor(t, interceptor.Funcs{}, append(surroundings(), turnWith(contributesFrom("notes"), func(t *v1alpha1.Turn) {
			t.Status.StartTime = new(metav1.NewMicroTime(time.Now()))
		}))...)
		e.Now = time.Now
		reading(e, func(context.Context, v1alpha1.ConfigMapKeyReference) (string, error) { return "", broken })
		got := runTurn(t, e)
		const prefix = "the turn reached its time limit of 1m0s; before, its run could not continue: "
		if m := got.Status.Conditions[0].Message; got.StateReason() != v1alpha1.TurnReasonDeadlineExceeded ||
			!strings.HasPrefix(m, prefix) || !strings.HasSuffix(m, broken.Error()) {
			t.Errorf("the Turn is %s: %s\nwant DeadlineExceeded: %s..%s", got.StateReason(), m, prefix, broken)
		}
	})
}

func TestTurnWithoutProfileIsHandedBack(t *testing.T) {
	var without []client.Object
	for _, o := range surroundings() {
		if _, ok := o.(*v1alpha1.PromptProfile); !ok {
			without = append(without, o)
		}
	}
	e, _ := newExecutor(t, interceptor.Funcs{}, append(without, turnWith())...)
	checkWaitsForAgent(t, runTurn(t, e), `Agent "support" is not ready: PromptProfile "house" does not exist`)
}

// checkWaitsForAgent checks that a Turn was handed back to wait for its Agent.
func checkWaitsForAgent(t *testing.T, got *v1alpha1.Turn, want string) {
	t.Helper()
	checkWaitsUnprepared(t, got, v1alpha1.TurnReasonWaitingForAgent, want)
}

// checkWaitsUnprepared checks that a Turn was handed back to wait, and that its status says that it has no prompt.
func checkWaitsUnprepared(t *testing.T, got *v1alpha1.Turn, reason, want string) {
	t.Helper()
	if message := got.Status.Conditions[0].Message; got.BoundTo() != "" || got.StateReason() != reason || message != want {
		t.Errorf("the Turn is %s: %s\nwant it handed back, %s: %s", got.StateReason(), message, reason, want)
	}
	if c := meta.FindStatusCondition(got.Status.Conditions, v1alpha1.ConditionPrepared); c == nil ||
		c.Status != metav1.ConditionUnknown || c.Reason != v1alpha1.TurnReasonNotPrepared {
		t.Errorf("Prepared is %+v, want Unknown, NotPrepared", c)
	}
}

// TestTurnWaitsForADeletedConfigMap covers a ConfigMap that existed when the Turn was bound.
func TestTurnWaitsForADeletedConfigMap(t *testing.T) {
	const absent = `configMapKeyRef: ConfigMap "notes" does not exist: create it, or correct the name`
	ofProfile, ofAgent := surroundings(), surroundings()
	from := turnWith(contributesFrom("notes")).Spec.Context.Contributions
	ofProfile[1].(*v1alpha1.PromptProfile).Spec.Contributions = from
	ofAgent[0].(*v1alpha1.Agent).Spec.Contributions = from
	for name, tc := range map[string]struct {
		objects         []client.Object
		reason, message string
	}{
		"of the turn": {
			append(surroundings(), turnWith(contributesFrom("notes"))), "Pending",
			"Turn spec.context.contributions[0]." + absent,
		},
		"of the profile": {
			append(ofProfile, turnWith()), "WaitingForAgent",
			`Agent "support" is not ready: PromptProfile spec.contributions[0].` + absent,
		},
		"of the agent": {
			append(ofAgent, turnWith()), "WaitingForAgent",
			`Agent "support" is not ready: Agent spec.contributions[0].` + absent,
		},
	} {
		t.Run(name, func(t *testing.T) {
			e, _ := newExecutor(t, interceptor.Funcs{}, tc.objects...)
			checkWaitsUnprepared(t, runTurn(t, e), tc.reason, tc.message)
		})
	}
}

// writePrompt writes the journal of a Turn that an earlier run has prepared, and that has asked a model once.
func writePrompt(t *testing.T, e *Executor, store *memory) {
	t.Helper()
	log, err := journal.Open(t.Context(), "uid-one", 1, journal.Options{
		Journal: store, Now: e.Now, Apply: func(journal.Entry) error { return nil },
	})
	if err != nil {
		t.Fatal(err)
	}
	if err := log.Append(t.Context(),
		journal.Record{Kind: journal.Prepared, Payload: prepare.Prepared{Prompt: prepare.Prompt{
			Provider: "demo", Model: "m", Messages: []model.Message{{Role: model.RoleUser, Content: "Hello"}},
		}}},
		journal.Record{Kind: journal.ModelRequested, Payload: loop.Request{Step: 1, Provider: "demo", Model: "m", Attempt: 1}},
	); err != nil {
		t.Fatal(err)
	}
}

// withoutUsableRules returns surroundings whose Agent has a redaction rule that cannot be used, and a time limit of 30
// seconds.
func withoutUsableRules() []client.Object {
	all := surroundings()
	agent := all[0].(*v1alpha1.Agent)
	agent.Spec.Redaction = &v1alpha1.AgentRedaction{Patterns: []v1alpha1.RedactionPattern{{Name: "a", Pattern: "("}}}
	agent.Spec.Limits = &v1alpha1.Limits{TimeoutSeconds: new(int32(30))}
	return all
}

// TestTurnWaitsForUsableRedactionRules checks that a Turn waits for its Agent while a redaction rule cannot be used.
// The status says that there is no prompt only if no run can have made one: otherwise the controller would check the
// Turn like a new one, and end it without its journal.
func TestTurnWaitsForUsableRedactionRules(t *testing.T) {
	const want = `Agent "support" is not ready: Agent spec.redaction.patterns[0].pattern: `
	for name, tc := range map[string]struct {
		change   []func(*v1alpha1.Turn)
		prepared bool
	}{
		"first run": {},
		"nothing begun": {change: []func(*v1alpha1.Turn){boundTo(me, 2), func(t *v1alpha1.Turn) {
			t.Status.Executor.JournalEntries, t.Status.Executor.JournalComplete = new(int64(0)), true
		}}},
		"waited for approval": {change: []func(*v1alpha1.Turn){boundTo(me, 2), func(t *v1alpha1.Turn) {
			t.Status.PendingApprovals = []v1alpha1.PendingApproval{{Step: 1, CallID: "c1", Name: "pay"}}
		}}, prepared: true},
		"was suspended": {change: []func(*v1alpha1.Turn){boundTo(me, 2)}, prepared: true},
	} {
		t.Run(name, func(t *testing.T) {
			e, store := newExecutor(t, interceptor.Funcs{}, append(withoutUsableRules(), turnWith(tc.change...))...)
			if tc.prepared {
				writePrompt(t, e, store)
			}
			got := runTurn(t, e)
			if message := got.Status.Conditions[0].Message; got.BoundTo() != "" || !strings.HasPrefix(message, want) ||
				got.StateReason() != v1alpha1.TurnReasonWaitingForAgent {
				t.Errorf("the Turn is %s: %s\nwant it handed back, WaitingForAgent: %s", got.StateReason(), message, want)
			}
			c := meta.FindStatusCondition(got.Status.Conditions, v1alpha1.ConditionPrepared)
			if lacks := c != nil && c.Reason == v1alpha1.TurnReasonNotPrepared; lacks == tc.prepared {
				t.Errorf("Prepared is %+v, want NotPrepared only for a Turn without a prompt", c)
			}
		})
	}
}

// TestTurnEndsWithoutUsableRedactionRules checks that a Turn that only has to end does not wait for the rules.
func TestTurnEndsWithoutUsableRedactionRules(t *testing.T) {
	aMinuteAgo := metav1.NewMicroTime(now.Add(-time.Minute))
	for reason, change := range map[string]func(*v1alpha1.Turn){
		v1alpha1.TurnReasonCancelled:        desires(v1alpha1.DesiredStateCancelled),
		v1alpha1.TurnReasonDeadlineExceeded: func(t *v1alpha1.Turn) { t.Status.StartTime = &aMinuteAgo },
	} {
		t.Run(reason, func(t *testing.T) {
			asks := func(t *v1alpha1.Turn) { t.Spec.Execution = v1alpha1.ExecutionRun }
			e, store := newExecutor(t, interceptor.Funcs{}, append(withoutUsableRules(), turnWith(asks, boundTo(me, 2), change))...)
			writePrompt(t, e, store)
			got := runTurn(t, e)
			if n := got.Status.Steps; got.StateReason() != reason || n == nil || n.ModelRequests != 1 {
				t.Errorf("the Turn is %s with steps %+v, want %s and the one request that the journal holds", got.StateReason(), n, reason)
			}
		})
	}
}

// TestTurnEndsFromItsJournal checks that a Turn can end if, of the objects that it was made from, only its
// Agent still exists.
func TestTurnEndsFromItsJournal(t *testing.T) {
	anHourAgo := metav1.NewMicroTime(now.Add(-time.Hour))
	for name, tc := range map[string]struct {
		change  func(*v1alpha1.Turn)
		reason  string
		message string // the beginning of the message
	}{
		"cancelled": {desires(v1alpha1.DesiredStateCancelled), v1alpha1.TurnReasonCancelled, "the turn was cancelled"},
		"overdue": {
			func(t *v1alpha1.Turn) { t.Status.StartTime = &anHourAgo }, v1alpha1.TurnReasonDeadlineExceeded,
			"the turn reached its time limit",
		},
		"overdue before it started again": {func(t *v1alpha1.Turn) {
			t.Status.StartTime, t.Status.Executor.Overdue = new(metav1.NewMicroTime(now)), true
		}, v1alpha1.TurnReasonDeadlineExceeded, "the turn did not continue within 10m0s " +
			"(limits.startingDeadlineSeconds), or within its time limit while its Agent was missing"},
	} {
		t.Run(name, func(t *testing.T) {
			asks := func(t *v1alpha1.Turn) { t.Spec.Execution = v1alpha1.ExecutionRun }
			e, store := newExecutor(t, interceptor.Funcs{}, surroundings()[0], turnWith(asks, boundTo(me, 2), tc.change))
			writePrompt(t, e, store)
			got := runTurn(t, e)
			message := meta.FindStatusCondition(got.Status.Conditions, v1alpha1.ConditionSucceeded).Message
			if got.StateReason() != tc.reason || !strings.HasPrefix(message, tc.message) || got.Status.Steps == nil ||
				got.Status.Steps.ModelRequests != 1 {
				t.Errorf("the Turn is %s: %s\nwith %+v, want %s: %s\nand the one request that the journal holds",
					got.StateReason(), message, got.Status.Steps, tc.reason, tc.message)
			}
		})
	}
}

// TestTurnWithoutMessagesWaitsForItsAgent covers a Turn that was bound again because its journal might have
// held the messages.
func TestTurnWithoutMessagesWaitsForItsAgent(t *testing.T) {
	objects := surroundings()
	objects[0].(*v1alpha1.Agent).Status.Conditions = []metav1.Condition{{
		Type: v1alpha1.ConditionReady, Status: metav1.ConditionFalse, Message: "its profile does not render",
	}}
	e, store := newExecutor(t, interceptor.Funcs{}, append(objects, turnWith(boundTo(me, 2)))...)
	checkWaitsForAgent(t, runTurn(t, e), `Agent "support" is not ready: its profile does not render`)
	for _, entry := range store.entries(t) {
		if entry.Kind == journal.Prepared {
			t.Error("messages were made from objects that are not ready")
		}
	}
}

// TestPreparationsAreLimited checks that a Turn reads its texts from ConfigMaps only while it is inside the gate.
func TestPreparationsAreLimited(t *testing.T) {
	all := surroundings()
	for _, o := range all {
		if p, ok := o.(*v1alpha1.PromptProfile); ok {
			p.Spec.Instructions, p.Spec.InstructionsFrom = "", &v1alpha1.ContentSource{
				ConfigMapKeyRef: v1alpha1.ConfigMapKeyReference{Name: "texts", Key: "a"},
			}
		}
	}
	e, _ := newExecutor(t, interceptor.Funcs{}, append(all, turnWith())...)
	e.Preparations = fairgate.New(1, 1)
	ended, end := context.WithCancel(t.Context())
	end()
	reads := 0
	reading(e, func(context.Context, v1alpha1.ConfigMapKeyReference) (string, error) {
		if reads++; e.Preparations.Enter(ended, "other") == nil {
			t.Error("another Turn may read its texts at the same time")
			e.Preparations.Leave("other")
		}
		return "Be brief.", nil
	})
	got := runTurn(t, e)
	if got.Status.Conditions[0].Reason != v1alpha1.TurnReasonPrepared || reads == 0 {
		t.Errorf("after %d reads the Turn is %+v, want it prepared", reads, got.Status.Conditions)
	}
	if e.Preparations.Enter(ended, "other") != nil {
		t.Error("the gate is still closed after the preparation")
	}
}
