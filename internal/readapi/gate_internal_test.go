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
		t.Fatalf("want a way out if and only if %q is in, which is %t", user, ok)
	}
	return leave
}

func TestGateKeepsSlotsForOtherUsers(t *testing.T) {
	t.Parallel()
	g := newGate(3, 2)
	one, two := enterGate(t, g, "a", 0), enterGate(t, g, "a", 0)
	if one == nil || two == nil || enterGate(t, g, "a", 0) != nil {
		t.Fatal("want two places of a user, and no third")
	}
	other := enterGate(t, g, "b", 0)
	if other == nil {
		t.Fatal("want a place of another user")
	}
	if enterGate(t, g, "c", 0) != nil {
		t.Fatal("want no more than three places in all")
	}
	for _, leave := range []func(){one, two, other} {
		leave()
	}
	if len(g.users) != 0 || len(g.all) != 0 {
		t.Errorf("want users who have left removed, have %d users and %d slots in use", len(g.users), len(g.all))
	}
}

func TestWaitForAGateIsBounded(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		g := newGate(1, 1)
		leave := enterGate(t, g, "a", 0)
		begun := time.Now()
		if enterGate(t, g, "b", largeWait) != nil {
			t.Fatal("want no place while another has it")
		}
		if waited := time.Since(begun); waited != largeWait {
			t.Errorf("want a wait of %s, have %s", largeWait, waited)
		}
		time.AfterFunc(largeWait/2, leave)
		last := enterGate(t, g, "b", largeWait)
		if last == nil {
			t.Fatal("want the place once it is left")
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
		t.Errorf("want no slot for a cancelled request, and no users, have %t and %d users", ok, len(g.users))
	}
}

func TestTimeOfAnArtifactGrowsWithItsSize(t *testing.T) {
	t.Parallel()
	for bytes, want := range map[int]time.Duration{0: 10 * time.Second, 64 << 10: 11 * time.Second, 32 << 20: 522 * time.Second} {
		if got := largeTime(bytes); got != want {
			t.Errorf("largeTime(%d) is %s, want %s", bytes, got, want)
		}
	}
}
