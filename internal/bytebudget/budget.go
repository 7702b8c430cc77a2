// Package bytebudget shares memory among namespaces: memory that they hold for long, and memory for data that passes
// through. The package counts bytes, and neither allocates nor frees memory.
//
// # Shares
//
// A namespace may hold seven times as much as is free in a pool. So a namespace that is alone may use seven eighths of
// the pool, and another namespace can always reserve bytes without a wait. Two namespaces that want as much as possible
// get seven fifteenths each, three get seven twenty-seconds, and so on: this is the fair share of a namespace. While a
// namespace that holds less is waiting, another namespace gets no bytes beyond its fair share. Waiting namespaces that
// hold the same take turns. A reservation of more than the fair share may wait for as long as others use the rest.
//
// # Order
//
// There are two pools, in this order: the pool of listings, objects, conversations and contents, and the pool of
// replies and results. A holder of bytes never waits for bytes of the same pool or of an earlier pool. The holder of a
// reply or a result needs no further bytes, and waits for no request of another Turn. So every wait ends:
//
//  1. The reservations of conversations and contents grow with Resize and Cover, which do not wait.
//  2. If the reservation of a conversation cannot grow, its Turn first releases all its bytes, also those of its newest
//     reply, and then waits.
//  3. If the reservation of contents cannot grow, its holder waits for a reservation that is large enough for any reply
//     or result, and then releases the smaller reservation.
package bytebudget

import (
	"cmp"
	"container/list"
	"context"
	"errors"
	"fmt"
	"maps"
	"math"
	"slices"
	"sync"
)

// Kind is the purpose of bytes.
type Kind string

const (
	// Listings are the tools that servers have listed.
	Listings Kind = "listings"
	// Objects are the contents of objects of the API server that the manager's cache holds, and the credentials and
	// certificates of connections.
	Objects Kind = "objects"
	// Conversations are the messages of running Turns: their requests, histories, replies and tool results so far.
	Conversations Kind = "conversations"
	// Contents are replies of models, results of tools, and data that is read from the store, of at most MaxContent
	// bytes. A reply is counted until it becomes part of its conversation, and a result until it is decoded.
	Contents Kind = "contents"
	// Replies are larger replies of models. A reply is counted from the start of its reading until it becomes part of
	// its conversation; the final answer of a Turn until the Turn's status is written.
	Replies Kind = "replies"
	// Results are larger responses of tool servers that are being read, and larger data that is read from the store.
	Results Kind = "results"
)

// Kinds returns all kinds, in the order in which they are reserved.
func Kinds() []Kind { return []Kind{Listings, Objects, Conversations, Contents, Replies, Results} }

const (
	// perFree is the maximum number of bytes that a namespace may hold for each free byte.
	perFree = 7
	// maxWaiting bounds the waiting reservations of a namespace in a pool.
	maxWaiting = 4096
)

// MaxContent and minContent are the largest and the smallest reservation that Cover makes, in bytes.
const (
	MaxContent = 256 << 10
	minContent = 16 << 10
)

// The errors of reservations.
var (
	// ErrTooLarge means that a namespace can never hold the requested number of bytes.
	ErrTooLarge = errors.New("one namespace can never hold so much")
	// ErrShort means that the requested bytes are not available now.
	ErrShort = errors.New("the memory budget is used up")
	// ErrNoSpace means that the content must not be received, because the check of WithCheck failed.
	ErrNoSpace = errors.New("the answer was not received, because the namespace has no space to store it")
	// ErrQueueFull means that too many reservations of the namespace already wait.
	ErrQueueFull = fmt.Errorf("%w, and %d reservations of the namespace already wait", ErrShort, maxWaiting)
)

// Budget is the memory that namespaces share. It is safe for concurrent use. A nil Budget has no limit.
type Budget struct {
	held, passing pool
}

// New returns a budget with held bytes for listings, objects, conversations and contents, and passing bytes for replies
// and results.
func New(held, passing int64) *Budget {
	b := &Budget{}
	b.held.init(held)
	b.passing.init(passing)
	return b
}

// Account returns the account from which a namespace reserves bytes of a kind.
func (b *Budget) Account(namespace string, kind Kind) Account {
	return Account{budget: b, namespace: namespace, kind: kind}
}

func (b *Budget) pool(kind Kind) *pool {
	if kind == Replies || kind == Results {
		return &b.passing
	}
	return &b.held
}

// Use is the current use of a kind.
type Use struct {
	// Bytes is the number of bytes that are held. Waiting is the number of waiting reservations.
	Bytes   int64
	Waiting int
	// Refused is the number of refused reservations so far. Size is the size of the whole pool in bytes, which several
	// kinds share.
	Refused, Size int64
}

// Use returns the current use of a kind.
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
	check     func() error
}

// payerKey is the key of a context's value that WithPayer sets.
type payerKey struct{}

// WithPayer returns a context for a request to an object that another namespace shares. The reply or result is then
// reserved for the namespace that asks, and not for that of the object: see For.
func WithPayer(ctx context.Context, namespace string) context.Context {
	return context.WithValue(ctx, payerKey{}, namespace)
}

// checkKey is the key of a context's value that WithCheck sets.
type checkKey struct{}

// WithCheck returns a context for requests whose replies and results are received only while check returns nil.
// Otherwise Reserve returns ErrNoSpace, and Cover reserves only the smallest contents. So a namespace with thousands of
// requests in progress receives no more long answers once it cannot store them. check must be fast and safe for
// concurrent use.
func WithCheck(ctx context.Context, check func() error) context.Context {
	return context.WithValue(ctx, checkKey{}, check)
}

// refusal returns the error of the check, or nil.
func (a Account) refusal() error {
	if a.check == nil {
		return nil
	}
	if err := a.check(); err != nil {
		return fmt.Errorf("%w: %w", ErrNoSpace, err)
	}
	return nil
}

// For returns the account of the namespace that WithPayer has set, or a if there is none, with the check of WithCheck.
func (a Account) For(ctx context.Context) Account {
	a.check, _ = ctx.Value(checkKey{}).(func() error)
	if namespace, ok := ctx.Value(payerKey{}).(string); ok {
		a.namespace = namespace
	}
	return a
}

// Namespace returns the namespace for which the account reserves bytes.
func (a Account) Namespace() string { return a.namespace }

// MaxReservation returns the largest possible reservation in bytes, or 0 if there is no bound.
func (a Account) MaxReservation() int64 {
	if a.budget == nil {
		return 0
	}
	return a.budget.pool(a.kind).maxAlone()
}

// Contended reports whether reservations wait for bytes of the same pool.
func (a Account) Contended() bool {
	if a.budget == nil {
		return false
	}
	p := a.budget.pool(a.kind)
	p.mu.Lock()
	defer p.mu.Unlock()
	return len(p.queues) > 0
}

// Reserve waits until it can reserve the bytes. The caller must not hold bytes of this pool or of a later pool. Reserve
// returns the cause of ctx if ctx ends first, ErrTooLarge if the bytes can never be reserved, ErrQueueFull if too many
// reservations of the namespace wait, and ErrNoSpace if the check of WithCheck fails, before or after the wait.
func (a Account) Reserve(ctx context.Context, bytes int64) (*Reservation, error) {
	r := &Reservation{account: a}
	if a.budget == nil {
		return r, nil
	}
	if err := a.refusal(); err != nil {
		return nil, err
	}
	if err := a.budget.pool(a.kind).reserve(ctx, a, bytes); err != nil {
		return nil, a.wrap(bytes, err)
	}
	r.bytes = bytes
	if err := a.refusal(); err != nil {
		r.Release()
		return nil, err
	}
	return r, nil
}

// TryReserve reserves the bytes if they are available now. Otherwise it returns ErrTooLarge or ErrShort.
func (a Account) TryReserve(bytes int64) (*Reservation, error) {
	r := &Reservation{account: a}
	return r, r.Resize(bytes)
}

// GrowingReservation returns an empty reservation of the kind Contents, for data whose size is not known before it has
// arrived. The caller enlarges the reservation with Cover.
func (a Account) GrowingReservation() *Reservation {
	a.kind = Contents
	return &Reservation{account: a}
}

// wrap adds the reservation that failed to an error.
func (a Account) wrap(bytes int64, err error) error {
	return fmt.Errorf("failed to reserve %d bytes for %s of namespace %q: %w", bytes, a.kind, a.namespace, err)
}

// Reservation is a number of reserved bytes. It is not safe for concurrent use. A nil Reservation holds no bytes.
type Reservation struct {
	account Account
	bytes   int64
}

// Bytes returns the number of reserved bytes.
func (r *Reservation) Bytes() int64 {
	if r == nil {
		return 0
	}
	return r.bytes
}

// Resize changes the number of reserved bytes. It does not wait: if the additional bytes are not available now, the
// reservation stays unchanged and the error is ErrTooLarge or ErrShort.
func (r *Reservation) Resize(bytes int64) error {
	a := r.account
	if a.budget == nil {
		return nil
	}
	if err := a.budget.pool(a.kind).resize(a, r.bytes, bytes); err != nil {
		return a.wrap(bytes, err)
	}
	r.bytes = bytes
	return nil
}

// Cover makes the reservation at least as large as the content that has arrived. It does not wait, and doubles the
// reservation so that it seldom has to lock the pool. Cover returns false if the content is larger than MaxContent, if
// the bytes are not available now, or if the check of WithCheck fails. The caller must then reserve the maximum size of
// a reply or a result from the other pool, and release this reservation.
func (r *Reservation) Cover(bytes int64) bool {
	if bytes <= r.bytes {
		return true
	}
	size := max(r.bytes, minContent)
	for size < bytes {
		size *= 2
	}
	return size <= MaxContent && (size == minContent || r.account.refusal() == nil) && r.Resize(size) == nil
}

// Release releases all bytes. Further calls do nothing.
func (r *Reservation) Release() {
	if r == nil || r.bytes == 0 {
		return
	}
	a := r.account
	_ = a.budget.pool(a.kind).resize(a, r.bytes, 0) // a smaller size is always possible
	r.bytes = 0
}

// pool holds the bytes that several kinds share.
type pool struct {
	mu   sync.Mutex
	size int64
	used int64
	// namespaces holds the bytes of each namespace. A namespace without bytes has no entry.
	namespaces map[string]int64
	// queues holds the waiting reservations of each namespace in order, as *waiter. There are no empty queues.
	queues map[string]*list.List
	kinds  map[Kind]Use
	// arrivals is the number of waiters so far.
	arrivals uint64
}

// waiter is a waiting reservation. ready is closed when it is granted.
type waiter struct {
	account Account
	bytes   int64
	// number is the waiter's place in the order of arrival.
	number uint64
	ready  chan struct{}
	// element is the waiter's element of its queue, or nil once it has left the queue.
	element *list.Element
}

func (p *pool) init(size int64) {
	p.size, p.namespaces, p.queues, p.kinds = size, map[string]int64{}, map[string]*list.List{}, map[Kind]Use{}
}

// maxAlone returns the bytes that a namespace can hold if it is alone.
func (p *pool) maxAlone() int64 { return p.share(1) }

// share returns the bytes that each namespace can hold if this number of namespaces want as much as possible.
func (p *pool) share(users int) int64 { return p.size / int64(perFree*users+1) * perFree }

// fits reports whether a namespace may hold delta more bytes: it must then hold at most perFree times as many bytes as
// are still free. The caller must hold the lock.
func (p *pool) fits(namespace string, delta int64) bool {
	free := p.size - p.used - delta
	return free >= 0 && p.namespaces[namespace]+delta <= free*perFree
}

// add counts reserved bytes, or released bytes if delta is negative. The caller must hold the lock.
func (p *pool) add(a Account, delta int64) {
	p.used += delta
	if p.namespaces[a.namespace] += delta; p.namespaces[a.namespace] == 0 {
		delete(p.namespaces, a.namespace)
	}
	p.count(a.kind, func(u *Use) { u.Bytes += delta })
}

func (p *pool) count(kind Kind, change func(*Use)) {
	u := p.kinds[kind]
	change(&u)
	p.kinds[kind] = u
}

// refuse counts a refused reservation, and returns err.
func (p *pool) refuse(kind Kind, err error) error {
	p.count(kind, func(u *Use) { u.Refused++ })
	return err
}

func (p *pool) resize(a Account, from, to int64) error {
	p.mu.Lock()
	defer p.mu.Unlock()
	delta := to - from
	switch {
	case delta > 0 && to > p.maxAlone():
		return p.refuse(a.kind, ErrTooLarge)
	case delta > 0 && (!p.fits(a.namespace, delta) || p.mustYield(a.namespace, delta)):
		return p.refuse(a.kind, ErrShort)
	}
	p.add(a, delta)
	if delta < 0 || p.queues[a.namespace] != nil { // a waiting namespace that holds more now holds fewer others back
		p.grant()
	}
	return nil
}

// users returns the number of namespaces that hold bytes or wait for bytes. The caller must hold the lock.
func (p *pool) users() int {
	users := len(p.namespaces)
	for namespace := range p.queues {
		if p.namespaces[namespace] == 0 {
			users++
		}
	}
	return users
}

// mustYield reports whether a namespace must not get delta more bytes because of another namespace: with these bytes,
// it would hold more than its fair share, and a namespace that holds less is waiting. The caller must hold the lock.
func (p *pool) mustYield(namespace string, delta int64) bool {
	held := p.namespaces[namespace]
	if held+delta <= p.share(p.users()) {
		return false
	}
	for other := range p.queues {
		if p.namespaces[other] < held {
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
	return nil // the reservation was granted at the same time
}

// enqueue reserves the bytes if they are available and no waiting reservation goes first. Otherwise it returns a
// waiter.
func (p *pool) enqueue(a Account, bytes int64) (*waiter, error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	queue := p.queues[a.namespace]
	if queue == nil {
		queue = list.New()
	}
	switch {
	case bytes > p.maxAlone():
		return nil, p.refuse(a.kind, ErrTooLarge)
	case queue.Len() >= maxWaiting:
		return nil, p.refuse(a.kind, ErrQueueFull)
	}
	p.arrivals++
	w := &waiter{account: a, bytes: bytes, number: p.arrivals, ready: make(chan struct{})}
	w.element = queue.PushBack(w)
	p.queues[a.namespace] = queue
	p.count(a.kind, func(u *Use) { u.Waiting++ })
	p.grant()
	select {
	case <-w.ready:
		return nil, nil //nolint:nilnil // because there is nothing to wait for
	default:
		return w, nil
	}
}

// leave removes a waiter from its queue, and reports whether it was still there.
func (p *pool) leave(w *waiter) bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	if w.element == nil {
		return false
	}
	first := w.element.Prev() == nil
	p.dequeue(w)
	if first {
		p.grant() // the next reservation may be smaller
	}
	return true
}

// dequeue removes a waiter from its queue. The caller must hold the lock.
func (p *pool) dequeue(w *waiter) {
	p.count(w.account.kind, func(u *Use) { u.Waiting-- })
	queue := p.queues[w.account.namespace]
	queue.Remove(w.element)
	w.element = nil
	if queue.Len() == 0 {
		delete(p.queues, w.account.namespace)
	}
}

// grant grants bytes to waiters: first to the namespace that holds the least, and within a namespace in order. A
// namespace whose first waiter does not fit is skipped, because a large reservation that must wait for long must not
// block other namespaces. But a namespace that holds more then gets no bytes beyond its fair share, as with mustYield:
// its waiters would take each byte that it releases, and the large reservation would wait for ever. grant checks one
// waiter of each namespace, and one more for each granted reservation. The caller must hold the lock.
func (p *pool) grant() {
	left := slices.SortedFunc(maps.Keys(p.queues), p.order)
	share := p.share(p.users())
	skipped := int64(math.MaxInt64) // the bytes of the skipped namespace that holds the least
	for len(left) > 0 {
		namespace := left[0]
		left = left[1:]
		first, _ := p.queues[namespace].Front().Value.(*waiter)
		held := p.namespaces[namespace]
		if !p.fits(namespace, first.bytes) || held > skipped && held+first.bytes > share {
			skipped = min(skipped, held)
			continue
		}
		p.add(first.account, first.bytes)
		p.dequeue(first)
		close(first.ready)
		if p.queues[namespace] != nil {
			i, _ := slices.BinarySearchFunc(left, namespace, p.order)
			left = slices.Insert(left, i, namespace)
		}
	}
}

// order compares namespaces by the bytes that they hold, and then by the arrival of their first waiter, so that
// namespaces that hold the same take turns. The namespaces must have waiters. The caller must hold the lock.
func (p *pool) order(a, b string) int {
	return cmp.Or(cmp.Compare(p.namespaces[a], p.namespaces[b]), cmp.Compare(p.firstNumber(a), p.firstNumber(b)))
}

// firstNumber returns the number of the first waiter of a namespace. The caller must hold the lock.
func (p *pool) firstNumber(namespace string) uint64 {
	w, _ := p.queues[namespace].Front().Value.(*waiter)
	return w.number
}
