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

// LeaderElectionID is the name of the Lease for leader election.
const LeaderElectionID = "capstan-manager"

// A leader stops at the latest 8.5 s after it has sent its last successful renewal: the answer takes up to
// leaseTimeout, the next renewal follows after leaderRetry, and is tried for leaderRenewal. Another process may
// become the leader leaderLease after it saw that renewal, so the process of the old leader has at least 1.5 s to
// end.
const (
	leaderLease   = 10 * time.Second
	leaderRenewal = 5 * time.Second
	leaderRetry   = 1500 * time.Millisecond
	// leaderLook is the time between two reads of a Lease that another process holds.
	leaderLook = time.Second
	// leaseTimeout bounds one request for that Lease.
	leaseTimeout = 2 * time.Second
)

// errNotRenewed ends the work of a leader that could not renew its Lease.
var errNotRenewed = errors.New("the Lease of leader election was not renewed in time: this process is no longer the leader")

// leaderLock is the Lease of the leader. A process that is not the leader waits in Get until the Lease is free, so
// it becomes the leader as soon as the Lease expires. The elector of client-go alone checks at intervals of 2 to
// 4.4 s.
//
// The Lease of another process has expired if this process has seen no change of it for the duration of the Lease,
// by its own monotonic clock. The write that takes the Lease names the version that was seen, so the API server
// refuses it if the Lease was renewed meanwhile.
//
// Only one goroutine at a time may use it.
type leaderLock struct {
	*resourcelock.LeaseLock
	// renewed is when this process sent its last successful write of the Lease. It is zero if the process has never
	// been the leader. Afterwards, Get returns at once.
	renewed time.Time
	// seen is the last record that was read, and since is when it was read for the first time.
	seen  []byte
	since time.Time
}

// newLeader returns the Lease of the leader. If the executor's name was set explicitly, it is the identity of the
// holder: a container that was killed and restarted has the same name, and leads again at once. With a random name,
// it would wait until the Lease expires.
func newLeader(o Options, cfg *rest.Config) (*leaderLock, error) {
	cfg = rest.CopyConfig(cfg)
	cfg.Timeout = leaseTimeout
	leases, err := coordinationclient.NewForConfig(cfg)
	if err != nil {
		return nil, fmt.Errorf("failed to create a client for leader election: %w", err)
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

// Get returns the record of the Lease. While another process holds the Lease, Get waits, unless this process has
// been the leader. If the Lease has expired, the record has no holder.
//
// Once the time for a renewal is over, Get fails at once. Otherwise the elector would try to release the Lease
// before it reports its loss. That could take as long as one request, and this process would still work while
// another one leads.
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

// look reads the Lease and records whether it has changed. The first look starts the time after which the Lease
// expires, so a process calls look as soon as it starts.
func (l *leaderLock) look(ctx context.Context) (*resourcelock.LeaderElectionRecord, []byte, error) {
	record, raw, err := l.LeaseLock.Get(ctx)
	if err == nil && (l.seen == nil || !bytes.Equal(raw, l.seen)) {
		l.seen, l.since = raw, time.Now()
	}
	return record, raw, err
}

// Create creates the Lease, held by this process.
func (l *leaderLock) Create(ctx context.Context, record resourcelock.LeaderElectionRecord) error {
	return l.write(func() error { return l.LeaseLock.Create(ctx, record) })
}

// Update acquires, renews or releases the Lease.
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
