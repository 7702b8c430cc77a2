package executor

import (
	"context"
	"errors"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/interceptor"
	"sigs.k8s.io/controller-runtime/pkg/metrics"

	"github.com/capstan-dev/capstan/api/v1alpha1"
	"github.com/capstan-dev/capstan/internal/fairgate"
	"github.com/capstan-dev/capstan/internal/runtime/finalize"
	"github.com/capstan-dev/capstan/internal/runtime/loop"
	"github.com/capstan-dev/capstan/internal/runtime/model"
	"github.com/capstan-dev/capstan/internal/runtime/turn"
	"github.com/capstan-dev/capstan/internal/turnstatus"
)

func TestUpdate(t *testing.T) {
	for name, tc := range map[string]struct {
		funcs interceptor.Funcs
		// stored is the Turn in the API server, and read is the version that the executor has read.
		stored, read *v1alpha1.Turn
		epoch        int64
		wantWritten  bool
		wantErr      bool
	}{
		"writes a Turn that is bound to it":                        {failing(), turnWith(), turnWith(), 1, true, false},
		"writes after conflicts if the Turn is still bound to it":  {failing(conflict, conflict), turnWith(), turnWith(), 1, true, false},
		"writes no Turn that was bound elsewhere when it was read": {failing(), turnWith(), turnWith(boundTo("other", 1)), 1, false, false},
		"writes no Turn that was bound elsewhere since the read": {
			failing(conflict), turnWith(boundTo("other", 2)),
			turnWith(), 1, false, false,
		},
		"writes no Turn of a later run of its own": {
			failing(conflict), turnWith(boundTo(me, 2)),
			turnWith(), 1, false, false,
		},
		"writes no Turn that was handed back": {
			failing(conflict), turnWith(boundTo("", 1)),
			turnWith(), 1, false, false,
		},
		"writes no Turn that has ended": {failing(conflict), turnWith(finished), turnWith(), 1, false, false},
		"writes no new Turn of the same name": {
			failing(conflict),
			turnWith(func(t *v1alpha1.Turn) { t.UID = "new" }), turnWith(), 1, false, false,
		},
		"writes nothing, without an error, if the Turn is gone": {failing(notFound), turnWith(), turnWith(), 1, false, false},
		"writes nothing, without an error, if the Turn is gone after a conflict": {
			failing(conflict), nil,
			turnWith(), 1, false, false,
		},
		"returns an error of the API server": {failing(broken), turnWith(), turnWith(), 1, false, true},
		"returns an error after too many conflicts": {
			failing(manyConflicts()...),
			turnWith(), turnWith(), 1, false, true,
		},
	} {
		t.Run(name, func(t *testing.T) {
			var objects []client.Object
			if tc.stored != nil {
				objects = append(objects, tc.stored)
			}
			e, _ := newExecutor(t, tc.funcs, objects...)
			if tc.stored != nil {
				tc.read.ResourceVersion = stored(t, e).ResourceVersion
			}
			written, err := e.update(t.Context(), tc.read, tc.epoch,
				func(t *v1alpha1.Turn) { t.Status.StopReason = v1alpha1.StopCompleted })
			if (written != nil) != tc.wantWritten || (err != nil) != tc.wantErr {
				t.Fatalf("wrote %t, error %v; want %t, and an error: %t", written != nil, err, tc.wantWritten, tc.wantErr)
			}
			if tc.stored == nil {
				return
			}
			if got := stored(t, e).Status.StopReason == v1alpha1.StopCompleted; got != tc.wantWritten {
				t.Errorf("the API server has the write: %t, want %t", got, tc.wantWritten)
			}
			if tc.read.Status.StopReason != "" {
				t.Error("the Turn that was given must stay as it is: it may be the cache's")
			}
		})
	}
}

func manyConflicts() []error {
	all := make([]error, maxConflicts)
	for i := range all {
		all[i] = conflict
	}
	return all
}

func TestPersistRetriesUntilItSucceeds(t *testing.T) {
	e, _ := newExecutor(t, failing(broken, broken, conflict, errors.New("connection refused")), turnWith())
	read := stored(t, e)
	written, _ := e.persist(t.Context(), read, 1, func(t *v1alpha1.Turn) { t.Status.StopReason = v1alpha1.StopCompleted })
	if written == nil || stored(t, e).Status.StopReason != v1alpha1.StopCompleted {
		t.Error("a status must be written in the end, whatever the API server says at first")
	}
}

func TestStatusIsMadeAfterTheWritesGate(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		answer, made := make(chan struct{}), 0
		e, _ := newExecutor(t, interceptor.Funcs{
			SubResourceUpdate: func(context.Context, client.Client, string, client.Object, ...client.SubResourceUpdateOption) error {
				<-answer
				return nil
			},
		}, turnWith())
		e.Writes = fairgate.New(1, 1)
		read := stored(t, e)
		for range 3 {
			go func() { _, _ = e.update(t.Context(), read, 1, func(*v1alpha1.Turn) { made++ }) }()
		}
		if synctest.Wait(); made != 1 {
			t.Errorf("%d statuses were made while the first is written, want only the first", made)
		}
		ctx, cancel := context.WithCancel(t.Context())
		cancel()
		if _, err := e.update(ctx, read, 1, func(*v1alpha1.Turn) { made++ }); !errors.Is(err, context.Canceled) {
			t.Errorf("update = %v, want it to end with its context", err)
		}
		answer <- struct{}{}
		if synctest.Wait(); made != 2 {
			t.Errorf("%d statuses were made when the first was written, want one more", made)
		}
		e.Writes.Open() // as a stopping executor does
		if synctest.Wait(); made != 3 {
			t.Errorf("%d statuses were made after the gate was opened, want all 3", made)
		}
		close(answer)
	})
}

func TestPersistEndsWithItsContext(t *testing.T) {
	ctx, cancel := context.WithCancel(t.Context())
	e, _ := newExecutor(t, interceptor.Funcs{
		SubResourceUpdate: func(context.Context, client.Client, string, client.Object, ...client.SubResourceUpdateOption) error {
			cancel()
			return broken
		},
	}, turnWith())
	if written, err := e.persist(ctx, stored(t, e), 1, func(*v1alpha1.Turn) {}); written != nil || err == nil {
		t.Errorf("persist = %v, %v; want an error, because nothing was written", written, err)
	}
}

func TestSuspendResetsTheTimeLimit(t *testing.T) {
	e, _ := newExecutor(t, interceptor.Funcs{}, turnWith())
	r := &run{executor: e, turn: stored(t, e), epoch: 1}
	r.suspended.Store(true)
	r.writeOutcome(t.Context(), nil, &loop.Parked{Turns: []string{"child"}})
	got := stored(t, e)
	if a := got.Status.AwaitedTurns; len(a) != 1 || a[0] != "child" {
		t.Errorf("awaited %v, want the Turn that was just created, so that it is not created again if it is deleted", a)
	}
	if got.Status.StartTime != nil || got.BoundTo() != "" || got.Epoch() != 1 || got.StateReason() != v1alpha1.TurnReasonSuspended {
		t.Errorf("the Turn must be unbound, without a start, at its epoch: %+v", got.Status)
	}
}

// losingResponse makes the first write of a status fail with an error after the API server has applied the write.
func losingResponse(err error) interceptor.Funcs {
	lost := false
	return interceptor.Funcs{SubResourceUpdate: func(ctx context.Context, c client.Client, sub string, o client.Object,
		opts ...client.SubResourceUpdateOption,
	) error {
		if failure := c.SubResource(sub).Update(ctx, o, opts...); failure != nil || lost {
			return failure
		}
		lost = true
		return err
	}}
}

// endedTurns returns how many Turns the metrics count as ended.
func endedTurns(t *testing.T) (n float64) {
	t.Helper()
	families, err := metrics.Registry.Gather()
	if err != nil {
		t.Fatal(err)
	}
	for _, f := range families {
		if f.GetName() != "capstan_turns_total" {
			continue
		}
		for _, m := range f.GetMetric() {
			n += m.GetCounter().GetValue()
		}
	}
	return n
}

// TestEndWhoseWriteResponseIsLost checks that the end of a Turn causes one Event and counts once if the API server
// applies the write of the end and the response is lost.
func TestEndWhoseWriteResponseIsLost(t *testing.T) {
	for name, end := range map[string]func(context.Context, *run){
		"with a result": func(ctx context.Context, r *run) { r.finish(ctx, &turn.Result{Stop: turn.StopCompleted}) },
		"without a result": func(ctx context.Context, r *run) {
			r.endCutOff(ctx, &cutOffError{turnstatus.Cut{Stop: turn.StopInterrupted, Message: "a bug"}})
		},
	} {
		for how, response := range map[string]error{
			"error": broken,
			// After some errors, the client sends the request again by itself.
			"conflict": conflict,
		} {
			t.Run(name+", "+how, func(t *testing.T) {
				synctest.Test(t, func(t *testing.T) {
					e, _ := newExecutor(t, losingResponse(response), turnWith())
					start := time.Now()
					e.Now = func() time.Time { return now.Add(time.Since(start) + 123*time.Nanosecond) }
					r := newRun(t, e)
					before := endedTurns(t)
					end(t.Context(), r)
					if got := recorded(e); len(got) != 1 {
						t.Errorf("the Events are %q, want one about the end", got)
					}
					if n := endedTurns(t) - before; n != 1 {
						t.Errorf("%v Turns are counted, want 1", n)
					}
					if !r.turn.IsFinished() {
						t.Error("the run does not have the Turn as written")
					}
				})
			})
		}
	}
}

// TestEndOfAnotherWriterIsNotTheOwnEnd checks that an end that this process has not written causes no Event.
func TestEndOfAnotherWriterIsNotTheOwnEnd(t *testing.T) {
	e, _ := newExecutor(t, failing(conflict), turnWith(finished, func(t *v1alpha1.Turn) {
		t.Status.CompletionTime = new(metav1.NewMicroTime(now.Add(-time.Second)))
	}))
	r := &run{executor: e, turn: turnWith(), epoch: 1}
	r.finish(t.Context(), &turn.Result{Stop: turn.StopCompleted})
	if got := recorded(e); len(got) != 0 {
		t.Errorf("the Events are %q, want none", got)
	}
}

func TestFinishOfATurnBoundElsewhereEmitsNoEvent(t *testing.T) {
	e, _ := newExecutor(t, interceptor.Funcs{}, turnWith(boundTo("other", 2)))
	r := &run{executor: e, turn: turnWith(), epoch: 1}
	r.turn.ResourceVersion = "1"
	r.finish(t.Context(), &turn.Result{Stop: turn.StopCompleted})
	if got := recorded(e); len(got) > 0 {
		t.Errorf("the Events are %q, want none about an end that was not written", got)
	}
	if stored(t, e).IsFinished() {
		t.Error("an old run must not end a Turn of another run")
	}
}

func TestAnnounce(t *testing.T) {
	result := func(stop turn.Stop, change ...func(*turn.Result)) *turn.Result {
		r := &turn.Result{
			Stop: stop, Text: "a secret answer", Message: "a secret message", Counts: turn.Counts{ModelRequests: 1},
			Record: finalize.Record{Cost: &finalize.Cost{Amount: "0.5", Currency: "EUR"}},
		}
		r.Record.Usage.InputTokens, r.Record.Usage.OutputTokens = 2, 3
		for _, f := range change {
			f(r)
		}
		return r
	}
	fallback := func(r *turn.Result) { r.Fallback = &turn.Fallback{From: "a/x", To: "b/y", Reason: model.RateLimited} }
	resumed := func(r *turn.Result) { r.Counts.Resumes = 1 }
	warned := func(r *turn.Result) { r.Warned, r.Counts.Compactions = true, 2 }
	toolless := func(r *turn.Result) { r.ToolServersMissing = []string{"tickets", "wiki"} }
	const numbers = ", 5 tokens, cost 0.5 EUR, 1.0 s"
	for name, tc := range map[string]struct {
		result *turn.Result
		want   []string
	}{
		"an answer":        {result(turn.StopCompleted), []string{"Normal Succeeded Completed" + numbers}},
		"a preparation":    {result(turn.StopPrepared), []string{"Normal Succeeded Prepared" + numbers}},
		"a cancelled Turn": {result(turn.StopCancelled), []string{"Normal Cancelled Cancelled" + numbers}},
		"a failure": {
			result(turn.StopModelError, func(r *turn.Result) { r.Message = "provider \"a\": HTTP 500" }),
			[]string{"Warning Failed ModelFailed" + numbers + `: provider "a": HTTP 500`},
		},
		"an answer of a fallback": {
			result(turn.StopCompleted, fallback),
			[]string{"Warning FallbackUsed b/y answered in place of a/x (RateLimited)", "Normal Succeeded Completed" + numbers},
		},
		"a Turn that continued": {
			result(turn.StopCompleted, resumed),
			[]string{"Normal Resumed the turn continued from its journal (resumes 1, epoch 2)", "Normal Succeeded Completed" + numbers},
		},
		"a tool's answer": {result(turn.StopToolEnded), []string{"Normal Succeeded Completed" + numbers}},
		"a long conversation": {result(turn.StopCompleted, warned, resumed), []string{
			"Warning ContextWarning the conversation is close to the context window of its model (compactions 2)",
			"Normal Succeeded Completed" + numbers,
		}},
		"a fallback and a long conversation": {result(turn.StopCompleted, warned, fallback), []string{
			"Warning FallbackUsed b/y answered in place of a/x (RateLimited)", "Normal Succeeded Completed" + numbers,
		}},
		"without tools": {result(turn.StopCompleted, toolless, fallback, warned), []string{
			"Warning ToolsMissing the turn ran without the tools of ToolServers tickets, wiki, which had never " +
				"been reached when the turn began",
			"Warning FallbackUsed b/y answered in place of a/x (RateLimited)",
			"Normal Succeeded Completed" + numbers,
		}},
		"a fallback and a resume": {
			result(turn.StopCompleted, resumed, fallback),
			[]string{"Warning FallbackUsed b/y answered in place of a/x (RateLimited)", "Normal Succeeded Completed" + numbers},
		},
	} {
		t.Run(name, func(t *testing.T) {
			e, _ := newExecutor(t, interceptor.Funcs{}, turnWith(boundTo(me, 2)))
			r := &run{executor: e, turn: stored(t, e), epoch: 2}
			r.finish(t.Context(), tc.result)
			got := recorded(e)
			if diff := cmp.Diff(tc.want, got); diff != "" {
				t.Errorf("the Events differ (-want +got):\n%s", diff)
			}
			if strings.Contains(strings.Join(got, ""), "secret") {
				t.Error("an Event must not have texts of the Turn")
			}
			if d := stored(t, e).Status.DurationMilliseconds; d == nil || time.Duration(*d)*time.Millisecond != time.Second {
				t.Errorf("the duration is %v milliseconds, want 1000", d)
			}
		})
	}
}

// TestContextWarningIsEmittedImmediately checks that the Event is emitted immediately, and not again at the end.
func TestContextWarningIsEmittedImmediately(t *testing.T) {
	e, _ := newExecutor(t, interceptor.Funcs{}, turnWith(boundTo(me, 2)))
	r := &run{executor: e, turn: stored(t, e), epoch: 2}
	r.warnContext(loop.Warning{Tokens: 900, ContextWindow: 1000})
	const want = "Warning ContextWarning the conversation is close to the context window of its model: about 900 of 1000 tokens"
	if diff := cmp.Diff([]string{want}, recorded(e)); diff != "" {
		t.Errorf("the Events before the end: -want +got:\n%s", diff)
	}
	r.finish(t.Context(), &turn.Result{Stop: turn.StopCompleted, Warned: true})
	if got := recorded(e); len(got) != 1 || !strings.HasPrefix(got[0], "Normal Succeeded") {
		t.Errorf("the Events at the end are %q, want only the end", got)
	}
}

func TestTurnEndsAlthoughItsStatusIsRefused(t *testing.T) {
	e, _ := newExecutor(t, failing(refusal), append(surroundings(), turnWith())...)
	got := runTurn(t, e)
	if got.StateReason() != v1alpha1.TurnReasonModelFailed || got.Status.Preparation != nil {
		t.Fatalf("status %+v, want an end without the record: the API server would refuse it again", got.Status)
	}
	if m := got.Status.Conditions[0].Message; !strings.Contains(m, "the API server refused the status of the turn") {
		t.Errorf("message %q does not say why", m)
	}
}
