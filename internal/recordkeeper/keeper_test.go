package recordkeeper

import (
	"context"
	"errors"
	"fmt"
	"testing"
	"testing/synctest"
	"time"

	"github.com/go-logr/logr"
	"github.com/google/go-cmp/cmp"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/fake"

	"github.com/capstan-dev/capstan/api/v1alpha1"
	"github.com/capstan-dev/capstan/internal/bytebudget"
	"github.com/capstan-dev/capstan/internal/runtime/budget"
	"github.com/capstan-dev/capstan/internal/runtime/journal"
	"github.com/capstan-dev/capstan/internal/runtime/journal/journaltest"
	"github.com/capstan-dev/capstan/internal/runtime/loop"
	"github.com/capstan-dev/capstan/internal/runtime/memories"
	"github.com/capstan-dev/capstan/internal/runtime/task"
	"github.com/capstan-dev/capstan/internal/runtime/turnrecord"
	"github.com/capstan-dev/capstan/internal/store"
)

var now = time.Date(2026, 6, 11, 15, 4, 5, 0, time.UTC)

// ended returns a Turn that ended some minutes ago.
func ended(name string, minutes int) *v1alpha1.Turn {
	return &v1alpha1.Turn{
		ObjectMeta: metav1.ObjectMeta{
			Namespace: "helpdesk", Name: name, UID: types.UID("uid-" + name), Labels: map[string]string{"team": "red", "x": "y"},
		},
		Spec: v1alpha1.TurnSpec{AgentRef: v1alpha1.SharedReference{Name: "desk"}, SessionRef: &v1alpha1.ObjectReference{Name: "talk"}},
		Status: v1alpha1.TurnStatus{
			CompletionTime: new(metav1.NewMicroTime(now.Add(-time.Duration(minutes) * time.Minute))),
			Conditions: []metav1.Condition{{
				Type: v1alpha1.ConditionSucceeded, Status: metav1.ConditionFalse, Reason: v1alpha1.TurnReasonQueueFull,
			}},
		},
	}
}

// hint returns a Turn that has ended, with any UID.
func hint(name, uid string) *v1alpha1.Turn {
	t := ended(name, 1)
	t.UID = types.UID(uid)
	return t
}

func keeper(t *testing.T, s Store, turns ...client.Object) *Keeper {
	t.Helper()
	scheme := runtime.NewScheme()
	if err := v1alpha1.AddToScheme(scheme); err != nil {
		t.Fatal(err)
	}
	c := fake.NewClientBuilder().WithScheme(scheme).WithObjects(turns...).Build()
	return &Keeper{
		Store: s, Reader: selecting{c}, Labels: []string{"team"}, Retention: 24 * time.Hour, MostPerNamespace: 100,
		Now: func() time.Time { return now }, Log: logr.Discard(),
	}
}

// selecting is a reader that applies the field selectors of a Keeper, which the fake client does not support for "not
// equal".
type selecting struct{ client.Reader }

// List lists the metadata of Turns.
func (s selecting) List(ctx context.Context, list client.ObjectList, opts ...client.ListOption) error {
	var all v1alpha1.TurnList
	o := (&client.ListOptions{}).ApplyOptions(opts)
	if err := s.Reader.List(ctx, &all, client.InNamespace(o.Namespace)); err != nil {
		return err
	}
	out, ok := list.(*metav1.PartialObjectMetadataList)
	if !ok {
		return fmt.Errorf("a list of %T, want one of metadata", list)
	}
	for i := range all.Items {
		t, of := &all.Items[i], fields.Set{}
		if end := t.Status.CompletionTime; end != nil {
			of[fieldCompletion] = end.String()
		}
		if b := t.Status.Executor; b != nil {
			of[fieldExecutor] = b.Name
		}
		if ref := t.Spec.SessionRef; ref != nil {
			of[fieldSession] = ref.Name
		}
		if o.FieldSelector.Matches(of) {
			out.Items = append(out.Items, metav1.PartialObjectMetadata{ObjectMeta: t.ObjectMeta})
		}
	}
	return nil
}

func recordsByTurn(t *testing.T, s store.Records) map[string]turnrecord.Record {
	t.Helper()
	all, _, err := s.Records(t.Context(), store.RecordQuery{})
	if err != nil {
		t.Fatal(err)
	}
	byTurn := map[string]turnrecord.Record{}
	for _, r := range all {
		byTurn[r.Turn] = r
	}
	return byTurn
}

func TestRoundAddsMissingRecordsOnce(t *testing.T) {
	s := &journaltest.Store{}
	known := turnrecord.Record{UID: "uid-known", Namespace: "helpdesk", Turn: "known", Reason: "Completed", Completed: now}
	if _, err := s.AddRecords(t.Context(), known); err != nil {
		t.Fatal(err)
	}
	running := ended("running", 0)
	running.Status = v1alpha1.TurnStatus{}
	k := keeper(t, s, ended("a", 1), ended("known", 2), ended("old", 25*60), running)
	for range 2 {
		if err := k.Round(t.Context()); err != nil {
			t.Fatal(err)
		}
	}
	got := recordsByTurn(t, s)
	a := got["a"]
	if len(got) != 2 || got["known"].Reason != "Completed" || a.Agent != "desk" || a.Session != "talk" || a.Reason != "QueueFull" ||
		fmt.Sprint(a.Labels) != "map[team:red]" || !a.Completed.Equal(now.Add(-time.Minute)) || !a.Incomplete {
		t.Errorf("records %+v; want the existing record, and a new record of Turn a with its selected label", got)
	}
}

// TestJournalIsPreferredToStatus checks that the status is the source of a record only if the journal is not, and that
// a failure of one journal does not keep other Turns from their records.
func TestJournalIsPreferredToStatus(t *testing.T) {
	s := &journaltest.Store{}
	k := keeper(t, s, ended("journal", 1), ended("damaged", 2), ended("failing", 3))
	failure := errors.New("the turns of its sub-agents have not ended yet")
	k.End = func(ctx context.Context, turn *v1alpha1.Turn) (bool, error) {
		switch turn.Name {
		case "journal":
			_, err := s.AddRecords(ctx, turnrecord.Record{
				UID: string(turn.UID), Namespace: turn.Namespace, Turn: turn.Name, Completed: now,
			})
			return true, err
		case "failing":
			return false, failure
		}
		return false, nil
	}
	if err := k.Round(t.Context()); !errors.Is(err, failure) {
		t.Errorf("Round: %v, want the failure", err)
	}
	got := recordsByTurn(t, s)
	if len(got) != 2 || got["journal"].Incomplete || !got["damaged"].Incomplete {
		t.Errorf("records %+v, want one record from a journal and one from a status", got)
	}
	failure = nil
	if err := k.Round(t.Context()); err != nil || len(recordsByTurn(t, s)) != 3 {
		t.Errorf("Round: %v with records %v, want all three records", err, recordsByTurn(t, s))
	}
}

// TestRecordsDoNotWaitForChildrenForever checks that a Turn whose sub-agent never ends has a record after an hour.
func TestRecordsDoNotWaitForChildrenForever(t *testing.T) {
	s := &journaltest.Store{}
	k := keeper(t, s, ended("new", 59), ended("old", 61))
	k.End = func(context.Context, *v1alpha1.Turn) (bool, error) {
		return false, fmt.Errorf("the journal cannot end: %w", &loop.Parked{Turns: []string{"child"}})
	}
	err := k.Round(t.Context())
	if got := recordsByTurn(t, s); err != nil || len(got) != 1 || !got["old"].Incomplete {
		t.Errorf("Round: %v with records %v, want one record, from the status of the old Turn", err, got)
	}
}

// TestSessionIsChargedBeforeTheRecord checks that the Session of a Turn is charged from the status before the record is
// made from the status, and that the charge is repeated if it fails.
func TestSessionIsChargedBeforeTheRecord(t *testing.T) {
	for name, tc := range map[string]struct {
		retention time.Duration
		ended     bool
		end       error
		charges   int
		records   int
	}{
		"its journal cannot be used":      {24 * time.Hour, false, nil, 2, 1},
		"its sub-agent never ends":        {24 * time.Hour, false, &loop.Parked{Turns: []string{"child"}}, 2, 1},
		"no record is kept":               {0, false, nil, 2, 0},
		"its journal is ended":            {24 * time.Hour, true, nil, 0, 1},
		"its journal cannot be ended yet": {24 * time.Hour, false, errors.New("the store is away"), 0, 0},
	} {
		t.Run(name, func(t *testing.T) {
			s := &journaltest.Store{}
			k := keeper(t, s, ended("a", 61))
			k.Retention = tc.retention
			failure, charges := errors.New("the API server is away"), 0
			k.End = func(ctx context.Context, _ *v1alpha1.Turn) (bool, error) {
				if !tc.ended {
					return false, tc.end
				}
				_, err := s.AddRecords(ctx, turnrecord.Record{UID: "uid-a", Namespace: "helpdesk", Turn: "a", Completed: now})
				return true, err
			}
			k.Charge = func(context.Context, *v1alpha1.Turn) error {
				charges++
				return failure
			}
			err := k.Round(t.Context())
			if got := recordsByTurn(t, s); errors.Is(err, failure) != (tc.charges > 0) || !tc.ended && len(got) > 0 {
				t.Errorf("Round: %v with the records %v, want the failure of the charge and no record", err, got)
			}
			failure = nil
			for range 2 {
				if err := k.Round(t.Context()); !errors.Is(err, tc.end) && tc.charges == 0 {
					t.Fatal(err)
				}
			}
			if got := recordsByTurn(t, s); charges != tc.charges || len(got) != tc.records {
				t.Errorf("%d charges and the records %v, want %d and %d", charges, got, tc.charges, tc.records)
			}
		})
	}
}

// TestRecordedTurnIsCharged checks Turns that have a record, because an executor has written their ends into their
// journals before it was killed. The Session is charged once if the Turn then ended without an executor, whether a hint
// or a round finds it, and the charge is repeated if it fails.
func TestRecordedTurnIsCharged(t *testing.T) {
	unbound := func(name string) *v1alpha1.Turn {
		one := ended(name, 1)
		one.Status.Executor = &v1alpha1.ExecutorBinding{Epoch: 1}
		return one
	}
	bound, alone := unbound("bound"), unbound("alone")
	bound.Status.Executor.Name, alone.Spec.SessionRef = "capstan-0", nil
	turns := []client.Object{unbound("a"), unbound("b"), bound, alone, ended("refused", 1)}
	for how, find := range map[string]func(k *Keeper) error{
		"by a round": func(k *Keeper) error { return k.Round(t.Context()) },
		"by hints": func(k *Keeper) error {
			for _, o := range turns {
				if one, ok := o.(*v1alpha1.Turn); ok {
					k.Finished(one)
				}
			}
			k.Finished(hint("a", "uid-of-another-turn-of-this-name"))
			k.Finished(unbound("gone"))
			return k.record(t.Context(), k.takeHints())
		},
	} {
		for name, failure := range map[string]error{
			"no failure": nil, "the store is away": errors.New("the store is away"), "no memory": bytebudget.ErrShort,
		} {
			t.Run(how+", "+name, func(t *testing.T) {
				s := &journaltest.Store{}
				for _, o := range append(turns, unbound("gone")) {
					r := turnrecord.Record{UID: string(o.GetUID()), Namespace: "helpdesk", Turn: o.GetName(), Completed: now}
					if _, err := s.AddRecords(t.Context(), r); err != nil {
						t.Fatal(err)
					}
				}
				k := keeper(t, s, turns...)
				charges, fails := map[string]int{}, failure
				k.End = func(_ context.Context, one *v1alpha1.Turn) (bool, error) {
					if one.Name == "b" && fails != nil {
						return false, fails
					}
					charges[one.Name]++
					return false, nil
				}
				err := find(k)
				if waits := errors.Is(failure, bytebudget.ErrShort); waits && err != nil || !waits && !errors.Is(err, failure) {
					t.Fatalf("got %v, want an error if the charge has failed", err)
				}
				if (failure != nil) != (len(k.waiting) == 1) {
					t.Errorf("the Turns %v wait, want a Turn that could not be charged", k.waiting)
				}
				fails = nil
				for range 3 {
					if err := errors.Join(k.record(t.Context(), k.takeWaiting()), find(k), k.Round(t.Context())); err != nil {
						t.Fatal(err)
					}
				}
				if diff := cmp.Diff(map[string]int{"a": 1, "b": 1}, charges); diff != "" {
					t.Errorf("charges (-want +got):\n%s", diff)
				}
			})
		}
	}
}

// TestRecordOfADeletedTurn checks that a deleted Turn gets a record from its last state if its journal does not give it
// one, and if the record would be kept.
func TestRecordOfADeletedTurn(t *testing.T) {
	failure := errors.New("the store is away")
	for name, tc := range map[string]struct {
		turn     *v1alpha1.Turn
		recorded bool
		end      error
		want     int
		charges  int
	}{
		"its journal cannot be used": {ended("a", 1), false, nil, 1, 1},
		"its journal is ended":       {ended("a", 1), true, nil, 0, 0},
		"the store is away":          {ended("a", 1), false, failure, 0, 0},
		"its record is too old":      {ended("a", 61), false, nil, 0, 1},
		"its record was trimmed":     {ended("a", 10), false, nil, 0, 1},
	} {
		t.Run(name, func(t *testing.T) {
			s, charges := &journaltest.Store{}, 0
			for i := range 3 {
				r := turnrecord.Record{
					UID: fmt.Sprint("uid-", i), Namespace: "helpdesk", Turn: fmt.Sprint("newer-", i),
					Completed: now.Add(-time.Duration(i+7) * time.Minute),
				}
				if _, err := s.AddRecords(t.Context(), r); err != nil {
					t.Fatal(err)
				}
			}
			if _, err := s.TrimRecords(t.Context(), 1, 10); err != nil { // what ended 8 minutes ago or earlier is deleted
				t.Fatal(err)
			}
			k := keeper(t, s)
			k.Retention = time.Hour
			k.End = func(context.Context, *v1alpha1.Turn) (bool, error) { return tc.recorded, tc.end }
			k.Charge = func(context.Context, *v1alpha1.Turn) error { charges++; return nil }
			if err := k.RecordDeleted(t.Context(), tc.turn); !errors.Is(err, tc.end) {
				t.Fatalf("RecordDeleted: %v, want %v", err, tc.end)
			}
			got := recordsByTurn(t, s)
			if delete(got, "newer-0"); len(got) != tc.want || charges != tc.charges {
				t.Errorf("the records %v after %d charges, want %d after %d", got, charges, tc.want, tc.charges)
			}
		})
	}
}

// TestATurnThatWaitsIsTriedAgainAlone checks that a Turn whose journal cannot end yet is tried again each minute, and
// that the other finished Turns are not listed for it.
func TestATurnThatWaitsIsTriedAgainAlone(t *testing.T) {
	for name, cause := range map[string]error{
		"children": &loop.Parked{Turns: []string{"child"}}, "memory": bytebudget.ErrShort,
		"a leader of the version of the journal": journal.ErrNewer,
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				s := &journaltest.Store{}
				k := keeper(t, s, ended("a", 1), ended("b", 1))
				lists := &counting{Reader: k.Reader}
				tries := 0
				k.Reader, k.End = lists, func(ctx context.Context, turn *v1alpha1.Turn) (bool, error) {
					if turn.Name != "a" {
						return false, nil
					}
					if tries++; tries < 4 {
						return false, fmt.Errorf("the journal cannot end: %w", cause)
					}
					_, err := s.AddRecords(ctx, turnrecord.Record{UID: "uid-a", Namespace: "helpdesk", Turn: "a", Completed: now})
					return true, err
				}
				ctx, cancel := context.WithCancel(t.Context())
				done := make(chan error)
				go func() { done <- k.Start(ctx) }()
				time.Sleep(10*retryTime + time.Second) // within the bubble, this is the fake clock
				synctest.Wait()
				if got := recordsByTurn(t, s); len(got) != 2 || got["a"].Incomplete || tries != 4 || lists.n != len(selections) {
					t.Errorf("records %v after %d attempts and %d lists, want two records after 4 attempts and the lists of 1 round",
						got, tries, lists.n)
				}
				cancel()
				if err := <-done; err != nil {
					t.Error(err)
				}
			})
		})
	}
}

// counting counts the lists.
type counting struct {
	client.Reader
	n int
}

func (c *counting) List(ctx context.Context, list client.ObjectList, opts ...client.ListOption) error {
	c.n++
	return c.Reader.List(ctx, list, opts...)
}

func TestRoundDeletesRecords(t *testing.T) {
	s := &journaltest.Store{}
	for i := range batch + 10 {
		if _, err := s.AddRecords(t.Context(), turnrecord.Record{
			UID: fmt.Sprintf("old-%d", i), Namespace: "old", Turn: fmt.Sprint("old", i), Completed: now.Add(-25 * time.Hour),
		}, turnrecord.Record{
			UID: fmt.Sprintf("many-%d", i), Namespace: "many", Turn: fmt.Sprintf("many%04d", i),
			Completed: now.Add(time.Duration(i-1000) * time.Second),
		}); err != nil {
			t.Fatal(err)
		}
	}
	if err := keeper(t, s).Round(t.Context()); err != nil {
		t.Fatal(err)
	}
	got := recordsByTurn(t, s)
	if _, ok := got["many0509"]; len(got) != 100 || !ok {
		t.Errorf("%d records are left, want the newest 100 of the namespace that has too many", len(got))
	}
}

// TestRoundDeletesOldTasksAndExpiredMemories checks that a round deletes old tasks and expired memories although no
// executor runs.
func TestRoundDeletesOldTasksAndExpiredMemories(t *testing.T) {
	s := &journaltest.Store{}
	for i, uid := range []string{"old", "new"} {
		created := now.Add(-keepTasks + time.Duration(2*i-1)*time.Minute)
		k := task.Task{UID: uid, Kind: task.Learn, Namespace: "helpdesk", Turn: uid, Agent: "desk", Created: created}
		if err := s.Append(t.Context(), uid, journal.Entry{
			Seq: 1, Epoch: 1, Time: created, Kind: journal.Finalized, Payload: []byte(`{}`), Tasks: []task.Task{k},
		}); err != nil {
			t.Fatal(err)
		}
		claimed, err := s.ClaimTask(t.Context(), task.Search{Now: created, Until: created})
		if err != nil || claimed == nil {
			t.Fatalf("ClaimTask: %v, %v", claimed, err)
		}
		m := memories.Memory{
			Namespace: "helpdesk", Agent: "desk", Scope: memories.User, Text: "memory of " + uid, Requester: "ada", Turn: uid,
			Learned: created, Expires: now.Add(time.Duration(i) * time.Minute),
		}
		m.Identify()
		err = errors.Join(
			s.BeginTask(t.Context(), claimed.Held(), task.Start{Now: created, MaxPerHour: 10}),
			s.FinishTask(t.Context(), claimed.Held(), task.Result{
				Learned: &task.Learned{Memories: []memories.Memory{m}, MaxItems: 10},
			}, 1),
			s.PublishTask(t.Context(), claimed.Held(), created),
		)
		if err != nil {
			t.Fatal(err)
		}
	}
	if err := keeper(t, s).Round(t.Context()); err != nil {
		t.Fatal(err)
	}
	left, err := s.ListMemories(t.Context(), store.MemoryQuery{})
	if err != nil || len(left) != 1 || left[0].Text != "memory of new" {
		t.Errorf("the memories are %+v, %v; want only the one that has not expired", left, err)
	}
	if n, err := s.PurgeTasks(t.Context(), now, 10); n != 1 || err != nil {
		t.Errorf("%d tasks are left, %v; want only the one that counts against limits", n, err)
	}
}

func TestNoRetentionKeepsNothing(t *testing.T) {
	s := &journaltest.Store{}
	if _, err := s.AddRecords(t.Context(), turnrecord.Record{UID: "a", Completed: now.Add(-time.Second)}); err != nil {
		t.Fatal(err)
	}
	k := keeper(t, s, ended("b", 1))
	k.Retention = 0
	if err := k.Round(t.Context()); err != nil {
		t.Fatal(err)
	}
	if got := recordsByTurn(t, s); len(got) != 0 {
		t.Errorf("records %v, want none", got)
	}
}

// records is the name under which failing embeds a Store.
type records = Store

// failing is a store whose next calls of Unrecorded and AddRecords fail; times and adds are their numbers.
type failing struct {
	records
	times, adds int
}

func (f *failing) AddRecords(ctx context.Context, all ...turnrecord.Record) (int, error) {
	if f.adds--; f.adds >= 0 {
		return 0, errors.New("the store is away")
	}
	return f.records.AddRecords(ctx, all...)
}

func (f *failing) Unrecorded(ctx context.Context, uids []string) ([]string, error) {
	if f.times--; f.times >= 0 {
		return nil, errors.New("the store is away")
	}
	return f.records.Unrecorded(ctx, uids)
}

// adding counts the records that were added, and the calls of DeletedUntil.
type adding struct {
	records
	added, asked int
}

func (a *adding) AddRecords(ctx context.Context, all ...turnrecord.Record) (int, error) {
	n, err := a.records.AddRecords(ctx, all...)
	a.added += n
	return n, err
}

func (a *adding) DeletedUntil(ctx context.Context, namespace string) (time.Time, error) {
	a.asked++
	return a.records.DeletedUntil(ctx, namespace)
}

// TestTrimmedRecordsAreNotMadeAgain checks that the records that were deleted because of their number are not made
// again from their Turns, also after a restart, and that the ends and the charges of these Turns are not skipped.
func TestTrimmedRecordsAreNotMadeAgain(t *testing.T) {
	s := &adding{records: &journaltest.Store{}}
	var turns []client.Object
	for i := range 5 {
		turns = append(turns, ended(fmt.Sprint("t", i), 10+i))
	}
	ends, charges := 0, 0
	start := func() *Keeper {
		k := keeper(t, s, turns...)
		k.MostPerNamespace = 2
		k.End = func(context.Context, *v1alpha1.Turn) (bool, error) {
			ends++
			return false, nil
		}
		k.Charge = func(context.Context, *v1alpha1.Turn) error {
			charges++
			return nil
		}
		return k
	}
	k := start()
	if err := k.Round(t.Context()); err != nil || s.added != 5 || len(recordsByTurn(t, s)) != 2 {
		t.Errorf("Round: %v with %d added records, want 5, of which 2 are kept", err, s.added)
	}
	turns = append(turns, ended("late", 60)) // it has no record yet, and is older than the records that were deleted
	ends, charges = 0, 0
	for name, k := range map[string]*Keeper{"the same process": k, "another process": start()} {
		s.added, s.asked = 0, 0
		for range 3 {
			if err := k.Round(t.Context()); err != nil {
				t.Fatal(err)
			}
		}
		if s.added != 0 || s.asked != 1 {
			t.Errorf("%s: %d records were added after %d requests for the newest deleted record, want none after 1", name, s.added, s.asked)
		}
	}
	if ends != 3+4 || charges != ends {
		t.Errorf("%d ends and %d charges, want one in each process for each of the 3 Turns and the one that is late", ends, charges)
	}
	if got := recordsByTurn(t, s); len(got) != 2 || got["t0"].UID == "" || got["t1"].UID == "" {
		t.Errorf("the records are %v, want the newest 2", got)
	}
}

// TestReservationsOfEndedTurnsAreCharged checks that a Turn that ended without an executor does not keep its
// reservation, whether records are kept or not, and that a running Turn keeps its reservation.
func TestReservationsOfEndedTurnsAreCharged(t *testing.T) {
	for _, retention := range []time.Duration{0, 24 * time.Hour} {
		s := &journaltest.Store{}
		key := budget.Key{Budget: "b", Start: now.Unix() - 60, End: now.Unix() + 3600}
		for _, uid := range []string{"uid-ended", "uid-running"} {
			hold := budget.Hold{Key: key, Currency: "USD", Tokens: 1000, Unknown: budget.Amount{Tokens: 7}}
			if err := s.Append(t.Context(), uid, journal.Entry{
				Seq: 1, Epoch: 1, Version: 1, Time: now, Payload: []byte("{}"),
				Ledger: &budget.Change{Reserve: []budget.Reservation{{Hold: hold, CountTurn: true}}},
			}); err != nil {
				t.Fatal(err)
			}
		}
		k := keeper(t, s, ended("ended", 1)) // the API server does not list Turns that run
		k.Ledger, k.Retention = s, retention
		for range 2 {
			if err := k.Round(t.Context()); err != nil {
				t.Fatal(err)
			}
		}
		got, err := s.Accounts(t.Context(), now)
		if err != nil || len(got) != 1 || got[0].Tokens != 7 || got[0].ReservedTokens != 1000 {
			t.Errorf("retention %s: accounts %+v, %v; want 7 tokens of the ended Turn, and the reservation of the running one",
				retention, got, err)
		}
	}
}

// unreadable is a reader that lists Turns, but cannot read a single Turn.
type unreadable struct{ client.Reader }

func (unreadable) Get(context.Context, client.ObjectKey, client.Object, ...client.GetOption) error {
	return errors.New("the API server is away")
}

// TestReservationsOfUnreadTurnsStay checks that a Turn that cannot be read keeps its reservation: a run that has not
// noticed the end can still write to its journal.
func TestReservationsOfUnreadTurnsStay(t *testing.T) {
	s := &journaltest.Store{}
	hold := budget.Hold{
		Key: budget.Key{Budget: "b", Start: now.Unix() - 60, End: now.Unix() + 3600}, Currency: "USD", Tokens: 1000,
	}
	if err := s.Append(t.Context(), "uid-a", journal.Entry{
		Seq: 1, Epoch: 1, Version: 1, Time: now, Payload: []byte("{}"),
		Ledger: &budget.Change{Reserve: []budget.Reservation{{Hold: hold, CountTurn: true}}},
	}); err != nil {
		t.Fatal(err)
	}
	k := keeper(t, s, ended("a", 1))
	k.Ledger, k.Reader = s, unreadable{k.Reader}
	if err := k.Round(t.Context()); err == nil {
		t.Error("Round has succeeded, want the failure of the API server")
	}
	if got, err := s.Accounts(t.Context(), now); err != nil || len(got) != 1 || got[0].ReservedTokens != 1000 {
		t.Errorf("accounts %+v, %v; want the reservation of 1000 tokens", got, err)
	}
}

// TestEveryTurnEnds checks that the journal of a Turn is ended even if no record is kept, and that a Turn without a
// record is not handled again in each round.
func TestEveryTurnEnds(t *testing.T) {
	for name, tc := range map[string]struct {
		retention time.Duration
		minutes   int
	}{
		"no record is kept": {0, 1}, "its record would be too old": {time.Hour, 61},
	} {
		t.Run(name, func(t *testing.T) {
			s := &journaltest.Store{}
			k := keeper(t, s, ended("a", tc.minutes))
			k.Retention = tc.retention
			failure, ends := errors.New("the store is away"), 0
			k.End = func(context.Context, *v1alpha1.Turn) (bool, error) {
				ends++
				return false, failure
			}
			if err := k.Round(t.Context()); !errors.Is(err, failure) {
				t.Errorf("Round: %v, want the failure", err)
			}
			failure = nil
			for range 4 {
				if err := k.Round(t.Context()); err != nil {
					t.Fatal(err)
				}
			}
			if got := recordsByTurn(t, s); ends != 2 || len(got) != 0 {
				t.Errorf("End was called %d times, and the records are %v; want 2 calls and no records", ends, got)
			}
		})
	}
}

// TestATurnThatWaitsOutlivesAFailure checks that Turns whose journals cannot end yet are tried again soon after the
// store has failed.
func TestATurnThatWaitsOutlivesAFailure(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := &failing{records: &journaltest.Store{}}
		k := keeper(t, s, ended("a", 1))
		waits := true
		k.End = func(context.Context, *v1alpha1.Turn) (bool, error) {
			if waits {
				waits, s.times = false, 1 // the next attempt fails
				return false, bytebudget.ErrShort
			}
			return false, nil
		}
		ctx, cancel := context.WithCancel(t.Context())
		done := make(chan error)
		go func() { done <- k.Start(ctx) }()
		time.Sleep(2*retryTime + time.Second) // within the bubble, this is the fake clock
		synctest.Wait()
		if got := recordsByTurn(t, s); len(got) != 1 {
			t.Errorf("records %v, want one", got)
		}
		cancel()
		if err := <-done; err != nil {
			t.Error(err)
		}
	})
}

// TestHintsAreFollowedUp checks that a hint is followed up soon, and that a round finds its Turn if the store fails at
// that time.
func TestHintsAreFollowedUp(t *testing.T) {
	for name, tc := range map[string]struct {
		failures int
		after    time.Duration
	}{
		"the store works":   {0, settleTime + time.Second},
		"the store is away": {2, retryTime + settleTime + time.Second},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				s := &journaltest.Store{}
				k := keeper(t, &failing{records: s, times: tc.failures}, ended("a", 1))
				k.Finished(ended("a", 1))
				k.Finished(hint("gone", "uid-gone"))
				k.Finished(hint("a", "uid-of-another-turn-of-this-name"))
				ctx, cancel := context.WithCancel(t.Context())
				done := make(chan error)
				go func() { done <- k.Start(ctx) }()
				time.Sleep(tc.after) // within the bubble, this is the fake clock
				synctest.Wait()
				if got := recordsByTurn(t, s); len(got) != 1 || got["a"].UID != "uid-a" {
					t.Errorf("records %v, want only the record of Turn a", got)
				}
				cancel()
				if err := <-done; err != nil {
					t.Error(err)
				}
			})
		})
	}
}

// hintsOnly is a reader whose lists are empty, so that only hints lead to a Turn. lists counts the lists.
type hintsOnly struct {
	client.Reader
	lists int
}

func (h *hintsOnly) List(context.Context, client.ObjectList, ...client.ListOption) error {
	h.lists++
	return nil
}

// TestHintDoesNotWaitForLaterHints checks that a hint is followed up soon although other Turns end all the time.
func TestHintDoesNotWaitForLaterHints(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := &journaltest.Store{}
		k := keeper(t, s, ended("a", 1))
		k.Reader = &hintsOnly{Reader: k.Reader}
		ctx, cancel := context.WithCancel(t.Context())
		done := make(chan error)
		go func() { done <- k.Start(ctx) }()
		k.Finished(ended("a", 1))
		for i := range 60 {
			time.Sleep(time.Second) // within the bubble, this is the fake clock
			k.Finished(hint("gone", fmt.Sprint("uid-gone-", i)))
		}
		if got := recordsByTurn(t, s); len(got) != 1 {
			t.Errorf("after a minute with a hint each second, the records are %v; want that of Turn a", got)
		}
		cancel()
		if err := <-done; err != nil {
			t.Error(err)
		}
	})
}

// TestFailedHintsDoNotPutOffRounds checks that a round happens in time although hints fail all the time.
func TestFailedHintsDoNotPutOffRounds(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		k := keeper(t, &failing{records: &journaltest.Store{}, times: 100})
		reader := &hintsOnly{Reader: k.Reader}
		k.Reader = reader
		k.Finished(hint("gone", "uid-gone")) // before the first round, which must fail because of it
		ctx, cancel := context.WithCancel(t.Context())
		done := make(chan error)
		go func() { done <- k.Start(ctx) }()
		for i := range 10 {
			k.Finished(hint("gone", fmt.Sprint("uid-gone-", i)))
			time.Sleep(10 * time.Second) // within the bubble, this is the fake clock
		}
		synctest.Wait()
		if reader.lists != len(selections)+1 {
			t.Errorf("%d lists within %s, want those of the first round and of one after a failed hint", reader.lists, 100*time.Second)
		}
		cancel()
		if err := <-done; err != nil {
			t.Error(err)
		}
	})
}

// TestFailedRoundsPause checks that rounds that keep failing come less often, because each lists all finished Turns.
func TestFailedRoundsPause(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		k := keeper(t, &journaltest.Store{})
		reads := &reading{Reader: k.Reader, fails: true}
		k.Reader = reads
		ctx, cancel := context.WithCancel(t.Context())
		done := make(chan error)
		go func() { done <- k.Start(ctx) }()
		time.Sleep(12*time.Hour + time.Minute) // within the bubble, this is the fake clock
		synctest.Wait()
		// After 0, 1, 3, 7, 15, 31 and 63 minutes, and then every hour.
		if rounds := reads.lists / len(selections); rounds != 17 {
			t.Errorf("%d rounds that fail in 12 hours, want 17", rounds)
		}
		cancel()
		if err := <-done; err != nil {
			t.Error(err)
		}
	})
}

// TestATurnThatWaitsBringsNoRoundForward checks that rounds that fail also come less often while an attempt for a Turn
// fails again and again.
func TestATurnThatWaitsBringsNoRoundForward(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := &journaltest.Store{}
		one := ended("a", 1)
		one.Status.Executor = &v1alpha1.ExecutorBinding{Epoch: 1}
		r := turnrecord.Record{UID: string(one.UID), Namespace: one.Namespace, Completed: now}
		if _, err := s.AddRecords(t.Context(), r); err != nil {
			t.Fatal(err)
		}
		k := keeper(t, s, one)
		reads := &reading{Reader: k.Reader, fails: true}
		k.Reader = reads
		attempts := 0
		k.End = func(context.Context, *v1alpha1.Turn) (bool, error) {
			attempts++
			return false, errors.New("a webhook denies the write")
		}
		k.Finished(one)
		ctx, cancel := context.WithCancel(t.Context())
		done := make(chan error)
		go func() { done <- k.Start(ctx) }()
		time.Sleep(12*time.Hour + time.Minute) // within the bubble, this is the fake clock
		synctest.Wait()
		if rounds := reads.lists / len(selections); rounds != 17 || attempts < 12*60 {
			t.Errorf("%d rounds and %d attempts for the Turn in 12 hours, want 17 rounds and an attempt each minute", rounds, attempts)
		}
		cancel()
		if err := <-done; err != nil {
			t.Error(err)
		}
	})
}

// TestATurnIsTriedAgainWhileRoundsFail checks that a Turn whose end fails is tried again soon, although rounds that
// fail for another reason have long pauses.
func TestATurnIsTriedAgainWhileRoundsFail(t *testing.T) {
	for name, fail := range map[string]func(k *Keeper, s *failing){
		"the store does not answer": func(_ *Keeper, s *failing) { s.times = 2 },
		"the store takes no record": func(_ *Keeper, s *failing) { s.adds = 2 },
		"the Session takes no charge": func(k *Keeper, _ *failing) {
			failures := 2
			k.Charge = func(context.Context, *v1alpha1.Turn) error {
				if failures--; failures >= 0 {
					return errors.New("a webhook denies the write")
				}
				return nil
			}
		},
		"the Turn cannot be read": func(k *Keeper, _ *failing) { k.Reader = &unreadTwice{Reader: k.Reader} },
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				s := &failing{records: &journaltest.Store{}}
				k := keeper(t, s, ended("a", 1))
				k.Reader = &reading{Reader: k.Reader, fails: true}
				ctx, cancel := context.WithCancel(t.Context())
				done := make(chan error)
				go func() { done <- k.Start(ctx) }()
				time.Sleep(4*time.Hour + 10*time.Second) // until the pauses of rounds are long
				synctest.Wait()
				fail(k, s)
				k.Finished(ended("a", 1))
				time.Sleep(3*retryTime + settleTime)
				synctest.Wait()
				if got := recordsByTurn(t, s); len(got) != 1 {
					t.Errorf("records %v after two failures, want that of Turn a", got)
				}
				cancel()
				if err := <-done; err != nil {
					t.Error(err)
				}
			})
		})
	}
}

// unreadTwice is a reader whose first two reads of single Turns fail.
type unreadTwice struct {
	client.Reader
	reads int
}

func (u *unreadTwice) Get(ctx context.Context, key client.ObjectKey, o client.Object, opts ...client.GetOption) error {
	if u.reads++; u.reads <= 2 {
		return errors.New("the API server is away")
	}
	return u.Reader.Get(ctx, key, o, opts...)
}

// TestUnboundTurnsAreReadOnce checks that rounds do not list and read the Turns that may have ended without an executor
// again, unless a round could not list them, a hint was dropped, or the watch has missed Turns.
func TestUnboundTurnsAreReadOnce(t *testing.T) {
	s := &journaltest.Store{}
	one := ended("a", 1)
	r := turnrecord.Record{UID: string(one.UID), Namespace: one.Namespace, Turn: one.Name, Completed: now}
	if _, err := s.AddRecords(t.Context(), r); err != nil {
		t.Fatal(err)
	}
	k := keeper(t, s, one)
	reads := &reading{Reader: k.Reader, fails: true}
	k.Reader = reads
	for i, want := range []struct{ lists, gets int }{{3, 0}, {6, 1}, {7, 1}, {8, 1}} { // the lists of the first round fail
		if err := k.Round(t.Context()); (err != nil) != (i == 0) || reads.lists != want.lists || reads.gets != want.gets {
			t.Errorf("round %d: error %v, %d lists and %d reads, want %+v", i, err, reads.lists, reads.gets, want)
		}
		reads.fails = false
	}
	for i := range maxHints + 1 {
		one := hint("gone", fmt.Sprint(i))
		one.Status.Executor = &v1alpha1.ExecutorBinding{Epoch: 1}
		k.Finished(one)
	}
	k.takeHints()
	if err := k.Round(t.Context()); err != nil || reads.gets != 2 {
		t.Errorf("after a dropped hint: error %v and %d reads, want 2", err, reads.gets)
	}
	if err := k.Round(t.Context()); err != nil || reads.gets != 2 { // finds no Turn that may have ended without an executor
		t.Errorf("after a round without a lost hint: error %v and %d reads, want 2", err, reads.gets)
	}
	k.Missed()
	if err := k.Round(t.Context()); err != nil || reads.gets != 3 {
		t.Errorf("after a gap in the watch: error %v and %d reads, want 3", err, reads.gets)
	}
}

// reading counts the lists and the reads of single Turns. Lists fail while fails is true.
type reading struct {
	client.Reader
	lists, gets int
	fails       bool
}

func (r *reading) Get(ctx context.Context, key client.ObjectKey, o client.Object, opts ...client.GetOption) error {
	r.gets++
	return r.Reader.Get(ctx, key, o, opts...)
}

func (r *reading) List(ctx context.Context, list client.ObjectList, opts ...client.ListOption) error {
	r.lists++
	if r.fails {
		return errors.New("the API server is away")
	}
	return r.Reader.List(ctx, list, opts...)
}

// TestHintsAreHandledBetweenPages checks that a hint does not wait until a round has handled all Turns.
func TestHintsAreHandledBetweenPages(t *testing.T) {
	s := &journaltest.Store{}
	k := keeper(t, s, ended("a", 1), ended("b", 1))
	pages := &paged{Reader: k.Reader}
	pages.second = func() {
		if got := recordsByTurn(t, s); len(got) != 1 {
			t.Errorf("records %v at the second page, want that of the hint", got)
		}
	}
	k.Reader = pages
	k.Finished(ended("a", 1))
	if err := k.repair(t.Context(), "helpdesk", finished[0]); err != nil || len(recordsByTurn(t, s)) != 2 {
		t.Errorf("error %v, records %v; want both Turns recorded", err, recordsByTurn(t, s))
	}
}

// TestRoundOutlastsToken checks that a round that takes longer than the token of its list is valid continues with the
// token in the error. Without such a token, it ends without an error, and the next round repeats the list.
func TestRoundOutlastsToken(t *testing.T) {
	for renewed, want := range map[string]int{"renewed": 1, "": 0, "more": 0} {
		s := &journaltest.Store{}
		k := keeper(t, s, ended("a", 1))
		k.Reader = &paged{Reader: k.Reader, second: func() {}, renewed: &renewed}
		if err := k.Round(t.Context()); err != nil || len(recordsByTurn(t, s)) != want || k.unboundFound != (want == 1) {
			t.Errorf("with the new token %q: error %v, records %v, all Turns found: %t; want %d records",
				renewed, err, recordsByTurn(t, s), k.unboundFound, want)
		}
	}
}

// TestTurnsEndWhileRecordsAreDeleted checks that neither a hint nor a Turn whose journal could not end waits until all
// old records are deleted.
func TestTurnsEndWhileRecordsAreDeleted(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := &purging{Store: &journaltest.Store{}, left: 10_000}
		k := keeper(t, s, ended("hinted", 1), ended("waiting", 1))
		k.Reader = &hintsOnly{Reader: k.Reader}
		var tried int
		k.End = func(_ context.Context, t *v1alpha1.Turn) (bool, error) {
			if t.Name == "waiting" {
				if tried++; tried == 1 {
					return false, bytebudget.ErrShort
				}
			}
			return false, nil
		}
		s.during = func(left int) {
			switch {
			case left == 9_999:
				k.Finished(ended("hinted", 1))
				k.Finished(ended("waiting", 1))
			case len(recordsByTurn(t, s)) == 2:
				s.left = 0
			}
		}
		ctx, cancel := context.WithCancel(t.Context())
		done := make(chan error)
		go func() { done <- k.Start(ctx) }()
		time.Sleep(10_000*pause - time.Minute) // within the bubble, this is the fake clock
		synctest.Wait()
		if got := recordsByTurn(t, s); len(got) != 2 || tried != 2 {
			t.Errorf("during the deletion, the records are %v after %d attempts to end the Turn that waits; want both records", got, tried)
		}
		cancel()
		if err := <-done; err != nil {
			t.Error(err)
		}
	})
}

// purging is a store with old records for left calls of PurgeRecords, each of which calls during.
type purging struct {
	Store
	left   int
	during func(left int)
}

// PurgeRecords seems to delete records.
func (p *purging) PurgeRecords(context.Context, time.Time, int) (int, error) {
	if p.left == 0 {
		return 0, nil
	}
	p.left--
	p.during(p.left)
	return batch, nil
}

// paged is a reader whose first page is empty. It calls second before the second one. If renewed is not nil, the token
// of the second page has expired, and the error has *renewed as its token.
type paged struct {
	client.Reader
	second  func()
	renewed *string
}

func (p *paged) List(ctx context.Context, list client.ObjectList, opts ...client.ListOption) error {
	switch o := (&client.ListOptions{}).ApplyOptions(opts); {
	case o.Continue == "":
		list.SetContinue("more")
		return nil
	case o.Continue == "more" && p.renewed != nil:
		err := apierrors.NewResourceExpired("the token is too old")
		err.ErrStatus.Continue = *p.renewed
		return err
	}
	p.second()
	return p.Reader.List(ctx, list, opts...)
}

func TestHintsAreBounded(t *testing.T) {
	k := keeper(t, &journaltest.Store{})
	for i := range maxHints + 10 {
		k.Finished(hint("a", fmt.Sprint(i)))
	}
	if n := len(k.takeHints()); n != maxHints {
		t.Errorf("%d hints are kept, want at most %d", n, maxHints)
	}
}
