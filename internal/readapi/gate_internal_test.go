package readapi

import (
	"context"
	"testing"
	"testing/synctest"
	"time"
)

// enters enters a gate and returns how to leave it, nil if there was no place.
func enters(t *testing.T, g *gate, user string, wait time.Duration) (leave func()) {
	t.Helper()
	leave, ok := g.enter(t.Context(), user, wait)
	if ok != (leave != nil) {
		t.Fatalf("want a way out if and only if %q is in, which is %t", user, ok)
	}
	return leave
}

func TestAGateKeepsPlacesForOthers(t *testing.T) {
	t.Parallel()
	g := newGate(3, 2)
	one, two := enters(t, g, "a", 0), enters(t, g, "a", 0)
	if one == nil || two == nil || enters(t, g, "a", 0) != nil {
		t.Fatal("want two places of a user, and no third")
	}
	other := enters(t, g, "b", 0)
	if other == nil {
		t.Fatal("want a place of another user")
	}
	if enters(t, g, "c", 0) != nil {
		t.Fatal("want no more than three places in all")
	}
	for _, leave := range []func(){one, two, other} {
		leave()
	}
	if len(g.users) != 0 || len(g.all) != 0 {
		t.Errorf("want nobody remembered who has left, have %d users and %d places taken", len(g.users), len(g.all))
	}
}

func TestAGateIsWaitedForInTime(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		g := newGate(1, 1)
		leave := enters(t, g, "a", 0)
		begun := time.Now()
		if enters(t, g, "b", largeWait) != nil {
			t.Fatal("want no place while another has it")
		}
		if waited := time.Since(begun); waited != largeWait {
			t.Errorf("want a wait of %s, have %s", largeWait, waited)
		}
		time.AfterFunc(largeWait/2, leave)
		last := enters(t, g, "b", largeWait)
		if last == nil {
			t.Fatal("want the place once it is left")
		}
		last()
	})
}

func TestAGateIsLeftByWhoIsGone(t *testing.T) {
	t.Parallel()
	g := newGate(1, 1)
	defer enters(t, g, "a", 0)()
	gone, cancel := context.WithCancel(t.Context())
	cancel()
	if _, ok := g.enter(gone, "b", time.Hour); ok || len(g.users) != 1 {
		t.Errorf("want no place for who has gone, and nobody remembered, have %t and %d users", ok, len(g.users))
	}
}

func TestTheTimeOfAnArtifactGrowsWithIt(t *testing.T) {
	t.Parallel()
	for bytes, want := range map[int]time.Duration{0: 10 * time.Second, 64 << 10: 11 * time.Second, 32 << 20: 522 * time.Second} {
		if got := largeTime(bytes); got != want {
			t.Errorf("largeTime(%d) is %s, want %s", bytes, got, want)
		}
	}
}
