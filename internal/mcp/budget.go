package mcp

import (
	"context"
	"errors"
	"fmt"
	"io"
	"sync"
	"sync/atomic"
	"time"

	"golang.org/x/sync/semaphore"

	"github.com/capstan-dev/capstan/internal/bytebudget"
)

// All responses share a memory budget, so that they never need more memory than the process has. The reservation of a
// small response grows with the response. As soon as a response becomes large, memory for its whole buffer is reserved:
// if large responses waited for more memory later, they could deadlock. Three rules keep a slow server from blocking
// the others:
//
//   - The responses of one server to the calls of one namespace share a part of the budget. If it is used up, they wait
//     for one another. A call that has its part may still wait for the memory of its namespace, so other namespaces
//     that use the same server must not wait for it.
//   - While other responses wait, a large response must arrive at a minimum pace, or it is aborted. If none waits, a
//     slow response does no harm and continues.
//   - A large response has a time limit, however fast it arrives.
const (
	// processBytes is the budget for large responses in a process whose clients have no budget of their own.
	// serverBytes is the share of one server for each namespace that calls it: a quarter of processBytes. It is enough
	// for one response of the maximum size.
	processBytes = 32 << 20
	serverBytes  = processBytes / 4
	// processContents is the budget for small responses in such a process.
	processContents = 16 << 20
	// paceBytes must arrive each second while other responses wait. A response may be up to paceSlack behind that pace,
	// because it may have begun a moment ago. A response that is ahead of the pace gets no credit for that. With
	// credit, it could stop for as long as it is ahead.
	paceBytes = 256 << 10
	paceSlack = 3 * time.Second
	// paceInterval is the interval at which the pace is checked.
	paceInterval = 500 * time.Millisecond
	// largeTimeout is the time limit for a large response.
	largeTimeout = time.Minute
)

// errSlow means that a large response arrived too slowly.
var errSlow = fmt.Errorf("the response came in too slowly: a large response must be complete within %s, and "+
	"arrive at %d KiB a second while others wait",
	largeTimeout, paceBytes>>10)

// processBudget is the budget of all clients that have no budget of their own. They share processAccount. An
// account may hold 7/8 of a pool, so the pool has 8/7 of processBytes; adding 8 makes up for rounding down.
var (
	processBudget  = bytebudget.New(processContents, processBytes/7*8+8)
	processAccount = processBudget.Account("", bytebudget.Results)
)

// serverBudget has the shares of one server in the budget for large responses, by the namespace that pays for them.
type serverBudget struct {
	mu sync.Mutex
	// shares has no entry for a namespace whose responses neither hold nor wait for bytes.
	shares map[string]*serverShare
}

// serverShare is a share in bytes.
type serverShare struct {
	*semaphore.Weighted
	waiting atomic.Int32
	users   int // the responses that hold bytes or wait for bytes; guarded by the lock of the serverBudget
}

func newServerBudget() *serverBudget { return &serverBudget{shares: map[string]*serverShare{}} }

// take waits until size bytes of the share of a namespace are available, and takes them. Callers of the same namespace
// get their bytes in the order of their calls.
func (b *serverBudget) take(ctx context.Context, namespace string, size int64) (*serverShare, error) {
	b.mu.Lock()
	share := b.shares[namespace]
	if share == nil {
		share = &serverShare{Weighted: semaphore.NewWeighted(serverBytes)}
		b.shares[namespace] = share
	}
	share.users++
	b.mu.Unlock()
	if err := share.take(ctx, size); err != nil {
		b.leave(namespace, share)
		return nil, err
	}
	return share, nil
}

func (s *serverShare) take(ctx context.Context, size int64) error {
	if s.TryAcquire(size) {
		return nil
	}
	s.waiting.Add(1)
	defer s.waiting.Add(-1)
	return s.Acquire(ctx, size)
}

// give returns bytes that were taken.
func (b *serverBudget) give(namespace string, share *serverShare, size int64) {
	share.Release(size)
	b.leave(namespace, share)
}

// leave drops a share that has no other users.
func (b *serverBudget) leave(namespace string, share *serverShare) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if share.users--; share.users == 0 {
		delete(b.shares, namespace)
	}
}

// reservation is the memory reserved for one response.
type reservation struct {
	size     int64
	budget   *serverBudget
	share    *serverShare
	bytes    *bytebudget.Reservation
	account  bytebudget.Account
	abort    context.CancelCauseFunc
	received atomic.Int64 // bytes since the last check

	mu       sync.Mutex
	timer    *time.Timer
	elapsed  time.Duration // time since the memory was reserved
	behind   time.Duration // how far the response is behind the pace
	complete bool          // the whole response has arrived
}

// newReservation reserves memory: first in the server's share, then in the budget of the namespace. In this order,
// a deadlock is impossible, because a response that holds bytes of the budget never waits for a share. abort is called
// with errSlow if the response is too slow.
func newReservation(
	ctx context.Context, budget *serverBudget, account bytebudget.Account, size int64, abort context.CancelCauseFunc,
) (*reservation, error) {
	share, err := budget.take(ctx, account.Namespace(), size)
	if err != nil {
		return nil, err
	}
	bytes, err := account.Reserve(ctx, size)
	if err != nil {
		budget.give(account.Namespace(), share, size)
		return nil, err
	}
	r := &reservation{size: size, budget: budget, share: share, bytes: bytes, account: account, abort: abort}
	r.mu.Lock()
	defer r.mu.Unlock()
	r.timer = time.AfterFunc(paceInterval, r.watch)
	return r, nil
}

// watch aborts a response that is too slow. Otherwise it schedules the next check.
func (r *reservation) watch() {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.complete {
		return
	}
	r.elapsed += paceInterval
	r.behind = max(0, r.behind+paceInterval-time.Duration(r.received.Swap(0))*time.Second/paceBytes)
	others := r.share.waiting.Load() > 0 || r.account.Contended()
	if r.behind > paceSlack && others || r.elapsed >= largeTimeout {
		r.abort(errSlow)
		return
	}
	r.timer.Reset(paceInterval)
}

// stopChecks stops the checks, because the whole response has arrived. The memory stays reserved until the response is
// decoded.
func (r *reservation) stopChecks() {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.complete = true
	r.timer.Stop()
}

// release releases the memory. It must be called once.
func (r *reservation) release() {
	r.stopChecks()
	r.bytes.Release()
	r.budget.give(r.account.Namespace(), r.share, r.size)
}

// reserve reserves memory before a response grows to this number of bytes. The reservation of a small response grows
// with the response. When the response becomes large, reserve waits for maxBytes, the most that the response can need.
// Then done is true, and the caller need not call reserve again. The owner of the exchange calls free or end once the
// response is decoded.
func (ex *exchange) reserve(ctx context.Context, w *wire, bytes, maxBytes int64, abort context.CancelCauseFunc) (done bool, err error) {
	ex.mu.Lock()
	if ex.small == nil {
		ex.small = w.memory.For(ctx).GrowingReservation()
	}
	switch {
	case ex.large != nil:
		done = true
	case ex.ended: // the owner has gone, and nobody would release the memory
		err = errBroken
	case ex.small.Cover(bytes):
	default:
		ex.mu.Unlock()
		return true, ex.reserveLarge(ctx, w, maxBytes, abort)
	}
	ex.mu.Unlock()
	return done, err
}

// reserveLarge waits for the memory of a large response.
func (ex *exchange) reserveLarge(ctx context.Context, w *wire, maxBytes int64, abort context.CancelCauseFunc) error {
	r, err := newReservation(ctx, w.serverBudget, w.memory.For(ctx), maxBytes, abort)
	if err != nil {
		return err
	}
	ex.mu.Lock()
	defer ex.mu.Unlock()
	if ex.ended { // the owner has gone since then, and nobody would release the memory
		r.release()
		return errBroken
	}
	ex.large = r
	ex.small.Release()
	return nil
}

// countReceived records that more bytes of the response have arrived.
func (ex *exchange) countReceived(bytes int) {
	ex.mu.Lock()
	defer ex.mu.Unlock()
	if ex.large != nil {
		ex.large.received.Add(int64(bytes))
	}
}

// end frees the exchange for good: its owner no longer wants a response, even if one is still being read.
func (ex *exchange) end() {
	ex.mu.Lock()
	defer ex.mu.Unlock()
	ex.ended = true
	ex.freeLocked()
}

// free releases the memory and drops the response.
func (ex *exchange) free() {
	ex.mu.Lock()
	defer ex.mu.Unlock()
	ex.freeLocked()
}

func (ex *exchange) freeLocked() {
	ex.response = nil
	ex.small.Release()
	if ex.large != nil {
		ex.large.release()
		ex.large = nil
	}
}

// paced is a reader that counts the bytes of a response.
type paced struct {
	io.Reader
	ex *exchange
}

// Read reads bytes and counts them.
func (p paced) Read(b []byte) (int, error) {
	n, err := p.Reader.Read(b)
	p.ex.countReceived(n)
	return n, err
}

// readError returns the reason why a read failed: errSlow if the response was aborted for being slow, and err
// otherwise.
func (s *stream) readError(err error) error {
	if errors.Is(context.Cause(s.ctx), errSlow) {
		return errSlow
	}
	return err
}
