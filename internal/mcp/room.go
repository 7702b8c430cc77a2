package mcp

import (
	"context"
	"errors"
	"io"
	"sync"
	"sync/atomic"
	"time"

	"golang.org/x/sync/semaphore"

	"github.com/capstan-dev/capstan/internal/bytebudget"
)

// Large answers share the memory budget of the process, so that it holds no more of them than it has memory for. An answer takes all of its room
// before the first byte that needs it: what it could say later that it needs, it could wait for while others wait for what it has.
// Three things keep a server that is slow from holding up the others.
//   - The answers of one server have a share of the room, and wait for one another in it.
//   - While others wait, an answer that holds room must come in at a pace. One that does not is given up. With nobody waiting,
//     a slow answer does no harm, and goes on.
//   - However fast it is, an answer has a time.
const (
	// processRoom is for the large answers of a process that gives its clients no budget, and serverRoom for those of one server: a
	// quarter of it, and one answer of the greatest length.
	processRoom = 32 << 20
	serverRoom  = processRoom / 4
	// paceBytes are to come in within a second while others wait. An answer is up to paceSlack behind that, as one may be that
	// has just begun; what it is ahead does not count, or it could stand still for as long.
	paceBytes = 256 << 10
	paceSlack = 3 * time.Second
	// paceLook is how often the pace is looked at.
	paceLook = 500 * time.Millisecond
	// largeTimeout bounds the time in which a large answer comes in.
	largeTimeout = time.Minute
)

// errSlow means that an answer came in too slowly.
var errSlow = errors.New("the response came in too slowly: large ones take turns")

// process is the budget of clients that are given none: an account of it gets processRoom.
var process = bytebudget.New(0, processRoom/7*8+8).Account("", bytebudget.Results)

// room is what the large answers of one server hold, in bytes.
type room struct {
	*semaphore.Weighted
	waiting atomic.Int32
}

func newRoom() *room { return &room{Weighted: semaphore.NewWeighted(serverRoom)} }

// take waits for so much room; who came first has it first.
func (r *room) take(ctx context.Context, size int64) error {
	if r.TryAcquire(size) {
		return nil
	}
	r.waiting.Add(1)
	defer r.waiting.Add(-1)
	return r.Acquire(ctx, size)
}

// held is the room that an answer has.
type held struct {
	size  int64
	share *room
	bytes *bytebudget.Reservation
	all   bytebudget.Account
	cut   context.CancelCauseFunc
	came  atomic.Int64 // bytes since that was last looked at

	mu     sync.Mutex
	look   *time.Timer
	looks  time.Duration // how long it is looked at already
	behind time.Duration // how much it is behind its pace
	there  bool          // all of it has come in
}

// takeRoom waits for room in the share of a server and then in the budget of its namespace: nobody has bytes of the budget and waits
// for a share, so that all who have them go on. An answer that is to be given up is cut off with errSlow.
func takeRoom(ctx context.Context, share *room, all bytebudget.Account, size int64, cut context.CancelCauseFunc) (*held, error) {
	if err := share.take(ctx, size); err != nil {
		return nil, err
	}
	bytes, err := all.Reserve(ctx, size)
	if err != nil {
		share.Release(size)
		return nil, err
	}
	h := &held{size: size, share: share, bytes: bytes, all: all, cut: cut}
	h.mu.Lock()
	defer h.mu.Unlock()
	h.look = time.AfterFunc(paceLook, h.watch)
	return h, nil
}

// watch cuts the answer off where it is too slow, or looks again in a while.
func (h *held) watch() {
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.there {
		return
	}
	h.looks += paceLook
	h.behind = max(0, h.behind+paceLook-time.Duration(h.came.Swap(0))*time.Second/paceBytes)
	others := h.share.waiting.Load() > 0 || h.all.Contended()
	if h.behind > paceSlack && others || h.looks >= largeTimeout {
		h.cut(errSlow)
		return
	}
	h.look.Reset(paceLook)
}

// arrived says that all of the answer is there. It keeps its room until it is decoded.
func (h *held) arrived() {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.there = true
	h.look.Stop()
}

// release gives the room back. It is called once.
func (h *held) release() {
	h.arrived()
	h.bytes.Release()
	h.share.Release(h.size)
}

// hold waits for room for an answer of at most so many bytes. It is given back by free, which the owner of the exchange calls when
// the answer is decoded.
func (ex *exchange) hold(ctx context.Context, share *room, all bytebudget.Account, size int64, cut context.CancelCauseFunc) error {
	ex.mu.Lock()
	enough := ex.held != nil || !ex.owned
	ex.mu.Unlock()
	if enough {
		return nil
	}
	h, err := takeRoom(ctx, share, all, size, cut)
	if err != nil {
		return err
	}
	ex.mu.Lock()
	defer ex.mu.Unlock()
	if ex.ended { // meanwhile: nobody would give the room back
		h.release()
		return errBroken
	}
	ex.held = h
	return nil
}

// came says that so much more of the answer has come in.
func (ex *exchange) came(bytes int) {
	ex.mu.Lock()
	defer ex.mu.Unlock()
	if ex.held != nil {
		ex.held.came.Add(int64(bytes))
	}
}

// end frees the exchange for good: its owner takes no answer any more, whoever still reads one.
func (ex *exchange) end() {
	ex.mu.Lock()
	defer ex.mu.Unlock()
	ex.ended = true
	ex.freeLocked()
}

// free gives the room back, and the answer up.
func (ex *exchange) free() {
	ex.mu.Lock()
	defer ex.mu.Unlock()
	ex.freeLocked()
}

func (ex *exchange) freeLocked() {
	ex.response = nil
	if ex.held != nil {
		ex.held.release()
		ex.held = nil
	}
}

// paced reads an answer that holds room.
type paced struct {
	io.Reader
	ex *exchange
}

// Read notes what comes in.
func (p paced) Read(b []byte) (int, error) {
	n, err := p.Reader.Read(b)
	p.ex.came(n)
	return n, err
}

// tooSlow is errSlow where an error of reading comes from that.
func (s *stream) tooSlow(err error) error {
	if errors.Is(context.Cause(s.ctx), errSlow) {
		return errSlow
	}
	return err
}
