package readapi

import (
	"context"
	"fmt"
	"testing"
	"testing/synctest"
	"time"
)

// enterGate enters a gate and returns the function that leaves it, or nil if there was no slot.
func enterGate(t *testing.T, g *gate, user string, wait time.Duration) (leave func()) {
	t.Helper()
	leave, ok := g.enter(t.Context(), "demo", user, wait)
	if ok != (leave != nil) {
		t.Fatalf("enter returned leave: %t, ok: %t for user %q; want both or neither", leave != nil, ok, user)
	}
	return leave
}

func TestGateKeepsSlotsForOtherUsers(t *testing.T) {
	t.Parallel()
	g := newGate(3, 2)
	one, two := enterGate(t, g, "a", 0), enterGate(t, g, "a", 0)
	if one == nil || two == nil || enterGate(t, g, "a", 0) != nil {
		t.Fatal("a user must get two slots, and no third")
	}
	other := enterGate(t, g, "b", 0)
	if other == nil {
		t.Fatal("another user must get a slot")
	}
	if enterGate(t, g, "c", 0) != nil {
		t.Fatal("a fourth request got a slot, want at most three in total")
	}
	for _, leave := range []func(){one, two, other} {
		leave()
	}
	if len(g.users) != 0 || len(g.namespaces) != 0 || g.used != 0 {
		t.Errorf("%d users and %d slots in use after all have left, want none", len(g.users), g.used)
	}
}

// TestGateKeepsSlotsForOtherNamespaces checks that the users of one namespace, however many they are, leave slots to
// others.
func TestGateKeepsSlotsForOtherNamespaces(t *testing.T) {
	t.Parallel()
	for name, tc := range map[string]struct{ all, each, want int }{
		"streams":   {mostStreams, userStreams, 48},
		"artifacts": {mostLarge, userLarge, 3},
	} {
		g := newGate(tc.all, tc.each)
		enter := func(namespace string, user int) bool {
			_, ok := g.enter(t.Context(), namespace, fmt.Sprintf("system:serviceaccount:%s:%d", namespace, user), 0)
			return ok
		}
		got := 0
		for user := range 1000 {
			if enter("greedy", user) {
				got++
			}
		}
		if got != tc.want {
			t.Errorf("%s: a namespace with many users got %d slots, want %d", name, got, tc.want)
		}
		if !enter("other", 0) {
			t.Errorf("%s: another namespace got no slot", name)
		}
	}
}

// TestGateDoesNotBlockBehindAFullNamespace checks that a waiting request of a namespace without slots goes first.
func TestGateDoesNotBlockBehindAFullNamespace(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		g := newGate(4, 4)
		var leave []func()
		for i := range 4 {
			out, ok := g.enter(t.Context(), "greedy", fmt.Sprint(i%2), 0)
			if ok != (i < 3) {
				t.Fatalf("request %d: slot %t, want three in total", i, ok)
			}
			leave = append(leave, out)
		}
		if _, ok := g.enter(t.Context(), "other", "x", 0); !ok {
			t.Fatal("another namespace got no slot")
		}
		order := make(chan string, 2)
		for _, namespace := range []string{"greedy", "third"} {
			go func() {
				if _, ok := g.enter(t.Context(), namespace, namespace, time.Hour); ok {
					order <- namespace
				}
			}()
			synctest.Wait()
		}
		leave[0]()
		synctest.Wait()
		if len(order) != 1 || <-order != "third" {
			t.Error("the namespace without slots did not get the free slot")
		}
		leave[1]()
		leave[2]()
	})
}

func TestWaitForGateIsBounded(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		g := newGate(1, 1)
		leave := enterGate(t, g, "a", 0)
		start := time.Now()
		if enterGate(t, g, "b", largeWait) != nil {
			t.Fatal("got the slot that another user has")
		}
		if waited := time.Since(start); waited != largeWait {
			t.Errorf("waited %s, want %s", waited, largeWait)
		}
		time.AfterFunc(largeWait/2, leave)
		last := enterGate(t, g, "b", largeWait)
		if last == nil {
			t.Fatal("got no slot after the other user has left")
		}
		last()
	})
}

func TestCancelledRequestLeavesTheGate(t *testing.T) {
	t.Parallel()
	g := newGate(1, 1)
	defer enterGate(t, g, "a", 0)()
	gone, cancel := context.WithCancel(t.Context())
	cancel()
	if _, ok := g.enter(gone, "demo", "b", time.Hour); ok || len(g.users) != 1 {
		t.Errorf("a cancelled request: slot %t, %d users; want no slot, and only the other user", ok, len(g.users))
	}
}

func TestLargeTime(t *testing.T) {
	t.Parallel()
	for bytes, want := range map[int]time.Duration{0: 10 * time.Second, 64 << 10: 11 * time.Second, 32 << 20: 522 * time.Second} {
		if got := largeTime(bytes); got != want {
			t.Errorf("largeTime(%d) is %s, want %s", bytes, got, want)
		}
	}
}
