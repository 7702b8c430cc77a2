package controller

import (
	"context"
	"errors"
	"io"
	"strconv"
	"testing"
	"testing/synctest"
	"time"

	"github.com/go-logr/logr"
	"github.com/google/go-cmp/cmp"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/interceptor"

	"github.com/capstan-dev/capstan/api/v1alpha1"
)

// journalCalls records the calls to Journals.
type journalCalls struct{ finished, deleted []string }

func (j *journalCalls) Finished(uid types.UID) { j.finished = append(j.finished, string(uid)) }

func (j *journalCalls) Deleted(o client.Object) { j.deleted = append(j.deleted, o.GetName()) }

// newFinished returns a FinishedTurns on an API server in memory. It must be called within a synctest bubble.
func newFinished(t *testing.T, funcs interceptor.Funcs, objects ...client.Object) (*FinishedTurns, *journalCalls) {
	t.Helper()
	b := newTestEnv(t, funcs, objects...)
	start, journals := time.Now(), &journalCalls{}
	f := &FinishedTurns{
		Client: b.client, Reader: b.client, Journals: journals, Log: logr.Discard(),
		Now:   func() time.Time { return now.Add(time.Since(start)) },
		queue: newFinishedQueue(),
	}
	done := make(chan struct{})
	go func() {
		defer close(done)
		f.work(t.Context())
	}()
	t.Cleanup(func() {
		f.queue.ShutDown()
		<-done
	})
	return f, journals
}

func changed(t *v1alpha1.Turn) { t.Generation = 2 }

func TestFinishedTurns(t *testing.T) {
	for name, tc := range map[string]struct {
		reason string
		turn   *v1alpha1.Turn
		funcs  interceptor.Funcs
		// at is when the Turn is handled, counted from its first event.
		at           time.Duration
		wantGone     bool
		wantObserved int64
	}{
		"Kept":   {reason: "it has no time to live", turn: turnWith(finished(0)), at: 1000 * time.Hour, wantObserved: 1},
		"NotYet": {reason: "its time is not over", turn: turnWith(finished(0), withTTL(60)), at: 59 * time.Second, wantObserved: 1},
		"Over":   {reason: "its time is over", turn: turnWith(finished(0), withTTL(60)), at: 61 * time.Second, wantGone: true},
		"OverBefore": {
			reason: "its time was over before the process started",
			turn:   turnWith(finished(time.Hour), withTTL(60)), at: time.Second, wantGone: true,
		},
		"Changed": {
			reason: "people wait for the newest generation to be observed",
			turn:   turnWith(finished(0), changed), at: time.Second, wantObserved: 2,
		},
		"ChangedAndOver": {
			reason: "its time is over", turn: turnWith(finished(0), changed, withTTL(60)), at: 61 * time.Second, wantGone: true,
		},
		"Broken": {
			reason: "a failed write is retried", funcs: failStatusWrites(broken, broken), turn: turnWith(finished(0), changed),
			at: time.Minute, wantObserved: 2,
		},
		"Conflict": {
			reason: "a conflicting write is retried", funcs: failStatusWrites(conflict), turn: turnWith(finished(0), changed),
			at: time.Second, wantObserved: 2,
		},
		"BeingDeleted": {
			reason: "only a finalizer keeps it", at: time.Hour, wantObserved: 1,
			turn: turnWith(finished(0), withTTL(1), func(t *v1alpha1.Turn) {
				t.DeletionTimestamp, t.Finalizers = &metav1.Time{Time: now}, []string{"example.com/keep"}
			}),
		},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				f, journals := newFinished(t, tc.funcs, tc.turn)
				store := finishedStore{f}
				if err := store.Add(tc.turn); err != nil {
					t.Fatal(err)
				}
				// What is left of a Turn in the list of all Turns must lead to the same decision.
				left, err := store.Transformer()(tc.turn.DeepCopy())
				if err != nil {
					t.Fatal(err)
				}
				reduced := left.(*v1alpha1.Turn)
				whole, part := decide(snapshot{turn: tc.turn, now: f.Now()}), decide(snapshot{turn: reduced, now: f.Now()})
				if whole.action != part.action || whole.after != part.after || reduced.UID != tc.turn.UID {
					t.Errorf("the whole Turn is handled as %+v, its reduced form %+v as %+v", whole, reduced, part)
				}
				time.Sleep(tc.at)
				synctest.Wait()
				var got v1alpha1.Turn
				err = f.Reader.Get(t.Context(), client.ObjectKeyFromObject(tc.turn), &got)
				if gone := err != nil; gone != tc.wantGone || got.Status.ObservedGeneration != tc.wantObserved {
					t.Errorf("%s: deleted %t, observed generation %d; want %t, %d", tc.reason, gone,
						got.Status.ObservedGeneration, tc.wantGone, tc.wantObserved)
				}
				if diff := cmp.Diff([]string{"uid-one"}, journals.finished); diff != "" {
					t.Errorf("calls to Journals (-want +got):\n%s", diff)
				}
			})
		})
	}
}

// TestChangedTimeToLiveApplies checks that the time to live may be shortened and lengthened after the end.
func TestChangedTimeToLiveApplies(t *testing.T) {
	for name, tc := range map[string]struct{ before, after int32 }{"shortened": {3600, 60}, "lengthened": {30, 60}} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				turn := turnWith(finished(0), withTTL(tc.before))
				f, _ := newFinished(t, interceptor.Funcs{}, turn)
				store := finishedStore{f}
				if err := store.Replace([]any{turn}, "1"); err != nil {
					t.Fatal(err)
				}
				var stored v1alpha1.Turn
				key := client.ObjectKeyFromObject(turn)
				if err := f.Reader.Get(t.Context(), key, &stored); err != nil {
					t.Fatal(err)
				}
				withTTL(tc.after)(&stored)
				if err := errors.Join(f.Client.Update(t.Context(), &stored), store.Update(&stored)); err != nil {
					t.Fatal(err)
				}
				time.Sleep(59 * time.Second)
				synctest.Wait()
				if err := f.Reader.Get(t.Context(), key, &stored); err != nil {
					t.Errorf("the Turn must be kept for 60 s: %v", err)
				}
				time.Sleep(2 * time.Second)
				synctest.Wait()
				if err := f.Reader.Get(t.Context(), key, &stored); err == nil {
					t.Error("the Turn must be deleted after 60 s")
				}
			})
		})
	}
}

// expiredObjects records the notes of a MemoryKeeper.
type expiredObjects struct {
	// notes holds the notes that are set, by the UID of the object.
	notes map[string]time.Time
	// failures are the results of the next calls. A failed call sets no note.
	failures []error
}

func (e *expiredObjects) SetExpired(_ context.Context, uid string, until time.Time) error {
	var err error
	if len(e.failures) > 0 {
		err, e.failures = e.failures[0], e.failures[1:]
	}
	if err != nil {
		return err
	}
	if e.notes == nil {
		e.notes = map[string]time.Time{}
	}
	e.notes[uid] = until
	if until.IsZero() {
		delete(e.notes, uid)
	}
	return nil
}

// TestMemoriesOutliveOnlyADeletedTurn checks that the memories of a Turn outlive the Turn if it is deleted because its
// time to live is over, and for a short time also if the result of the deletion is not known. If the API server refuses
// the deletion, people may delete the Turn later, together with its memories.
func TestMemoriesOutliveOnlyADeletedTurn(t *testing.T) {
	timeout, away := apierrors.NewTimeoutError("the API server is slow", 1), errors.New("the store is away")
	var none time.Time
	soon := now.Add(10 * time.Minute)
	slow := errors.New("the API server does not answer")
	for name, tc := range map[string]struct {
		deleted error
		noted   []error
		// found is what the API server has under the name of the Turn after the deletion. read is the error of this
		// read.
		found     *v1alpha1.Turn
		read      error
		until     time.Time
		deletions int
		failure   error
	}{
		"deleted":       {nil, nil, nil, nil, forever, 1, nil},
		"deleted twice": {notFound, nil, nil, nil, forever, 1, nil},
		"changed":       {conflict, nil, turnWith(), nil, none, 1, conflict},
		"forbidden":     {forbidden, nil, turnWith(), nil, none, 1, forbidden},
		"timeout":       {timeout, nil, turnWith(), nil, soon, 1, timeout},
		"cut off":       {io.ErrUnexpectedEOF, nil, turnWith(), nil, soon, 1, io.ErrUnexpectedEOF},
		"store away":    {nil, []error{away}, nil, nil, none, 0, away},
		// An earlier deletion, whose result was not known, has succeeded.
		"deleted and created again": {
			conflict, nil, turnWith(func(t *v1alpha1.Turn) { t.UID = "another" }), nil, forever, 1, nil,
		},
		"deleted in the meantime":        {conflict, nil, nil, nil, forever, 1, nil},
		"conflict, and nothing is known": {conflict, nil, nil, slow, soon, 1, slow},
		// The note that was set before the deletion runs out.
		"store away after the deletion":       {nil, []error{nil, away}, nil, nil, soon, 1, away},
		"store away after another's deletion": {notFound, []error{nil, away}, nil, nil, soon, 1, away},
		"store away after a refusal":          {conflict, []error{nil, away}, turnWith(), nil, soon, 1, away},
	} {
		t.Run(name, func(t *testing.T) {
			turn, m, deletions := turnWith(finished(0), withTTL(0)), &expiredObjects{failures: tc.noted}, 0
			c := interceptor.NewClient(inMemory(t, turn), interceptor.Funcs{Delete: func(
				context.Context, client.WithWatch, client.Object, ...client.DeleteOption,
			) error {
				deletions++
				if got := m.notes[string(turn.UID)]; !got.Equal(soon) {
					t.Errorf("when the Turn is deleted, the note about its memories counts until %s, want %s", got, soon)
				}
				return tc.deleted
			}})
			live := interceptor.NewClient(inMemory(t), interceptor.Funcs{Get: func(
				_ context.Context, _ client.WithWatch, _ client.ObjectKey, o client.Object, _ ...client.GetOption,
			) error {
				switch {
				case tc.read != nil:
					return tc.read
				case tc.found == nil:
					return notFound
				}
				o.SetUID(tc.found.UID)
				return nil
			}})
			err := removeTurn(t.Context(), c, live, m, turn, now)
			if got := m.notes[string(turn.UID)]; !errors.Is(err, tc.failure) || deletions != tc.deletions || !got.Equal(tc.until) {
				t.Errorf("removeTurn = %v after %d deletions, and the note counts until %s; want %v, %d, %s",
					err, deletions, got, tc.failure, tc.deletions, tc.until)
			}
		})
	}
}

// TestChangedTurnIsNotDeleted checks that a Turn is not deleted if its time to live was extended since it was read.
func TestChangedTurnIsNotDeleted(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		deletes := 0
		funcs := interceptor.Funcs{Delete: func(ctx context.Context, c client.WithWatch, o client.Object,
			opts ...client.DeleteOption,
		) error {
			if deletes++; deletes == 1 {
				var stored v1alpha1.Turn
				if err := c.Get(ctx, client.ObjectKeyFromObject(o), &stored); err != nil {
					return err
				}
				withTTL(3600)(&stored)
				return errors.Join(c.Update(ctx, &stored), conflict)
			}
			return c.Delete(ctx, o, opts...)
		}}
		turn := turnWith(finished(0), withTTL(0))
		f, _ := newFinished(t, funcs, turn)
		f.enqueueIfDue(turn)
		time.Sleep(time.Minute)
		synctest.Wait()
		if err := f.Reader.Get(t.Context(), client.ObjectKeyFromObject(turn), turn); err != nil || deletes != 1 {
			t.Errorf("%d deletes, %v; want the Turn kept", deletes, err)
		}
	})
}

func TestJournalsReceiveDeletions(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f, journals := newFinished(t, interceptor.Funcs{})
		if err := (finishedStore{f}).Delete(turnWith(finished(0))); err != nil {
			t.Fatal(err)
		}
		if diff := cmp.Diff([]string{"one"}, journals.deleted); diff != "" {
			t.Errorf("calls to Journals (-want +got):\n%s", diff)
		}
	})
}

// recordCalls records the calls to Records.
type recordCalls struct {
	finished []string
	missed   int
}

func (r *recordCalls) Finished(t *v1alpha1.Turn) { r.finished = append(r.finished, t.Name) }

func (r *recordCalls) Missed() { r.missed++ }

// TestRecordsReceiveGapsOfTheWatch checks that each list of all finished Turns is reported, because Turns that finished
// before it do not appear in the watch.
func TestRecordsReceiveGapsOfTheWatch(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f, _ := newFinished(t, interceptor.Funcs{})
		records := &recordCalls{}
		f.Records = records
		for want := range 2 {
			if err := (finishedStore{f}).Replace([]any{turnWith(finished(0))}, "1"); err != nil || records.missed != want+1 {
				t.Errorf("error %v and %d gaps after %d lists", err, records.missed, want+1)
			}
		}
		if err := (finishedStore{f}).Add(turnWith(finished(0))); err != nil {
			t.Fatal(err)
		}
		if diff := cmp.Diff([]string{"one"}, records.finished); diff != "" || records.missed != 2 {
			t.Errorf("after an event of the watch: %d gaps, Turns (-want +got):\n%s", records.missed, diff)
		}
	})
}

func TestFinishedTurnIsReducedToDecidingFields(t *testing.T) {
	whole := turnWith(finished(time.Minute), withTTL(600), changed, func(t *v1alpha1.Turn) {
		t.Labels, t.Status.Result = map[string]string{"a": "b"}, &v1alpha1.TurnResult{Text: "a long answer"}
	})
	held, err := finishedStore{}.Transformer()(whole)
	if err != nil {
		t.Fatal(err)
	}
	cut := held.(*v1alpha1.Turn)
	if cut.Spec.Message != "" || cut.Status.Result != nil || cut.Labels != nil {
		t.Errorf("%+v is held, want only the fields that decisions need", cut)
	}
	if got, want := decide(snapshot{turn: cut, now: now}), decide(snapshot{turn: whole, now: now}); got != want {
		t.Errorf("decided %+v, want %+v as for the complete Turn", got, want)
	}
}

// TestNoNamespaceOccupiesTheWorkersForFinishedTurns checks that the Turns of one namespace leave workers for others.
func TestNoNamespaceOccupiesTheWorkersForFinishedTurns(t *testing.T) {
	queue := newFinishedQueue()
	defer queue.ShutDown()
	add := func(namespace string, n int) {
		for i := range n {
			queue.Add(ctrl.Request{NamespacedName: types.NamespacedName{Namespace: namespace, Name: strconv.Itoa(i)}})
		}
	}
	add("many", 1000)
	add("few", 1)
	got := map[string]int{}
	for range finishedOfNamespace + 1 {
		request, _ := queue.Get()
		got[request.Namespace]++
	}
	if got["few"] != 1 {
		t.Errorf("the workers have the Turns of %v, want one of the namespace with few", got)
	}
}
