package journalgc

import (
	"context"
	"encoding/json"
	"errors"
	"slices"
	"testing"
	"time"

	"github.com/go-logr/logr"
	"github.com/google/go-cmp/cmp"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/fake"
	"sigs.k8s.io/controller-runtime/pkg/client/interceptor"

	"github.com/capstan-dev/capstan/api/v1alpha1"
	"github.com/capstan-dev/capstan/internal/executor"
	"github.com/capstan-dev/capstan/internal/recordkeeper"
	"github.com/capstan-dev/capstan/internal/runtime/journal"
	"github.com/capstan-dev/capstan/internal/runtime/loop"
	"github.com/capstan-dev/capstan/internal/runtime/model"
	"github.com/capstan-dev/capstan/internal/runtime/prepare"
	"github.com/capstan-dev/capstan/internal/runtime/prompt"
	"github.com/capstan-dev/capstan/internal/runtime/session"
	"github.com/capstan-dev/capstan/internal/runtime/tool"
	"github.com/capstan-dev/capstan/internal/runtime/turn"
	"github.com/capstan-dev/capstan/internal/runtime/turncontext"
	"github.com/capstan-dev/capstan/internal/runtime/turnrecord"
	"github.com/capstan-dev/capstan/internal/store"
	"github.com/capstan-dev/capstan/internal/store/sqlite"
	"github.com/capstan-dev/capstan/internal/store/sqlite/sqlitetest"
)

// asking is a model that calls the tool "look" once and then answers. Each reply uses 15 tokens.
type asking struct{}

func (asking) Generate(_ context.Context, r *model.Request) (*model.Reply, error) {
	used := model.Usage{InputTokens: 10, OutputTokens: 5}
	if r.Messages[len(r.Messages)-1].Role == model.RoleTool {
		return &model.Reply{Text: "There.", FinishReason: model.FinishStop, Usage: used}, nil
	}
	return &model.Reply{
		FinishReason: model.FinishToolCalls,
		ToolCalls:    []model.ToolCall{{ID: "c1", Name: "look", Arguments: "{}"}}, Usage: used,
	}, nil
}

// chargeEnv is a collector that charges Sessions. Its journals are in a file.
type chargeEnv struct {
	*Collector
	store  *sqlite.Store
	engine *turn.Engine
	api    client.WithWatch
	// failure is returned by writes to the status of a Session if it is not nil.
	failure error
}

func newChargeEnv(t *testing.T, objects ...client.Object) *chargeEnv {
	t.Helper()
	store := sqlitetest.Open(t)
	scheme := runtime.NewScheme()
	if err := v1alpha1.AddToScheme(scheme); err != nil {
		t.Fatal(err)
	}
	o := &chargeEnv{store: store}
	o.api = fake.NewClientBuilder().WithScheme(scheme).WithObjects(objects...).WithStatusSubresource(
		&v1alpha1.Session{}).WithInterceptorFuncs(interceptor.Funcs{
		SubResourceUpdate: func(ctx context.Context, c client.Client, sub string, object client.Object,
			opts ...client.SubResourceUpdateOption,
		) error {
			if o.failure != nil {
				return o.failure
			}
			return c.SubResource(sub).Update(ctx, object, opts...)
		},
	}).Build()
	now := time.Unix(1_000_000, 0)
	clock := func() time.Time { return now }
	o.engine = &turn.Engine{Journal: store, Now: clock}
	charger := executor.NewCharger(o.engine, o.api, o.api, nil, clock, logr.Discard())
	records := &recordkeeper.Keeper{
		Store: store, End: charger.EndFromObject, Charge: charger.ChargeFromStatus, Retention: 24 * time.Hour, Now: clock,
		Log: logr.Discard(),
	}
	o.Collector = &Collector{
		Store: store, Reader: o.api, Retention: time.Hour, Charge: charger.Charge, End: records.RecordDeleted, Log: logr.Discard(),
		Now: func() time.Time {
			now = now.Add(settleTime) // every hint is due at the next call
			return now
		},
	}
	return o
}

// begin runs the Turn uid-a of the Session until its tool call stops the run.
func (o *chargeEnv) begin(t *testing.T, stops func(interrupt, kill func()) (tool.Result, error)) error {
	t.Helper()
	life, kill := context.WithCancel(t.Context())
	defer kill()
	in := turn.Input{
		UID: "uid-a", Epoch: 1, Executor: "capstan-0", Namespace: "helpdesk", Name: "a", Timeout: time.Minute, Limit: time.Minute,
		Config: loop.Config{
			Chain:  []loop.Candidate{{ProviderName: "demo", Model: "m", Provider: asking{}, Retry: loop.Retry{MaxAttempts: 1}}},
			Limits: loop.Limits{MaxSteps: 6, MaxToolCalls: 25},
		},
		Session: &turn.Session{UID: "uid-talk", Name: "talk"},
		Preparation: func(context.Context) (prepare.Input, error) {
			return prepare.Input{
				Agent: prepare.Agent{Name: "helper"}, Now: time.Unix(1_000_000, 0).UTC(),
				Profile: prepare.Profile{
					Name: "house", ID: "house", Version: "1",
					Identity: &turncontext.Identity{SystemPrompt: "Be brief."},
				},
				Turn: prepare.Turn{Name: "a", Message: "Hello", Session: &turncontext.Session{ID: "talk"}},
			}, nil
		},
	}
	interrupt := make(chan struct{})
	in.Interrupt = interrupt
	in.Tools = []tool.Tool{{
		Tool: prompt.Tool{Name: "look", Description: "Looks it up."}, Effect: tool.ReadOnly, Schema: json.RawMessage(`{"type":"object"}`),
		Caller: tool.CallerFunc(func(context.Context, tool.Call) (tool.Result, error) { return stops(func() { close(interrupt) }, kill) }),
	}}
	_, err := o.engine.Run(life, new(in))
	return err
}

// totals holds the Turns and tokens in the Session's status and history, and whether the journal of the Turn is
// retired.
type totals struct {
	Turns, Tokens, HistoryTurns, HistoryTokens int64
	Retired                                    bool
}

func (o *chargeEnv) totals(t *testing.T) (got totals) {
	t.Helper()
	var s v1alpha1.Session
	if err := o.api.Get(t.Context(), client.ObjectKeyFromObject(sessionOf("talk")), &s); client.IgnoreNotFound(err) != nil {
		t.Fatal(err)
	}
	h, err := session.Latest(t.Context(), o.store, "uid-talk", nil)
	if err != nil {
		t.Fatal(err)
	}
	left, err := o.store.UIDs(t.Context(), "", 10)
	if err != nil {
		t.Fatal(err)
	}
	got = totals{
		Turns: s.Status.Turns, HistoryTurns: h.Totals.Turns, HistoryTokens: h.Totals.Usage.InputTokens + h.Totals.Usage.OutputTokens,
		Retired: !slices.Contains(left, "uid-a"),
	}
	if s.Status.Usage != nil {
		got.Tokens = s.Status.Usage.TotalTokens
	}
	return got
}

// endedUnbound returns the Turn a of the Session, which has ended without an executor.
func endedUnbound() *v1alpha1.Turn {
	one := turnOf("a")
	one.Spec.AgentRef.Name, one.Spec.SessionRef = "helper", &v1alpha1.ObjectReference{Name: "talk"}
	one.Status = v1alpha1.TurnStatus{
		Executor: &v1alpha1.ExecutorBinding{Epoch: 1}, CompletionTime: new(metav1.NewMicroTime(time.Unix(999_990, 0))),
		StopReason: v1alpha1.StopDeadline,
		Conditions: []metav1.Condition{{
			Type: v1alpha1.ConditionSucceeded, Status: metav1.ConditionFalse, Reason: v1alpha1.TurnReasonDeadlineExceeded,
		}},
	}
	return one
}

// record returns the record of the Turn a.
func (o *chargeEnv) record(t *testing.T) turnrecord.Record {
	t.Helper()
	all, _, err := o.store.Records(t.Context(), store.RecordQuery{})
	if err != nil || len(all) != 1 {
		t.Fatalf("the records are %+v, %v; want one", all, err)
	}
	return all[0]
}

// TestRecordOfTurnDeletedAfterItsEnd checks that the record of a Turn that is deleted soon after it ended without an
// executor has the reason and the time of its end, in whatever order the watches show the deletion. If its journal has
// lost entries, the record and the charge are made from its status.
func TestRecordOfTurnDeletedAfterItsEnd(t *testing.T) {
	for name, tc := range map[string]struct {
		entries int64
		tokens  int64
	}{"with its journal": {2, 15}, "with a part of its journal": {1000, 40}} {
		for order, leave := range map[string]func(o *chargeEnv, gone *v1alpha1.Turn){
			"deleted before it left": func(o *chargeEnv, gone *v1alpha1.Turn) { o.Deleted(gone); o.onLeave(turnOf("a")) },
			"deleted after it left":  func(o *chargeEnv, gone *v1alpha1.Turn) { o.onLeave(turnOf("a")); o.Deleted(gone) },
		} {
			t.Run(name+", "+order, func(t *testing.T) {
				o := newChargeEnv(t, sessionOf("talk"))
				killed := func(_, kill func()) (tool.Result, error) { kill(); return tool.Result{}, context.Canceled }
				if err := o.begin(t, killed); err == nil {
					t.Fatal("the Turn has ended, want its run to stop before the end")
				}
				gone := endedUnbound()
				gone.Status.Executor.JournalEntries = &tc.entries
				gone.Status.Usage = &v1alpha1.Usage{InputTokens: 30, OutputTokens: 10, TotalTokens: 40}
				leave(o, gone)
				o.followUp(t.Context())
				want := totals{Turns: 1, Tokens: tc.tokens, HistoryTurns: 1, HistoryTokens: tc.tokens, Retired: true}
				if diff := cmp.Diff(want, o.totals(t)); diff != "" {
					t.Errorf("totals (-want +got):\n%s", diff)
				}
				got := o.record(t)
				var tokens int64
				for _, m := range got.Models {
					tokens += m.Usage.InputTokens + m.Usage.OutputTokens
				}
				if got.Reason != v1alpha1.TurnReasonDeadlineExceeded || !got.Completed.Equal(gone.Status.CompletionTime.Time) ||
					got.Incomplete != (tc.tokens == 40) || tokens != tc.tokens {
					t.Errorf("record %+v, want the end of the object with %d tokens", got, tc.tokens)
				}
			})
		}
	}
}

// TestRecordOfTurnDeletedAfterItWasCutOff checks that a Turn that its executor ended without a result, because its
// journal was lost or could not be used, has a record if it is deleted soon after that, and that a Turn whose journal
// has its end costs nothing more.
func TestRecordOfTurnDeletedAfterItWasCutOff(t *testing.T) {
	for name, tc := range map[string]struct {
		finalized metav1.ConditionStatus
		ends      int
	}{
		"cut off":                  {metav1.ConditionFalse, 1},
		"ended without its result": {metav1.ConditionUnknown, 1},
		"ended with its result":    {metav1.ConditionTrue, 0},
	} {
		t.Run(name, func(t *testing.T) {
			o := newChargeEnv(t, sessionOf("talk"))
			killed := func(_, kill func()) (tool.Result, error) { kill(); return tool.Result{}, context.Canceled }
			if err := o.begin(t, killed); err == nil {
				t.Fatal("the Turn has ended, want its run to stop before the end")
			}
			gone, ends, end := endedUnbound(), 0, o.End
			gone.Status.Executor = &v1alpha1.ExecutorBinding{Name: "capstan-0", Epoch: 1, JournalEntries: new(int64(1000))}
			gone.Status.Conditions[0].Reason = v1alpha1.TurnReasonInterrupted
			gone.Status.Conditions = append(gone.Status.Conditions, metav1.Condition{
				Type: v1alpha1.ConditionFinalized, Status: tc.finalized,
			})
			o.End = func(ctx context.Context, one *v1alpha1.Turn) error {
				ends++
				return end(ctx, one)
			}
			o.Deleted(gone)
			o.followUp(t.Context())
			if ends != tc.ends {
				t.Fatalf("the end was handled %d times, want %d", ends, tc.ends)
			}
			if diff := cmp.Diff(totals{Retired: true}, o.totals(t)); diff != "" {
				t.Errorf("totals, want no charge besides that of the executor (-want +got):\n%s", diff)
			}
			if ends == 0 {
				return
			}
			if got := o.record(t); got.Reason != v1alpha1.TurnReasonInterrupted || !got.Incomplete {
				t.Errorf("record %+v, want one from the status", got)
			}
		})
	}
}

// TestDeletedTurnIsChargedToSession checks that a deleted Turn is charged with the usage in its journal, whatever
// stopped its run.
func TestDeletedTurnIsChargedToSession(t *testing.T) {
	for name, stops := range map[string]func(interrupt, kill func()) (tool.Result, error){
		"parked":      func(_, _ func()) (tool.Result, error) { return tool.Result{}, &tool.Pending{Turn: "child"} },
		"handed back": func(interrupt, _ func()) (tool.Result, error) { interrupt(); return tool.Result{Content: "found"}, nil },
		"killed":      func(_, kill func()) (tool.Result, error) { kill(); return tool.Result{}, context.Canceled },
	} {
		for how, find := range map[string]func(*testing.T, *chargeEnv){
			"seen by the watch": func(t *testing.T, o *chargeEnv) {
				o.onLeave(turnOf("a"))
				o.followUp(t.Context())
			},
			"ended without an executor": func(t *testing.T, o *chargeEnv) {
				o.Finished("uid-a")
				o.onLeave(turnOf("a"))
				o.Deleted(endedUnbound())
				o.followUp(t.Context())
			},
			"ended without an executor, and no longer ended": func(t *testing.T, o *chargeEnv) {
				gone := endedUnbound()
				gone.Status.CompletionTime = nil
				o.Deleted(gone)
				o.followUp(t.Context())
			},
			"found by a sweep": func(t *testing.T, o *chargeEnv) { o.report("sweep", o.sweep(t.Context())) },
			"found by a sweep of its namespace": func(t *testing.T, o *chargeEnv) {
				o.Namespaces, o.Namespace = []string{"sales", "helpdesk"}, o.engine.Namespace
				o.report("sweep", o.sweep(t.Context()))
			},
		} {
			t.Run(name+", "+how, func(t *testing.T) {
				o := newChargeEnv(t, sessionOf("talk"))
				if err := o.begin(t, stops); err == nil {
					t.Fatal("the Turn has ended, want its run to stop before the end")
				}
				o.failure = errors.New("etcd is away")
				find(t, o)
				if diff := cmp.Diff(totals{HistoryTurns: 1, HistoryTokens: 15}, o.totals(t)); diff != "" {
					t.Fatalf("totals while the Session cannot be written (-want +got):\n%s", diff)
				}
				o.failure = nil
				want := totals{Turns: 1, Tokens: 15, HistoryTurns: 1, HistoryTokens: 15, Retired: true}
				for range 2 {
					find(t, o)
					if diff := cmp.Diff(want, o.totals(t)); diff != "" {
						t.Errorf("totals (-want +got):\n%s", diff)
					}
				}
				if missing, err := o.store.Unrecorded(t.Context(), []string{"uid-a"}); err != nil || len(missing) > 0 {
					t.Errorf("the Turns %v have no record (error %v), want one", missing, err)
				}
				all, err := journal.Collect(t.Context(), o.store, "uid-a")
				if err != nil || all[len(all)-1].Kind != journal.Finalized {
					t.Errorf("the journal has %d entries, %v; want the last entry to be the end of the Turn", len(all), err)
				}
			})
		}
	}
}

// TestDeletedSessionIsNotCharged checks a deleted Turn whose Session was deleted, too: the journal of the Turn is
// retired, and no other Session is charged.
func TestDeletedSessionIsNotCharged(t *testing.T) {
	other := sessionOf("talk")
	other.ObjectMeta = metav1.ObjectMeta{Namespace: "helpdesk", Name: "talk", UID: "uid-other"}
	for name, objects := range map[string][]client.Object{"gone": nil, "recreated": {other}} {
		t.Run(name, func(t *testing.T) {
			o := newChargeEnv(t, objects...)
			if err := o.begin(t, func(_, kill func()) (tool.Result, error) { kill(); return tool.Result{}, context.Canceled }); err == nil {
				t.Fatal("the Turn has ended, want its run to stop before the end")
			}
			if err := o.sweep(t.Context()); err != nil {
				t.Fatal(err)
			}
			if diff := cmp.Diff(totals{Retired: true}, o.totals(t)); diff != "" {
				t.Errorf("totals (-want +got):\n%s", diff)
			}
		})
	}
}

// TestJournalsOfANewerVersionAreLeft checks that the journals of deleted Turns that only a newer version can end are
// not retired, and do not delay the journals of other Turns.
func TestJournalsOfANewerVersionAreLeft(t *testing.T) {
	newer := []string{"b", "c", "d", "e", "f"} // more than maxFailures
	for how, find := range map[string]func(*testing.T, *chargeEnv){
		"seen by the watch": func(t *testing.T, o *chargeEnv) {
			for _, name := range append(newer, "a") {
				o.onLeave(turnOf(name))
			}
			o.followUp(t.Context())
			if o.pause != nil {
				t.Error("all hints pause, want no pause: nothing has failed")
			}
		},
		"found by a sweep": func(t *testing.T, o *chargeEnv) {
			if err := o.sweep(t.Context()); err != nil {
				t.Errorf("sweep: %v", err)
			}
		},
	} {
		t.Run(how, func(t *testing.T) {
			o := newChargeEnv(t, sessionOf("talk"))
			if err := o.begin(t, func(_, kill func()) (tool.Result, error) { kill(); return tool.Result{}, context.Canceled }); err == nil {
				t.Fatal("the Turn has ended, want its run to stop before the end")
			}
			var want []string
			for _, name := range newer {
				e := journal.Entry{
					Seq: 1, Epoch: 1, Kind: journal.RunStarted, Version: journal.PayloadVersion + 1, Payload: []byte("{}"),
					Namespace: "helpdesk",
				}
				if err := o.store.Append(t.Context(), "uid-"+name, e); err != nil {
					t.Fatal(err)
				}
				want = append(want, "uid-"+name)
			}
			for range 2 {
				find(t, o)
				left, err := o.store.UIDs(t.Context(), "", 10)
				left = slices.DeleteFunc(left, func(uid string) bool { return uid == "uid-talk" })
				if err != nil || !slices.Equal(left, want) {
					t.Errorf("%v are left, %v; want %v, because a newer version ends these Turns", left, err, want)
				}
			}
		})
	}
}
