package turn_test

import (
	"context"
	"errors"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/capstan-dev/capstan/internal/runtime/journal"
	"github.com/capstan-dev/capstan/internal/runtime/loop"
	"github.com/capstan-dev/capstan/internal/runtime/model"
	"github.com/capstan-dev/capstan/internal/runtime/prepare"
	"github.com/capstan-dev/capstan/internal/runtime/turn"
	"github.com/capstan-dev/capstan/internal/runtime/turncontext"
	"github.com/capstan-dev/capstan/internal/store"
)

// cutBeforeHistory is a journal of a process that is killed before it adds its Turn to the history of the Session.
type cutBeforeHistory struct {
	journal.Journal
	kill context.CancelFunc
}

// Append appends entries, or kills the process.
func (c *cutBeforeHistory) Append(ctx context.Context, uid string, all ...journal.Entry) error {
	if uid == "talk-uid" {
		c.kill()
		return context.Canceled
	}
	return c.Journal.Append(ctx, uid, all...)
}

// TestNumbersInRecordsAreUnique lets a Turn of a Session continue or end late, after another Turn of the Session was
// added to the history. Both have expected the same number. Their records must have their places in the history.
func TestNumbersInRecordsAreUnique(t *testing.T) {
	for name, tc := range map[string]struct {
		// begin runs the Turn "a" until it is cut off. finish continues or ends it.
		begin, finish func(t *testing.T, j journal.Journal, in turn.Input)
		want          map[string]int64
	}{
		"a Turn that was interrupted before its request": {
			begin: func(t *testing.T, j journal.Journal, in turn.Input) {
				t.Helper()
				in.Interrupt = interrupted()
				if _, err := engine(j).Run(t.Context(), &in); !errors.Is(err, loop.ErrInterrupted) {
					t.Fatalf("Run: %v, want it to be interrupted", err)
				}
			},
			finish: func(t *testing.T, j journal.Journal, in turn.Input) { t.Helper(); mustRun(t, j, in) },
			want:   map[string]int64{"a": 2, "b": 1, "c": 3},
		},
		"a Turn whose process was killed before the addition": {
			begin: func(t *testing.T, j journal.Journal, in turn.Input) {
				t.Helper()
				ctx, kill := context.WithCancel(t.Context())
				defer kill()
				if _, err := engine(&cutBeforeHistory{j, kill}).Run(ctx, &in); err == nil {
					t.Fatal("Run: no error, want the process to be killed")
				}
			},
			finish: func(t *testing.T, j journal.Journal, in turn.Input) { t.Helper(); mustRun(t, j, in) },
			want:   map[string]int64{"a": 2, "b": 1, "c": 3},
		},
		"a Turn that ended without an executor": {
			begin: cutDuringItsRequest,
			finish: func(t *testing.T, j journal.Journal, in turn.Input) {
				t.Helper()
				end := turn.ObjectEnd{
					Stop: turn.StopDeadline, Reason: "DeadlineExceeded", At: at, Epoch: 1,
					Charge: func(*turn.SessionPosition) error { return nil },
				}
				if recorded, err := engine(j).EndFromObject(t.Context(), &in, end, noChildren); !recorded || err != nil {
					t.Fatalf("EndFromObject = %t, %v; want the end to be written", recorded, err)
				}
			},
			want: map[string]int64{"a": 2, "b": 1, "c": 3},
		},
		"a Turn that was deleted": {
			begin: cutDuringItsRequest,
			finish: func(t *testing.T, j journal.Journal, in turn.Input) {
				t.Helper()
				deleted, err := engine(j).OpenDeletedTurn(t.Context(), in.UID, noChildren)
				if err != nil || deleted == nil {
					t.Fatalf("OpenDeletedTurn = %v, %v; want a Turn to charge", deleted, err)
				}
				if _, err := deleted.Charge(*in.Session); err != nil {
					t.Fatal(err)
				}
			},
			want: map[string]int64{"a": 2, "b": 1, "c": 3},
		},
		"a Turn that asked no model": {
			begin: func(t *testing.T, j journal.Journal, in turn.Input) {
				t.Helper()
				in.PrepareOnly = true
				mustRun(t, j, in)
			},
			finish: func(*testing.T, journal.Journal, turn.Input) {},
			want:   map[string]int64{"a": 0, "b": 1, "c": 2},
		},
	} {
		for name2, open := range journals {
			t.Run(name+"/"+name2, func(t *testing.T) {
				j := open(t)
				turnOf := func(uid string) turn.Input {
					c, _ := candidate("p0", 1, says("It is so."))
					in := inTalk(uid, "Is it so?", c)
					in.Namespace = "helpdesk"
					in.Preparation = preparationOf(func(m *prepare.Input) { m.Turn.Session = &turncontext.Session{ID: "talk"} })
					return in
				}
				tc.begin(t, j, turnOf("a"))
				mustRun(t, j, turnOf("b"))
				again := turnOf("a")
				again.Epoch = 2
				for range 2 { // a repetition must change nothing
					tc.finish(t, j, again)
					again.Epoch++
					if name == "a Turn that ended without an executor" {
						break // the second call would find the end
					}
				}
				mustRun(t, j, turnOf("c"))
				all, _, err := j.(store.Records).Records(t.Context(), store.RecordQuery{})
				if err != nil {
					t.Fatal(err)
				}
				got := map[string]int64{}
				for _, r := range all {
					got[r.UID] = r.TurnNumber
				}
				if diff := cmp.Diff(tc.want, got); diff != "" {
					t.Errorf("the numbers in the records must be the places in the history: -want +got:\n%s", diff)
				}
			})
		}
	}
}

// cutDuringItsRequest runs a Turn until its process is killed during its first request.
func cutDuringItsRequest(t *testing.T, j journal.Journal, in turn.Input) {
	t.Helper()
	ctx, kill := context.WithCancel(t.Context())
	defer kill()
	in.Chain[0].Provider = modelFunc(func(ctx context.Context, _ *model.Request) (*model.Reply, error) {
		kill()
		return nil, ctx.Err()
	})
	if _, err := engine(j).Run(ctx, &in); err == nil {
		t.Fatal("Run: no error, want the process to be killed")
	}
}
