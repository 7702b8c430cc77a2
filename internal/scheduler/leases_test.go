package scheduler

import (
	"sync"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	coordinationv1 "k8s.io/api/coordination/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/capstan-dev/capstan/internal/executor"
)

// now is the start of the process in these tests.
var now = time.Date(2026, 3, 4, 5, 6, 7, 0, time.UTC)

// leaseOf returns the Lease of an executor with one slot. It was renewed at the given time, and lasts 15 s.
func leaseOf(name string, renewed time.Time) *coordinationv1.Lease {
	return &coordinationv1.Lease{
		ObjectMeta: metav1.ObjectMeta{
			Name: executor.LeasePrefix + name, Annotations: map[string]string{executor.CapacityAnnotation: "1"},
		},
		Spec: coordinationv1.LeaseSpec{
			HolderIdentity: &name, RenewTime: new(metav1.NewMicroTime(renewed)), LeaseDurationSeconds: new(int32(15)),
		},
	}
}

// holder is an executor whose clock is off by skew.
type holder struct {
	lease *coordinationv1.Lease
	skew  time.Duration
}

func newHolder(skew time.Duration, renewed time.Time) *holder {
	return &holder{lease: leaseOf("e", renewed.Add(skew)), skew: skew}
}

// renew sets the Lease's renewal time to the time of the holder's clock.
func (h *holder) renew(at time.Time) {
	h.lease.Spec.RenewTime = new(metav1.NewMicroTime(at.Add(h.skew)))
}

// TestLeases checks a Lease with a duration of 15 s at several times after the start of the process.
func TestLeases(t *testing.T) {
	const hour = time.Hour
	renew := func(h *holder, at time.Time) { h.renew(at) }
	release := func(h *holder, _ time.Time) { h.lease.Spec.HolderIdentity = new("") }
	removeDuration := func(h *holder, _ time.Time) { h.lease.Spec.LeaseDurationSeconds = nil }
	annotate := func(h *holder, _ time.Time) { h.lease.ResourceVersion = "2" }
	replace := func(h *holder, _ time.Time) { h.lease.UID = "another" }
	recreate := func(h *holder, at time.Time) { h.lease.UID = "another"; h.renew(at) }
	// check is a call of Check at a time in seconds after the start. change happens before the call; it may be nil.
	type check struct {
		at                 int
		change             func(*holder, time.Time)
		alive, mayGetTurns bool
	}
	for name, tc := range map[string]struct {
		reason string
		skew   time.Duration
		// age is the age of the last renewal at the start. appears means that the Lease does not exist at the
		// start.
		age     time.Duration
		appears bool
		checks  []check
	}{
		"renewed": {
			reason: "an executor is alive for the duration after each renewal",
			checks: []check{{0, nil, true, true}, {10, renew, true, true}, {24, nil, true, true}, {25, nil, false, false}},
		},
		"long dead": {
			reason: "an executor that died before the start gets no new Turns, and loses its Turns one lease duration after the start",
			age:    hour,
			checks: []check{{0, nil, true, false}, {14, nil, true, false}, {15, nil, false, false}},
		},
		"just dead": {
			reason: "an executor that died just before the start gets Turns until its Lease expires",
			age:    10 * time.Second,
			checks: []check{{0, nil, true, true}, {4, nil, true, true}, {5, nil, true, false}, {15, nil, false, false}},
		},
		"clock behind": {
			reason: "an executor whose clock is behind is alive, and gets Turns after a renewal was seen",
			skew:   -hour,
			checks: []check{{0, nil, true, false}, {5, renew, true, true}, {19, nil, true, true}, {20, nil, false, false}},
		},
		"clock ahead": {
			reason: "an executor whose clock is ahead is not alive for longer, and gets Turns after a renewal was seen",
			skew:   hour,
			checks: []check{{0, nil, true, false}, {5, renew, true, true}, {19, nil, true, true}, {20, nil, false, false}},
		},
		"appears, with a clock behind": {
			reason: "a Lease that appears was just created, whatever its times are",
			skew:   -hour, appears: true,
			checks: []check{{0, nil, true, true}, {14, nil, true, true}, {15, nil, false, false}},
		},
		"released": {
			reason: "a Lease without a holder is not held",
			checks: []check{{0, nil, true, true}, {1, release, false, false}, {2, nil, false, false}},
		},
		"without a duration": {
			reason: "a Lease without a duration is not held",
			checks: []check{{0, nil, true, true}, {1, removeDuration, false, false}},
		},
		"reappearing": {
			reason: "an executor that returns after its Lease expired gets Turns immediately",
			checks: []check{{0, nil, true, true}, {20, nil, false, false}, {100, renew, true, true}, {115, nil, false, false}},
		},
		"recreated": {
			reason: "a Lease with a new UID was just created, so its executor gets Turns",
			age:    hour,
			checks: []check{{0, nil, true, false}, {3, recreate, true, true}},
		},
		"restored": {
			reason: "a Lease with a new UID was just created, even if it has the spec of the old Lease",
			age:    hour,
			checks: []check{{0, nil, true, false}, {3, replace, true, true}},
		},
		"annotated": {
			reason: "a change by another client is not a renewal",
			checks: []check{{0, nil, true, true}, {10, annotate, true, true}, {15, nil, false, false}},
		},
	} {
		t.Run(name, func(t *testing.T) {
			var l Leases
			h := newHolder(tc.skew, now.Add(-tc.age))
			if tc.appears {
				l.Start(nil, now)
			} else {
				l.Start([]coordinationv1.Lease{*h.lease}, now)
			}
			for _, check := range tc.checks {
				at := now.Add(time.Duration(check.at) * time.Second)
				if check.change != nil {
					check.change(h, at)
				}
				left, mayGetTurns := l.Check(h.lease, at)
				if alive := left > 0; alive != check.alive || mayGetTurns != check.mayGetTurns {
					t.Errorf("%s: after %d s alive: %t, may get Turns: %t; want %t and %t", tc.reason, check.at, alive,
						mayGetTurns, check.alive, check.mayGetTurns)
				}
			}
		})
	}
}

// TestLeasesWatchedBeforeLeading checks that the Lease of executor "e" expires 15 s after its last renewal, even if
// this process became the leader after that renewal, provided that another Lease was renewed in the meantime. Such
// renewals prove that the Lease of "e" could have been renewed.
func TestLeasesWatchedBeforeLeading(t *testing.T) {
	for name, tc := range map[string]struct {
		reason string
		// others holds the seconds at which another executor renews its Lease. leads is the second at which this
		// process becomes the leader. The Lease of "e" was renewed at second 0.
		others []int
		leads  int
		// at is the second at which the Lease of "e" is checked. wantLeft is the number of seconds until the Lease then
		// expires.
		at, wantLeft int
	}{
		"both expire together":        {"the other Lease was renewed while that of \"e\" was not", []int{5, 10, 15}, 15, 15, 0},
		"leads early":                 {"the time counts from the last renewal, not from the start of leading", []int{5}, 6, 10, 5},
		"leads early and others stop": {"a leader renews its own Lease, and needs no other renewals", []int{5}, 6, 15, 0},
		"no renewals":                 {"it may be an outage, and the Lease of \"e\" gets its duration again", nil, 20, 20, 15},
		"an outage before leading":    {"no executor could renew, and some may not have renewed yet", []int{1, 2}, 30, 30, 15},
		"an outage that ends":         {"the first renewal after a gap restarts the duration of all", []int{5, 20, 25}, 27, 27, 8},
		"renewals with their jitter":  {"jitter is not a gap", []int{3, 7, 10, 14}, 17, 17, 0},
	} {
		t.Run(name, func(t *testing.T) {
			var l Leases
			e, other := leaseOf("e", now), leaseOf("other", now)
			l.Start([]coordinationv1.Lease{*e, *other}, now.Add(-time.Second))
			second := func(s int) time.Time { return now.Add(time.Duration(s) * time.Second) }
			renew := func(lease *coordinationv1.Lease, s int) {
				lease.Spec.RenewTime = new(metav1.NewMicroTime(second(s).Add(time.Millisecond)))
				l.Observe(lease, second(s))
			}
			renew(e, 0)
			renew(other, 0)
			for _, s := range tc.others {
				renew(other, s)
			}
			l.Lead(second(tc.leads))
			left, mayGetTurns := l.Check(e, second(tc.at))
			if want := time.Duration(tc.wantLeft) * time.Second; left != want {
				t.Errorf("%s: %s left, want %s", tc.reason, left, want)
			}
			if silent := tc.at >= 15; mayGetTurns == silent {
				t.Errorf("%s: it may get Turns: %t, want %t after %d s without a renewal", tc.reason, mayGetTurns, !silent, tc.at)
			}
		})
	}
}

// TestLeasesInStaleCache checks that a cache which is behind, or no longer updated, does not count as a renewal: it
// shows a Lease as it was before a read from the API server.
func TestLeasesInStaleCache(t *testing.T) {
	version := func(uid types.UID, version string, change func(*coordinationv1.LeaseSpec)) *coordinationv1.Lease {
		h := newHolder(0, now)
		h.lease.UID, h.lease.ResourceVersion = uid, version
		change(&h.lease.Spec)
		return h.lease
	}
	unchanged := func(*coordinationv1.LeaseSpec) {}
	renewed := func(s *coordinationv1.LeaseSpec) { s.RenewTime = new(metav1.NewMicroTime(now.Add(time.Hour))) }
	released := func(s *coordinationv1.LeaseSpec) { s.HolderIdentity = new("") }
	for name, tc := range map[string]struct {
		reason       string
		live, cached *coordinationv1.Lease
		left         time.Duration
	}{
		"renewed": {"an older renewal is not a renewal", version("a", "10", renewed), version("a", "9", unchanged), 5 * time.Second},
		"annotated": {
			"an older renewal, from before a change by another client, is not a renewal", version("a", "10", unchanged),
			version("a", "9", renewed), 0,
		},
		"released":  {"the newer version counts", version("a", "10", released), version("a", "9", unchanged), 0},
		"recreated": {"a replaced Lease does not come back", version("b", "10", renewed), version("a", "9", unchanged), 5 * time.Second},
		"newer":     {"a cache that has caught up is used", version("a", "10", unchanged), version("a", "11", renewed), 15 * time.Second},
		"versions that cannot be compared": {
			"a version that cannot be compared counts as a renewal", version("a", "10", unchanged),
			version("a", "x", renewed), 15 * time.Second,
		},
	} {
		t.Run(name, func(t *testing.T) {
			var l Leases
			l.Check(version("a", "9", unchanged), now.Add(-time.Minute))
			l.Check(tc.live, now)
			l.Check(tc.live, now) // this is not a renewal either
			if left, _ := l.Check(tc.cached, now.Add(10*time.Second)); left != tc.left {
				t.Errorf("%s: %s left, want %s", tc.reason, left, tc.left)
			}
		})
	}
}

func TestRecreatedLease(t *testing.T) {
	var l Leases
	h := newHolder(-time.Hour, now)
	l.Start([]coordinationv1.Lease{*h.lease}, now)
	if left, _ := l.Check(h.lease, now.Add(time.Minute)); left > 0 {
		t.Fatalf("the Lease has %s left, want it expired", left)
	}
	l.Forget(h.lease.Name)
	if left, mayGetTurns := l.Check(h.lease, now.Add(time.Minute)); left != 15*time.Second || !mayGetTurns {
		t.Errorf("the recreated Lease has %s left, and its holder may get Turns: %t; want 15s and true", left, mayGetTurns)
	}
}

func TestLeasesThatWereNeverHeld(t *testing.T) {
	for name, change := range map[string]func(*coordinationv1.LeaseSpec){
		"no holder":   func(s *coordinationv1.LeaseSpec) { s.HolderIdentity = nil },
		"no renewal":  func(s *coordinationv1.LeaseSpec) { s.RenewTime = nil },
		"no duration": func(s *coordinationv1.LeaseSpec) { s.LeaseDurationSeconds = new(int32(0)) },
	} {
		t.Run(name, func(t *testing.T) {
			var l Leases
			h := newHolder(0, now)
			change(&h.lease.Spec)
			if left, mayGetTurns := l.Check(h.lease, now); left > 0 || mayGetTurns {
				t.Errorf("the Lease has %s left, and its holder may get Turns: %t; want 0s and false", left, mayGetTurns)
			}
		})
	}
}

// TestLeasesConcurrently lets the race detector check concurrent calls.
func TestLeasesConcurrently(t *testing.T) {
	var l Leases
	var all sync.WaitGroup
	for worker := range 4 {
		all.Go(func() {
			for i := range 100 {
				at := now.Add(time.Duration(i) * time.Second)
				h := newHolder(0, at)
				l.Start([]coordinationv1.Lease{*h.lease}, now)
				if left, _ := l.Check(h.lease, at); left <= 0 {
					t.Errorf("worker %d: a Lease that was just renewed has expired", worker)
				}
			}
		})
	}
	all.Wait()
}

// TestKeepFor checks how long the Lease of a lost executor is kept.
func TestKeepFor(t *testing.T) {
	for name, tc := range map[string]struct {
		why             string
		unchanged, want time.Duration
	}{
		"just lost":     {"people may look for it", time.Minute, 4 * time.Minute},
		"lost for long": {"nobody needs it any more", 5 * time.Minute, 0},
		"never deleted": {"the controller did not run", time.Hour, 0},
	} {
		t.Run(name, func(t *testing.T) {
			var l Leases
			dead := leaseOf("dead", now)
			l.Start([]coordinationv1.Lease{*dead}, now)
			l.Lead(now)
			if got := l.KeepFor(dead, now.Add(tc.unchanged)); got != tc.want {
				t.Errorf("KeepFor = %s, want %s: %s", got, tc.want, tc.why)
			}
		})
	}
}

// TestIsCovered checks whether another Lease covers the Lease of a lost executor, which has position 10 of store a.
func TestIsCovered(t *testing.T) {
	const passed = 5 * time.Minute
	for name, tc := range map[string]struct {
		why             string
		store, position string
		// renewed is the time, after the start, at which this process saw the other executor renew its Lease.
		renewed time.Duration
		want    bool
	}{
		"covered":          {"another executor has the position", "a", "10", passed, true},
		"a later position": {"another executor has a later position", "a", "11", passed, true},
		"not covered":      {"the position is known from this Lease only", "a", "9", passed, false},
		"another store":    {"its position cannot be compared", "b", "10", passed, false},
		"no store":         {"its position cannot be compared", "", "10", passed, false},
		"no position":      {"it proves nothing", "a", "", passed, false},
		"lost, too":        {"only a living executor counts", "a", "10", 0, false},
	} {
		t.Run(name, func(t *testing.T) {
			var l Leases
			dead, other := leaseOf("dead", now), leaseOf("other", now)
			dead.Annotations[executor.StoreAnnotation], dead.Annotations[executor.PositionAnnotation] = "a", "10"
			other.Annotations[executor.StoreAnnotation], other.Annotations[executor.PositionAnnotation] = tc.store, tc.position
			all := []coordinationv1.Lease{*dead, *other}
			l.Start(all, now)
			l.Lead(now)
			all[1].Spec.RenewTime = new(metav1.NewMicroTime(now.Add(tc.renewed)))
			l.Observe(&all[1], now.Add(tc.renewed))
			if got := l.IsCovered(dead, all, now.Add(passed)); got != tc.want {
				t.Errorf("IsCovered = %t, want %t: %s", got, tc.want, tc.why)
			}
		})
	}
}

// TestLeaseDoesNotCoverItself checks that a living executor's own Lease does not cover its position, and that a Lease
// without a position is not covered.
func TestLeaseDoesNotCoverItself(t *testing.T) {
	var l Leases
	own, other := leaseOf("own", now), leaseOf("other", now)
	own.Annotations[executor.StoreAnnotation], own.Annotations[executor.PositionAnnotation] = "a", "10"
	all := []coordinationv1.Lease{*own, *other}
	l.Start(all, now)
	for _, lease := range []*coordinationv1.Lease{own, other} {
		if l.IsCovered(lease, all, now) {
			t.Errorf("%s is covered, want it uncovered", lease.Name)
		}
	}
}

func TestExecutorOf(t *testing.T) {
	lease := leaseOf("e", now)
	lease.Annotations[executor.StoreAnnotation], lease.Annotations[executor.IncarnationAnnotation] = "a", "2"
	want := Executor{Name: "e", Capacity: 1, Store: executor.StoreIdentity{ID: "a", Incarnation: "2"}}
	if diff := cmp.Diff(want, ExecutorOf(lease)); diff != "" {
		t.Errorf("executor: -want +got:\n%s", diff)
	}
	lease.Annotations[executor.CapacityAnnotation] = "many"
	if got := ExecutorOf(lease).Capacity; got != 0 {
		t.Errorf("the capacity is %d, want 0: the annotation is not a number", got)
	}
}
