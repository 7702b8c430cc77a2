package executor

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"net/http"
	"net/http/httptest"
	"net/http/httptrace"
	"net/url"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/shopspring/decimal"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	webhookerrors "k8s.io/apiserver/pkg/admission/plugin/webhook/errors"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/interceptor"

	"github.com/capstan-dev/capstan/api/v1alpha1"
	"github.com/capstan-dev/capstan/internal/bytebudget"
	"github.com/capstan-dev/capstan/internal/fairgate"
	"github.com/capstan-dev/capstan/internal/runtime/journal"
	"github.com/capstan-dev/capstan/internal/runtime/loop"
	"github.com/capstan-dev/capstan/internal/runtime/model"
	"github.com/capstan-dev/capstan/internal/runtime/tool"
)

// callHelper calls the sub-agent. Without a change, each use makes the same call.
func callHelper(ctx context.Context, e *Executor, parent *v1alpha1.Turn, change ...func(*tool.Call)) (tool.Result, error) {
	c := tool.Call{
		Step: 1, CallID: "call-1",
		Arguments: json.RawMessage(`{"task": "Look it up.", "context": "It is blue."}`), Left: tool.Left{Time: time.Minute},
	}
	for _, f := range change {
		f(&c)
	}
	return (&subAgent{
		executor: e, parent: parent, caller: &v1alpha1.Agent{}, agent: "helper",
		mayCreate: func(context.Context) error { return nil },
	}).Call(ctx, c)
}

// children returns all Turns except the calling one.
func children(t *testing.T, e *Executor) []v1alpha1.Turn {
	t.Helper()
	var turns v1alpha1.TurnList
	if err := e.Reader.List(t.Context(), &turns); err != nil {
		t.Fatal(err)
	}
	var all []v1alpha1.Turn
	for _, turn := range turns.Items {
		if turn.Name != "one" {
			all = append(all, turn)
		}
	}
	return all
}

// endChild ends the only child.
func endChild(t *testing.T, e *Executor, status metav1.ConditionStatus, reason string, result *v1alpha1.TurnResult) *v1alpha1.Turn {
	t.Helper()
	child := &children(t, e)[0]
	child.Status.Result = result
	child.Status.Usage = &v1alpha1.Usage{
		InputTokens: 10, OutputTokens: 5, TotalTokens: 15,
		Cost: &v1alpha1.Cost{Amount: "0.5", Currency: "USD"},
	}
	meta.SetStatusCondition(&child.Status.Conditions,
		metav1.Condition{Type: v1alpha1.ConditionSucceeded, Status: status, Reason: reason, Message: "so it ended"})
	if err := e.Client.Status().Update(t.Context(), child); err != nil {
		t.Fatal(err)
	}
	return child
}

func isPending(err error) bool {
	_, ok := errors.AsType[*tool.Pending](err)
	return ok
}

func TestSubAgentCallIsOneTurn(t *testing.T) {
	e, _ := newExecutor(t, interceptor.Funcs{}, turnWith())
	for range 3 {
		if _, err := callHelper(t.Context(), e, stored(t, e)); !isPending(err) {
			t.Fatalf("error %v, want a *tool.Pending", err)
		}
	}
	all := children(t, e)
	if len(all) != 1 || all[0].Spec.AgentRef.Name != "helper" ||
		all[0].Spec.Message != "Look it up.\n\nContext:\nIt is blue." || *all[0].Spec.Depth != 1 {
		t.Fatalf("Turns %+v, want the one that the call asks for", all)
	}
	if _, err := callHelper(t.Context(), e, stored(t, e), func(c *tool.Call) { c.CallID = "call-2" }); !isPending(err) ||
		len(children(t, e)) != 2 {
		t.Errorf("error %v, want another Turn for another call", err)
	}
}

func TestResultOfASubAgent(t *testing.T) {
	spent := &tool.Spent{
		Usage: model.Usage{InputTokens: 10, OutputTokens: 5},
		Cost:  &model.Cost{Amount: decimal.RequireFromString("0.5"), Currency: "USD"},
	}
	for name, tc := range map[string]struct {
		reason  string
		status  metav1.ConditionStatus
		end     string
		text    string
		want    string
		failure string
	}{
		"an answer": {"it is the result", metav1.ConditionTrue, "Completed", "42", "42", ""},
		"no answer": {"the result is empty", metav1.ConditionTrue, "Completed", "", "", ""},
		"a failure": {
			"it is data for the model", metav1.ConditionFalse, "ModelFailed", "", "",
			"the sub-agent did not succeed (ModelFailed): so it ended",
		},
		"a failure with text": {
			"the text may be useful", metav1.ConditionFalse, "StepLimitExceeded", "about 42", "",
			"the sub-agent did not succeed (StepLimitExceeded): so it ended\nIts answer so far:\nabout 42",
		},
	} {
		t.Run(name, func(t *testing.T) {
			e, _ := newExecutor(t, interceptor.Funcs{}, turnWith())
			if _, err := callHelper(t.Context(), e, stored(t, e)); !isPending(err) {
				t.Fatal(err)
			}
			var answer *v1alpha1.TurnResult
			if tc.text != "" {
				answer = &v1alpha1.TurnResult{Text: tc.text}
			}
			spent.Turn = endChild(t, e, tc.status, tc.end, answer).Name
			got, err := callHelper(t.Context(), e, stored(t, e))
			if diff := cmp.Diff(tool.Result{Content: tc.want, Spent: spent, Descendants: new(1)}, got); diff != "" {
				t.Errorf("%s: -want +got:\n%s", tc.reason, diff)
			}
			if failure := tool.AsError(cmpError(err)); failure.Error() != tc.failure || (err != nil && failure.Class != tool.Failed) {
				t.Errorf("error %s: %q, want %q", failure.Class, failure.Error(), tc.failure)
			}
		})
	}
}

// cmpError returns err, or an error without a message if err is nil.
func cmpError(err error) error {
	if err == nil {
		return &tool.Error{}
	}
	return err
}

// TestLongAnswerOfASubAgentIsComplete checks that the whole answer is returned although the child's status has only the
// beginning of the answer. If the child's journal is gone, the beginning is returned.
func TestLongAnswerOfASubAgentIsComplete(t *testing.T) {
	for name, kept := range map[string]bool{"its journal has it": true, "its journal is gone": false} {
		t.Run(name, func(t *testing.T) {
			e, store := newExecutor(t, interceptor.Funcs{}, turnWith())
			if _, err := callHelper(t.Context(), e, stored(t, e)); !isPending(err) {
				t.Fatal(err)
			}
			whole := strings.Repeat("long ", 10_000)
			a := journal.NewArtifact([]byte(whole))
			child := endChild(t, e, metav1.ConditionTrue, "Completed", &v1alpha1.TurnResult{
				Text: "long", Truncated: true, Artifacts: []v1alpha1.Artifact{{Name: "answer.txt", SHA256: a.SHA256, Bytes: a.Bytes}},
			})
			want := "long"
			if kept {
				want = whole
				if err := store.Append(t.Context(), string(child.UID),
					journal.Entry{Seq: 1, Epoch: 1, Kind: "note", Artifacts: []journal.Artifact{a}}); err != nil {
					t.Fatal(err)
				}
			}
			got, err := callHelper(t.Context(), e, stored(t, e))
			if err != nil || got.Content != want {
				t.Errorf("%d bytes (error %v), want %d", len(got.Content), err, len(want))
			}
		})
	}
}

// TestLongAnswerOfASubAgentWaitsForMemory checks that a long answer is read only when there is memory for it.
func TestLongAnswerOfASubAgentWaitsForMemory(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		e, store := newExecutor(t, interceptor.Funcs{}, turnWith())
		e.Memory = bytebudget.New(16<<20, 16<<20)
		if _, err := callHelper(t.Context(), e, stored(t, e)); !isPending(err) {
			t.Fatal(err)
		}
		whole := strings.Repeat("long ", 100_000)
		a := journal.NewArtifact([]byte(whole))
		child := endChild(t, e, metav1.ConditionTrue, "Completed", &v1alpha1.TurnResult{
			Text: "long", Truncated: true, Artifacts: []v1alpha1.Artifact{{Name: "answer.txt", SHA256: a.SHA256, Bytes: a.Bytes}},
		})
		if err := store.Append(t.Context(), string(child.UID),
			journal.Entry{Seq: 1, Epoch: 1, Kind: "note", Artifacts: []journal.Artifact{a}}); err != nil {
			t.Fatal(err)
		}
		results := e.Memory.Account("helpdesk", bytebudget.Results)
		others, err := results.Reserve(t.Context(), results.MaxReservation())
		if err != nil {
			t.Fatal(err)
		}
		var got tool.Result
		var called sync.WaitGroup
		called.Go(func() { got, err = callHelper(t.Context(), e, stored(t, e)) })
		synctest.Wait()
		if use := e.Memory.Use(bytebudget.Results); use.Waiting != 1 || got.Content != "" {
			t.Errorf("%d reservations wait and %d bytes were read, want 1 and none", use.Waiting, len(got.Content))
		}
		others.Release()
		called.Wait()
		if err != nil || got.Content != whole {
			t.Errorf("%d bytes (error %v), want %d", len(got.Content), err, len(whole))
		}
		if held := e.Memory.Use(bytebudget.Results).Bytes; held != 0 {
			t.Errorf("%d bytes are held after the call", held)
		}
	})
}

func TestForeignTurnIsNotTheResultOfACall(t *testing.T) {
	e, _ := newExecutor(t, interceptor.Funcs{}, turnWith())
	if _, err := callHelper(t.Context(), e, stored(t, e)); !isPending(err) {
		t.Fatal(err)
	}
	theirs := children(t, e)[0]
	theirs.OwnerReferences[0].UID = "another"
	if err := e.Client.Update(t.Context(), &theirs); err != nil {
		t.Fatal(err)
	}
	_, err := callHelper(t.Context(), e, stored(t, e))
	if failure, ok := errors.AsType[*tool.Error](err); !ok || failure.Class != tool.Failed ||
		!strings.Contains(failure.Message, "another Turn already has the name") || strings.Contains(failure.Message, "lost") {
		t.Errorf("error %v, want a failure that says only that the name is taken", err)
	}
}

// TestChildOfALostRun checks that a call whose child has the name of a child of a lost run finds that child if it has
// the same task. Otherwise, the call fails and says why.
func TestChildOfALostRun(t *testing.T) {
	e, _ := newExecutor(t, interceptor.Funcs{}, turnWith())
	if _, err := callHelper(t.Context(), e, stored(t, e)); !isPending(err) {
		t.Fatal(err)
	}
	if _, err := callHelper(t.Context(), e, stored(t, e)); !isPending(err) || len(children(t, e)) != 1 {
		t.Errorf("error %v, want the same call to find the Turn", err)
	}
	_, err := callHelper(t.Context(), e, stored(t, e), func(c *tool.Call) { c.Arguments = json.RawMessage(`{"task": "Find it."}`) })
	if failure, ok := errors.AsType[*tool.Error](err); !ok || failure.Class != tool.Failed ||
		!strings.HasSuffix(failure.Message, "an earlier run of the calling Turn, whose journal was lost, has created it") {
		t.Errorf("error %v, want a failure that names the lost journal", err)
	}
}

// TestChildWithAKnownUID checks that a call whose Turn was recorded accepts exactly this Turn, even if admission has
// changed its spec. Without the record, such a Turn may be the Turn of a user.
func TestChildWithAKnownUID(t *testing.T) {
	const foreign = "another Turn already has the name"
	for name, tc := range map[string]struct {
		uid     string
		change  func(*v1alpha1.Turn)
		class   tool.Class
		message string
	}{
		"changed by admission":                   {uid: "uid-child"},
		"changed by admission, without a record": {"", nil, tool.Failed, foreign},
		"deleted, and another Turn has the name": {"uid-before", nil, tool.OutcomeUnknown, "was deleted"},
		"the Turn belongs to another caller now": {
			"uid-child", func(t *v1alpha1.Turn) { t.OwnerReferences[0].UID = "x" }, tool.Failed, foreign,
		},
		"the Turn has no owner any more": {"uid-child", func(t *v1alpha1.Turn) { t.OwnerReferences = nil }, tool.Failed, foreign},
	} {
		t.Run(name, func(t *testing.T) {
			e, _ := newExecutor(t, interceptor.Funcs{
				Create: func(ctx context.Context, c client.WithWatch, o client.Object, opts ...client.CreateOption) error {
					child := o.(*v1alpha1.Turn)
					child.UID, child.Spec.WebMode = "uid-child", v1alpha1.WebModeOff
					child.Spec.Limits.MaxSteps = new(int32(3))
					return c.Create(ctx, child, opts...)
				},
			}, turnWith())
			if _, err := callHelper(t.Context(), e, stored(t, e)); !isPending(err) {
				t.Fatal(err)
			}
			if tc.change != nil {
				child := children(t, e)[0]
				tc.change(&child)
				if err := e.Client.Update(t.Context(), &child); err != nil {
					t.Fatal(err)
				}
			}
			repeat := func() (tool.Result, error) {
				return callHelper(t.Context(), e, stored(t, e), func(c *tool.Call) { c.Attempt, c.TurnUID = 2, tc.uid })
			}
			_, err := repeat()
			if tc.class != "" {
				if failure, ok := errors.AsType[*tool.Error](err); !ok || failure.Class != tc.class ||
					!strings.Contains(failure.Message, tc.message) {
					t.Errorf("error %v, want %s: %s", err, tc.class, tc.message)
				}
				return
			}
			if pending, ok := errors.AsType[*tool.Pending](err); !ok || pending.UID != tc.uid {
				t.Fatalf("error %v, want a call that waits for its Turn", err)
			}
			endChild(t, e, metav1.ConditionTrue, "Completed", &v1alpha1.TurnResult{Text: "42"})
			got, err := repeat()
			if err != nil || got.Content != "42" || got.Spent == nil || got.Spent.Usage.InputTokens != 10 {
				t.Errorf("result %+v, %v; want the answer and the usage of the Turn", got, err)
			}
		})
	}
}

func TestInvalidArgumentsOfASubAgent(t *testing.T) {
	for name, arguments := range map[string]string{
		"no object": `[]`, "a number": `{"task": 1}`, "no task": `{}`,
		"too long": fmt.Sprintf(`{"task": %q}`, strings.Repeat("x", 40_000)),
	} {
		t.Run(name, func(t *testing.T) {
			e, _ := newExecutor(t, interceptor.Funcs{}, turnWith())
			_, err := callHelper(t.Context(), e, stored(t, e), func(c *tool.Call) { c.Arguments = json.RawMessage(arguments) })
			if tool.AsError(err).Class != tool.InvalidArguments || len(children(t, e)) != 0 {
				t.Errorf("error %v, want invalid_arguments and no Turn", err)
			}
		})
	}
}

func TestCallThatTheAPIServerRefuses(t *testing.T) {
	for name, tc := range map[string]struct {
		err  error
		want tool.Class
	}{
		"as invalid":   {refusal, tool.InvalidArguments},
		"as forbidden": {apierrors.NewForbidden(turnResource, "one", errors.New("exceeded quota")), tool.Unavailable},
		"as denied": {webhookerrors.ToStatusErr("check.example", &metav1.Status{
			Code: 401, Reason: metav1.StatusReasonUnauthorized, Message: "no",
		}), tool.Unavailable},
		"as too large":  {apierrors.NewRequestEntityTooLargeError("limit"), tool.InvalidArguments},
		"without Turns": {apierrors.NewNotFound(turnResource, ""), tool.Unavailable},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				e, _ := newExecutor(t, interceptor.Funcs{
					Create: func(context.Context, client.WithWatch, client.Object, ...client.CreateOption) error { return tc.err },
				}, turnWith())
				ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
				defer cancel()
				_, err := callHelper(ctx, e, stored(t, e))
				if failure, ok := errors.AsType[*tool.Error](err); !ok || failure.Class != tc.want {
					t.Errorf("error %v, want one of the class %s", err, tc.want)
				}
			})
		})
	}
}

// TestCallThatIsForbiddenForAWhile checks that a call outlives the start of an API server, which forbids everything
// until it has loaded its roles and quotas.
func TestCallThatIsForbiddenForAWhile(t *testing.T) {
	const noRole = `User "manager" cannot create resource "turns"`
	for name, tc := range map[string]struct {
		reason  string
		message string
		times   int
		pending bool
		most    time.Duration
	}{
		"until the roles are loaded":  {"the next request succeeds", noRole, 2, true, time.Second},
		"until quotas are calculated": {"the next request succeeds", "status unknown for quota: turns", 2, true, time.Second},
		"for good":                    {"the manager has no permission", noRole, 1 << 30, false, 2 * time.Minute},
		"by a quota":                  {"the quota is used up", "exceeded quota: turns", 1 << 30, false, time.Millisecond},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				requests := 0
				e, _ := newExecutor(t, interceptor.Funcs{
					Create: func(ctx context.Context, c client.WithWatch, o client.Object, opts ...client.CreateOption) error {
						if requests++; requests <= tc.times {
							httptrace.ContextClientTrace(ctx).WroteHeaders()
							return apierrors.NewForbidden(turnResource, "one", errors.New(tc.message))
						}
						return c.Create(ctx, o, opts...)
					},
				}, turnWith())
				e.Now = time.Now
				begun := time.Now()
				got, err := callHelper(t.Context(), e, stored(t, e))
				if took := time.Since(begun); isPending(err) != tc.pending || took > tc.most {
					t.Fatalf("error %v after %s, want it pending: %t, within %s: %s", err, took, tc.pending, tc.most, tc.reason)
				}
				if tc.pending {
					return
				}
				if tool.AsError(err).Class != tool.Unavailable || got.Descendants == nil || *got.Descendants != 0 {
					t.Errorf("%+v, error %v, want that the Turn is unavailable and was not created", got, err)
				}
			})
		})
	}
}

// TestCallWhoseTurnMayNotBeReadForAWhile checks that a Turn that exists is found although the API server first forbids
// to read it, and then refuses another one for a quota before it checks whether the name exists.
func TestCallWhoseTurnMayNotBeReadForAWhile(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		creates, reads := 0, 0
		e, _ := newExecutor(t, interceptor.Funcs{
			Create: func(ctx context.Context, c client.WithWatch, o client.Object, opts ...client.CreateOption) error {
				if creates++; creates == 1 {
					return errors.Join(c.Create(ctx, o, opts...), apierrors.NewAlreadyExists(turnResource, o.GetName()))
				}
				return apierrors.NewForbidden(turnResource, o.GetName(), errors.New("exceeded quota: turns"))
			},
			Get: func(ctx context.Context, c client.WithWatch, k client.ObjectKey, o client.Object, opts ...client.GetOption) error {
				if creates == 0 {
					return c.Get(ctx, k, o, opts...)
				}
				if reads++; reads == 1 {
					return apierrors.NewForbidden(turnResource, k.Name, errors.New("no role"))
				}
				return c.Get(ctx, k, o, opts...)
			},
		}, turnWith())
		if _, err := callHelper(t.Context(), e, stored(t, e)); !isPending(err) || reads < 2 {
			t.Errorf("error %v after %d reads, want the Turn that exists", err, reads)
		}
	})
}

// TestCallWhileTheAPIServerIsUnavailable checks that the call is tried again, and that it finds a Turn that was created
// although the request seemed to fail.
func TestCallWhileTheAPIServerIsUnavailable(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		away := 3
		e, _ := newExecutor(t, interceptor.Funcs{
			Create: func(ctx context.Context, c client.WithWatch, o client.Object, opts ...client.CreateOption) error {
				away--
				switch {
				case away > 0:
					return errors.New("connection refused")
				case away == 0:
					return errors.Join(c.Create(ctx, o, opts...), errors.New("connection lost"))
				}
				return c.Create(ctx, o, opts...)
			},
		}, turnWith())
		if _, err := callHelper(t.Context(), e, stored(t, e)); !isPending(err) || len(children(t, e)) != 1 {
			t.Errorf("error %v, want a call that continues", err)
		}
		away = 1 << 30
		ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
		defer cancel()
		_, err := callHelper(ctx, e, stored(t, e), func(c *tool.Call) { c.CallID = "call-2" })
		if !isPending(err) || ctx.Err() == nil {
			t.Errorf("error %v, want a pending call at the end of its time, because the Turn may have been created", err)
		}
	})
}

// TestCallWhoseTurnWasNotCreatedInItsTime checks that the next run creates the Turn if it certainly does not exist, and
// only then: the status of the parent lists the Turn in either case.
func TestCallWhoseTurnWasNotCreatedInItsTime(t *testing.T) {
	lost := errors.New("connection lost")
	reset := &net.OpError{Op: "read", Err: syscall.ECONNRESET}
	tooMany, slow := apierrors.NewTooManyRequests("later", 1), apierrors.NewTimeoutError("etcd", 1)
	inStorage := apierrors.NewInternalError(errors.New("etcd"))
	forbidden := apierrors.NewForbidden(turnResource, "one", errors.New("not yet ready to handle request"))
	webhook := apierrors.NewInternalError(errors.New(`failed calling webhook "mutate.example": connection refused`))
	denied := &apierrors.StatusError{ErrStatus: metav1.Status{
		Status: metav1.StatusFailure, Code: 500, Message: `admission webhook "mutate.example" denied the request: try again`,
	}}
	refused := &url.Error{Op: "Post", URL: "https://api", Err: &net.OpError{Op: "dial", Err: syscall.ECONNREFUSED}}
	for name, tc := range map[string]struct {
		reason string
		errs   []error // the last one repeats
		unsent bool    // the client sends nothing
		// deleted is true if the first request creates the Turn all the same, which is then deleted.
		deleted    bool
		notCreated bool
	}{
		"a webhook fails":            {"it comes before the storage", []error{webhook}, false, false, true},
		"a webhook denies with 500":  {"it comes before the storage", []error{denied}, false, false, true},
		"too many requests":          {"the request was not handled", []error{tooMany}, false, false, true},
		"forbidden":                  {"it comes before the storage", []error{forbidden}, false, false, true},
		"no connection":              {"nothing was sent", []error{refused}, true, false, true},
		"sent, then no connection":   {"the client sends it again after 503, for example", []error{refused}, false, false, false},
		"a lost connection":          {"the request may have arrived", []error{reset}, false, false, false},
		"a time-out":                 {"the storage may have the Turn", []error{slow}, false, false, false},
		"another failure":            {"the storage may have the Turn", []error{inStorage}, false, false, false},
		"uncertain, then a webhook":  {"the first request may have arrived", []error{lost, webhook}, false, false, false},
		"created, then deleted":      {"its work would be done twice", []error{lost, webhook}, false, true, false},
		"a webhook, then no webhook": {"the last request may have arrived", []error{webhook, lost}, false, false, false},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				creates, failing := 0, true
				e, _ := newExecutor(t, interceptor.Funcs{
					Create: func(ctx context.Context, c client.WithWatch, o client.Object, opts ...client.CreateOption) error {
						creates++
						if !failing {
							return c.Create(ctx, o, opts...)
						}
						if !tc.unsent {
							httptrace.ContextClientTrace(ctx).WroteHeaders()
						}
						if tc.deleted && creates == 1 {
							if err := errors.Join(c.Create(ctx, o, opts...), c.Delete(ctx, o)); err != nil {
								t.Error(err)
							}
						}
						return tc.errs[min(creates, len(tc.errs))-1]
					},
				}, turnWith())
				var before *tool.Pending
				for attempt := 1; attempt <= 2; attempt++ { // both fail in the same way
					ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
					defer cancel()
					parent := stored(t, e)
					if before != nil {
						parent.Status.AwaitedTurns = []string{before.Turn}
					}
					_, err := callHelper(ctx, e, parent, func(c *tool.Call) {
						c.Attempt, c.NotCreated = attempt, before != nil && before.NotCreated
					})
					pending, ok := errors.AsType[*tool.Pending](err)
					if !ok || pending.NotCreated != tc.notCreated {
						t.Fatalf("attempt %d: error %#v, want a pending call whose Turn was certainly not created: %t: %s",
							attempt, err, tc.notCreated, tc.reason)
					}
					before = pending
					if !tc.notCreated {
						break
					}
				}
				parent := stored(t, e)
				parent.Status.AwaitedTurns = []string{before.Turn}
				creates, failing = 0, false
				_, err := callHelper(t.Context(), e, parent, func(c *tool.Call) { c.Attempt, c.NotCreated = 3, before.NotCreated })
				if tc.notCreated {
					if !isPending(err) || creates != 1 || len(children(t, e)) != 1 {
						t.Errorf("error %v after %d requests, want the Turn created: %s", err, creates, tc.reason)
					}
					return
				}
				if failure, ok := errors.AsType[*tool.Error](err); !ok || failure.Class != tool.OutcomeUnknown || creates != 0 ||
					!strings.Contains(failure.Message, "does not exist: either it was never created") {
					t.Errorf("error %v after %d requests, want an unknown outcome and no Turn: %s", err, creates, tc.reason)
				}
			})
		})
	}
}

// TestSendingIsNoted checks with a real server whether a request counts as sent.
func TestSendingIsNoted(t *testing.T) {
	answers := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		w.WriteHeader(http.StatusServiceUnavailable)
	}))
	defer answers.Close()
	breaks := httptest.NewServer(http.HandlerFunc(func(http.ResponseWriter, *http.Request) { panic(http.ErrAbortHandler) }))
	defer breaks.Close()
	gone := httptest.NewServer(nil)
	gone.Close()
	for name, tc := range map[string]struct {
		url  string
		want bool
	}{
		"a server that answers":               {answers.URL, true},
		"a server that breaks the connection": {breaks.URL, true},
		"no server":                           {gone.URL, false},
	} {
		t.Run(name, func(t *testing.T) {
			var sent atomic.Bool
			r, err := http.NewRequestWithContext(noteSending(t.Context(), &sent), http.MethodPost, tc.url, strings.NewReader("{}"))
			if err != nil {
				t.Fatal(err)
			}
			if response, err := http.DefaultClient.Do(r); err == nil {
				if err := response.Body.Close(); err != nil {
					t.Fatal(err)
				}
			}
			if sent.Load() != tc.want {
				t.Errorf("sent: %t, want %t", sent.Load(), tc.want)
			}
		})
	}
}

// TestRepeatedCall checks that a repeated call finds its Turn, and does not create the Turn again if it was
// deleted.
func TestRepeatedCall(t *testing.T) {
	for name, tc := range map[string]struct {
		reason        string
		made, awaited bool
		want          tool.Class
		creates       int
	}{
		"there":                     {"it is found", true, true, "", 0},
		"created, but not recorded": {"the run was cut off between the two writes", true, false, "", 0},
		"deleted":                   {"its work would be done twice", false, true, tool.OutcomeUnknown, 0},
		"never created":             {"the run was cut off before", false, false, "", 1},
	} {
		t.Run(name, func(t *testing.T) {
			creates := 0
			e, _ := newExecutor(t, interceptor.Funcs{
				Create: func(ctx context.Context, c client.WithWatch, o client.Object, opts ...client.CreateOption) error {
					creates++
					return c.Create(ctx, o, opts...)
				},
			}, turnWith())
			if _, err := callHelper(t.Context(), e, stored(t, e)); !isPending(err) {
				t.Fatal(err)
			}
			child, parent := children(t, e)[0], stored(t, e)
			if !tc.made {
				if err := e.Client.Delete(t.Context(), &child); err != nil {
					t.Fatal(err)
				}
			}
			if tc.awaited {
				parent.Status.AwaitedTurns = []string{child.Name}
			}
			creates = 0
			_, err := callHelper(t.Context(), e, parent, func(c *tool.Call) { c.Attempt = 2 })
			if failure, ok := errors.AsType[*tool.Error](err); ok != (tc.want != "") ||
				(ok && failure.Class != tc.want) || (!ok && !isPending(err)) {
				t.Errorf("error %v, want %q: %s", err, tc.want, tc.reason)
			}
			if creates != tc.creates {
				t.Errorf("%d Turns were created, want %d: %s", creates, tc.creates, tc.reason)
			}
		})
	}
}

// TestCallOfAnAgentThatWasReplaced checks that a call creates its Turn only if the Agent is the one that was approved,
// even if the call is repeated. A Turn that exists is found all the same.
func TestCallOfAnAgentThatWasReplaced(t *testing.T) {
	helper := client.ObjectKey{Namespace: "helpdesk", Name: "helper"}
	for name, tc := range map[string]struct {
		reason  string
		attempt int
		// made is true if an earlier run has created the Turn. lost is true if this call creates it and sees no
		// response; the Agent is replaced only then.
		made, lost  bool
		refused     bool
		descendants *int
	}{
		"a new call":                             {"it would call another Agent", 1, false, false, true, new(0)},
		"a repeated call without a Turn":         {"it would call another Agent now", 2, false, false, true, nil},
		"a repeated call with a Turn":            {"the Turn is the approved one", 2, true, false, false, nil},
		"a new call whose response did not come": {"its Turn exists", 1, false, true, false, nil},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				agent := &v1alpha1.Agent{ObjectMeta: metav1.ObjectMeta{Namespace: helper.Namespace, Name: helper.Name, UID: "second"}}
				if tc.lost {
					agent.UID = "first"
				}
				e, _ := newExecutor(t, interceptor.Funcs{
					Create: func(ctx context.Context, c client.WithWatch, o client.Object, opts ...client.CreateOption) error {
						err := c.Create(ctx, o, opts...)
						if err == nil && tc.lost {
							err = errors.Join(errors.New("connection lost"), c.Delete(ctx, agent))
						}
						return err
					},
				}, turnWith(), agent)
				r := newRun(t, e)
				if tc.made {
					if _, err := callHelper(t.Context(), e, r.turn); !isPending(err) {
						t.Fatal(err)
					}
				}
				caller := r.toolbox(&v1alpha1.Agent{ObjectMeta: metav1.ObjectMeta{Namespace: helper.Namespace}}).Caller(tool.Tool{
					RequiresApproval: true, Source: tool.Source{Agent: helper.Name, UID: "first"},
				})
				got, err := caller.Call(t.Context(), tool.Call{
					Step: 1, CallID: "call-1", Attempt: tc.attempt, Left: tool.Left{Time: time.Minute},
					Arguments: json.RawMessage(`{"task": "Look it up.", "context": "It is blue."}`),
				})
				failure, failed := errors.AsType[*tool.Error](err)
				if failed != tc.refused || failed && failure.Class != tool.Unavailable || !failed && !isPending(err) {
					t.Errorf("error %v, want the call refused: %t: %s", err, tc.refused, tc.reason)
				}
				if made := children(t, e); (len(made) == 0) != tc.refused {
					t.Errorf("%d Turns, want none only if the call is refused (%t): %s", len(made), tc.refused, tc.reason)
				}
				if diff := cmp.Diff(tc.descendants, got.Descendants); diff != "" {
					t.Errorf("the number of Turns that the call may have created: -want +got:\n%s", diff)
				}
			})
		})
	}
}

// unreadable is a journal whose store is unavailable.
type unreadable struct{ journal.Journal }

func (unreadable) Artifact(context.Context, string, string) (journal.Artifact, error) {
	return journal.Artifact{}, errors.New("connection refused")
}

// TestUnreadableAnswer checks that a call whose answer cannot be read stays pending, with the usage of the child.
func TestUnreadableAnswer(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		e, store := newExecutor(t, interceptor.Funcs{}, turnWith())
		if _, err := callHelper(t.Context(), e, stored(t, e)); !isPending(err) {
			t.Fatal(err)
		}
		a := journal.NewArtifact([]byte("long"))
		endChild(t, e, metav1.ConditionTrue, "Completed", &v1alpha1.TurnResult{
			Text: "lo", Truncated: true, Artifacts: []v1alpha1.Artifact{{Name: "answer.txt", SHA256: a.SHA256, Bytes: a.Bytes}},
		})
		e.Engine.Journal = unreadable{store}
		ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
		defer cancel()
		got, err := callHelper(ctx, e, stored(t, e), func(c *tool.Call) { c.Attempt = 2 })
		if !isPending(err) || ctx.Err() == nil || got.Spent == nil || got.Spent.Usage.InputTokens != 10 {
			t.Errorf("%+v, error %v; want a call that is still pending when its time is over, and its usage", got, err)
		}
	})
}

// TestDescendantsOfACall checks that a call reports 0 descendants if it certainly created no Turn, and no number if it
// may have created a Turn.
func TestDescendantsOfACall(t *testing.T) {
	forbidden := apierrors.NewForbidden(turnResource, "one", errors.New("exceeded quota"))
	lost := errors.New("connection lost")
	for name, tc := range map[string]struct {
		reason string
		// answers are the errors of the API server for the creation of a Turn. If created is set, the first request
		// creates the Turn before its error.
		answers []error
		created bool
		attempt int
		want    *int
		pending bool
	}{
		"refused":                    {"there is no Turn", []error{forbidden}, false, 1, new(0), false},
		"refused after no answer":    {"the first request may still create the Turn", []error{lost, forbidden}, false, 1, nil, false},
		"created, then refused":      {"the Turn of the first request is found", []error{lost, forbidden}, true, 1, nil, true},
		"refused, in the second run": {"a request of the first run may still create the Turn", []error{forbidden}, false, 2, nil, false},
		"invalid arguments":          {"no request is sent", nil, false, 1, new(0), false},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				n := 0
				e, _ := newExecutor(t, interceptor.Funcs{
					Create: func(ctx context.Context, c client.WithWatch, o client.Object, opts ...client.CreateOption) error {
						n++
						if n == 1 && tc.created {
							if err := c.Create(ctx, o, opts...); err != nil {
								return err
							}
						}
						return tc.answers[n-1]
					},
				}, turnWith())
				got, err := callHelper(t.Context(), e, stored(t, e), func(c *tool.Call) {
					c.Attempt, c.Descendants = tc.attempt, 5
					if tc.answers == nil {
						c.Arguments = json.RawMessage(`[]`)
					}
				})
				if diff := cmp.Diff(tc.want, got.Descendants); diff != "" || isPending(err) != tc.pending {
					t.Errorf("error %v, want it pending: %t: %s: -want +got:\n%s", err, tc.pending, tc.reason, diff)
				}
				if made := children(t, e); tc.created && (len(made) != 1 || *made[0].Spec.Limits.MaxDescendants != 4) {
					t.Errorf("%d Turns %+v, want one that may create 4", len(made), made)
				}
			})
		})
	}
}

// TestUsageOfAChild checks the usage of a child whose caller ends without its answer.
func TestUsageOfAChild(t *testing.T) {
	e, _ := newExecutor(t, interceptor.Funcs{}, turnWith())
	if _, err := callHelper(t.Context(), e, stored(t, e)); !isPending(err) {
		t.Fatal(err)
	}
	r := newRun(t, e)
	intent := loop.Intent{Step: 1, CallID: "call-1"}
	if _, err := r.child(t.Context(), intent, ""); !isPending(err) {
		t.Errorf("error %v, want a *tool.Pending for the child", err)
	}
	if _, waits := errors.AsType[*loop.Parked](r.endInterrupted(t.Context(), "a bug")); !waits {
		t.Error("a Turn that is interrupted has ended while its child works")
	}
	if got, err := r.child(t.Context(), loop.Intent{Step: 2, CallID: "call-1"}, ""); err != nil || got.Spent != nil {
		t.Errorf("%+v, %v; want no usage of a child that does not exist", got, err)
	}
	endChild(t, e, metav1.ConditionFalse, "Cancelled", nil)
	if got, err := r.child(t.Context(), intent, ""); err != nil || got.Spent == nil || got.Spent.Usage.InputTokens != 10 {
		t.Errorf("%+v, %v; want the usage of the child", got, err)
	}
	cut, ok := errors.AsType[*cutOffError](r.endInterrupted(t.Context(), "a bug"))
	if !ok || cut.Stop != "Interrupted" || len(cut.SubAgents) != 1 || cut.SubAgents[0].Usage.InputTokens != 10 ||
		cut.SubAgents[0].Cost.Amount.String() != "0.5" {
		t.Fatalf("%+v; want the end, with the usage of the child", cut)
	}
	theirs := children(t, e)[0]
	theirs.OwnerReferences[0].UID = "another"
	if err := e.Client.Update(t.Context(), &theirs); err != nil {
		t.Fatal(err)
	}
	if got, err := r.child(t.Context(), intent, ""); err != nil || got.Spent != nil {
		t.Errorf("%+v, %v; want no usage of a Turn with another owner", got, err)
	}
}

// TestDeletedChildOfANewerVersion checks that a caller does not wait for a newer version that can read the journal of
// its deleted child.
func TestDeletedChildOfANewerVersion(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		e, store := newExecutor(t, interceptor.Funcs{}, turnWith())
		newer := journal.Entry{Seq: 1, Epoch: 1, Kind: journal.RunStarted, Version: journal.PayloadVersion + 1, Payload: []byte("{}")}
		if err := store.Append(t.Context(), "uid-child", newer); err != nil {
			t.Fatal(err)
		}
		ctx, cancel := context.WithTimeout(t.Context(), time.Minute) // of the fake clock, for further attempts
		defer cancel()
		got, err := callHelper(ctx, e, stored(t, e), func(c *tool.Call) { c.Attempt, c.TurnUID = 2, "uid-child" })
		if failure, ok := errors.AsType[*tool.Error](err); !ok || failure.Class != tool.OutcomeUnknown || got.Spent != nil {
			t.Errorf("Call: %+v, %v; want an unknown outcome with an unknown usage", got, err)
		}
		used, err := newRun(t, e).child(t.Context(), loop.Intent{Step: 1, CallID: "call-1"}, "uid-child")
		if err != nil || used.Spent != nil {
			t.Errorf("child: %+v, %v; want an unknown usage", used, err)
		}
	})
}

// TestJournalOfADeletedChildNeedsMemory checks that the journal of a deleted child is read only if there is memory for
// it, or within the gate Unreserved, so that few such journals are in memory at the same time.
func TestJournalOfADeletedChildNeedsMemory(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		e := longWinded(t, &longReplies{steps: 5, bytes: 100 << 10}, 16<<20)
		e.Unreserved = fairgate.New(1, 1)
		runTurn(t, e) // its journal is that of the child
		account := e.Memory.Account("helpdesk", bytebudget.Conversations)
		others, err := account.TryReserve(account.MaxReservation())
		if err != nil {
			t.Fatal(err)
		}

		r := newRun(t, e)
		r.timeOver = time.Now().Add(time.Hour)
		usage := func() error {
			got, err := r.child(t.Context(), loop.Intent{Step: 1, CallID: "call-1"}, "uid-one")
			if err == nil && got.Spent == nil {
				err = errors.New("the usage of the child is unknown")
			}
			return err
		}
		var short *memoryShortageError
		if err := usage(); !errors.As(err, &short) {
			t.Fatalf("a run that ends: %v, want a *memoryShortageError", err)
		}
		others.Release()
		if err := errors.Join(r.awaitMemory(t.Context(), short), usage()); err != nil {
			t.Errorf("a run that ends, when there is memory: %v", err)
		}
		if use := e.Memory.Use(bytebudget.Conversations); use.Bytes != 0 {
			t.Errorf("%d bytes are held, want none after the journal was read", use.Bytes)
		}
		if others, err = account.TryReserve(account.MaxReservation()); err != nil {
			t.Fatal(err)
		}

		if err := e.Unreserved.Enter(t.Context(), "helpdesk"); err != nil {
			t.Fatal(err)
		}
		done := make(chan error)
		go func() {
			got, err := callHelper(t.Context(), e, stored(t, e), func(c *tool.Call) { c.Attempt, c.TurnUID = 2, "uid-one" })
			if got.Spent == nil {
				err = fmt.Errorf("the usage of the child is unknown: %w", err)
			}
			done <- err
		}()
		synctest.Wait()
		select {
		case err := <-done:
			t.Fatalf("a call has read the journal without memory and outside the gate: %v", err)
		default:
		}
		e.Unreserved.Leave("helpdesk")
		if failure, ok := errors.AsType[*tool.Error](<-done); !ok || failure.Class != tool.OutcomeUnknown {
			t.Errorf("the call returns %v, want an unknown outcome", failure)
		}

		r.cancel()
		if err := usage(); !errors.As(err, &short) {
			t.Fatalf("a cancelled run: %v, want a *memoryShortageError, because the run may be in the gate Endings", err)
		}
		if err := errors.Join(r.awaitMemory(t.Context(), short), usage()); err != nil || !r.memory.unreserved {
			t.Errorf("a cancelled run, within the gate Unreserved: %v", err)
		}
		r.releaseMemory()
		if use := e.Memory.Use(bytebudget.Conversations); use.Bytes != others.Bytes() {
			t.Errorf("%d bytes are held, want only the %d of others", use.Bytes, others.Bytes())
		}
	})
}

// TestRefusalOfACheckKeepsItsMessage checks that a failure of mayCreate is not reported as a refusal of the Turn,
// although its cause is an answer of the API server, about another object.
func TestRefusalOfACheckKeepsItsMessage(t *testing.T) {
	e, _ := newExecutor(t, interceptor.Funcs{}, turnWith())
	want := &tool.Error{
		Class: tool.Unavailable, Message: "the consent of namespace \"tools\" could not be read",
		Err: apierrors.NewForbidden(v1alpha1.GroupVersion.WithResource("namespaces").GroupResource(), "tools", nil),
	}
	s := &subAgent{
		executor: e, parent: stored(t, e), caller: &v1alpha1.Agent{}, agent: "helper",
		mayCreate: func(context.Context) error { return want },
	}
	_, err := s.Call(t.Context(), tool.Call{
		Step: 1, CallID: "call-1", Arguments: json.RawMessage(`{"task": "Look it up."}`), Left: tool.Left{Time: time.Minute},
	})
	if failure, ok := errors.AsType[*tool.Error](err); !ok || failure != want || len(children(t, e)) != 0 {
		t.Errorf("error %v, want that of the check, and no Turn", err)
	}
}
