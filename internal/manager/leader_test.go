package manager

import (
	"context"
	"errors"
	"testing"
	"testing/synctest"
	"time"

	coordinationv1 "k8s.io/api/coordination/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/kubernetes/fake"
	coordinationclient "k8s.io/client-go/kubernetes/typed/coordination/v1"
	clienttesting "k8s.io/client-go/testing"
	"k8s.io/client-go/tools/leaderelection"
)

// candidate is a process that takes part in leader election. It closes leads when it becomes the leader, and stopped
// when it is no longer the leader.
type candidate struct {
	lock           *leaderLock
	leads, stopped chan struct{}
}

// newCandidate returns a candidate with its own client, so that a test can disconnect only this candidate.
func newCandidate(name string, clientset *fake.Clientset) *candidate {
	return &candidate{
		lock:  newLeaderLock("capstan-system", name, clientset.CoordinationV1()),
		leads: make(chan struct{}), stopped: make(chan struct{}),
	}
}

// run takes part in the election as a manager does, until ctx ends.
func (c *candidate) run(ctx context.Context, t *testing.T) {
	t.Helper()
	elector, err := leaderelection.NewLeaderElector(leaderelection.LeaderElectionConfig{
		Lock: c.lock, LeaseDuration: leaderLease, RenewDeadline: leaderRenewal, RetryPeriod: leaderRetry, ReleaseOnCancel: true,
		Callbacks: leaderelection.LeaderCallbacks{
			OnStartedLeading: func(context.Context) { close(c.leads) },
			OnStoppedLeading: func() { close(c.stopped) },
		},
	})
	if err != nil {
		t.Fatal(err)
	}
	go elector.Run(ctx)
}

// leaderOf returns the Lease of a leader with this name.
func leaderOf(name string, renewed time.Time, duration time.Duration) *coordinationv1.Lease {
	at := metav1.NewMicroTime(renewed)
	return &coordinationv1.Lease{
		ObjectMeta: metav1.ObjectMeta{Namespace: "capstan-system", Name: LeaderElectionID},
		Spec: coordinationv1.LeaseSpec{
			HolderIdentity: &name, RenewTime: &at, AcquireTime: &at, LeaseDurationSeconds: new(int32(duration / time.Second)),
		},
	}
}

// TestLostLeaderIsReplacedWhenItsLeaseExpires checks that the candidate does not wait for the next periodic check.
func TestLostLeaderIsReplacedWhenItsLeaseExpires(t *testing.T) {
	second := func(n int) time.Duration { return time.Duration(n) * time.Second }
	for name, tc := range map[string]struct {
		reason string
		// skew is the clock error of the lost leader, and duration is the duration of its Lease.
		skew, duration time.Duration
		// readBefore is how long before the election the candidate read the Lease for the first time. If it is 0, the
		// candidate did not read the Lease before the election.
		readBefore time.Duration
		// renewals are the times at which the old leader still renews, in seconds after the start of the election.
		renewals []int
		// released is the time at which the old leader releases its Lease, in seconds after the start; 0 for never.
		released int
		// after and most are the earliest and the latest time at which the candidate may become the leader.
		after, most time.Duration
	}{
		"lost": {
			reason: "its Lease lasts from the first read", duration: second(10),
			after: second(10), most: second(10),
		},
		"lost, with a clock behind": {
			reason: "only the candidate's clock counts", skew: -time.Hour, duration: second(10),
			after: second(10), most: second(10),
		},
		"lost, with a clock ahead": {
			reason: "only the candidate's clock counts", skew: time.Hour, duration: second(10),
			after: second(10), most: second(10),
		},
		"of an older version": {
			reason: "the Lease itself has its duration", duration: second(15), after: second(15),
			most: second(15),
		},
		"seen at the start": {
			reason: "its Lease lasts from a read before the election", duration: second(10), readBefore: second(4),
			after: second(6), most: second(6),
		},
		"seen long ago": {
			reason: "its Lease has expired before the election", duration: second(10), readBefore: second(30), most: 0,
		},
		"renewed": {
			reason: "the time starts again when a renewal is seen", duration: second(10), renewals: []int{3, 6},
			after: second(16), most: second(17),
		},
		"renewed during the start": {
			reason: "the record that was read before is outdated", duration: second(10), readBefore: second(8),
			renewals: []int{1}, after: second(11), most: second(12),
		},
		"released": {reason: "a Lease without a holder is free", duration: second(10), released: 3, after: second(3), most: second(4)},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				old := leaderOf("old", time.Now().Add(tc.skew), tc.duration)
				clientset := fake.NewClientset(old)
				leases := clientset.CoordinationV1().Leases("capstan-system")
				change := func(do func(*coordinationv1.Lease)) {
					do(old)
					if _, err := leases.Update(t.Context(), old.DeepCopy(), metav1.UpdateOptions{}); err != nil {
						t.Error(err)
					}
				}
				c := newCandidate("new", clientset)
				if tc.readBefore > 0 {
					if _, _, err := c.lock.read(t.Context()); err != nil {
						t.Fatal(err)
					}
					time.Sleep(tc.readBefore)
				}
				start := time.Now()
				ctx, cancel := context.WithCancel(t.Context())
				c.run(ctx, t)
				for _, at := range tc.renewals {
					time.Sleep(second(at) - time.Since(start))
					change(func(l *coordinationv1.Lease) { l.Spec.RenewTime = new(metav1.NewMicroTime(time.Now().Add(tc.skew))) })
				}
				if tc.released > 0 {
					time.Sleep(second(tc.released) - time.Since(start))
					change(func(l *coordinationv1.Lease) {
						l.Spec.HolderIdentity, l.Spec.LeaseDurationSeconds = new(""), new(int32(1))
					})
				}
				<-c.leads
				if took := time.Since(start); took < tc.after || took > tc.most {
					t.Errorf("%s: the candidate leads after %s, want %s to %s", tc.reason, took, tc.after, tc.most)
				}
				current, err := leases.Get(t.Context(), LeaderElectionID, metav1.GetOptions{})
				if err != nil || *current.Spec.HolderIdentity != "new" || *current.Spec.LeaseTransitions != 1 {
					t.Errorf("the Lease is %+v, %v; want it held by the candidate", current.Spec, err)
				}
				cancel()
				<-c.stopped
			})
		})
	}
}

// TestRestartedContainerLeadsImmediately checks that a process with the name of the previous leader does not wait for
// the expiry of the Lease.
func TestRestartedContainerLeadsImmediately(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := newCandidate("same", fake.NewClientset(leaderOf("same", time.Now(), 10*time.Second)))
		start := time.Now()
		ctx, cancel := context.WithCancel(t.Context())
		c.run(ctx, t)
		<-c.leads
		if took := time.Since(start); took > 0 {
			t.Errorf("it leads after %s, want immediately", took)
		}
		cancel()
		<-c.stopped
	})
}

// TestDisconnectedLeaderStopsBeforeAnotherLeads disconnects the leader at several moments, with and without slow
// answers before.
func TestDisconnectedLeaderStopsBeforeAnotherLeads(t *testing.T) {
	const margin = 1500 * time.Millisecond
	for cut := 20 * time.Second; cut < 24*time.Second; cut += 400 * time.Millisecond {
		for _, lag := range []time.Duration{0, time.Second, leaseTimeout - time.Millisecond} {
			t.Run(cut.String()+" with answers after "+lag.String(), func(t *testing.T) {
				synctest.Test(t, func(t *testing.T) {
					clientset := fake.NewClientset()
					first, second := newCandidate("first", clientset), newCandidate("second", clientset)
					disconnected := make(chan struct{})
					first.lock.Client = unstableClient{first.lock.Client, disconnected, lag}
					ctx, cancel := context.WithCancel(t.Context())
					first.run(ctx, t)
					<-first.leads
					second.run(ctx, t)
					time.Sleep(cut)
					close(disconnected)
					start := time.Now()
					<-first.stopped
					stopped := time.Since(start)
					select {
					case <-second.leads:
						t.Fatalf("two processes lead at the same time, %s after the disconnection", stopped)
					default:
					}
					<-second.leads
					if gap := time.Since(start) - stopped; gap < margin {
						t.Errorf("the second leads %s after the first has stopped, want %s or more", gap, margin)
					}
					if took, most := time.Since(start), leaderLease+leaderPoll; took > most {
						t.Errorf("the second leads %s after the disconnection, want at most %s", took, most)
					}
					cancel()
					<-second.stopped
				})
			})
		}
	}
}

// unstableClient is a client of the API server. The answer to an update arrives after lag. Once the channel
// disconnected is closed, no request gets an answer: each one times out.
type unstableClient struct {
	coordinationclient.LeasesGetter
	disconnected chan struct{}
	lag          time.Duration
}

func (c unstableClient) Leases(namespace string) coordinationclient.LeaseInterface {
	return unstableLeases{c.LeasesGetter.Leases(namespace), c.disconnected, c.lag}
}

type unstableLeases struct {
	coordinationclient.LeaseInterface
	disconnected chan struct{}
	lag          time.Duration
}

// checkConnected returns the error of a timeout if the client is disconnected.
func (c unstableLeases) checkConnected(ctx context.Context) error {
	select {
	case <-c.disconnected:
	default:
		return nil
	}
	ctx, cancel := context.WithTimeout(ctx, leaseTimeout)
	defer cancel()
	<-ctx.Done()
	return ctx.Err()
}

func (c unstableLeases) Get(ctx context.Context, name string, o metav1.GetOptions) (*coordinationv1.Lease, error) {
	if err := c.checkConnected(ctx); err != nil {
		return nil, err
	}
	return c.LeaseInterface.Get(ctx, name, o)
}

func (c unstableLeases) Update(ctx context.Context, l *coordinationv1.Lease, o metav1.UpdateOptions) (*coordinationv1.Lease, error) {
	if err := c.checkConnected(ctx); err != nil {
		return nil, err
	}
	l, err := c.LeaseInterface.Update(ctx, l, o)
	time.Sleep(c.lag)
	return l, err
}

// TestLeaseRenewedAtLastMomentIsNotAcquired checks that a candidate that has not seen a renewal waits for the whole
// duration of the Lease after the API server has rejected its write.
func TestLeaseRenewedAtLastMomentIsNotAcquired(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		old := leaderOf("old", time.Now(), 10*time.Second)
		clientset := fake.NewClientset(old)
		refused := false
		clientset.PrependReactor("update", "leases", func(clienttesting.Action) (bool, runtime.Object, error) {
			if refused {
				return false, nil, nil
			}
			refused = true
			old.Spec.RenewTime = new(metav1.NewMicroTime(time.Now()))
			err := clientset.Tracker().Update(coordinationv1.SchemeGroupVersion.WithResource("leases"), old, "capstan-system")
			return true, nil, errors.Join(err, apierrors.NewConflict(coordinationv1.Resource("leases"), LeaderElectionID, nil))
		})
		c := newCandidate("new", clientset)
		start := time.Now()
		ctx, cancel := context.WithCancel(t.Context())
		c.run(ctx, t)
		<-c.leads
		if took := time.Since(start); took < 20*time.Second {
			t.Errorf("the candidate leads after %s, want at least 20 s: the renewed Lease must expire", took)
		}
		cancel()
		<-c.stopped
	})
}

// TestDeletedLeaseHasOneLeader checks that the leader creates its Lease again after it was deleted, and keeps leading,
// and that another process leads only when the time of the Lease is over.
func TestDeletedLeaseHasOneLeader(t *testing.T) {
	for name, lives := range map[string]bool{"the leader lives": true, "the leader was killed": false} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				clientset := fake.NewClientset()
				old, other := newCandidate("old", clientset), newCandidate("new", clientset)
				ctx, cancel := context.WithCancel(t.Context())
				defer cancel()
				if lives {
					old.run(ctx, t)
					<-old.leads
				} else if err := clientset.Tracker().Add(leaderOf("old", time.Now(), leaderLease)); err != nil {
					t.Fatal(err)
				}
				other.run(ctx, t)
				time.Sleep(leaderPoll / 2)
				leases := clientset.CoordinationV1().Leases("capstan-system")
				if err := leases.Delete(ctx, LeaderElectionID, metav1.DeleteOptions{}); err != nil {
					t.Fatal(err)
				}
				start := time.Now()
				if !lives {
					<-other.leads
					if took := time.Since(start); took < leaderLease-leaderPoll || took > leaderLease {
						t.Errorf("the candidate leads %s after the deletion, want it to wait for the rest of the Lease", took)
					}
					cancel()
					<-other.stopped
					return
				}
				time.Sleep(3 * leaderLease)
				select {
				case <-other.leads:
					t.Error("another process leads, want the leader to keep its Lease")
				case <-old.stopped:
					t.Error("the leader has stopped, want it to create its Lease again")
				default:
				}
				cancel()
				<-old.stopped
				<-other.stopped
			})
		})
	}
}
