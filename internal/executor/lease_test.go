package executor

import (
	"context"
	"fmt"
	"math"
	"net/http"
	"strconv"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/go-logr/logr"
	"github.com/go-logr/logr/funcr"
	coordinationv1 "k8s.io/api/coordination/v1"
	"k8s.io/apimachinery/pkg/api/validation"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/util/wait"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/kubernetes/fake"
	typedv1 "k8s.io/client-go/kubernetes/typed/coordination/v1"
	"k8s.io/client-go/rest"
	clienttesting "k8s.io/client-go/testing"

	"github.com/capstan-dev/capstan/api/v1alpha1"
	"github.com/capstan-dev/capstan/internal/pace"
	"github.com/capstan-dev/capstan/internal/providers"
	"github.com/capstan-dev/capstan/internal/quota"
	"github.com/capstan-dev/capstan/internal/runtime/journal"
	"github.com/capstan-dev/capstan/internal/runtime/journal/journaltest"
	"github.com/capstan-dev/capstan/internal/runtime/model"
	"github.com/capstan-dev/capstan/internal/store"
)

// TestStoppingExecutorOffersNoCapacity checks that the Lease of a stopping executor offers no capacity,
// and that the heartbeat, which may write at the same time, does not undo that.
func TestStoppingExecutorOffersNoCapacity(t *testing.T) {
	lease := &coordinationv1.Lease{ObjectMeta: metav1.ObjectMeta{
		Namespace: "capstan-system", Name: LeasePrefix + me, Annotations: map[string]string{CapacityAnnotation: "10"},
	}}
	clientset := fake.NewClientset(lease)
	updates := 0
	clientset.PrependReactor("update", "leases", func(clienttesting.Action) (bool, runtime.Object, error) {
		updates++
		return updates == 1, nil, conflict
	})
	stores := store.NewTracker(&journaltest.Store{}, store.TrackerOptions{})
	id, err := stores.Identity(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	h := &heldLease{executor: &Executor{
		Name: me, Namespace: "capstan-system", Capacity: 10, Leases: clientset,
		Store: stores, Log: logr.Discard(),
	}}
	h.acceptsTurns.Store(true)
	h.withdraw(t.Context())
	got, err := clientset.CoordinationV1().Leases("capstan-system").Get(t.Context(), LeasePrefix+me, metav1.GetOptions{})
	if err != nil || got.Annotations[CapacityAnnotation] != "0" {
		t.Errorf("the Lease says %v, %v; want a capacity of 0", got.Annotations, err)
	}
	if got.Annotations[StoreAnnotation] != id.ID || got.Annotations[IncarnationAnnotation] != id.Incarnation {
		t.Errorf("the Lease says %v, want the store %+v", got.Annotations, id)
	}
	h.describe(lease)
	if lease.Annotations[CapacityAnnotation] != "0" {
		t.Errorf("the next renewal says %v, want a capacity of 0", lease.Annotations)
	}
}

// TestReleasedLeaseKeepsPosition checks that an executor that stops releases its Lease, but does not delete it: the
// Lease has the last position of the store, although no health check has marked the store since the last append.
func TestReleasedLeaseKeepsPosition(t *testing.T) {
	clientset := fake.NewClientset()
	leases := clientset.CoordinationV1().Leases("capstan-system")
	journals := &journaltest.Store{}
	e := &Executor{
		Name: me, Namespace: "capstan-system", Capacity: 10, Leases: clientset, Log: logr.Discard(),
		Store: store.NewTracker(journals, store.TrackerOptions{}),
	}
	for _, want := range []string{"1", "2"} { // the second process takes the released Lease
		h := e.holdLease(t.Context())
		if err := wait.PollUntilContextCancel(t.Context(), time.Millisecond, true, func(ctx context.Context) (bool, error) {
			l, err := leases.Get(ctx, LeasePrefix+me, metav1.GetOptions{})
			return err == nil && l.Spec.RenewTime != nil, nil
		}); err != nil {
			t.Fatal(err)
		}
		if err := journals.Append(t.Context(), "turn-"+want, journal.Entry{Seq: 1, Epoch: 1, Kind: journal.RunStarted}); err != nil {
			t.Fatal(err)
		}
		h.release()
		l, err := leases.Get(t.Context(), LeasePrefix+me, metav1.GetOptions{})
		if err != nil {
			t.Fatal(err)
		}
		if l.Spec.RenewTime != nil || l.Annotations[PositionAnnotation] != want {
			t.Errorf("the released Lease was renewed at %v and says %v, want no time and position %s",
				l.Spec.RenewTime, l.Annotations, want)
		}
	}
}

// hungStore does not answer.
type hungStore struct{}

func (hungStore) State(ctx context.Context) (store.State, error) {
	<-ctx.Done()
	return store.State{}, ctx.Err()
}

func (hungStore) Mark(ctx context.Context, _ int64) (store.State, error) {
	return hungStore{}.State(ctx)
}

// punctual is a clientset that, like a real one and unlike fake.Clientset, writes no Lease after the end of a context.
type punctual struct{ kubernetes.Interface }

func (p punctual) CoordinationV1() typedv1.CoordinationV1Interface {
	return punctualLeases{p.Interface.CoordinationV1(), nil}
}

type punctualLeases struct {
	typedv1.CoordinationV1Interface
	typedv1.LeaseInterface
}

func (p punctualLeases) Leases(namespace string) typedv1.LeaseInterface {
	p.LeaseInterface = p.CoordinationV1Interface.Leases(namespace)
	return p
}

func (p punctualLeases) Update(
	ctx context.Context, l *coordinationv1.Lease, o metav1.UpdateOptions,
) (*coordinationv1.Lease, error) {
	if ctx.Err() != nil {
		return nil, ctx.Err()
	}
	return p.LeaseInterface.Update(ctx, l, o)
}

// TestReleaseWithoutStore checks that an executor whose store does not answer still releases its Lease, so that its
// Turns are bound again at once.
func TestReleaseWithoutStore(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		clientset := fake.NewClientset()
		e := &Executor{
			Name: me, Namespace: "capstan-system", Leases: punctual{clientset}, Log: logr.Discard(),
			Store: store.NewTracker(hungStore{}, store.TrackerOptions{}),
		}
		h := e.holdLease(t.Context())
		synctest.Wait()
		h.release()
		l, err := clientset.CoordinationV1().Leases("capstan-system").Get(t.Context(), LeasePrefix+me, metav1.GetOptions{})
		if err != nil || l.Spec.HolderIdentity == nil || l.Spec.RenewTime != nil {
			t.Errorf("the Lease is %+v, %v; want it released", l, err)
		}
	})
}

// throttling is a transport to an API server that answers one renewal of a Lease with 429, and asks the client to wait
// longer than the Lease lasts. Its other answers repeat the Lease that was sent.
type throttling struct {
	renewals int
	written  []time.Time
}

func (s *throttling) RoundTrip(r *http.Request) (*http.Response, error) {
	answer := &http.Response{
		StatusCode: http.StatusOK, Header: http.Header{"Content-Type": r.Header["Content-Type"]}, Body: r.Body, Request: r,
	}
	if r.Method == http.MethodPut {
		s.renewals++
	}
	switch {
	case r.Method == http.MethodGet:
		answer.StatusCode, answer.Body = http.StatusNotFound, http.NoBody
	case r.Method == http.MethodPut && s.renewals == 2:
		answer.StatusCode, answer.Body = http.StatusTooManyRequests, http.NoBody
		answer.Header.Set("Retry-After", strconv.Itoa(3*int(LeaseDuration/time.Second)))
	default:
		s.written = append(s.written, time.Now())
	}
	return answer, nil
}

// TestLeaseSurvivesThrottling checks that the Lease does not expire if the API server throttles one renewal.
func TestLeaseSurvivesThrottling(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		server := &throttling{}
		leases, err := NewLeaseClient(&rest.Config{Host: "http://api", Transport: server, QPS: -1})
		if err != nil {
			t.Fatal(err)
		}
		e := &Executor{
			Name: me, Namespace: "capstan-system", Leases: leases, Log: logr.Discard(),
			Store: store.NewTracker(&journaltest.Store{}, store.TrackerOptions{}),
		}
		h := e.holdLease(t.Context())
		time.Sleep(time.Minute)
		h.release()
		if server.renewals < 10 {
			t.Errorf("the Lease was renewed %d times in a minute", server.renewals)
		}
		for i := range len(server.written) - 1 {
			if gap := server.written[i+1].Sub(server.written[i]); gap >= LeaseDuration {
				t.Errorf("the Lease was not renewed for %s, want less than %s", gap, LeaseDuration)
			}
		}
	})
}

// TestReleaseWithoutLease checks that an executor that never got its Lease creates none when it stops.
func TestReleaseWithoutLease(t *testing.T) {
	clientset := fake.NewClientset()
	clientset.PrependReactor("create", "leases", func(clienttesting.Action) (bool, runtime.Object, error) {
		return true, nil, conflict
	})
	e := &Executor{
		Name: me, Namespace: "capstan-system", Leases: clientset, Log: logr.Discard(),
		Store: store.NewTracker(&journaltest.Store{}, store.TrackerOptions{}),
	}
	e.holdLease(t.Context()).release()
	all, err := clientset.CoordinationV1().Leases("capstan-system").List(t.Context(), metav1.ListOptions{})
	if err != nil || len(all.Items) != 0 {
		t.Errorf("there are %d Leases, %v; want none", len(all.Items), err)
	}
}

// TestPublishedPosition checks that the position is the highest one of the store, including the Leases of executors
// that are gone, and the Leases that keep the positions of stores when those are deleted, too.
func TestPublishedPosition(t *testing.T) {
	lease := func(name, id, position string) *coordinationv1.Lease {
		return &coordinationv1.Lease{ObjectMeta: metav1.ObjectMeta{
			Namespace: "capstan-system", Name: LeasePrefix + name, Labels: map[string]string{LeaseLabel: LeaseLabelValue},
			Annotations: map[string]string{StoreAnnotation: id, PositionAnnotation: position},
		}}
	}
	other := lease("other", "a", "9")
	other.Namespace = "elsewhere"
	kept := func(id, position string) *coordinationv1.Lease {
		l := lease("", id, position)
		l.Name = StoreLeaseName(id)
		return l
	}
	clientset := fake.NewClientset(lease("one", "a", "3"), lease("two", "a", "12"), lease("three", "b", "20"),
		lease("four", "a", "many"), other, kept("a", "11"), kept("b", "21"), kept("d", "7"))
	for id, want := range map[string]int64{"a": 12, "b": 21, "c": 0, "d": 7} {
		if got, err := PublishedPosition(t.Context(), clientset, "capstan-system", id); got != want || err != nil {
			t.Errorf("PublishedPosition of store %q: %d, %v; want %d", id, got, err, want)
		}
	}
}

// TestLeasePublishesStorePosition checks that a Lease has only positions that the store has confirmed.
func TestLeasePublishesStorePosition(t *testing.T) {
	stores := store.NewTracker(&journaltest.Store{}, store.TrackerOptions{})
	h := &heldLease{executor: &Executor{Name: me, Store: stores}}
	for _, want := range []string{"0", "1"} {
		lease := &coordinationv1.Lease{}
		h.describe(lease)
		if got := lease.Annotations[PositionAnnotation]; got != want {
			t.Errorf("the Lease says position %q, want %q", got, want)
		}
		if err := stores.Mark(t.Context()); err != nil {
			t.Fatal(err)
		}
	}
}

// openCircuits opens the circuits of four models with long names for each of count ModelProviders.
func openCircuits(t *testing.T, gates *providers.Cache, count int) {
	t.Helper()
	refuses := modelFunc(func(context.Context, *model.Request) (*model.Reply, error) {
		return nil, &model.Error{Kind: model.Network, Message: "refused"}
	})
	for i := range count {
		p := gates.Gated(&v1alpha1.ModelProvider{ObjectMeta: metav1.ObjectMeta{Namespace: "demo", Name: strconv.Itoa(i)}},
			pace.Caller{Namespace: "demo"}, refuses)
		for _, letter := range []string{"a", "b", "c", "d"} {
			for range 5 {
				_, _ = p.Generate(t.Context(), &model.Request{Model: strings.Repeat(letter, 256)})
			}
		}
	}
	if n := len(gates.OpenCircuits()); n != count {
		t.Fatalf("%d ModelProviders have open circuits, want %d", n, count)
	}
}

// TestLeaseWithLongAnnotations checks that a Lease has no reports that would make its annotations too long for the API
// server, and that the log says so once for each report.
func TestLeaseWithLongAnnotations(t *testing.T) {
	const foreign = "example.com/foreign"
	report := &quota.Report{Namespaces: map[string]quota.Budget{}}
	for i := range 500 {
		report.Namespaces[fmt.Sprintf("%063d", i)] = quota.Budget{Used: math.MaxInt64, Limit: math.MaxInt64}
	}
	for name, tc := range map[string]struct {
		foreign            int
		circuits, journals bool
		messages           int
	}{
		"no other annotations":        {0, true, true, 0},
		"space for one report":        {130 << 10, false, true, 1},
		"space for no report":         {190 << 10, false, false, 2},
		"more than the limit already": {250 << 10, false, false, 2},
	} {
		t.Run(name, func(t *testing.T) {
			gates := providers.NewCache(nil, nil, nil, nil)
			openCircuits(t, gates, 15)
			var messages atomic.Int32
			h := &heldLease{executor: &Executor{
				Name: me, Store: store.NewTracker(&journaltest.Store{}, store.TrackerOptions{}), Gates: gates,
				Quota: func() *quota.Report { return report },
				Log:   funcr.New(func(string, string) { messages.Add(1) }, funcr.Options{}),
			}}
			lease := &coordinationv1.Lease{ObjectMeta: metav1.ObjectMeta{
				Annotations: map[string]string{foreign: strings.Repeat("f", tc.foreign)},
			}}
			for range 2 {
				h.describe(lease)
			}
			if err := validation.ValidateAnnotationsSize(lease.Annotations); err != nil {
				t.Error(err)
			}
			if _, ok := lease.Annotations[CircuitsAnnotation]; ok != tc.circuits {
				t.Errorf("the Lease has the open circuits: %t, want %t", ok, tc.circuits)
			}
			if _, ok := lease.Annotations[JournalUseAnnotation]; ok != tc.journals {
				t.Errorf("the Lease has the use of the journals: %t, want %t", ok, tc.journals)
			}
			if lease.Annotations[PositionAnnotation] == "" || len(lease.Annotations[foreign]) != tc.foreign {
				t.Error("the Lease lacks the position of the store or the annotation of another program")
			}
			if n := int(messages.Load()); n != tc.messages {
				t.Errorf("the log has %d messages, want %d", n, tc.messages)
			}
		})
	}
}

// TestLeaseReportsStoreReach checks what the Lease says about the store, also over the report of an earlier process.
func TestLeaseReportsStoreReach(t *testing.T) {
	for name, tc := range map[string]struct {
		reach func() (bool, bool)
		want  string
	}{
		"works":       {func() (bool, bool) { return true, true }, "true"},
		"lost":        {func() (bool, bool) { return false, true }, "false"},
		"not certain": {func() (bool, bool) { return false, false }, ""},
		"not shared":  {nil, ""},
	} {
		t.Run(name, func(t *testing.T) {
			l := &coordinationv1.Lease{ObjectMeta: metav1.ObjectMeta{Annotations: map[string]string{StoreReachableAnnotation: "old"}}}
			h := &heldLease{executor: &Executor{
				Name: me, Store: store.NewTracker(&journaltest.Store{}, store.TrackerOptions{}), StoreReach: tc.reach,
			}}
			h.describe(l)
			if got := l.Annotations[StoreReachableAnnotation]; got != tc.want {
				t.Errorf("the Lease says %q, want %q", got, tc.want)
			}
		})
	}
}
