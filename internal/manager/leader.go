package manager

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/uuid"
	coordinationclient "k8s.io/client-go/kubernetes/typed/coordination/v1"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/leaderelection/resourcelock"
)

// LeaderElectionID is the name of the Lease for leader election.
const LeaderElectionID = "capstan-manager"

// A leader stops at the latest 8.5 s after it has sent its last successful renewal: the answer takes up to leaseTimeout
// (2 s), the next renewal follows after leaderRetry (1.5 s), and is tried for leaderRenewal (5 s). Another process
// becomes the leader only leaderLease (10 s) after it has seen that renewal. So the process of the old leader has at
// least 1.5 s to exit.
const (
	leaderLease   = 10 * time.Second
	leaderRenewal = 5 * time.Second
	leaderRetry   = 1500 * time.Millisecond
	// leaderPoll is the time between two reads of the Lease while another process holds it.
	leaderPoll = time.Second
	// leaseTimeout is the time limit of each request for the Lease.
	leaseTimeout = 2 * time.Second
)

// errNotRenewed is the error of Get if this process, as the leader, could not renew its Lease in time.
var errNotRenewed = errors.New("the Lease of leader election was not renewed in time: this process is no longer the leader")

// leaderLock is the Lease of the leader. A process that is not the leader waits in Get until the Lease is free, so it
// becomes the leader as soon as the Lease expires. The elector of client-go itself would only check at intervals of
// 1.5 to 3.3 s: leaderRetry, plus a random part of up to 1.2 times leaderRetry.
//
// The Lease of another process has expired if this process has seen no change of the Lease for the duration of the
// Lease, by its own monotonic clock. The write that acquires the Lease has the resource version that was seen, so the
// API server rejects it if the Lease was renewed in the meantime.
//
// Only one goroutine at a time may use it.
type leaderLock struct {
	*resourcelock.LeaseLock
	// renewed is when this process sent its last successful write of the Lease. It is zero until this process becomes
	// the leader for the first time. From then on, Get does not wait.
	renewed time.Time
	// last is the last record that was read, seen is its encoding, and since is when it was read for the first time.
	// last is nil before the first read.
	last  *resourcelock.LeaderElectionRecord
	seen  []byte
	since time.Time
}

// leaderLockOf returns the Lease of the leader for a process with these options. If the executor's name was set
// explicitly, it is the identity of the holder: a container that was killed and restarted has the same name, and leads
// again immediately. With a random name, it would wait until the Lease expires.
func leaderLockOf(o Options, cfg *rest.Config) (*leaderLock, error) {
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
// been the leader. If the Lease has expired, the record has no holder. A Lease that was deleted while another process
// held it counts for the rest of its time, because that process still leads. It usually creates the Lease again.
//
// If this process has led, and sent its last successful renewal leaderRetry + leaderRenewal ago or earlier, Get returns
// an error immediately. Otherwise the elector of client-go would try to release the Lease before it reports that this
// process is no longer the leader. During that request, this process would still work while another process leads.
func (l *leaderLock) Get(ctx context.Context) (*resourcelock.LeaderElectionRecord, []byte, error) {
	led := !l.renewed.IsZero()
	if led && time.Since(l.renewed) >= leaderRetry+leaderRenewal {
		return nil, nil, errNotRenewed
	}
	for {
		record, raw, err := l.read(ctx)
		if led || err != nil && !apierrors.IsNotFound(err) || !l.isOfOther() {
			return record, raw, err
		}
		left := time.Duration(l.last.LeaseDurationSeconds)*time.Second - time.Since(l.since)
		if left <= 0 && err != nil {
			return nil, nil, err
		}
		if left <= 0 {
			free := *record
			free.HolderIdentity = ""
			return &free, raw, nil
		}
		select {
		case <-ctx.Done():
			return nil, nil, context.Cause(ctx)
		case <-time.After(min(left, leaderPoll)):
		}
	}
}

// isOfOther reports whether another process held the Lease when it was last read.
func (l *leaderLock) isOfOther() bool {
	return l.last != nil && l.last.HolderIdentity != "" && l.last.HolderIdentity != l.Identity()
}

// read reads the Lease, and records when this process first saw its content. A process treats the Lease of a lost
// leader as expired only some time after its own first read, so it calls read as soon as it starts.
func (l *leaderLock) read(ctx context.Context) (*resourcelock.LeaderElectionRecord, []byte, error) {
	record, raw, err := l.LeaseLock.Get(ctx)
	if err == nil && (l.seen == nil || !bytes.Equal(raw, l.seen)) {
		l.last, l.seen, l.since = record, raw, time.Now()
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
