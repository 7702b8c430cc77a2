package manager

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/uuid"
	coordinationclient "k8s.io/client-go/kubernetes/typed/coordination/v1"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/leaderelection/resourcelock"
)

// LeaderElectionID names the Lease by which managers agree on who leads.
const LeaderElectionID = "capstan-manager"

// A leader stops at the latest 8.5 s after it has sent the last renewal that succeeded: the answer takes up to leaseTimeout, the next
// renewal follows after leaderRetry, and is tried for leaderRenewal. Others may lead leaderLease after they saw that renewal, so there are
// 1.5 s or more in which the process of the old leader ends.
const (
	leaderLease   = 10 * time.Second
	leaderRenewal = 5 * time.Second
	leaderRetry   = 1500 * time.Millisecond
	// leaderLook is the time between two looks at a Lease that another process holds.
	leaderLook = time.Second
	// leaseTimeout bounds one request for that Lease.
	leaseTimeout = 2 * time.Second
)

// errNotRenewed ends the work of a leader that could not renew its Lease.
var errNotRenewed = errors.New("the Lease of leader election was not renewed in time: this process leads no longer")

// leaderLock is the Lease of the leader. A process that does not lead waits in Get until the Lease is free, so that it leads at the
// moment when the Lease ends. The elector of client-go alone looks at intervals of 2 to 4.4 s.
//
// The Lease of another process ends when this process has seen no change of it for the time that the Lease lasts, by the
// monotonic clock of this process. The write that takes the Lease names the version that was seen, so the API server refuses it if the
// Lease was renewed meanwhile.
//
// Only one goroutine at a time may use it.
type leaderLock struct {
	*resourcelock.LeaseLock
	// renewed is when this process sent the last write of the Lease that succeeded; zero if it has never led. From then on Get returns at once.
	renewed time.Time
	// seen is the record as it was seen last, since is when it was seen like that for the first time.
	seen  []byte
	since time.Time
}

// newLeader returns the Lease of the leader. It is held under the executor's name if that was given: a container that was
// killed and started again has the same one, and leads again at once. A random name would wait until the Lease ends.
func newLeader(o Options, cfg *rest.Config) (*leaderLock, error) {
	cfg = rest.CopyConfig(cfg)
	cfg.Timeout = leaseTimeout
	leases, err := coordinationclient.NewForConfig(cfg)
	if err != nil {
		return nil, fmt.Errorf("failed to make a client for leader election: %w", err)
	}
	identity := o.ExecutorName
	if !o.NameGiven {
		identity += "_" + string(uuid.NewUUID())
	}
	return newLeaderLock(o.Namespace, identity, leases), nil
}

func newLeaderLock(namespace, identity string, leases coordinationclient.LeasesGetter) *leaderLock {
	return &leaderLock{LeaseLock: &resourcelock.LeaseLock{
		LeaseMeta:  metav1.ObjectMeta{Namespace: namespace, Name: LeaderElectionID},
		Client:     leases,
		LockConfig: resourcelock.ResourceLockConfig{Identity: identity},
	}}
}

// Get returns the record of the Lease. While another process holds the Lease, Get waits, unless this process has led. When the Lease has
// ended, the record that Get returns has no holder.
//
// Once the time for a renewal is over, Get fails at once. The elector would otherwise try to give the Lease up before it reports that it is
// lost, for as long as a request takes, and this process would still work when another leads.
func (l *leaderLock) Get(ctx context.Context) (*resourcelock.LeaderElectionRecord, []byte, error) {
	led := !l.renewed.IsZero()
	if led && time.Since(l.renewed) >= leaderRetry+leaderRenewal {
		return nil, nil, errNotRenewed
	}
	for {
		record, raw, err := l.look(ctx)
		if err != nil || led || record.HolderIdentity == "" || record.HolderIdentity == l.Identity() {
			return record, raw, err
		}
		left := time.Duration(record.LeaseDurationSeconds)*time.Second - time.Since(l.since)
		if left <= 0 {
			free := *record
			free.HolderIdentity = ""
			return &free, raw, nil
		}
		select {
		case <-ctx.Done():
			return nil, nil, context.Cause(ctx)
		case <-time.After(min(left, leaderLook)):
		}
	}
}

// look reads the Lease and notes whether it has changed. The first look begins the time of a Lease, so a process looks as soon as it starts.
func (l *leaderLock) look(ctx context.Context) (*resourcelock.LeaderElectionRecord, []byte, error) {
	record, raw, err := l.LeaseLock.Get(ctx)
	if err == nil && (l.seen == nil || !bytes.Equal(raw, l.seen)) {
		l.seen, l.since = raw, time.Now()
	}
	return record, raw, err
}

// Create makes the Lease, held by this process.
func (l *leaderLock) Create(ctx context.Context, record resourcelock.LeaderElectionRecord) error {
	return l.write(func() error { return l.LeaseLock.Create(ctx, record) })
}

// Update takes the Lease, renews it or gives it up.
func (l *leaderLock) Update(ctx context.Context, record resourcelock.LeaderElectionRecord) error {
	return l.write(func() error { return l.LeaseLock.Update(ctx, record) })
}

func (l *leaderLock) write(send func() error) error {
	sent := time.Now()
	err := send()
	if err == nil {
		l.renewed = sent
	}
	return err
}
