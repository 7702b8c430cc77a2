package journalgc

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/go-logr/logr"
	"github.com/google/go-cmp/cmp"
	"go.uber.org/goleak"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/fake"
	"sigs.k8s.io/controller-runtime/pkg/client/interceptor"

	"github.com/capstan-dev/capstan/api/v1alpha1"
	"github.com/capstan-dev/capstan/internal/runtime/journal"
	"github.com/capstan-dev/capstan/internal/runtime/journal/journaltest"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

var (
	errAway = errors.New("the API server is away")
	errFull = errors.New("the disk is full")
)

// testEnv is a running collector with its store and its API server.
type testEnv struct {
	*Collector
	store *keeper
	api   client.WithWatch
	// gets and pages count the requests to the API server.
	gets, pages atomic.Int64
	// asked lists the journals whose namespace was requested.
	asked []string
	// apiError is returned by the API server if it is not nil.
	apiError atomic.Pointer[error]
	// forbidden is a namespace in which the collector may not list objects.
	forbidden string
}

// keeper is a store in memory. It calls the function listing before it lists its journals, and counts the batches that
// it purges.
type keeper struct {
	journaltest.Store
	listing func()
	batches int
	// retireErrors are the results of the next calls of Retire.
	retireErrors []error
	// mu protects the fields below, which a test may read between two calls of the collector.
	mu sync.Mutex
	// forgotten lists the objects whose memories were deleted while their journals are kept.
	forgotten []string
	// forgetErrors are the results of the next calls of Forget.
	forgetErrors []error
}

func (k *keeper) Forget(ctx context.Context, at time.Time, uids ...string) error {
	k.mu.Lock()
	defer k.mu.Unlock()
	if len(k.forgetErrors) > 0 {
		err := k.forgetErrors[0]
		k.forgetErrors = k.forgetErrors[1:]
		return err
	}
	k.forgotten = append(k.forgotten, uids...)
	return k.Store.Forget(ctx, at, uids...)
}

// forgets returns the objects whose memories were deleted while their journals are kept, and how many of the next calls
// of Forget fail.
func (k *keeper) forgets() (uids []string, failures int) {
	k.mu.Lock()
	defer k.mu.Unlock()
	return slices.Clone(k.forgotten), len(k.forgetErrors)
}

func (k *keeper) Retire(ctx context.Context, at time.Time, uids ...string) error {
	if len(k.retireErrors) > 0 {
		err := k.retireErrors[0]
		k.retireErrors = k.retireErrors[1:]
		return err
	}
	return k.Store.Retire(ctx, at, uids...)
}

func (k *keeper) UIDs(ctx context.Context, after string, limit int) ([]string, error) {
	if k.listing != nil {
		k.listing()
	}
	return k.Store.UIDs(ctx, after, limit)
}

func (k *keeper) Purge(ctx context.Context, before time.Time, limit int) (int, error) {
	k.batches++
	return k.Store.Purge(ctx, before, limit)
}

// kept returns those of the given UIDs that have a journal. Retired journals count.
func (r *testEnv) kept(t *testing.T, of ...string) []string {
	t.Helper()
	var left []string
	for _, uid := range of {
		entries, err := journal.Collect(t.Context(), r.store, uid)
		if err != nil {
			t.Fatal(err)
		}
		if len(entries) > 0 {
			left = append(left, uid)
		}
	}
	return left
}

func (r *testEnv) addJournals(t *testing.T, uids ...string) {
	t.Helper()
	for _, uid := range uids {
		if err := r.store.Append(t.Context(), uid,
			journal.Entry{Seq: 1, Epoch: 1, Kind: "note", Version: 1, Payload: []byte("{}")}); err != nil {
			t.Fatal(err)
		}
	}
}

func newTestEnv(t *testing.T, retention time.Duration, objects ...client.Object) *testEnv {
	t.Helper()
	scheme := runtime.NewScheme()
	if err := v1alpha1.AddToScheme(scheme); err != nil {
		t.Fatal(err)
	}
	r := &testEnv{store: &keeper{}}
	r.api = fake.NewClientBuilder().WithScheme(scheme).WithObjects(objects...).WithInterceptorFuncs(interceptor.Funcs{
		Get: func(ctx context.Context, c client.WithWatch, key client.ObjectKey, o client.Object, opts ...client.GetOption) error {
			r.gets.Add(1)
			if err := r.apiError.Load(); err != nil {
				return *err
			}
			return c.Get(ctx, key, o, opts...)
		},
		List: func(ctx context.Context, c client.WithWatch, l client.ObjectList, opts ...client.ListOption) error {
			if _, ok := l.(*metav1.PartialObjectMetadataList); !ok {
				t.Error("the list requests whole objects, want only their metadata")
			}
			r.pages.Add(1)
			if err := r.apiError.Load(); err != nil {
				return *err
			}
			if namespace := (&client.ListOptions{}).ApplyOptions(opts).Namespace; namespace != "" && namespace == r.forbidden {
				return apierrors.NewForbidden(schema.GroupResource{Group: "capstan.dev"}, "", errors.New("no Role"))
			}
			return c.List(ctx, l, opts...)
		},
	}).Build()
	r.Collector = &Collector{Store: r.store, Reader: r.api, Retention: retention, Now: time.Now, Log: logr.Discard()}
	r.setNamespaces("elsewhere") // so that a sweep finds no orphaned journals
	return r
}

// setNamespaces sets the namespaces of the collector; none means all. All journals belong to one namespace, except
// "uid-old", which does not name one.
func (r *testEnv) setNamespaces(namespaces ...string) {
	r.Namespaces = namespaces
	r.Namespace = func(_ context.Context, uid string) (string, error) {
		r.asked = append(r.asked, uid)
		if uid == "uid-old" {
			return "", nil
		}
		return "helpdesk", nil
	}
}

// start starts the collector. It runs until the test ends.
func (r *testEnv) start(t *testing.T) {
	t.Helper()
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan struct{})
	go func() {
		defer close(done)
		r.work(ctx)
	}()
	t.Cleanup(func() {
		cancel()
		<-done
	})
	synctest.Wait()
}

func turnOf(name string) *v1alpha1.Turn {
	return &v1alpha1.Turn{ObjectMeta: metav1.ObjectMeta{Namespace: "helpdesk", Name: name, UID: types.UID("uid-" + name)}}
}

// recreated returns a new Turn with the same name and another UID.
func recreated(name string) *v1alpha1.Turn {
	t := turnOf(name)
	t.UID = "uid-new"
	return t
}

func sessionOf(name string) *v1alpha1.Session {
	return &v1alpha1.Session{ObjectMeta: metav1.ObjectMeta{Namespace: "helpdesk", Name: name, UID: types.UID("uid-" + name)}}
}

// TestHints checks what happens to a journal after its object has left a watch.
func TestHints(t *testing.T) {
	for name, tc := range map[string]struct {
		reason  string
		objects []client.Object
		hint    func(*testEnv)
		kept    bool
		gets    int64
	}{
		"Deleted": {
			reason: "the journal of a deleted Turn is not needed", gets: 1,
			hint: func(r *testEnv) { r.Deleted(turnOf("a")) },
		},
		"Session": {
			reason: "the journal of a deleted Session is not needed", gets: 1,
			hint: func(r *testEnv) { r.Deleted(sessionOf("a")) },
		},
		"Finished": {
			reason: "a Turn that has finished still exists, and no request is necessary", objects: []client.Object{turnOf("a")}, kept: true,
			hint: func(r *testEnv) { r.onLeave(turnOf("a")); r.Finished("uid-a") },
		},
		"FinishedFirst": {
			reason: "the events of the two watches arrive in any order", objects: []client.Object{turnOf("a")}, kept: true,
			hint: func(r *testEnv) { r.Finished("uid-a"); r.onLeave(turnOf("a")) },
		},
		"FinishedAndGone": {
			reason: "a finished Turn that is deleted leaves the other watch", gets: 1,
			hint: func(r *testEnv) { r.Finished("uid-a"); r.Deleted(turnOf("a")); r.onLeave(turnOf("a")) },
		},
		"Left": {
			reason: "a Turn that is deleted before its end does not appear as finished", gets: 1,
			hint: func(r *testEnv) { r.onLeave(turnOf("a")) },
		},
		"Lagging": {
			reason: "the API server still has the Turn", objects: []client.Object{turnOf("a")}, kept: true, gets: 1,
			hint: func(r *testEnv) { r.Deleted(turnOf("a")) },
		},
		"Recreated": {
			reason: "a new Turn with the old name is another Turn", gets: 1,
			objects: []client.Object{recreated("a")},
			hint:    func(r *testEnv) { r.Deleted(turnOf("a")) },
		},
		"RecreatedInAGap": {
			reason: "after a gap in the watch, the new Turn appears as an update", gets: 1,
			objects: []client.Object{recreated("a")},
			hint:    func(r *testEnv) { r.handler().OnUpdate(turnOf("a"), recreated("a")) },
		},
		"Changed": {
			reason: "a Turn that changes still exists, and no request is necessary", kept: true,
			objects: []client.Object{turnOf("a")},
			hint:    func(r *testEnv) { r.handler().OnUpdate(turnOf("a"), turnOf("a")) },
		},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				r := newTestEnv(t, 0, tc.objects...)
				r.start(t)
				r.addJournals(t, "uid-a", "uid-other")
				tc.hint(r)
				time.Sleep(2 * settleTime)
				synctest.Wait()
				want := []string{"uid-other"}
				if tc.kept {
					want = []string{"uid-a", "uid-other"}
				}
				if diff := cmp.Diff(want, r.kept(t, "uid-a", "uid-other")); diff != "" || r.gets.Load() != tc.gets {
					t.Errorf("%s: %d requests, want %d; journals (-want +got):\n%s", tc.reason, r.gets.Load(), tc.gets, diff)
				}
				if d := &r.suspects; len(d.open) > 0 {
					t.Errorf("%d hints are left, want none", len(d.open))
				}
			})
		})
	}
}

func TestJournalIsKeptForRetention(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		const retention = 10 * time.Minute
		r := newTestEnv(t, retention)
		r.start(t)
		r.addJournals(t, "uid-a")
		r.Deleted(turnOf("a"))
		time.Sleep(retention)
		synctest.Wait()
		if len(r.kept(t, "uid-a")) == 0 {
			t.Error("the journal was purged too early")
		}
		time.Sleep(2 * settleTime)
		synctest.Wait()
		if len(r.kept(t, "uid-a")) > 0 {
			t.Error("the journal must be purged when its retention is over")
		}
	})
}

// TestDeletionsDoNotPutOffPurge checks that each journal is purged when its retention is over although objects are
// deleted all the time.
func TestDeletionsDoNotPutOffPurge(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		const retention = 10 * time.Minute
		r := newTestEnv(t, retention)
		r.interval = 24 * time.Hour // so that no round purges
		r.start(t)
		var uids []string
		for i := range 20 {
			name := fmt.Sprint("t", i)
			uids = append(uids, "uid-"+name)
			r.addJournals(t, "uid-"+name)
			r.Deleted(turnOf(name))
			time.Sleep(time.Minute)
		}
		synctest.Wait()
		if r.kept(t, uids[0]) != nil {
			t.Error("the first journal was not purged although its retention is over")
		}
		time.Sleep(retention)
		synctest.Wait()
		if left := r.kept(t, uids...); left != nil {
			t.Errorf("the journals %v are left, want none after their retention", left)
		}
	})
}

func TestHintSurvivesAPIServerFailure(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newTestEnv(t, 0)
		r.start(t)
		r.addJournals(t, "uid-a")
		r.apiError.Store(&errAway)
		r.Deleted(turnOf("a"))
		time.Sleep(time.Hour)
		if len(r.kept(t, "uid-a")) == 0 {
			t.Fatal("the journal was purged although the API server did not confirm that the Turn is gone")
		}
		// 2, 4, 8, ... s after the first attempt, and then every 5 minutes
		if n := r.gets.Load(); n < 15 || n > 20 {
			t.Errorf("the API server was asked %d times in an hour, want less often the longer it is away", n)
		}
		r.apiError.Store(nil)
		time.Sleep(maxBackOff)
		synctest.Wait()
		if len(r.kept(t, "uid-a")) > 0 {
			t.Error("the hint was not followed up when the API server was back")
		}
	})
}

// TestHintSurvivesStoreFailure checks that a hint is kept if the store fails. Before the next sweep, nothing else
// reports the deletion.
func TestHintSurvivesStoreFailure(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newTestEnv(t, 0)
		r.store.retireErrors = []error{errFull, errFull}
		r.start(t)
		r.addJournals(t, "uid-a", "uid-b")
		r.Deleted(turnOf("a"))
		r.Deleted(turnOf("b"))
		time.Sleep(2*settleTime + settleTime/2)
		synctest.Wait()
		if left := r.kept(t, "uid-a", "uid-b"); len(left) != 2 || len(r.store.retireErrors) != 0 {
			t.Fatalf("%v are left and %d failures, want both and none: the store has failed twice", left, len(r.store.retireErrors))
		}
		time.Sleep(2 * settleTime)
		synctest.Wait()
		if left := r.kept(t, "uid-a", "uid-b"); len(left) > 0 || len(r.suspects.open) > 0 {
			t.Errorf("%v are left, want none: the hints must be followed up when the store is back", left)
		}
	})
}

// TestForgettingSurvivesStoreFailure checks that what was learned in a deleted Session whose history is in use is
// deleted as soon as the store is back. The next round would do that only up to an hour later.
func TestForgettingSurvivesStoreFailure(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newTestEnv(t, 24*time.Hour)
		r.store.forgetErrors = []error{errFull, errFull}
		r.Turns = fake.NewClientBuilder().WithScheme(r.api.Scheme()).WithObjects(inSession()).Build()
		r.Reference = func(context.Context, string) (string, error) { return "uid-talk", nil }
		r.start(t)
		r.addJournals(t, "uid-talk")
		r.onLeave(sessionOf("talk"))
		time.Sleep(2*settleTime + settleTime/2)
		synctest.Wait()
		if forgotten, failures := r.store.forgets(); len(forgotten) > 0 || failures > 0 {
			t.Fatalf("%v are forgotten after %d failures, want none: the store has failed twice", forgotten, 2-failures)
		}
		time.Sleep(2 * settleTime)
		synctest.Wait()
		if forgotten, _ := r.store.forgets(); !slices.Equal(forgotten, []string{"uid-talk"}) || len(r.suspects.open) > 0 {
			t.Errorf("%v are forgotten, want the Session once: the hint must be followed up when the store is back", forgotten)
		}
		if len(r.kept(t, "uid-talk")) == 0 {
			t.Error("the history is deleted although a Turn needs it")
		}
	})
}

func TestSweep(t *testing.T) {
	for name, tc := range map[string]struct {
		reason  string
		watch   []string
		objects []client.Object
		setup   func(*testing.T, *testEnv)
		want    []string
		pages   int64
	}{
		"Orphans": {
			reason:  "the journal of a Turn or a Session that does not exist is purged",
			objects: []client.Object{turnOf("a"), sessionOf("b")}, want: []string{"uid-a", "uid-b"}, pages: 2,
		},
		"Elsewhere": {
			reason: "journals of other namespaces are kept", watch: []string{"sales"},
			want: []string{"uid-a", "uid-b", "uid-c"}, pages: 2,
		},
		"Watched": {
			reason: "journals of watched namespaces without an object are purged", watch: []string{"sales", "helpdesk"},
			objects: []client.Object{turnOf("a"), sessionOf("b")}, want: []string{"uid-a", "uid-b"}, pages: 4,
		},
		"Begun": {
			reason: "a journal that an executor begins during the sweep is kept", want: []string{"uid-c"}, pages: 2,
			setup: func(t *testing.T, r *testEnv) {
				r.store.listing = func() {
					if err := r.api.Create(t.Context(), turnOf("c")); err != nil {
						t.Error(err)
					}
				}
			},
		},
		"Away": {
			reason: "an incomplete list of objects proves nothing", want: []string{"uid-a", "uid-b", "uid-c"}, pages: 1,
			setup: func(_ *testing.T, r *testEnv) { r.apiError.Store(&errAway) },
		},
		"Forbidden": {
			reason: "journals of a namespace whose objects cannot be listed are kept", watch: []string{"helpdesk", "sales"},
			want: []string{"uid-a", "uid-b", "uid-c"}, pages: 4,
			setup: func(_ *testing.T, r *testEnv) { r.forbidden = "helpdesk" },
		},
		"ForbiddenElsewhere": {
			reason: "a namespace whose objects cannot be listed keeps no journals of others", watch: []string{"sales", "helpdesk"},
			objects: []client.Object{turnOf("a"), sessionOf("b")}, want: []string{"uid-a", "uid-b"}, pages: 4,
			setup: func(_ *testing.T, r *testEnv) { r.forbidden = "sales" },
		},
		"AllFound": {
			reason: "no further lists are necessary", want: []string{"uid-a", "uid-b", "uid-c"}, pages: 1,
			objects: []client.Object{turnOf("a"), turnOf("b"), turnOf("c")},
		},
	} {
		t.Run(name, func(t *testing.T) {
			r := newTestEnv(t, 0, tc.objects...)
			r.setNamespaces(tc.watch...)
			r.addJournals(t, "uid-a", "uid-b", "uid-c")
			if tc.setup != nil {
				tc.setup(t, r)
			}
			again := r.round(t.Context())
			if diff := cmp.Diff(tc.want, r.kept(t, "uid-a", "uid-b", "uid-c")); diff != "" || r.pages.Load() != tc.pages {
				t.Errorf("%s: %d pages, want %d; journals (-want +got):\n%s", tc.reason, r.pages.Load(), tc.pages, diff)
			}
			if again != time.Minute {
				t.Errorf("the next round is in %s, want a minute", again)
			}
		})
	}
}

// TestJournalOfRestoredObjectIsKept checks that a retired journal is not purged if its object exists again, because the
// cluster was restored from a backup. If the objects cannot be listed, no journal is purged.
func TestJournalOfRestoredObjectIsKept(t *testing.T) {
	r := newTestEnv(t, 0, turnOf("a"), sessionOf("b"))
	r.setNamespaces()
	uids := []string{"uid-a", "uid-b", "uid-c"}
	r.addJournals(t, uids...)
	if err := r.store.Retire(t.Context(), time.Now(), uids...); err != nil {
		t.Fatal(err)
	}
	r.apiError.Store(&errAway)
	r.round(t.Context())
	if got := r.kept(t, uids...); !slices.Equal(got, uids) {
		t.Errorf("%v are left, want all while the API server is away", got)
	}
	r.apiError.Store(nil)
	r.round(t.Context())
	want := []string{"uid-a", "uid-b"}
	if got := r.kept(t, uids...); !slices.Equal(got, want) {
		t.Errorf("%v are left, want the journals of the objects that exist: %v", got, want)
	}
	if live, err := r.store.Store.UIDs(t.Context(), "", 10); err != nil || !slices.Equal(live, want) {
		t.Errorf("%v are in use (error %v), want %v", live, err, want)
	}
}

// TestFailedRoundsPause checks that rounds that keep failing come less often, and that a success ends this.
func TestFailedRoundsPause(t *testing.T) {
	r := newTestEnv(t, 24*time.Hour)
	r.addJournals(t, "uid-a")
	r.apiError.Store(&errAway)
	var times []time.Duration
	for i := range 9 {
		if i == 8 {
			r.apiError.Store(nil)
		}
		times = append(times, r.round(t.Context()))
	}
	r.apiError.Store(&errAway)
	times = append(times, r.round(t.Context()))
	const m = time.Minute
	if want := []time.Duration{m, 2 * m, 4 * m, 8 * m, 16 * m, 32 * m, 60 * m, 60 * m, 60 * m, m}; !slices.Equal(times, want) {
		t.Errorf("the times until the next rounds are %v, want %v", times, want)
	}
}

func TestSweepOfManyPages(t *testing.T) {
	r := newTestEnv(t, 0, turnOf("7"), turnOf(fmt.Sprint(2*storePage)))
	r.setNamespaces()
	var all []string
	for i := range 2*storePage + 1 {
		all = append(all, fmt.Sprint("uid-", i))
	}
	r.addJournals(t, all...)
	synctest.Test(t, func(t *testing.T) { r.round(t.Context()) })
	if got, want := r.kept(t, all...), []string{"uid-7", fmt.Sprint("uid-", 2*storePage)}; !slices.Equal(got, want) {
		t.Errorf("%d journals are left, want %v", len(got), want)
	}
	if want := (len(all)-2)/purgeBatch + 1; r.store.batches != want {
		t.Errorf("purged in %d batches, want %d, so that other writers can proceed", r.store.batches, want)
	}
}

// expiring is a reader whose lists have two pages. The first page is that of Reader without its last object. The token
// of the second page has expired: the error has renewed as its token, with which the second page has the last object.
type expiring struct {
	client.Reader
	renewed string
}

func (e expiring) List(ctx context.Context, list client.ObjectList, opts ...client.ListOption) error {
	next := (&client.ListOptions{}).ApplyOptions(opts).Continue
	if next == "expired" {
		err := apierrors.NewResourceExpired("the token is too old")
		err.ErrStatus.Continue = e.renewed
		return err
	}
	if err := e.Reader.List(ctx, list); err != nil {
		return err
	}
	page := list.(*metav1.PartialObjectMetadataList) //nolint:forcetypeassert // because newTestEnv checks it
	if last := len(page.Items) - 1; next != "" {
		page.Items = page.Items[last:]
	} else if last > 0 {
		page.Items, page.Continue = page.Items[:last], "expired"
	}
	return nil
}

// TestSweepOutlastsToken checks that a sweep that takes longer than the token of its list is valid continues with the
// token in the error, and that journals are purged then. Without such a token, nothing is purged.
func TestSweepOutlastsToken(t *testing.T) {
	for _, tc := range []struct {
		renewed string
		want    []string
	}{
		{"renewed", []string{"uid-a", "uid-b"}},
		{"", []string{"uid-a", "uid-b", "uid-gone"}},
		{"expired", []string{"uid-a", "uid-b", "uid-gone"}}, // the list must not try forever
	} {
		r := newTestEnv(t, 0, turnOf("a"), turnOf("b"))
		r.setNamespaces()
		r.Reader = expiring{r.api, tc.renewed}
		r.addJournals(t, "uid-a", "uid-b", "uid-gone")
		synctest.Test(t, func(t *testing.T) { r.round(t.Context()) })
		if got := r.kept(t, "uid-a", "uid-b", "uid-gone"); !slices.Equal(got, tc.want) {
			t.Errorf("with the new token %q, the journals %v are left, want %v", tc.renewed, got, tc.want)
		}
	}
}

// TestNamespaceOfForeignJournalIsReadOnce checks that the namespace of a foreign journal is read only once, because
// there may be many foreign journals, and the namespace of a journal never changes.
func TestNamespaceOfForeignJournalIsReadOnce(t *testing.T) {
	r := newTestEnv(t, 0)
	r.addJournals(t, "uid-a", "uid-b")
	r.setNamespaces("sales")
	r.round(t.Context())
	r.addJournals(t, "uid-old")
	r.round(t.Context())
	r.round(t.Context())
	if slices.Sort(r.asked); !slices.Equal(r.asked, []string{"uid-a", "uid-b", "uid-old"}) {
		t.Errorf("the namespaces of %v were read, want each once", r.asked)
	}
	if got := r.kept(t, "uid-a", "uid-b", "uid-old"); len(got) != 3 {
		t.Errorf("%v are left, want all", got)
	}
}

// inSession returns an unfinished Turn of the Session "talk".
func inSession(change ...func(*v1alpha1.Turn)) *v1alpha1.Turn {
	t := turnOf("a")
	t.Spec.SessionRef = &v1alpha1.ObjectReference{Name: "talk"}
	t.Status.Executor = &v1alpha1.ExecutorBinding{Epoch: 1}
	for _, f := range change {
		f(t)
	}
	return t
}

// TestHistoryIsKeptWhileReferenced checks that the history of a deleted Session is kept until the Turns that refer to
// it have ended, because a continued Turn makes its prompt from it.
func TestHistoryIsKeptWhileReferenced(t *testing.T) {
	const newer = "a reference that only a newer version can read"
	for name, tc := range map[string]struct {
		reason string
		turn   *v1alpha1.Turn
		refers string
		kept   bool
	}{
		"of a newer version": {"only a newer version knows the history", inSession(), newer, true},
		"parked":             {"the Turn continues with that history", inSession(), "uid-talk", true},
		"of a new Session":   {"a recreated Session has another history", inSession(), "uid-other", false},
		"never bound": {
			"it has no prompt yet, and gets another Session",
			inSession(func(t *v1alpha1.Turn) { t.Status.Executor = nil }), "", false,
		},
		"handed back": {"it has no prompt yet, and gets another Session", inSession(), "", false},
		"running": {
			"it is about to make its prompt",
			inSession(func(t *v1alpha1.Turn) { t.Status.Executor.Name = "capstan-0" }), "", true,
		},
		"of another name": {
			"it cannot refer to this Session",
			inSession(func(t *v1alpha1.Turn) { t.Spec.SessionRef.Name = "other" }), "", false,
		},
		"finished": {"it needs no prompt", inSession(func(t *v1alpha1.Turn) {
			t.Status.Conditions = []metav1.Condition{{Type: v1alpha1.ConditionSucceeded, Status: metav1.ConditionTrue}}
		}), "uid-talk", false},
	} {
		for how, find := range map[string]func(*testEnv){
			"seen by the watch": func(r *testEnv) {
				r.setNamespaces("elsewhere")
				r.onLeave(sessionOf("talk"))
			},
			"seen by the watch before a sweep": func(r *testEnv) {
				r.setNamespaces("helpdesk")
				r.onLeave(sessionOf("talk"))
			},
			"found by a sweep": func(r *testEnv) { r.setNamespaces("helpdesk") },
		} {
			t.Run(name+", "+how, func(t *testing.T) {
				// A sweep relies on the references in the journals, because the Session was deleted long ago.
				want := tc.kept && (how != "found by a sweep" || name != "running")
				synctest.Test(t, func(t *testing.T) {
					r := newTestEnv(t, 0, tc.turn)
					turns := fake.NewClientBuilder().WithScheme(r.api.Scheme()).WithObjects(tc.turn).Build()
					refers := tc.refers
					r.Turns, r.Reference = turns, func(context.Context, string) (string, error) {
						if refers == newer {
							return "", journal.ErrNewer
						}
						return refers, nil
					}
					r.addJournals(t, "uid-talk")
					find(r)
					runRound := func() {
						r.round(t.Context())
						time.Sleep(settleTime)
						r.followUp(t.Context())
						r.report("purge", r.purge(t.Context()))
					}
					for range 2 {
						runRound()
						if kept := len(r.kept(t, "uid-talk")) == 1; kept != want {
							t.Fatalf("the history is kept: %t, want %t: %s", kept, want, tc.reason)
						}
					}
					// A sweep does not know the names of Sessions, so it cannot tell which one the Turn of a newer
					// version needs.
					forgets := want && (refers != newer || how != "found by a sweep")
					if uids, _ := r.store.forgets(); slices.Contains(uids, "uid-talk") != forgets {
						t.Errorf("%v are forgotten before the history, want the Session: %t", uids, forgets)
					}
					if !want {
						return
					}
					if err := turns.Delete(t.Context(), tc.turn); err != nil {
						t.Fatal(err)
					}
					runRound()
					if len(r.kept(t, "uid-talk")) != 0 {
						t.Error("the history is kept although no Turn refers to it any more")
					}
				})
			})
		}
	}
}

func TestRoundInterval(t *testing.T) {
	for retention, want := range map[time.Duration]time.Duration{
		0: time.Minute, time.Minute: time.Minute, time.Hour: 15 * time.Minute, 24 * time.Hour: time.Hour,
	} {
		if got := (&Collector{Retention: retention}).roundInterval(); got != want {
			t.Errorf("with a retention of %s the interval is %s, want %s", retention, got, want)
		}
	}
}
