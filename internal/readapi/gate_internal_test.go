package readapi

import (
	"context"
	"testing"
	"testing/synctest"
	"time"
)

// enterGate enters a gate and returns the function that leaves it, or nil if there was no slot.
func enterGate(t *testing.T, g *gate, user string, wait time.Duration) (leave func()) {
	t.Helper()
	leave, ok := g.enter(t.Context(), user, wait)
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
	if len(g.users) != 0 || len(g.all) != 0 {
		t.Errorf("%d users and %d slots in use after all have left, want none", len(g.users), len(g.all))
	}
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
	if _, ok := g.enter(gone, "b", time.Hour); ok || len(g.users) != 1 {
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
