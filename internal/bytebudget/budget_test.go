package bytebudget

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"runtime"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"

	"go.uber.org/goleak"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

const size = 8000

// checkPool fails the test unless the counters of a pool are consistent: the bytes by namespace and by kind add up,
// and do not exceed the pool. It also fails if the first reservation of a queue could be granted.
func checkPool(t *testing.T, p *pool) {
	t.Helper()
	p.mu.Lock()
	defer p.mu.Unlock()
	var byNamespace, byKind int64
	for namespace, bytes := range p.namespaces {
		if bytes <= 0 {
			t.Fatalf("namespace %q is kept with %d bytes", namespace, bytes)
		}
		byNamespace += bytes
	}
	for _, u := range p.kinds {
		byKind += u.Bytes
	}
	if byNamespace != p.used || byKind != p.used || p.used < 0 || p.used > p.size {
		t.Fatalf("%d of %d bytes are used, %d by namespaces, %d by kinds", p.used, p.size, byNamespace, byKind)
	}
	for namespace, queue := range p.queues {
		if queue.Len() == 0 {
			t.Fatalf("namespace %q has an empty queue", namespace)
		}
		if first, _ := queue.Front().Value.(*waiter); p.fits(namespace, first.bytes) && !p.mustYield(namespace, first.bytes) {
			t.Fatalf("namespace %q waits for %d bytes that it could have", namespace, first.bytes)
		}
	}
}

// TestOneNamespaceLeavesBytesForAnother checks that, whatever one namespace holds, another namespace gets its first
// bytes without a wait, and then the bytes that the first namespace releases.
func TestOneNamespaceLeavesBytesForAnother(t *testing.T) {
	b := New(size, size)
	greedy := b.Account("greedy", Conversations)
	var all []*Reservation
	for {
		r, err := greedy.TryReserve(100)
		if err != nil {
			if !errors.Is(err, ErrShort) {
				t.Fatalf("the refusal is %v, want ErrShort", err)
			}
			break
		}
		all = append(all, r)
	}
	if got := int64(len(all)) * 100; got != greedy.MaxReservation() {
		t.Errorf("a namespace that is alone gets %d bytes, want seven eighths, %d", got, greedy.MaxReservation())
	}
	victim, err := b.Account("victim", Listings).Reserve(t.Context(), 800)
	if err != nil {
		t.Fatalf("the reservation of another namespace failed: %v", err)
	}
	// The bytes that the greedy namespace releases go to the namespace that holds less, until both hold about the
	// same, however often the greedy one asks.
	for range 200 {
		all[0].Release()
		all = all[1:]
		_ = victim.Resize(victim.Bytes() + 100) // fails if this is more than its share
		if r, err := greedy.TryReserve(100); err == nil {
			all = append(all, r)
		}
		if len(all) == 0 {
			break
		}
	}
	if got := victim.Bytes(); got < size*6/15 || got > size*8/15 {
		t.Errorf("of two namespaces that want everything, the second gets %d bytes of %d, want about seven fifteenths", got, size)
	}
	checkPool(t, &b.held)
}

func TestImpossibleReservations(t *testing.T) {
	b := New(size, size)
	a := b.Account("a", Replies)
	if _, err := a.Reserve(t.Context(), size); !errors.Is(err, ErrTooLarge) {
		t.Errorf("more than a namespace can have: %v, want ErrTooLarge", err)
	}
	r, err := a.TryReserve(a.MaxReservation())
	if err != nil {
		t.Fatal(err)
	}
	if err := r.Resize(a.MaxReservation() + 1); !errors.Is(err, ErrTooLarge) || r.Bytes() != a.MaxReservation() {
		t.Errorf("Resize = %v with %d bytes, want ErrTooLarge and an unchanged reservation", err, r.Bytes())
	}
	cause := errors.New("the turn is over")
	ctx, cancel := context.WithCancelCause(t.Context())
	cancel(cause)
	if _, err := a.Reserve(ctx, 1000); !errors.Is(err, cause) {
		t.Errorf("Reserve with an ended context = %v, want the cause of the context", err)
	}
	r.Release()
	r.Release() // does nothing
	if u := b.Use(Replies); u.Bytes != 0 || u.Waiting != 0 || u.Refused != 2 || u.Size != size {
		t.Errorf("Use = %+v, want nothing held and two refusals", u)
	}
	checkPool(t, &b.passing)
}

func TestTheQueueIsBounded(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := New(size, size)
		a := b.Account("a", Replies)
		r, err := a.TryReserve(a.MaxReservation())
		if err != nil {
			t.Fatal(err)
		}
		var all sync.WaitGroup
		for range maxWaiting {
			all.Go(func() {
				if w, err := a.Reserve(t.Context(), 1); err == nil {
					w.Release()
				}
			})
		}
		synctest.Wait()
		if u := b.Use(Replies); u.Waiting != maxWaiting {
			t.Errorf("%d wait, want %d", u.Waiting, maxWaiting)
		}
		if !a.Contended() {
			t.Error("Contended = false, want true: reservations wait")
		}
		if _, err := a.Reserve(t.Context(), 1); !errors.Is(err, ErrQueueFull) || !errors.Is(err, ErrShort) {
			t.Errorf("one more reservation = %v, want ErrQueueFull, which is an ErrShort", err)
		}
		other, err := b.Account("b", Replies).Reserve(t.Context(), 1)
		if err != nil {
			t.Errorf("the reservation of another namespace failed: %v", err)
		}
		other.Release()
		r.Release()
		all.Wait()
	})
}

// TestLargeReservationDoesNotBlockOthers checks that a namespace that waits for more than is available does not block
// the reservations of other namespaces.
func TestLargeReservationDoesNotBlockOthers(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := New(size, size)
		long, err := b.Account("long", Conversations).TryReserve(4000)
		if err != nil {
			t.Fatal(err)
		}
		attacker := b.Account("attacker", Conversations)
		ctx, leave := context.WithCancel(t.Context())
		var done sync.WaitGroup
		done.Go(func() { _, _ = attacker.Reserve(ctx, attacker.MaxReservation()) })
		synctest.Wait()
		small, err := b.Account("victim", Conversations).Reserve(t.Context(), 1000)
		if err != nil {
			t.Fatalf("a small reservation is refused: %v", err)
		}
		leave()
		done.Wait()
		small.Release()
		long.Release()
		checkPool(t, &b.held)
	})
}

// TestWaitersYieldToSmallHolders checks that the waiters of a namespace do not take the bytes that it releases while
// they exceed its fair share and a namespace that holds less waits for them. Below its fair share, it still gets bytes.
func TestWaitersYieldToSmallHolders(t *testing.T) {
	b := New(size, size) // of two namespaces, each may have 8000 / 15 * 7 = 3731
	busy := b.Account("busy", Replies)
	var held []*Reservation
	for range 13 {
		r, err := busy.TryReserve(500)
		if err != nil {
			t.Fatal(err)
		}
		held = append(held, r)
	}
	victim, err := b.passing.enqueue(b.Account("victim", Results), 1900)
	if victim == nil {
		t.Fatalf("the reservation of 1900 bytes does not wait: %v", err)
	}
	var waiters []*waiter
	for range 20 {
		w, err := b.passing.enqueue(busy, 500)
		if w == nil {
			t.Fatalf("a reservation beyond the fair share does not wait: %v", err)
		}
		waiters = append(waiters, w)
	}
	granted := func(w *waiter) bool { return w.element == nil }
	held[0].Release()
	if granted(victim) || granted(waiters[0]) {
		t.Errorf("with 2000 free bytes, the victim is granted: %v, the next of the busy namespace: %v; want neither", granted(victim),
			granted(waiters[0]))
	}
	held[1].Release()
	if !granted(victim) || granted(waiters[0]) {
		t.Errorf("with 2500 free bytes, the victim is granted: %v, the next of the busy namespace: %v; want only the victim",
			granted(victim), granted(waiters[0]))
	}
	checkPool(t, &b.passing)

	large, err := b.passing.enqueue(b.Account("victim", Results), 4000)
	if large == nil {
		t.Fatalf("the reservation of 4000 bytes does not wait: %v", err)
	}
	for _, r := range held[2:8] {
		r.Release()
	}
	if next := waiters[0]; granted(large) || !granted(next) {
		t.Errorf("the large reservation is granted: %v, one below the fair share: %v; want only the latter", granted(large), granted(next))
	}
	checkPool(t, &b.passing)
}

// TestEqualNamespacesTakeTurns checks namespaces that always have a waiting reservation, of which only a few can hold
// bytes at the same time. Whatever their names are, each gets bytes as often as the others.
func TestEqualNamespacesTakeTurns(t *testing.T) {
	const bytes, rounds = 9, 100
	p := &New(0, 30).passing // three reservations fit
	namespaces := []string{"a", "b", "c", "d", "z"}
	var waiting []*waiter
	var holding []string // the namespaces with reservations, in the order in which they were granted
	granted := map[string]int{}
	enqueue := func(namespace string) {
		w, err := p.enqueue(Account{namespace: namespace, kind: Replies}, bytes)
		switch {
		case err != nil:
			t.Fatal(err)
		case w == nil:
			holding = append(holding, namespace)
		default:
			waiting = append(waiting, w)
		}
	}
	for _, namespace := range namespaces {
		enqueue(namespace)
	}
	for range rounds {
		first := holding[0]
		holding = holding[1:]
		enqueue(first) // it waits before the namespace releases its bytes
		if err := p.resize(Account{namespace: first, kind: Replies}, bytes, 0); err != nil {
			t.Fatal(err)
		}
		waiting = slices.DeleteFunc(waiting, func(w *waiter) bool {
			if w.element != nil {
				return false
			}
			granted[w.account.namespace]++
			holding = append(holding, w.account.namespace)
			return true
		})
		checkPool(t, p)
	}
	for _, namespace := range namespaces {
		if n := granted[namespace]; n != rounds/len(namespaces) {
			t.Errorf("namespace %q got bytes %d times in %d, want %d times", namespace, n, rounds, rounds/len(namespaces))
		}
	}
}

// TestEveryWaitEnds runs many Turns of several namespaces in random order. Each Turn holds a conversation that grows,
// releases the conversation if it cannot grow, and reads replies while it holds the conversation. All Turns must end.
func TestEveryWaitEnds(t *testing.T) {
	for seed := range uint64(30) {
		t.Run(fmt.Sprint(seed), func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				b := New(size, size)
				var all sync.WaitGroup
				for i := range 60 {
					random := rand.New(rand.NewPCG(seed, uint64(i)))
					all.Go(func() { runTurn(t, b, strings.Repeat("n", i%5), random) }) // one namespace has an empty name
				}
				all.Wait() // synctest reports a deadlock if the Turns wait for each other
				for _, p := range []*pool{&b.held, &b.passing} {
					if p.used != 0 || len(p.queues) != 0 {
						t.Errorf("%d bytes and %d queues are left", p.used, len(p.queues))
					}
				}
			})
		})
	}
}

// runTurn runs the steps of one Turn, which grow in size.
func runTurn(t *testing.T, b *Budget, namespace string, random *rand.Rand) {
	conversation := b.Account(namespace, Conversations)
	held := &Reservation{account: conversation}
	defer func() { held.Release() }()
	var want int64
	for range 5 {
		want += random.Int64N(300)
		for held.Resize(want) != nil {
			held.Release()
			var err error
			if held, err = conversation.Reserve(t.Context(), want); err != nil {
				t.Errorf("Reserve = %v", err)
				return
			}
		}
		// As when a reply arrives, a small reservation comes first, which may fail, and a large reservation follows.
		replies := b.Account(namespace, Replies)
		content := replies.GrowingReservation()
		_ = content.Resize(random.Int64N(600))
		reply, err := replies.Reserve(t.Context(), 1+random.Int64N(b.passing.maxAlone()))
		if err != nil {
			t.Errorf("Reserve = %v", err)
			return
		}
		content.Release()
		checkPool(t, &b.held)
		checkPool(t, &b.passing)
		reply.Release()
	}
}

// TestContentGrowsWithoutAWait checks that Cover reserves about as many bytes as have arrived, up to MaxContent, in the
// pool of the conversations.
func TestContentGrowsWithoutAWait(t *testing.T) {
	b := New(1<<20, size)
	content := b.Account("a", Replies).GrowingReservation()
	for _, tc := range []struct {
		bytes, held int64
		covered     bool
	}{
		{0, 0, true},
		{1, minContent, true},
		{minContent, minContent, true},
		{minContent + 1, 2 * minContent, true},
		{10, 2 * minContent, true},
		{MaxContent, MaxContent, true},
		{MaxContent + 1, MaxContent, false},
	} {
		if covered := content.Cover(tc.bytes); covered != tc.covered || content.Bytes() != tc.held || b.Use(Contents).Bytes != tc.held {
			t.Errorf("Cover(%d) = %t with %d bytes, want %t with %d", tc.bytes, covered, content.Bytes(), tc.covered, tc.held)
		}
	}
	others, err := b.Account("a", Conversations).TryReserve(400 << 10)
	if err != nil {
		t.Fatal(err)
	}
	second := b.Account("a", Results).GrowingReservation()
	if !second.Cover(minContent) || second.Cover(MaxContent) || second.Bytes() != minContent {
		t.Errorf("in a pool that is short of bytes, the reservation has %d bytes, want it unchanged", second.Bytes())
	}
	for _, r := range []*Reservation{content, others, second} {
		r.Release()
	}
	checkPool(t, &b.held)
	if b.held.used != 0 {
		t.Errorf("%d bytes are left", b.held.used)
	}
}

// TestOnlyLargeHoldersYield checks that, while one namespace waits, another namespace can still grow up to its fair
// share, but not beyond it.
func TestOnlyLargeHoldersYield(t *testing.T) {
	b := New(size, size) // of three namespaces, each may have 8000 / 22 * 7 = 2541
	busy, err := b.Account("busy", Conversations).TryReserve(3000)
	if err != nil {
		t.Fatal(err)
	}
	content := b.Account("victim", Replies).GrowingReservation()
	if err := content.Resize(100); err != nil {
		t.Fatal(err)
	}
	w, err := b.held.enqueue(b.Account("waiting", Conversations), 5000)
	if w == nil {
		t.Fatalf("the reservation of 5000 bytes does not wait: %v", err)
	}
	if err := content.Resize(2500); err != nil {
		t.Errorf("a reservation cannot grow within the fair share of its namespace: %v", err)
	}
	for name, r := range map[string]*Reservation{"busy": busy, "victim": content} {
		if err := r.Resize(r.Bytes() + 100); !errors.Is(err, ErrShort) {
			t.Errorf("Resize of namespace %q beyond its fair share = %v, want ErrShort: another namespace waits", name, err)
		}
	}
	content.Release()
	checkPool(t, &b.held)
	busy.Release()
	if b.held.leave(w) {
		t.Error("the reservation still waits although the bytes are free")
	}
	checkPool(t, &b.held)
}

// mustReserve reserves bytes that are available.
func (a Account) mustReserve(t *testing.T, bytes int64) *Reservation {
	t.Helper()
	r, err := a.TryReserve(bytes)
	if err != nil {
		t.Fatal(err)
	}
	return r
}

// TestNobodyYieldsToAnEqual checks that a namespace gets bytes beyond its fair share while only itself waits, or a
// namespace that holds as much.
func TestNobodyYieldsToAnEqual(t *testing.T) {
	for name, waiting := range map[string]string{"itself": "busy", "another": "equal"} {
		t.Run(name, func(t *testing.T) {
			b := New(size, size) // of three namespaces, each may have 8000 / 22 * 7 = 2541
			busy, equal := b.Account("busy", Conversations).mustReserve(t, 2500), b.Account("equal", Conversations).mustReserve(t, 2500)
			b.Account("third", Conversations).mustReserve(t, 10)
			w, err := b.held.enqueue(b.Account(waiting, Conversations), 3000)
			if w == nil {
				t.Fatalf("the reservation of 3000 bytes does not wait: %v", err)
			}
			if err := busy.Resize(2600); err != nil {
				t.Errorf("the namespace must yield: %v", err)
			}
			checkPool(t, &b.held)
			equal.Release()
			if b.held.leave(w) {
				t.Error("the reservation still waits although the bytes are free")
			}
		})
	}
}

// TestNextWaiterAfterOneLeaves checks that a small reservation is granted when the large one before it leaves.
func TestNextWaiterAfterOneLeaves(t *testing.T) {
	b := New(size, size)
	b.Account("long", Conversations).mustReserve(t, 4000)
	a := b.Account("a", Conversations)
	large, err := b.held.enqueue(a, 5000)
	if large == nil {
		t.Fatalf("the reservation of 5000 bytes does not wait: %v", err)
	}
	small, err := b.held.enqueue(a, 500)
	if small == nil {
		t.Fatalf("the reservation of 500 bytes overtakes one of its namespace: %v", err)
	}
	if !b.held.leave(large) {
		t.Fatal("the large reservation was granted")
	}
	if b.held.leave(small) {
		t.Error("the small reservation still waits, want it granted")
	}
	checkPool(t, &b.held)
}

// TestWaitersLeaveWithoutWork checks that the end of a wait costs the same for any number of waiters, because all Turns
// of a namespace may be cancelled at the same time.
func TestWaitersLeaveWithoutWork(t *testing.T) {
	b := New(size, size)
	a := b.Account("a", Replies)
	all, err := a.TryReserve(a.MaxReservation())
	if err != nil {
		t.Fatal(err)
	}
	var waiters []*waiter
	for range maxWaiting {
		w, err := b.passing.enqueue(a, 1)
		if w == nil {
			t.Fatalf("a reservation does not wait: %v", err)
		}
		waiters = append(waiters, w)
	}
	var before, after runtime.MemStats
	runtime.ReadMemStats(&before)
	for _, w := range waiters[1:] {
		if !b.passing.leave(w) {
			t.Fatal("a waiter is gone")
		}
	}
	runtime.ReadMemStats(&after)
	if took := (after.TotalAlloc - before.TotalAlloc) / maxWaiting; took > 1<<10 {
		t.Errorf("the end of one wait allocates %d bytes, as if it copied the queue", took)
	}
	all.Release()
	if b.passing.leave(waiters[0]) {
		t.Error("the first reservation still waits")
	}
	checkPool(t, &b.passing)
}

// TestNilBudgetHasNoBound checks the nil Budget, which the command line uses.
func TestNilBudgetHasNoBound(t *testing.T) {
	var b *Budget
	for _, a := range []Account{{}, b.Account("a", Listings)} {
		r, err := a.Reserve(t.Context(), 1<<60)
		if err == nil {
			err = r.Resize(1 << 61)
		}
		if r.Release(); err != nil || a.Contended() || a.MaxReservation() != 0 {
			t.Errorf("the reservation of a nil Budget failed or has a limit: %v", err)
		}
	}
	var none *Reservation
	none.Release()
	if none.Bytes() != 0 {
		t.Error("a nil Reservation holds bytes")
	}
}

// TestThePayerIsTheNamespaceThatAsks checks that a request to a shared object reserves bytes of the namespace that
// asks.
func TestThePayerIsTheNamespaceThatAsks(t *testing.T) {
	b := New(size, size)
	owner := b.Account("owner", Replies)
	if got := owner.For(t.Context()); got.namespace != "owner" || got.kind != Replies || got.budget != b {
		t.Errorf("without a payer the account is %+v, want that of the owner", got)
	}
	if got := owner.For(WithPayer(t.Context(), "team")); got.namespace != "team" || got.kind != Replies || got.budget != b {
		t.Errorf("the account is %+v, want that of the payer", got)
	}
}

// TestNothingLongIsReceivedWithoutSpace checks that only the smallest contents are reserved while the check fails, and
// that a reservation that waited when the check began to fail is released.
func TestNothingLongIsReceivedWithoutSpace(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := New(1<<20, 1<<20)
		full := errors.New("the volume is full")
		var now atomic.Pointer[error]
		a := b.Account("team", Replies).For(WithCheck(t.Context(), func() error {
			if err := now.Load(); err != nil {
				return *err
			}
			return nil
		}))
		first, err := a.Reserve(t.Context(), a.MaxReservation())
		if err != nil {
			t.Fatal(err)
		}
		waited := make(chan error)
		go func() {
			_, err := a.Reserve(t.Context(), a.MaxReservation())
			waited <- err
		}()
		synctest.Wait()
		now.Store(&full)
		first.Release()
		if err := <-waited; !errors.Is(err, ErrNoSpace) || !errors.Is(err, full) {
			t.Errorf("a reservation that waited: %v, want ErrNoSpace and the reason", err)
		}
		if _, err := a.Reserve(t.Context(), 1); !errors.Is(err, ErrNoSpace) {
			t.Errorf("a new reservation: %v, want ErrNoSpace", err)
		}
		small := a.GrowingReservation()
		if !small.Cover(minContent) || small.Cover(minContent+1) {
			t.Errorf("contents of %d bytes are reserved, want only those of at most %d", small.Bytes(), minContent)
		}
		if r, err := b.Account("team", Replies).For(t.Context()).Reserve(t.Context(), 1); err != nil {
			t.Errorf("a reservation without a check: %v", err)
		} else {
			r.Release()
		}
		now.Store(nil)
		if !small.Cover(2 * minContent) {
			t.Error("contents are not reserved, although there is space again")
		}
		small.Release()
		if used := b.Use(Replies).Bytes + b.Use(Contents).Bytes; used != 0 {
			t.Errorf("%d bytes are held in the end", used)
		}
	})
}
