package controller

import (
	"sync"
	"testing"
	"time"

	coordinationv1 "k8s.io/api/coordination/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
)

// holder is an executor whose clock is off by skew.
type holder struct {
	lease *coordinationv1.Lease
	skew  time.Duration
}

func newHolder(skew time.Duration, renewed time.Time) *holder {
	return &holder{lease: leaseOf("e", 1, renewed.Add(skew)), skew: skew}
}

// renews writes the time of the holder's clock.
func (h *holder) renews(at time.Time) {
	h.lease.Spec.RenewTime = new(metav1.NewMicroTime(at.Add(h.skew)))
}

// TestLeases looks at a Lease of 15 s at given seconds after the start, some of which come after a change of it.
func TestLeases(t *testing.T) {
	const hour = time.Hour
	renew := func(h *holder, at time.Time) { h.renews(at) }
	release := func(h *holder, _ time.Time) { h.lease.Spec.HolderIdentity = new("") }
	shorten := func(h *holder, _ time.Time) { h.lease.Spec.LeaseDurationSeconds = nil }
	annotate := func(h *holder, _ time.Time) { h.lease.ResourceVersion = "2" }
	replace := func(h *holder, _ time.Time) { h.lease.UID = "another" }
	recreate := func(h *holder, at time.Time) { h.lease.UID = "another"; h.renews(at) }
	type look struct {
		at           int
		change       func(*holder, time.Time)
		alive, takes bool
	}
	for name, tc := range map[string]struct {
		reason string
		skew   time.Duration
		// age of the last renewal at the start; appears is whether there is no Lease then.
		age     time.Duration
		appears bool
		looks   []look
	}{
		"renewed": {
			reason: "an executor that renews lives for the duration after each renewal",
			looks:  []look{{0, nil, true, true}, {10, renew, true, true}, {24, nil, true, true}, {25, nil, false, false}},
		},
		"long dead": {
			reason: "one that died before the start gets nothing, and loses its Turns one duration after the start",
			age:    hour,
			looks:  []look{{0, nil, true, false}, {14, nil, true, false}, {15, nil, false, false}},
		},
		"just dead": {
			reason: "one that died just before the start gets Turns until its Lease runs out",
			age:    10 * time.Second,
			looks:  []look{{0, nil, true, true}, {4, nil, true, true}, {5, nil, true, false}, {15, nil, false, false}},
		},
		"clock behind": {
			reason: "one whose clock is behind lives, and gets Turns once it was seen to renew",
			skew:   -hour,
			looks:  []look{{0, nil, true, false}, {5, renew, true, true}, {19, nil, true, true}, {20, nil, false, false}},
		},
		"clock ahead": {
			reason: "one whose clock is ahead lives no longer for it, and gets Turns once it was seen to renew",
			skew:   hour,
			looks:  []look{{0, nil, true, false}, {5, renew, true, true}, {19, nil, true, true}, {20, nil, false, false}},
		},
		"appears, with a clock behind": {
			reason: "a Lease that appears was just made, whatever it says",
			skew:   -hour, appears: true,
			looks: []look{{0, nil, true, true}, {14, nil, true, true}, {15, nil, false, false}},
		},
		"released": {
			reason: "a Lease without a holder is not held",
			looks:  []look{{0, nil, true, true}, {1, release, false, false}, {2, nil, false, false}},
		},
		"without a duration": {
			reason: "a Lease without a duration is not held",
			looks:  []look{{0, nil, true, true}, {1, shorten, false, false}},
		},
		"reappearing": {
			reason: "an executor that comes back after its Lease ran out is trusted at once",
			looks:  []look{{0, nil, true, true}, {20, nil, false, false}, {100, renew, true, true}, {115, nil, false, false}},
		},
		"made anew": {
			reason: "a Lease of the same name that replaces another was seen to be made",
			age:    hour,
			looks:  []look{{0, nil, true, false}, {3, recreate, true, true}},
		},
		"restored": {
			reason: "so was one that says the same as that which it replaces",
			age:    hour,
			looks:  []look{{0, nil, true, false}, {3, replace, true, true}},
		},
		"annotated": {
			reason: "a change that is not the holder's is no renewal",
			looks:  []look{{0, nil, true, true}, {10, annotate, true, true}, {15, nil, false, false}},
		},
	} {
		t.Run(name, func(t *testing.T) {
			var l leases
			h := newHolder(tc.skew, now.Add(-tc.age))
			if tc.appears {
				l.start(nil, now)
			} else {
				l.start([]coordinationv1.Lease{*h.lease}, now)
			}
			for _, look := range tc.looks {
				at := now.Add(time.Duration(look.at) * time.Second)
				if look.change != nil {
					look.change(h, at)
				}
				left, trusted := l.look(h.lease, at)
				if alive := left > 0; alive != look.alive || trusted != look.takes {
					t.Errorf("%s: after %d s alive is %t and may get Turns is %t, want %t and %t", tc.reason, look.at, alive, trusted, look.alive, look.takes)
				}
			}
		})
	}
}

// TestLeasesFollowedBeforeThisProcessLeads: the Lease e expires one duration after its last renewal, also if this process leads only
// later, but only if renewals of another Lease show that e could have been renewed all the time.
func TestLeasesFollowedBeforeThisProcessLeads(t *testing.T) {
	for name, tc := range map[string]struct {
		reason string
		// others are the seconds at which another executor renews; leads is when this process begins to lead. e was renewed at 0.
		others []int
		leads  int
		// at is when e is looked at last, and left the time that it has then.
		at, left int
	}{
		"both expire together":        {"others renewed while e was silent", []int{5, 10, 15}, 15, 15, 0},
		"leads early":                 {"the time counts from the last renewal, and not from the lead", []int{5}, 6, 10, 5},
		"leads early and others stop": {"a leader renews its own Lease, and needs no other", []int{5}, 6, 15, 0},
		"nobody renews":               {"it may be an outage, and e gets its time anew", nil, 20, 20, 15},
		"an outage before the lead":   {"all were silent, and may not have renewed yet", []int{1, 2}, 30, 30, 15},
		"an outage that ends":         {"the first renewal after a gap begins the time of all", []int{5, 20, 25}, 27, 27, 8},
		"renewals with their jitter":  {"they are no gap", []int{3, 7, 10, 14}, 17, 17, 0},
	} {
		t.Run(name, func(t *testing.T) {
			var l leases
			e, other := leaseOf("e", 1, now), leaseOf("other", 1, now)
			l.start([]coordinationv1.Lease{*e, *other}, now.Add(-time.Second))
			second := func(s int) time.Time { return now.Add(time.Duration(s) * time.Second) }
			renew := func(lease *coordinationv1.Lease, s int) {
				lease.Spec.RenewTime = new(metav1.NewMicroTime(second(s).Add(time.Millisecond)))
				l.see(lease, second(s))
			}
			renew(e, 0)
			renew(other, 0)
			for _, s := range tc.others {
				renew(other, s)
			}
			l.lead(second(tc.leads))
			left, trusted := l.look(e, second(tc.at))
			if want := time.Duration(tc.left) * time.Second; left != want {
				t.Errorf("%s: %s are left, want %s", tc.reason, left, want)
			}
			if silent := tc.at >= 15; trusted == silent {
				t.Errorf("%s: it may get Turns: %t, want %t after %d s of silence", tc.reason, trusted, !silent, tc.at)
			}
		})
	}
}

// TestLeasesThatAreSeenLate: a cache that is behind, or cut off for ever, shows a Lease as it was before a look at the API
// server, again and again.
func TestLeasesThatAreSeenLate(t *testing.T) {
	version := func(uid types.UID, version string, change func(*coordinationv1.LeaseSpec)) *coordinationv1.Lease {
		h := newHolder(0, now)
		h.lease.UID, h.lease.ResourceVersion = uid, version
		change(&h.lease.Spec)
		return h.lease
	}
	as := func(*coordinationv1.LeaseSpec) {}
	renewed := func(s *coordinationv1.LeaseSpec) { s.RenewTime = new(metav1.NewMicroTime(now.Add(time.Hour))) }
	released := func(s *coordinationv1.LeaseSpec) { s.HolderIdentity = new("") }
	for name, tc := range map[string]struct {
		reason       string
		live, cached *coordinationv1.Lease
		left         time.Duration
	}{
		"renewed":    {"the renewal before the last is none", version("a", "10", renewed), version("a", "9", as), 5 * time.Second},
		"annotated":  {"nor is one before a change that is not the holder's", version("a", "10", as), version("a", "9", renewed), 0},
		"released":   {"what is known counts, and not what was", version("a", "10", released), version("a", "9", as), 0},
		"made anew":  {"the Lease that another has replaced does not come back", version("b", "10", renewed), version("a", "9", as), 5 * time.Second},
		"newer":      {"a cache that has caught up counts", version("a", "10", as), version("a", "11", renewed), 15 * time.Second},
		"unknowable": {"a version that cannot be compared may be a renewal", version("a", "10", as), version("a", "x", renewed), 15 * time.Second},
	} {
		t.Run(name, func(t *testing.T) {
			var l leases
			l.look(version("a", "9", as), now.Add(-time.Minute))
			l.look(tc.live, now)
			l.look(tc.live, now) // which is no renewal either
			if left, _ := l.look(tc.cached, now.Add(10*time.Second)); left != tc.left {
				t.Errorf("%s: %s are left, want %s", tc.reason, left, tc.left)
			}
		})
	}
}

func TestLeasesOfOneThatIsGone(t *testing.T) {
	var l leases
	h := newHolder(-time.Hour, now)
	l.start([]coordinationv1.Lease{*h.lease}, now)
	if left, _ := l.look(h.lease, now.Add(time.Minute)); left > 0 {
		t.Fatalf("the Lease has run out, and %s are left", left)
	}
	l.forget(h.lease.Name)
	if left, trusted := l.look(h.lease, now.Add(time.Minute)); left != 15*time.Second || !trusted {
		t.Errorf("a Lease that appears was just made, got %s and %t", left, trusted)
	}
}

func TestLeasesThatWereNeverHeld(t *testing.T) {
	for name, change := range map[string]func(*coordinationv1.LeaseSpec){
		"no holder":   func(s *coordinationv1.LeaseSpec) { s.HolderIdentity = nil },
		"no renewal":  func(s *coordinationv1.LeaseSpec) { s.RenewTime = nil },
		"no duration": func(s *coordinationv1.LeaseSpec) { s.LeaseDurationSeconds = new(int32(0)) },
	} {
		t.Run(name, func(t *testing.T) {
			var l leases
			h := newHolder(0, now)
			change(&h.lease.Spec)
			if left, trusted := l.look(h.lease, now); left > 0 || trusted {
				t.Errorf("nobody holds the Lease, got %s and %t", left, trusted)
			}
		})
	}
}

// TestLeasesSideBySide is for the race detector: Turns are bound while Leases are renewed.
func TestLeasesSideBySide(t *testing.T) {
	var l leases
	var all sync.WaitGroup
	for worker := range 4 {
		all.Go(func() {
			for i := range 100 {
				at := now.Add(time.Duration(i) * time.Second)
				h := newHolder(0, at)
				l.start([]coordinationv1.Lease{*h.lease}, now)
				if left, _ := l.look(h.lease, at); left <= 0 {
					t.Errorf("worker %d: a Lease that was just renewed has run out", worker)
				}
			}
		})
	}
	all.Wait()
}
