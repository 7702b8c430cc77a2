package fairgate

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"go.uber.org/goleak"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// enter calls Enter in a new goroutine, which sends the namespace to in when it is inside.
func enter(t *testing.T, g *Gate, namespace string, in chan<- string) {
	t.Helper()
	go func() {
		if err := g.Enter(t.Context(), namespace); err != nil {
			t.Errorf("Enter(%s): %v", namespace, err)
		}
		in <- namespace
	}()
	synctest.Wait()
}

func TestNamespaceDoesNotFillTheGate(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		g, in := New(4, 3), make(chan string, 10)
		enter(t, g, "calm", in)
		g.Leave("calm")
		<-in
		for range 5 {
			enter(t, g, "busy", in)
		}
		if len(in) != 3 {
			t.Fatalf("%d of the busy namespace are inside, want 3", len(in))
		}
		enter(t, g, "calm", in)
		if len(in) != 4 {
			t.Error("the calm namespace was not let in")
		}
		g.Leave("calm")
		if synctest.Wait(); len(in) != 4 {
			t.Error("a goroutine of the busy namespace entered, want its limit of 3 to apply")
		}
		for range 5 {
			g.Leave("busy")
			synctest.Wait()
		}
		if len(in) != 6 {
			t.Errorf("%d were let in, want all 6", len(in))
		}
		if g.free != 4 || len(g.inside) > 0 || len(g.waiting) > 0 || len(g.turns) > 0 {
			t.Errorf("after all goroutines have left, the gate has the state %+v", g)
		}
	})
}

func TestSingleNamespaceFillsTheGate(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		g, in := New(4, 2), make(chan string, 10)
		for range 5 {
			enter(t, g, "busy", in)
		}
		if len(in) != 4 {
			t.Fatalf("%d are inside, want 4", len(in))
		}
		enter(t, g, "calm", in)
		for range 3 {
			g.Leave("busy")
			synctest.Wait()
		}
		if len(in) != 6 || g.inside["busy"] != 2 || g.inside["calm"] != 1 {
			t.Errorf("%d were let in, inside are %v; want all but one of the busy namespace, and one place free", len(in), g.inside)
		}
		time.Sleep(alone + 1)
		g.Leave("calm") // Leave admits the last busy goroutine, because its namespace counts as alone by now
		for range 3 {
			enter(t, g, "busy", in)
		}
		if g.inside["busy"] != 4 {
			t.Errorf("inside are %v, want 4 of the busy namespace, which is alone again", g.inside)
		}
		for range 6 {
			g.Leave("busy")
			synctest.Wait()
		}
	})
}

// TestFewMayAllBeInside checks that all goroutines of a namespace may be inside if they are few, although another
// namespace uses the gate, and that fewer may be inside while many of the namespace's goroutines wait.
func TestFewMayAllBeInside(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		g, in := New(16, 3), make(chan string, 40)
		enter(t, g, "calm", in)
		for range 9 {
			enter(t, g, "busy", in)
		}
		if g.inside["busy"] != 8 {
			t.Fatalf("%d of 9 goroutines are inside, want half of the gate", g.inside["busy"])
		}
		for range 11 {
			enter(t, g, "busy", in)
		}
		for range 6 {
			g.Leave("busy")
			synctest.Wait()
		}
		if g.inside["busy"] != 3 || len(g.waiting["busy"]) != 11 {
			t.Errorf("%d goroutines are inside while %d wait, want 3", g.inside["busy"], len(g.waiting["busy"]))
		}
		for range 5 {
			g.Leave("busy")
			synctest.Wait()
		}
		if g.inside["busy"] != 7 || len(g.waiting["busy"]) != 2 {
			t.Errorf("%d goroutines are inside while %d wait, want 7: fewer wait than before", g.inside["busy"], len(g.waiting["busy"]))
		}
		for range 9 {
			g.Leave("busy")
			synctest.Wait()
		}
		g.Leave("calm")
		if g.free != 16 || len(g.inside) > 0 || len(g.waiting) > 0 || len(g.turns) > 0 {
			t.Errorf("after all goroutines have left, the gate has the state %+v", g)
		}
	})
}

// TestEndOfAWaitLetsInOthers checks that a goroutine whose context ends no longer counts as waiting.
func TestEndOfAWaitLetsInOthers(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		g, in := New(8, 1), make(chan string, 10)
		enter(t, g, "calm", in)
		for range 4 {
			enter(t, g, "busy", in)
		}
		ctx, cancel := context.WithCancel(t.Context())
		results := make(chan error)
		for range 2 {
			go func() { results <- g.Enter(ctx, "busy") }()
		}
		synctest.Wait()
		enter(t, g, "busy", in)
		g.Leave("busy")
		if synctest.Wait(); g.inside["busy"] != 3 {
			t.Fatalf("%d goroutines are inside while 3 wait, want 3", g.inside["busy"])
		}
		cancel()
		for range 2 {
			if err := <-results; err == nil {
				t.Error("Enter succeeded although its context has ended")
			}
		}
		if synctest.Wait(); g.inside["busy"] != 4 {
			t.Errorf("%d goroutines are inside while 1 waits, want all 4", g.inside["busy"])
		}
	})
}

func TestNamespacesTakeTurns(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		g, in := New(1, 1), make(chan string, 10)
		for _, namespace := range []string{"a", "a", "a", "a", "b", "c", "b"} {
			enter(t, g, namespace, in)
		}
		var order []string
		for range 7 {
			order = append(order, <-in)
			g.Leave(order[len(order)-1])
			synctest.Wait()
		}
		if want := []string{"a", "a", "b", "c", "a", "b", "a"}; !slices.Equal(order, want) {
			t.Errorf("order = %v, want %v", order, want)
		}
	})
}

func TestWaitEndsWithItsContext(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		g, in := New(1, 1), make(chan string, 2)
		enter(t, g, "a", in)
		why := errors.New("cancelled by the test")
		ctx, cancel := context.WithCancelCause(t.Context())
		result := make(chan error)
		go func() { result <- g.Enter(ctx, "b") }()
		synctest.Wait()
		enter(t, g, "c", in)
		cancel(why)
		if err := <-result; !errors.Is(err, why) {
			t.Errorf("Enter = %v, want %v", err, why)
		}
		g.Leave("a")
		if synctest.Wait(); len(in) != 2 {
			t.Error("the next goroutine was not admitted")
		}
		g.Leave("c")
		if g.free != 1 || len(g.waiting) > 0 || len(g.turns) > 0 {
			t.Errorf("after all goroutines have left, the gate has the state %+v", g)
		}
	})
}

// TestGateIsNeverOverfull checks the limit while many goroutines enter and leave, and many contexts end at the time at
// which the goroutine may enter.
func TestGateIsNeverOverfull(t *testing.T) {
	const atOnce, ofNamespace = 4, 3
	g := New(atOnce, ofNamespace)
	var inside atomic.Int32
	var group sync.WaitGroup
	for i := range 64 {
		group.Go(func() {
			namespace := fmt.Sprint("namespace-", i%5)
			for range 100 {
				ctx, cancel := context.WithCancel(t.Context())
				if i%3 == 0 {
					go cancel()
				}
				if g.Enter(ctx, namespace) == nil {
					if n := inside.Add(1); n > atOnce {
						t.Errorf("%d are inside, want at most %d", n, atOnce)
					}
					inside.Add(-1)
					g.Leave(namespace)
				}
				cancel()
			}
		})
	}
	group.Wait()
	if g.free != atOnce || len(g.inside) > 0 || len(g.waiting) > 0 || len(g.turns) > 0 {
		t.Errorf("after all goroutines have left, the gate has the state %+v", g)
	}
}

func TestOpenGateLetsAllIn(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		g, in := New(1, 1), make(chan string, 10)
		for _, namespace := range []string{"a", "a", "b", "c"} {
			enter(t, g, namespace, in)
		}
		g.Open()
		enter(t, g, "a", in)
		if synctest.Wait(); len(in) != 5 {
			t.Errorf("%d are inside, want all 5", len(in))
		}
		for range 5 {
			g.Leave(<-in)
		}
		if g.free != 1 || len(g.inside) > 0 || len(g.waiting) > 0 || len(g.turns) > 0 {
			t.Errorf("after all goroutines have left, the gate has the state %+v", g)
		}
	})
}

func TestNilGateLetsAllIn(t *testing.T) {
	var g *Gate
	if err := g.Enter(t.Context(), "a"); err != nil {
		t.Error(err)
	}
	g.Leave("a")
	g.Open()
}
