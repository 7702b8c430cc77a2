//go:build unix

package turn_test

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"regexp"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/capstan-dev/capstan/internal/runtime/journal"
	"github.com/capstan-dev/capstan/internal/runtime/journal/journaltest"
	"github.com/capstan-dev/capstan/internal/runtime/model"
	"github.com/capstan-dev/capstan/internal/runtime/session"
	"github.com/capstan-dev/capstan/internal/runtime/tool"
	"github.com/capstan-dev/capstan/internal/runtime/turn"
	"github.com/capstan-dev/capstan/internal/store/postgres"
	"github.com/capstan-dev/capstan/internal/store/postgres/postgrestest"
)

// mortal is a journal of a process that is killed before or after one of its appends.
type mortal struct {
	journal.Journal
	kill context.CancelCauseFunc
	// left is the number of appends until the kill. If it is negative, the process is not killed. If after is true, the
	// last append takes effect.
	left  int
	after bool
	dead  bool
	// appends counts the appends.
	appends int
}

// Append appends entries, or returns an error once the process is killed.
func (m *mortal) Append(ctx context.Context, uid string, all ...journal.Entry) error {
	m.appends++
	if m.dead {
		return errKilled
	}
	if m.left--; m.left == 0 {
		m.dead = true
		m.kill(errKilled)
		if m.after {
			return errors.Join(m.Journal.Append(context.WithoutCancel(ctx), uid, all...), errKilled)
		}
		return errKilled
	}
	return m.Journal.Append(ctx, uid, all...)
}

// spoken is the content of a Session after its second Turn was killed and continued, and a third Turn has ended.
type spoken struct {
	// Said are the messages of all Turns. Totals are the totals of the Session. Numbers are the numbers of the Turns.
	Said    []model.Message
	Totals  session.Totals
	Numbers []int64
}

// speak runs three Turns of a Session. The process of the second Turn is killed at append number killAt. If killAt is
// negative, the process is not killed. If after is true, the append takes effect. speak also returns the number of
// appends of this process.
func speak(t *testing.T, j journal.Journal, name string, killAt int, after bool) (spoken, int) {
	t.Helper()
	var got spoken
	turnOf := func(number int, answers ...answer) turn.Input {
		c, _ := candidate("p0", 1, answers...)
		in := inTalk(fmt.Sprintf("%s-%d", name, number), fmt.Sprintf("Question %d.", number), c)
		in.Session = &turn.Session{UID: name, Name: name}
		in.Tools = []tool.Tool{named("find", tool.ReadOnly, saying("found"))}
		return in
	}
	end := func(result *turn.Result) { got.Numbers = append(got.Numbers, result.Session.Number) }
	end(mustRun(t, j, turnOf(1, says("One."))))

	second := turnOf(2, asks("find", `{}`), says("Two."), asks("find", `{}`), says("Two."))
	life, kill := context.WithCancelCause(t.Context())
	defer kill(nil)
	process := &mortal{Journal: j, kill: kill, left: killAt, after: after}
	result, err := engine(process).Run(life, new(second))
	if (err == nil) != (killAt < 0) {
		t.Fatalf("the second Turn, killed at append %d: %v", killAt, err)
	}
	if err != nil {
		again := turnOf(2, says("Two."))
		if found, err := journal.Collect(t.Context(), j, again.UID); err != nil || !hasReply(found) {
			again = turnOf(2, asks("find", `{}`), says("Two."))
			if err != nil {
				t.Fatal(err)
			}
		}
		again.Epoch = 2
		result = mustRun(t, j, again)
	}
	end(result)
	end(mustRun(t, j, turnOf(3, says("Three."))))
	h, err := session.Recall(t.Context(), j, name, nil)
	if err != nil {
		t.Fatal(err)
	}
	got.Said, got.Totals = h.Messages(), h.Totals
	for i := range got.Said {
		got.Said[i].Content = nonces.ReplaceAllString(got.Said[i].Content, "code")
	}
	return got, process.appends
}

// nonces matches the codes of fences, which are random in each run of this test.
var nonces = regexp.MustCompile(`[A-Z2-7]{26}`)

// hasReply reports whether a journal has a reply.
func hasReply(entries []journal.Entry) bool {
	for _, e := range entries {
		if e.Kind == journal.ModelReplied {
			return true
		}
	}
	return false
}

// TestASessionOutlivesAKillAtAnyAppend checks that the Session has each Turn once, with its messages, after a kill at
// any append. An interrupted request may be billed twice, and its estimate counts.
func TestASessionOutlivesAKillAtAnyAppend(t *testing.T) {
	stores := maps.Clone(journals)
	stores["postgres"] = func(t *testing.T) journal.Journal {
		t.Helper()
		s, err := postgres.Open(t.Context(), postgrestest.Database(t))
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() {
			if err := s.Close(); err != nil {
				t.Error(err)
			}
		})
		return s
	}
	want, appends := speak(t, &journaltest.Store{}, "undisturbed", -1, false)
	if appends < 8 || want.Totals.Turns != 3 || len(want.Said) != 8 {
		t.Fatalf("%d appends, and the Session has %+v", appends, want)
	}
	for store, open := range stores {
		t.Run(store, func(t *testing.T) {
			j := open(t)
			for at := 1; at <= appends; at++ {
				for _, after := range []bool{false, true} {
					name := fmt.Sprintf("killed at append %d, after it %t", at, after)
					got, _ := speak(t, j, name, at, after)
					if got.Totals.Usage.Estimated { // an interrupted request
						got.Totals.Usage.InputTokens, got.Totals.Usage.Estimated = want.Totals.Usage.InputTokens, false
						got.Totals.Cost, got.Totals.KnownCost = want.Totals.Cost, want.Totals.KnownCost
					}
					if diff := cmp.Diff(want, got); diff != "" {
						t.Errorf("%s: -want +got:\n%s", name, diff)
					}
				}
			}
		})
	}
}
