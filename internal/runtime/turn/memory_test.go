package turn_test

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"

	"github.com/capstan-dev/capstan/internal/bytebudget"
	"github.com/capstan-dev/capstan/internal/pace"
	"github.com/capstan-dev/capstan/internal/runtime/journal"
	"github.com/capstan-dev/capstan/internal/runtime/journal/journaltest"
	"github.com/capstan-dev/capstan/internal/runtime/loop"
	"github.com/capstan-dev/capstan/internal/runtime/model"
	"github.com/capstan-dev/capstan/internal/runtime/prepare"
	"github.com/capstan-dev/capstan/internal/runtime/prompt"
	"github.com/capstan-dev/capstan/internal/runtime/ranking"
	"github.com/capstan-dev/capstan/internal/runtime/tool"
	"github.com/capstan-dev/capstan/internal/runtime/turn"
	"github.com/capstan-dev/capstan/internal/runtime/turncontext"
)

// ledger reserves the bytes of one run from a budget.
type ledger struct {
	budget      *bytebudget.Budget
	reservation *bytebudget.Reservation
	// largest is the largest size that the run asked for. limit is the maximum size of a conversation; 0 means no
	// limit.
	largest, limit int64
}

func newLedger(t *testing.T, size int64) *ledger {
	t.Helper()
	b := bytebudget.New(size, size)
	r, err := b.Account("team", bytebudget.Conversations).TryReserve(0)
	if err != nil {
		t.Fatal(err)
	}
	return &ledger{budget: b, reservation: r}
}

func (l *ledger) hold(bytes int64) error {
	l.largest = max(l.largest, bytes)
	switch {
	case l.limit > 0 && bytes > l.limit:
		return &turn.TooLargeError{Message: "it is too large"}
	case bytes <= l.reservation.Bytes():
		return nil
	}
	return l.reservation.Resize(bytes)
}

// held returns the bytes that are reserved from the budget.
func (l *ledger) held() int64 { return l.budget.Use(bytebudget.Conversations).Bytes }

// watched returns a candidate whose model calls a function before each reply.
func watched(c loop.Candidate, asked func()) loop.Candidate {
	inner := c.Provider
	c.Provider = modelFunc(func(ctx context.Context, r *model.Request) (*model.Reply, error) {
		asked()
		return inner.Generate(ctx, r)
	})
	return c
}

// TestFirstRequestIsCounted checks that a Turn holds the memory of its prompt while it waits for its first reply. The
// input, which the run drops, does not count twice.
func TestFirstRequestIsCounted(t *testing.T) {
	const length = 60_000
	l := newLedger(t, 1<<20)
	c, _ := candidate("p0", 1, says("Yes."))
	in := input(watched(c, func() {
		if held := l.held(); held < length || held > length*3/2 {
			t.Errorf("%d bytes are held while the model works, want about the %d of the message", held, length)
		}
	}))
	in.Hold = l.hold
	in.Preparation = preparationOf(func(m *prepare.Input) { m.Turn.Message = strings.Repeat("m", length) })
	if got := mustRun(t, &journaltest.Store{}, in); got.Stop != turn.StopCompleted {
		t.Errorf("the Turn ended as %s: %s", got.Stop, got.Message)
	}
}

// TestRequestIsCountedBeforeItsPromptIsMade checks that a Turn holds the memory of its request and of the facts so far
// while a context pack works.
func TestRequestIsCountedBeforeItsPromptIsMade(t *testing.T) {
	const length, fact = 60_000, 3_000
	l := newLedger(t, 1<<20)
	c, _ := candidate("p0", 1, says("Yes."))
	in := input(c)
	in.Hold = l.hold
	in.Preparation = preparationOf(func(m *prepare.Input) {
		m.Turn.Enrichments = []turncontext.Enrichment{{ID: "a", Content: strings.Repeat("m", length)}}
	})
	want := []int64{length, length + fact}
	in.Toolbox = packs(tool.ReadOnly, slices.Repeat([]tool.CallerFunc{func(context.Context, tool.Call) (tool.Result, error) {
		if held := l.held(); held < want[0] {
			t.Errorf("%d bytes are held while a context pack works, want at least %d", held, want[0])
		}
		want = want[1:]
		return tool.Result{Content: strings.Repeat("f", fact)}, nil
	}}, 2)...)
	if got := mustRun(t, &journaltest.Store{}, in); got.Stop != turn.StopCompleted || len(want) > 0 {
		t.Errorf("the Turn ended as %s: %s; %d context packs were not called", got.Stop, got.Message, len(want))
	}
}

// TestTextsFromConfigMapsAreCounted checks that a Turn holds the memory of its request, and of the texts that it has
// read from ConfigMaps, before it waits for its memories. It does not pay for texts that the cache shares.
func TestTextsFromConfigMapsAreCounted(t *testing.T) {
	const length = 10_000
	text := strings.Repeat("m", length)
	l := newLedger(t, 1<<20)
	c, _ := candidate("p0", 1, says("Yes."))
	in := input(c)
	in.Hold = l.hold
	in.Preparation = preparationOf(func(m *prepare.Input) {
		m.Turn.Message = text
		m.Agent.Instructions, m.Agent.InstructionsFrom = text, `key "a" of ConfigMap "b"`
		m.Profile.Skills = []prepare.Skill{
			{Key: "a", Name: "a", Content: text, From: `key "a" of ConfigMap "b"`}, {Key: "b", Name: "b", Content: text},
		}
		m.Profile.Contributions = []prompt.Contribution{{Name: "a", Text: text}}
		m.Profile.ForModels = []prepare.ModelTexts{{Models: []string{"*"}, Contributions: []prompt.Contribution{{Name: "b", Text: text}}}}
	})
	recalled := false
	in.Recall = func(context.Context, string, ranking.Vector) (turn.Recalled, error) {
		recalled = true
		if held := l.held(); held < 5*length || held >= 6*length {
			t.Errorf("%d bytes are held while memories are recalled, want about %d", held, 5*length)
		}
		return turn.Recalled{}, nil
	}
	if got := mustRun(t, &journaltest.Store{}, in); got.Stop != turn.StopCompleted || !recalled {
		t.Errorf("the Turn ended as %s: %s; memories were recalled: %v", got.Stop, got.Message, recalled)
	}
}

// TestTurnThatFindsNoMemoryRecordsNothing checks that a run without enough memory ends before it makes its prompt.
func TestTurnThatFindsNoMemoryRecordsNothing(t *testing.T) {
	j, l := &journaltest.Store{}, newLedger(t, 40_000)
	c, s := candidate("p0", 1, says("Yes."))
	in := input(c)
	in.Hold = l.hold
	in.Preparation = preparationOf(func(m *prepare.Input) { m.Turn.Message = strings.Repeat("m", 39_000) })
	if _, err := engine(j).Run(t.Context(), new(in)); !errors.Is(err, bytebudget.ErrTooLarge) {
		t.Errorf("Run: %v, want the error of Hold", err)
	}
	if n := len(entries(t, j, "uid")); n != 0 || s.asked() != 0 || l.held() != 0 {
		t.Errorf("%d entries and %d requests, and %d bytes are held; want none", n, s.asked(), l.held())
	}
}

// TestTurnsDoNotWaitForEachOther checks that a Turn whose reflection waits for the request of another Turn holds no
// memory that the reply to that request needs.
func TestTurnsDoNotWaitForEachOther(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		replies := bytebudget.New(1<<20, 1<<20).Account("team", bytebudget.Replies)
		gate := pace.New("p0")
		gate.SetLimits(pace.Limits{MaxConcurrent: 1}, nil, 1)
		c, s := candidate("p0", 1, says("Draft."), says("Better."))
		var others sync.WaitGroup
		defer others.Wait()
		// long is a model whose reply takes all the memory that a namespace can have.
		long := func(ctx context.Context, r *model.Request) (*model.Reply, error) {
			held, err := replies.Reserve(ctx, replies.MaxReservation())
			if err != nil {
				return nil, err
			}
			reply, err := s.Generate(ctx, r)
			reply.Release = held.Release
			return reply, err
		}
		other := gate.Provider(pace.Caller{Agent: "other"}, modelFunc(func(ctx context.Context, _ *model.Request) (*model.Reply, error) {
			held, err := replies.Reserve(ctx, replies.MaxReservation())
			held.Release()
			return &model.Reply{}, err
		}))
		asking := modelFunc(func(ctx context.Context, r *model.Request) (*model.Reply, error) {
			if s.asked() == 0 {
				others.Go(func() {
					if _, err := other.Generate(ctx, &model.Request{Model: "m"}); err != nil {
						t.Errorf("the request of the other Turn: %v", err)
					}
				})
				synctest.Wait() // until the other request waits at the gate
			}
			return long(ctx, r)
		})
		c.Provider = gate.Provider(pace.Caller{Agent: "helper"}, asking)
		in := input(c)
		in.ReflectEvery = 1
		var kept func()
		in.Keep = func(release func()) {
			if kept != nil {
				kept()
			}
			kept = release
		}
		if got := mustRun(t, &journaltest.Store{}, in); got.Stop != turn.StopCompleted || got.Text != "Better." {
			t.Errorf("the Turn ended as %s with %q: %s\nwant the answer of the reflection", got.Stop, got.Text, got.Message)
		}
	})
}

// sessionReadCounter is a journal that counts the artifacts and the entries that are read from the Session's journal.
type sessionReadCounter struct {
	measured
	artifacts int
}

func (u *sessionReadCounter) Artifact(ctx context.Context, uid, sha256 string) (journal.Artifact, error) {
	if uid == "talk-uid" {
		u.artifacts++
	}
	return u.Journal.Artifact(ctx, uid, sha256)
}

// TestHistoryIsCounted checks that a Turn holds the memory of its Session's history in the first run and in a later
// run, and that no entry of the history is read before the memory is reserved.
func TestHistoryIsCounted(t *testing.T) {
	const length, turns = 100_000, 3
	for store, open := range journals {
		t.Run(store, func(t *testing.T) {
			j := open(t)
			for n := range turns {
				c, _ := candidate("p0", 1, says(strings.Repeat("h", length)))
				mustRun(t, j, inTalk(fmt.Sprint("early-", n), "Say much.", c))
			}
			c, s := candidate("p0", 1, asks("find", `{}`), says("Yes."))
			var l *ledger
			c = watched(c, func() {
				if held := l.held(); held < turns*length || held > turns*length*3/2 {
					t.Errorf("%d bytes are held while the model works, want about the %d of the history", held, turns*length)
				}
			})
			in := inTalk("late", "And?", c)
			in.Tools = []tool.Tool{named("find", tool.ReadOnly, saying("found"))}

			l = newLedger(t, length*turns) // less than the history: the last entry alone fits
			in.Hold = l.hold
			u := &sessionReadCounter{measured: measured{Journal: j}}
			if _, err := engine(u).Run(t.Context(), new(in)); !errors.Is(err, bytebudget.ErrTooLarge) &&
				!errors.Is(err, bytebudget.ErrShort) {
				t.Errorf("Run: %v, want the error of Hold", err)
			}
			if u.entries > 1 || u.artifacts > 1 || s.asked() != 0 {
				t.Errorf("%d entries and %d artifacts were read and %d requests sent, want the newest entry at most",
					u.entries, u.artifacts, s.asked())
			}

			l = newLedger(t, 1<<20)
			in.Hold = l.hold
			_, stop := control(t, &in)
			in.Tools[0].Caller = tool.CallerFunc(func(context.Context, tool.Call) (tool.Result, error) {
				stop.interrupt()
				return tool.Result{Content: "found"}, nil
			})
			if _, err := engine(j).Run(t.Context(), new(in)); !errors.Is(err, loop.ErrInterrupted) {
				t.Fatalf("Run: %v, want the run interrupted after its call", err)
			}
			l = newLedger(t, 1<<20)
			in.Hold, in.Epoch, in.Interrupt = l.hold, 2, nil
			if got := mustRun(t, j, in); got.Stop != turn.StopCompleted || s.asked() != 2 {
				t.Errorf("the Turn ended as %s after %d requests, want %s after 2", got.Stop, s.asked(), turn.StopCompleted)
			}
		})
	}
}

// TestHistoryThatIsTooLarge checks that the Turn ends, and that the message names the history and a remedy.
func TestHistoryThatIsTooLarge(t *testing.T) {
	j := &journaltest.Store{}
	c, s := candidate("p0", 1, says(strings.Repeat("h", 100_000)), says("Yes."))
	mustRun(t, j, inTalk("early", "Say much.", c))
	l := newLedger(t, 1<<20)
	l.limit = 50_000
	in := inTalk("late", "And?", c)
	in.Hold = l.hold
	got := mustRun(t, j, in)
	if want := "create a new Session"; got.Stop != turn.StopBudget || !strings.Contains(got.Message, want) || s.asked() != 1 {
		t.Errorf("the Turn ended as %s: %s\nafter %d requests; want %s with %q and no request",
			got.Stop, got.Message, s.asked(), turn.StopBudget, want)
	}
	if got.Session == nil || got.Session.Totals.Turns != 1 {
		t.Errorf("the Turn's place is %+v, want the totals of 1 Turn, although they are read from the history", got.Session)
	}
}

// TestSmallHistoryCostsLittle checks that a short history reserves its own size only.
func TestSmallHistoryCostsLittle(t *testing.T) {
	j := &journaltest.Store{}
	var l *ledger
	for n := range 4 {
		c, _ := candidate("p0", 1, says("Yes."))
		in := inTalk(fmt.Sprint("uid-", n), "Is it so?", c)
		l = newLedger(t, 1<<20)
		in.Hold = l.hold
		mustRun(t, j, in)
	}
	if l.largest > 8<<10 {
		t.Errorf("a Turn after 3 short ones holds %d bytes, want at most the 8 KiB that need no reservation", l.largest)
	}
}

// TestResultsOfAStepAreCounted checks that the results of a step are held while its other calls are made.
func TestResultsOfAStepAreCounted(t *testing.T) {
	const number, length = 20, 11_000
	var all []model.ToolCall
	for n := range number {
		all = append(all, call(fmt.Sprint("c", n), "find"))
	}
	c, _ := candidate("p0", 1, answer{reply: calls("", all...)}, says("Done."))
	l := newLedger(t, 1<<20)
	in := input(c)
	in.Hold, in.Policy.Sequential = l.hold, true
	made := int64(0)
	in.Tools = []tool.Tool{named("find", tool.ReadOnly, func(context.Context, tool.Call) (tool.Result, error) {
		if held := l.held(); held < made*length {
			t.Errorf("%d bytes are held during call %d, want the %d of the results", held, made+1, made*length)
		}
		made++
		return tool.Result{Content: strings.Repeat("r", length)}, nil
	})}
	if got := mustRun(t, &journaltest.Store{}, in); got.Stop != turn.StopCompleted || made != number {
		t.Errorf("the Turn ended as %s after %d calls, want %s after %d", got.Stop, made, turn.StopCompleted, number)
	}
}
