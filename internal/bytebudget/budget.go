// Package bytebudget shares memory among namespaces: what they hold for long, and what passes through. It counts bytes, and neither
// allocates nor frees any.
//
// # Shares
//
// A namespace may hold seven times as much as is free in a pool. So one that is alone may use seven eighths, and there is always room
// for another one at once; of two that want all they can get each has seven fifteenths, and so on.
//
// # Order
//
// Nobody waits for bytes of a pool while holding bytes of the same pool or of a later one: conversations and listings come first, then
// replies and results. Who holds a reply or a result needs no further bytes until it is given back, so every wait ends. Who needs more
// of what it holds already asks with Resize, which does not wait: who is refused gives all of it back, and waits with nothing. So does
// who holds a reply and counts it with its conversation.
package bytebudget

import (
	"context"
	"errors"
	"fmt"
	"sync"
)

// Kind is what the bytes are for.
type Kind string

const (
	// Listings are the tools that servers have listed.
	Listings Kind = "listings"
	// Conversations are the messages of running Turns: their requests, histories, replies and results of tools so far.
	Conversations Kind = "conversations"
	// Replies are those of models, from the reading on: until they count as conversations, and answers until their Turns are written.
	Replies Kind = "replies"
	// Results are answers of tool servers that are being read.
	Results Kind = "results"
)

// Kinds returns all kinds, in the order in which they are reserved.
func Kinds() []Kind { return []Kind{Listings, Conversations, Replies, Results} }

const (
	// perFree is how many times what is free a namespace may hold.
	perFree = 7
	// maxWaiting bounds those of a namespace that wait for a pool.
	maxWaiting = 4096
)

// Errors of reservations.
var (
	// ErrTooLarge means that what is wanted is more than one namespace can ever hold.
	ErrTooLarge = errors.New("it is more than one namespace may hold")
	// ErrShort means that there are not as many bytes now.
	ErrShort = errors.New("the memory is used up")
	// ErrQueueFull means that too many wait already.
	ErrQueueFull = fmt.Errorf("%w, and %d of the namespace wait for it", ErrShort, maxWaiting)
)

// Budget is the memory that namespaces share. It is safe for concurrent use. A nil Budget has no bound.
type Budget struct {
	held, passing pool
}

// New returns a budget: held bytes for listings and conversations, and passing bytes for replies and results.
func New(held, passing int64) *Budget {
	b := &Budget{}
	b.held.init(held)
	b.passing.init(passing)
	return b
}

// Account returns what reserves bytes of a kind for a namespace.
func (b *Budget) Account(namespace string, kind Kind) Account {
	return Account{budget: b, namespace: namespace, kind: kind}
}

func (b *Budget) pool(kind Kind) *pool {
	if kind == Replies || kind == Results {
		return &b.passing
	}
	return &b.held
}

// Use is what is used of a kind.
type Use struct {
	// Bytes that are held, and Waiting, how many wait for some.
	Bytes   int64
	Waiting int
	// Refused is how many reservations were refused so far, and Size the bytes of the pool, which kinds share.
	Refused, Size int64
}

// Use returns what is used of a kind.
func (b *Budget) Use(kind Kind) Use {
	p := b.pool(kind)
	p.mu.Lock()
	defer p.mu.Unlock()
	u := p.kinds[kind]
	u.Size = p.size
	return u
}

// Account reserves bytes of a kind for a namespace. The zero Account has no bound.
type Account struct {
	budget    *Budget
	namespace string
	kind      Kind
}

// Most returns how many bytes one reservation can have; 0 for no bound.
func (a Account) Most() int64 {
	if a.budget == nil {
		return 0
	}
	return a.budget.pool(a.kind).most()
}

// Contended reports whether others wait for bytes of the same pool.
func (a Account) Contended() bool {
	if a.budget == nil {
		return false
	}
	p := a.budget.pool(a.kind)
	p.mu.Lock()
	defer p.mu.Unlock()
	return len(p.queues) > 0
}

// Reserve waits for so many bytes. The caller holds no bytes of this pool, nor of a later one. It returns the cause of ctx if that ends
// first, ErrTooLarge if the bytes can never be had, and ErrQueueFull if too many of the namespace wait.
func (a Account) Reserve(ctx context.Context, bytes int64) (*Reservation, error) {
	r := &Reservation{account: a}
	if a.budget == nil {
		return r, nil
	}
	if err := a.budget.pool(a.kind).reserve(ctx, a, bytes); err != nil {
		return nil, a.failed(bytes, err)
	}
	r.bytes = bytes
	return r, nil
}

// Try reserves so many bytes if they can be had now. It returns ErrTooLarge or ErrShort.
func (a Account) Try(bytes int64) (*Reservation, error) {
	r := &Reservation{account: a}
	return r, r.Resize(bytes)
}

func (a Account) failed(bytes int64, err error) error {
	return fmt.Errorf("failed to reserve %d bytes for %s of namespace %q: %w", bytes, a.kind, a.namespace, err)
}

// Reservation is bytes that are held. One goroutine at a time uses it. A nil Reservation holds none.
type Reservation struct {
	account Account
	bytes   int64
}

// Bytes returns how many bytes are held.
func (r *Reservation) Bytes() int64 {
	if r == nil {
		return 0
	}
	return r.bytes
}

// Resize holds so many bytes from now on. More bytes are had now or not at all: then those of before are kept, and the error is
// ErrTooLarge or ErrShort.
func (r *Reservation) Resize(bytes int64) error {
	a := r.account
	if a.budget == nil {
		return nil
	}
	if err := a.budget.pool(a.kind).resize(a, r.bytes, bytes); err != nil {
		return a.failed(bytes, err)
	}
	r.bytes = bytes
	return nil
}

// Release gives all bytes back. It may be called again, and then does nothing.
func (r *Reservation) Release() {
	if r == nil || r.bytes == 0 {
		return
	}
	a := r.account
	_ = a.budget.pool(a.kind).resize(a, r.bytes, 0) // which does not fail
	r.bytes = 0
}

// pool is bytes that kinds share.
type pool struct {
	mu   sync.Mutex
	size int64
	used int64
	// namespaces is what each holds; those that hold nothing are not there.
	namespaces map[string]int64
	// queues are those who wait, by namespace, first come first; empty ones are not there.
	queues map[string][]*waiter
	kinds  map[Kind]Use
}

// waiter waits for bytes. Who grants them closes ready.
type waiter struct {
	account Account
	bytes   int64
	ready   chan struct{}
}

func (p *pool) init(size int64) {
	p.size, p.namespaces, p.queues, p.kinds = size, map[string]int64{}, map[string][]*waiter{}, map[Kind]Use{}
}

// most is what a namespace can hold that is alone.
func (p *pool) most() int64 { return p.size / (perFree + 1) * perFree }

// fits reports whether so many more bytes are within the share of a namespace. The caller holds the lock.
func (p *pool) fits(namespace string, more int64) bool {
	free := p.size - p.used - more
	return free >= 0 && p.namespaces[namespace]+more <= free*perFree
}

// add counts bytes that are taken, or given back. The caller holds the lock.
func (p *pool) add(a Account, more int64) {
	p.used += more
	if p.namespaces[a.namespace] += more; p.namespaces[a.namespace] == 0 {
		delete(p.namespaces, a.namespace)
	}
	p.count(a.kind, func(u *Use) { u.Bytes += more })
}

func (p *pool) count(kind Kind, change func(*Use)) {
	u := p.kinds[kind]
	change(&u)
	p.kinds[kind] = u
}

// refuse counts a reservation that is refused, and returns why.
func (p *pool) refuse(kind Kind, why error) error {
	p.count(kind, func(u *Use) { u.Refused++ })
	return why
}

func (p *pool) resize(a Account, from, to int64) error {
	p.mu.Lock()
	defer p.mu.Unlock()
	more := to - from
	switch {
	case more > 0 && to > p.most():
		return p.refuse(a.kind, ErrTooLarge)
	case more > 0 && (!p.fits(a.namespace, more) || p.mustYield(a.namespace)):
		return p.refuse(a.kind, ErrShort)
	}
	p.add(a, more)
	if more < 0 {
		p.grant()
	}
	return nil
}

// mustYield reports whether a namespace that holds less than this one waits. The caller holds the lock.
func (p *pool) mustYield(namespace string) bool {
	for other := range p.queues {
		if other != namespace && p.namespaces[other] < p.namespaces[namespace] {
			return true
		}
	}
	return false
}

func (p *pool) reserve(ctx context.Context, a Account, bytes int64) error {
	w, err := p.enqueue(a, bytes)
	if w == nil {
		return err
	}
	select {
	case <-w.ready:
		return nil
	case <-ctx.Done():
	}
	if p.leave(w) {
		return context.Cause(ctx)
	}
	return nil // it was granted at the same time
}

// enqueue takes bytes if nobody waits who has more right to them, or returns a waiter for them.
func (p *pool) enqueue(a Account, bytes int64) (*waiter, error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	queue := p.queues[a.namespace]
	switch {
	case bytes > p.most():
		return nil, p.refuse(a.kind, ErrTooLarge)
	case len(queue) >= maxWaiting:
		return nil, p.refuse(a.kind, ErrQueueFull)
	}
	w := &waiter{account: a, bytes: bytes, ready: make(chan struct{})}
	p.queues[a.namespace] = append(queue, w)
	p.count(a.kind, func(u *Use) { u.Waiting++ })
	p.grant()
	select {
	case <-w.ready:
		return nil, nil //nolint:nilnil // because there is nothing to wait for
	default:
		return w, nil
	}
}

// leave takes a waiter out of its queue, and reports whether it was still there.
func (p *pool) leave(w *waiter) bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	for i, other := range p.queues[w.account.namespace] {
		if other == w {
			p.dequeue(w.account.namespace, i)
			p.grant() // the next may want less
			return true
		}
	}
	return false
}

// dequeue takes the waiter at a place out of a queue. The caller holds the lock.
func (p *pool) dequeue(namespace string, i int) {
	queue := p.queues[namespace]
	p.count(queue[i].account.kind, func(u *Use) { u.Waiting-- })
	switch {
	case len(queue) == 1:
		delete(p.queues, namespace)
	case i == 0:
		p.queues[namespace] = queue[1:]
	default:
		p.queues[namespace] = append(queue[:i:i], queue[i+1:]...)
	}
}

// grant gives bytes to those who wait: the namespace that holds the least first, and within it in order. Who does not fit is passed
// over: a large reservation that has to wait for long must not keep other namespaces waiting. The caller holds the lock.
func (p *pool) grant() {
	passed := map[string]bool{}
	for {
		next, found := "", false
		for namespace := range p.queues {
			if !passed[namespace] && (!found || p.less(namespace, next)) {
				next, found = namespace, true
			}
		}
		if !found {
			return
		}
		first := p.queues[next][0]
		if !p.fits(next, first.bytes) {
			passed[next] = true
			continue
		}
		p.add(first.account, first.bytes)
		p.dequeue(next, 0)
		close(first.ready)
	}
}

// less orders namespaces by what they hold, then by name. The caller holds the lock.
func (p *pool) less(a, b string) bool {
	if p.namespaces[a] != p.namespaces[b] {
		return p.namespaces[a] < p.namespaces[b]
	}
	return a < b
}
