package endpoint

import (
	"context"
	"errors"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/capstan-dev/capstan/internal/bytebudget"
	"github.com/capstan-dev/capstan/internal/runtime/model"
)

// longReply returns the memory of a reply that has the reservation of a long reply, the watch of the reply, and a
// function that makes another reply wait for memory.
func longReply(t *testing.T, b *bytebudget.Budget, bytes int) (r *replyMemory, w *watch, addWaiter func()) {
	t.Helper()
	ctx, cancel := context.WithCancelCause(t.Context())
	w = &watch{ctx: ctx, cancel: cancel, timer: time.AfterFunc(time.Hour, func() {}), idle: time.Hour}
	t.Cleanup(w.release)
	r = &replyMemory{account: b.Account("attacker", bytebudget.Replies)}
	if err := r.hold(w, bytes, bytes); err != nil || b.Use(bytebudget.Replies).Bytes != replyRoom {
		t.Fatalf("%d bytes are held for a long reply, %v", b.Use(bytebudget.Replies).Bytes, err)
	}
	return r, w, func() {
		go func() { _, _ = b.Account("victim", bytebudget.Replies).Reserve(ctx, replyRoom) }() // until the test ends
		synctest.Wait()
	}
}

// TestLongReplyMustArriveAtAPaceWhileOthersWait checks that an endpoint cannot keep the memory of long replies from
// other replies by sending slowly. While no other reply waits, a slow reply is accepted.
func TestLongReplyMustArriveAtAPaceWhileOthersWait(t *testing.T) {
	for name, tc := range map[string]struct {
		part      int
		every     time.Duration
		hasWaiter bool
		// parts is the number of parts that are accepted, of at most 1000.
		parts int
	}{
		"fast":                  {replyPace, time.Second, true, 1000},
		"a slow model":          {200, 50 * time.Millisecond, true, 1000},
		"a trickle":             {1, time.Second, true, 61},
		"a trickle, no waiters": {1, time.Second, false, 1000},
		"one pause":             {replyPace * 50, 50 * time.Second, true, 1000},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				b := bytebudget.New(0, replyRoom*2-1) // one long reply of any namespace
				r, w, addWaiter := longReply(t, b, bytebudget.MaxContent)
				if tc.hasWaiter {
					addWaiter()
				}
				parts := 0
				var err error
				for ; parts < 1000 && err == nil; parts++ {
					time.Sleep(tc.every)
					err = r.hold(w, tc.part, bytebudget.MaxContent)
				}
				if err != nil {
					parts--
					if e := model.AsError(err); e.Kind != model.Timeout || !e.MayBeBilled {
						t.Errorf("the error is %s: %s, billed %t; want a Timeout that may be billed", e.Kind, e.Message, e.MayBeBilled)
					}
				}
				if parts != tc.parts {
					t.Errorf("%d parts are accepted, want %d (error %v)", parts, tc.parts, err)
				}
				r.release()
			})
		})
	}
}

// TestSmallReplyReturnsTheMemoryOfALongOne checks a small reply that holds the memory of a long one, because the memory
// of small replies was used up. As soon as memory of small replies is free, the small reply must leave its memory to a
// long reply that waits.
func TestSmallReplyReturnsTheMemoryOfALongOne(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := bytebudget.New(1<<20, replyRoom*2-1)
		busy, err := b.Account("attacker", bytebudget.Conversations).TryReserve(880 << 10)
		if err != nil {
			t.Fatal(err)
		}
		r, w, addWaiter := longReply(t, b, 40<<10)
		busy.Release()
		if err := r.hold(w, 100, 41<<10); err != nil || b.Use(bytebudget.Contents).Bytes != 0 {
			t.Errorf("the reply takes memory of small replies although no long reply waits (error %v)", err)
		}
		addWaiter()
		if err := r.hold(w, 100, 42<<10); err != nil {
			t.Error(err)
		}
		small, long := b.Use(bytebudget.Contents).Bytes, b.Use(bytebudget.Replies)
		if small != 64<<10 || long.Waiting != 0 || long.Bytes != replyRoom {
			t.Errorf("%d bytes are held for the small reply and %+v for long ones, want 64 KiB, and one long reply", small, long)
		}
		release := r.handOver()
		if release == nil {
			t.Fatal("the reply holds no memory")
		}
		if release(); b.Use(bytebudget.Contents).Bytes != 0 {
			t.Error("the small reply still holds memory after its release")
		}
	})
}

// TestHeldLinesFitIntoTheMemoryOfALongReply checks that an event and the text outside events together are no larger
// than the memory that is reserved for them.
func TestHeldLinesFitIntoTheMemoryOfALongReply(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r, w, _ := longReply(t, bytebudget.New(0, replyRoom*2-1), bytebudget.MaxContent)
		defer r.release()
		other, event := strings.Repeat("x", maxOther-1)+"\n", "data: "+strings.Repeat("x", MaxEventBytes-maxOther)+"\n"
		_, err := newEvents(strings.NewReader(other+event), w, r).next(MaxReplyBytes)
		if _, long := errors.AsType[tooLong](err); !long {
			t.Errorf("lines of %d bytes: %v, want them to be too long together with a reply of %d", len(other+event), err, MaxReplyBytes)
		}
	})
}
