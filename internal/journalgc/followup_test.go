package journalgc

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"k8s.io/apimachinery/pkg/types"

	"github.com/capstan-dev/capstan/api/v1alpha1"
	"github.com/capstan-dev/capstan/internal/runtime/loop"
)

// turnIn returns a Turn of a namespace.
func turnIn(namespace, name string) *v1alpha1.Turn {
	t := turnOf(namespace + "-" + name)
	t.Namespace = namespace
	return t
}

func TestHintsAreBounded(t *testing.T) {
	r := newTestEnv(t, 0)
	now := time.Unix(1, 0)
	r.Now = func() time.Time { return now }
	for i := range 2 * maxSuspects {
		r.Deleted(turnOf(fmt.Sprint(i)))
		r.Finished(types.UID(fmt.Sprint("early-", i)))
	}
	if d := &r.suspects; len(d.open) != maxSuspects || len(d.finished) != maxSuspects {
		t.Errorf("%d suspects and %d finished Turns are kept, want %d each", len(d.open), len(d.finished), maxSuspects)
	}
}

// TestNamespacesShareHints checks that a namespace that deletes more objects than there may be hints does not displace
// the hints of others, whichever are first.
func TestNamespacesShareHints(t *testing.T) {
	for name, order := range map[string][]string{
		"the large one first": {"noisy", "quiet"}, "the small one first": {"quiet", "noisy"},
	} {
		t.Run(name, func(t *testing.T) {
			r := newTestEnv(t, 0)
			deleted := map[string]int{"noisy": 2 * maxSuspects, "quiet": 100}
			for _, namespace := range order {
				for i := range deleted[namespace] {
					r.Deleted(turnIn(namespace, fmt.Sprint(i)))
				}
			}
			d := &r.suspects
			if d.counts["quiet"] != 100 || d.counts["noisy"] != maxSuspects-100 || len(d.open) != maxSuspects {
				t.Errorf("%d hints are kept, by namespace %v, want %d, with all of the small namespace", len(d.open), d.counts, maxSuspects)
			}
		})
	}
}

// TestHintsOfOneNamespaceDoNotDelayOthers checks that the hints of a namespace are followed up before those of another
// one that has deleted thousands of objects, even if the charges of those fail.
func TestHintsOfOneNamespaceDoNotDelayOthers(t *testing.T) {
	for name, broken := range map[string]bool{"many hints": false, "many hints that fail": true} {
		t.Run(name, func(t *testing.T) {
			now := time.Unix(1000, 0)
			r := newTestEnv(t, 0)
			r.Now = func() time.Time { return now }
			r.Charge = func(_ context.Context, uid string) error {
				if broken && strings.HasPrefix(uid, "uid-noisy") {
					return errFull
				}
				return nil
			}
			for i := range 3 * followBatch {
				r.onLeave(turnIn("noisy", fmt.Sprint(i)))
			}
			now = now.Add(time.Second)
			uids := []string{"uid-quiet-0", "uid-quiet-1", "uid-quiet-2"}
			r.addJournals(t, uids...)
			for i := range uids {
				r.onLeave(turnIn("quiet", fmt.Sprint(i)))
			}
			now = now.Add(settleTime)
			if retired := r.followUp(t.Context()); !retired {
				t.Error("no journal is retired")
			}
			if left, err := r.store.UIDs(t.Context(), "", 10); err != nil || len(left) > 0 {
				t.Errorf("%v are left (error %v), want the journals of the small namespace retired first", left, err)
			}
			if got := r.suspects.counts["noisy"]; got < 2*followBatch || broken && got != 3*followBatch {
				t.Errorf("%d hints of the large namespace are kept, want all that were not followed up or have failed", got)
			}
		})
	}
}

// TestWaitForSubAgentsIsNoFailure checks that hints that wait for the Turns of sub-agents do not make other hints wait.
func TestWaitForSubAgentsIsNoFailure(t *testing.T) {
	now := time.Unix(1000, 0)
	r := newTestEnv(t, 0)
	r.Now = func() time.Time { return now }
	r.Charge = func(_ context.Context, uid string) error {
		if strings.HasPrefix(uid, "uid-parent") {
			return fmt.Errorf("not ended: %w", &loop.Parked{Turns: []string{"child"}})
		}
		return nil
	}
	for i := range maxFailures {
		r.onLeave(turnIn("parent", fmt.Sprint(i)))
	}
	now = now.Add(time.Second)
	r.addJournals(t, "uid-parent-last")
	for _, name := range []string{"other", "third"} {
		r.addJournals(t, "uid-"+name+"-0")
		r.onLeave(turnIn(name, "0"))
	}
	now = now.Add(settleTime)
	if retired := r.followUp(t.Context()); !retired {
		t.Error("no journal is retired")
	}
	if left, err := r.store.UIDs(t.Context(), "", 10); err != nil || len(left) != 1 {
		t.Errorf("%v are left (error %v), want only the journal that has no hint", left, err)
	}
	if got := r.suspects.counts["parent"]; got != maxFailures || !r.resume.IsZero() {
		t.Errorf("%d hints wait, and all pause until %v; want %d hints, and no pause", got, r.resume, maxFailures)
	}
}

// TestAllHintsPauseWhileStoreIsAway checks that a store that is away receives few requests, however many hints there
// are, and that no hint is lost.
func TestAllHintsPauseWhileStoreIsAway(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newTestEnv(t, 0)
		var away atomic.Bool
		var asked atomic.Int64
		r.Charge = func(ctx context.Context, _ string) error {
			asked.Add(1)
			if away.Load() {
				<-ctx.Done() // the store does not answer
				return errors.Join(errFull, context.Cause(ctx))
			}
			return nil
		}
		r.start(t)
		var uids []string
		for i := range 2 * followBatch {
			uids = append(uids, fmt.Sprint("uid-", i))
		}
		r.addJournals(t, uids...)
		away.Store(true)
		for i := range uids {
			r.onLeave(turnOf(fmt.Sprint(i)))
		}
		time.Sleep(time.Hour)
		synctest.Wait()
		// Each attempt takes storeTimeout, and after maxFailures attempts there is a pause of up to retryTime.
		if n := asked.Load(); n < 40 || n > 50 {
			t.Errorf("the store was asked %d times in an hour, want a pause after every %d failures", n, maxFailures)
		}
		away.Store(false)
		time.Sleep(maxFailures*storeTimeout + maxBackOff)
		synctest.Wait()
		if left := r.kept(t, uids...); len(left) > 0 {
			t.Errorf("%d journals are left, want none: the hints must be followed up when the store is back", len(left))
		}
	})
}

// TestNewHintWakesCollector checks that a new hint is followed up in time while another one is in its back-off, and
// after a hint that was withdrawn.
func TestNewHintWakesCollector(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newTestEnv(t, 0)
		r.Charge = func(_ context.Context, uid string) error {
			if uid == "uid-sick" {
				return errFull
			}
			return nil
		}
		r.start(t)
		r.addJournals(t, "uid-a", "uid-b")
		r.onLeave(turnOf("sick"))
		time.Sleep(time.Hour) // its back-off is maxBackOff by now
		r.onLeave(turnOf("a"))
		time.Sleep(retryTime + settleTime) // all hints pause, because all have failed
		synctest.Wait()
		if left := r.kept(t, "uid-a", "uid-b"); !slices.Equal(left, []string{"uid-b"}) {
			t.Errorf("%v are left, want uid-b", left)
		}
		r.onLeave(turnOf("done"))
		r.Finished(types.UID("uid-done"))
		r.onLeave(turnOf("b"))
		time.Sleep(2 * settleTime)
		synctest.Wait()
		if left := r.kept(t, "uid-b"); len(left) > 0 {
			t.Errorf("%v are left, want none", left)
		}
	})
}
