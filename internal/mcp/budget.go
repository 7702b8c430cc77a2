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

// Responses share a memory budget, so that they never need more memory than the process has. A reservation grows
// with its response as long as that is small. For a large response, the whole buffer is reserved before the first
// byte that needs it: waiting for more of it later could deadlock. Three rules keep a slow server from blocking the
// others.
//
//   - The responses of one server have a share of the budget and wait for one another in it.
//   - While others wait, a response with a reservation must arrive at a minimum pace, or it is cut off. If there are
//     no waiters, a slow response does no harm and continues.
//   - A response has a time limit, however fast it arrives.
const (
	// processBytes is the budget for large responses in a process whose clients have no budget of their own.
	// serverBytes is the share of one server: a quarter of it, which is enough for one response of the maximum size.
	processBytes = 32 << 20
	serverBytes  = processBytes / 4
	// processContents is the budget for small responses in such a process.
	processContents = 16 << 20
	// paceBytes must arrive per second while others wait. A response may be up to paceSlack behind that pace,
	// because it may just have begun. Bytes ahead of the pace are not credited; otherwise a fast response could
	// stall for as long as it is ahead.
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

// processBudget is the budget of all clients that have no budget of their own. They share the account process. An
// account may hold 7/8 of a pool, so processBytes need a pool of 8/7 of them; the 8 makes up for rounding down.
var (
	processBudget = bytebudget.New(processContents, processBytes/7*8+8)
	process       = processBudget.Account("", bytebudget.Results)
)

// serverBudget is the share of one server in the budget for large responses, in bytes.
type serverBudget struct {
	*semaphore.Weighted
	waiting atomic.Int32
}

func newServerBudget() *serverBudget {
	return &serverBudget{Weighted: semaphore.NewWeighted(serverBytes)}
}

// take waits until size bytes are available. Waiters are served in order.
func (r *serverBudget) take(ctx context.Context, size int64) error {
	if r.TryAcquire(size) {
		return nil
	}
	r.waiting.Add(1)
	defer r.waiting.Add(-1)
	return r.Acquire(ctx, size)
}

// reservation is the memory reserved for one response.
type reservation struct {
	size     int64
	budget   *serverBudget
	bytes    *bytebudget.Reservation
	account  bytebudget.Account
	cut      context.CancelCauseFunc
	received atomic.Int64 // bytes since the last check

	mu       sync.Mutex
	timer    *time.Timer
	elapsed  time.Duration // time since the first check
	behind   time.Duration // delay behind the pace
	complete bool          // the whole response has arrived
}

// newReservation reserves memory: first in the share of the server, then in the budget of the namespace. In this
// order, no holder of budget bytes waits for a share, so a deadlock is impossible. cut is called with errSlow if
// the response is too slow.
func newReservation(
	ctx context.Context, budget *serverBudget, account bytebudget.Account, size int64, cut context.CancelCauseFunc,
) (*reservation, error) {
	if err := budget.take(ctx, size); err != nil {
		return nil, err
	}
	bytes, err := account.Reserve(ctx, size)
	if err != nil {
		budget.Release(size)
		return nil, err
	}
	h := &reservation{size: size, budget: budget, bytes: bytes, account: account, cut: cut}
	h.mu.Lock()
	defer h.mu.Unlock()
	h.timer = time.AfterFunc(paceInterval, h.watch)
	return h, nil
}

// watch cuts off a response that is too slow. Otherwise it schedules the next check.
func (h *reservation) watch() {
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.complete {
		return
	}
	h.elapsed += paceInterval
	h.behind = max(0, h.behind+paceInterval-time.Duration(h.received.Swap(0))*time.Second/paceBytes)
	others := h.budget.waiting.Load() > 0 || h.account.Contended()
	if h.behind > paceSlack && others || h.elapsed >= largeTimeout {
		h.cut(errSlow)
		return
	}
	h.timer.Reset(paceInterval)
}

// stopChecks stops the checks because the whole response has arrived. The memory stays reserved until the response is
// decoded.
func (h *reservation) stopChecks() {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.complete = true
	h.timer.Stop()
}

// release returns the memory. It must be called once.
func (h *reservation) release() {
	h.stopChecks()
	h.bytes.Release()
	h.budget.Release(h.size)
}

// reserve reserves memory before a response grows to a size of bytes. While the response is small, its reservation
// grows with it. Once it is large, reserve waits for maxBytes, the most that the response can need, and returns true:
// the caller need not call it again. The owner of the exchange calls free when the response is decoded.
func (ex *exchange) reserve(ctx context.Context, w *wire, bytes, maxBytes int64, cut context.CancelCauseFunc) (done bool, err error) {
	ex.mu.Lock()
	if ex.content == nil {
		ex.content = w.memory.For(ctx).Content()
	}
	switch {
	case ex.reservation != nil, !ex.owned:
		done = true
	case ex.ended: // nobody would release the memory
		err = errBroken
	case ex.content.Cover(bytes):
	default:
		ex.mu.Unlock()
		return true, ex.reserveLarge(ctx, w, maxBytes, cut)
	}
	ex.mu.Unlock()
	return done, err
}

// reserveLarge waits for the memory of a large response.
func (ex *exchange) reserveLarge(ctx context.Context, w *wire, maxBytes int64, cut context.CancelCauseFunc) error {
	h, err := newReservation(ctx, w.serverShare, w.memory.For(ctx), maxBytes, cut)
	if err != nil {
		return err
	}
	ex.mu.Lock()
	defer ex.mu.Unlock()
	if ex.ended { // meanwhile: nobody would release the memory
		h.release()
		return errBroken
	}
	ex.reservation = h
	ex.content.Release()
	return nil
}

// countReceived records that more bytes of the response have arrived.
func (ex *exchange) countReceived(bytes int) {
	ex.mu.Lock()
	defer ex.mu.Unlock()
	if ex.reservation != nil {
		ex.reservation.received.Add(int64(bytes))
	}
}

// end frees the exchange for good. The owner no longer wants a response, even if one is still being read.
func (ex *exchange) end() {
	ex.mu.Lock()
	defer ex.mu.Unlock()
	ex.ended = true
	ex.freeLocked()
}

// free returns the memory and drops the response.
func (ex *exchange) free() {
	ex.mu.Lock()
	defer ex.mu.Unlock()
	ex.freeLocked()
}

func (ex *exchange) freeLocked() {
	ex.response = nil
	ex.content.Release()
	if ex.reservation != nil {
		ex.reservation.release()
		ex.reservation = nil
	}
}

// paced is a reader that records the pace of a response.
type paced struct {
	io.Reader
	ex *exchange
}

// Read reads and records the number of bytes.
func (p paced) Read(b []byte) (int, error) {
	n, err := p.Reader.Read(b)
	p.ex.countReceived(n)
	return n, err
}

// tooSlow returns errSlow if the slow response was the cause of err, and err otherwise.
func (s *stream) tooSlow(err error) error {
	if errors.Is(context.Cause(s.ctx), errSlow) {
		return errSlow
	}
	return err
}
