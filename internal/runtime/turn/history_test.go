package turn_test

import (
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"iter"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/capstan-dev/capstan/internal/runtime/journal"
	"github.com/capstan-dev/capstan/internal/runtime/journal/journaltest"
	"github.com/capstan-dev/capstan/internal/runtime/loop"
	"github.com/capstan-dev/capstan/internal/runtime/model"
	"github.com/capstan-dev/capstan/internal/runtime/prepare"
	"github.com/capstan-dev/capstan/internal/runtime/session"
	"github.com/capstan-dev/capstan/internal/runtime/tool"
	"github.com/capstan-dev/capstan/internal/runtime/turn"
	"github.com/capstan-dev/capstan/internal/store/sqlite"
)

// noise returns a text of the given size that does not compress well. The same seed gives the same text.
func noise(seed string, bytes int) string {
	var b strings.Builder
	for i := 0; b.Len() < bytes; i++ {
		sum := sha256.Sum256(fmt.Append(nil, seed, i))
		b.WriteString(hex.EncodeToString(sum[:]) + " ")
	}
	return b.String()[:bytes]
}

// talk runs Turns of about 4 KB each, half of it in the question and half in the answer.
func talk(t testing.TB, j journal.Journal, from, to int) {
	t.Helper()
	for i := from; i < to; i++ {
		c, _ := candidate("p0", 1, says(noise(fmt.Sprint("answer ", i), 2000)))
		result, err := engine(j).Run(t.Context(), new(inTalk(fmt.Sprint("uid-", i), noise(fmt.Sprint("question ", i), 2000), c)))
		if err != nil || result.Session.Number != int64(i+1) {
			t.Fatalf("Run = %+v, %v; want Turn %d of its Session", result, err, i+1)
		}
	}
}

// TestALongConversationGrowsLinearly runs 160 Turns of 4 KB, which are 640 KB of conversation. The size that each
// Turn adds to the store must not depend on the length of the conversation.
func TestALongConversationGrowsLinearly(t *testing.T) {
	j := &journaltest.Store{}
	stored := func() int64 {
		z, err := j.Size(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		return z.Bytes
	}
	talk(t, j, 0, 80)
	half := stored()
	talk(t, j, 80, 160)
	whole := stored()
	t.Logf("%d bytes after 80 turns, %d after 160", half, whole)
	if second := whole - half; second > half*11/10 {
		t.Errorf("80 Turns took %d bytes and the next 80 took %d, want about as many", half, second)
	}
	if limit := int64(160 * 24_000); whole > limit {
		t.Errorf("160 Turns of 4 KB took %d bytes, want at most %d", whole, limit)
	}
}

// TestTheJournalOfATurnRefersToItsHistory checks that earlier messages are only in the journal of the Session.
func TestTheJournalOfATurnRefersToItsHistory(t *testing.T) {
	for store, open := range journals {
		t.Run(store, func(t *testing.T) {
			j := open(t)
			c, _ := candidate("p0", 1, says("It is in the shed."))
			mustRun(t, j, inTalk("a", "Where is my bicycle?", c))
			c, s := candidate("p0", 1, says("Welcome."))
			result := mustRun(t, j, inTalk("uid", "Thanks.", c))
			for _, e := range entries(t, j, "uid") {
				if bytes.Contains(e.Payload, []byte("bicycle")) {
					t.Errorf("entry %q repeats the history: %s", e.Kind, e.Payload)
				}
				whole, err := turn.Expand(t.Context(), j, e)
				if err != nil {
					t.Fatal(err)
				}
				if (e.Kind == journal.Prepared) != turn.NeedsExpand(e) || turn.NeedsExpand(whole) {
					t.Errorf("NeedsExpand of entry %q = %t, and %t after Expand; want it only for a prompt before Expand",
						e.Kind, turn.NeedsExpand(e), turn.NeedsExpand(whole))
				}
				if e.Kind != journal.Prepared {
					continue
				}
				if diff := cmp.Diff(s.requests[0].Messages, decoded[prepare.Prepared](t, whole).Messages); diff != "" {
					t.Errorf("Expand must return the messages of the request: -want +got:\n%s", diff)
				}
			}
			if want := len(s.requests[0].Messages); result.MessageCount != want {
				t.Errorf("the result counts %d messages, want %d", result.MessageCount, want)
			}
		})
	}
}

// TestAHistoryThatIsGoneIsShownAsAReference checks that Expand leaves the reference to a deleted history unchanged.
func TestAHistoryThatIsGoneIsShownAsAReference(t *testing.T) {
	j := &journaltest.Store{}
	c, _ := candidate("p0", 1, says("It is in the shed."))
	mustRun(t, j, inTalk("a", "Where is my bicycle?", c))
	c, _ = candidate("p0", 1, says("Welcome."))
	mustRun(t, j, inTalk("uid", "Thanks.", c))
	forget(t, j, "talk-uid")
	for _, e := range entries(t, j, "uid") {
		if got, err := turn.Expand(t.Context(), j, e); err != nil || !bytes.Equal(got.Payload, e.Payload) {
			t.Errorf("Expand = %s, %v; want the entry unchanged", got.Payload, err)
		}
	}
}

// forget deletes a journal.
func forget(t *testing.T, j *journaltest.Store, uid string) {
	t.Helper()
	if err := j.Retire(t.Context(), at, uid); err != nil {
		t.Fatal(err)
	}
	if n, err := j.Purge(t.Context(), at, 1); err != nil || n != 1 {
		t.Fatalf("Purge = %d, %v", n, err)
	}
}

// TestATurnKeepsItsHistory checks that a Turn has the same history after a restart, or ends if this history is gone.
func TestATurnKeepsItsHistory(t *testing.T) {
	for name, tc := range map[string]struct {
		reason string
		change func(t *testing.T, j *journaltest.Store)
		stop   turn.Stop
		says   string
	}{
		"unchanged": {"the same history gives the same prompt", func(*testing.T, *journaltest.Store) {}, turn.StopCompleted, ""},
		"with later Turns": {"later messages are not part of the Turn's history", func(t *testing.T, j *journaltest.Store) {
			c, _ := candidate("p0", 1, says("Meanwhile."))
			mustRun(t, j, inTalk("c", "Other?", c))
		}, turn.StopCompleted, ""},
		"gone": {
			"the prompt cannot be completed without the history",
			func(t *testing.T, j *journaltest.Store) { forget(t, j, "talk-uid") }, turn.StopInterrupted,
			"the turn cannot continue, because the history of its session is gone: ",
		},
		"replaced": {"the digest shows that these are other entries", func(t *testing.T, j *journaltest.Store) {
			forget(t, j, "talk-uid")
			c, _ := candidate("p0", 1, says("Something else."))
			mustRun(t, j, inTalk("other", "Who?", c))
		}, turn.StopInterrupted, "have changed since the turn read them"},
	} {
		t.Run(name, func(t *testing.T) {
			j := &journaltest.Store{}
			c, _ := candidate("p0", 1, says("One."))
			mustRun(t, j, inTalk("a", "First?", c))
			c, s := candidate("p0", 1, asks("find", "{}"), says("Two."))
			in := inTalk("uid", "Second?", c)
			in.Tools = []tool.Tool{named("find", tool.ReadOnly, saying("found"))}
			ctx, ctl := control(t, &in)
			in.Progress = func(p turn.Progress) {
				if p.Counts.ToolCalls > 0 {
					ctl.abandon(errBroken)
				}
			}
			if _, err := engine(j).Run(ctx, new(in)); !errors.Is(err, errBroken) {
				t.Fatalf("Run: %v, want it abandoned", err)
			}
			tc.change(t, j)
			in.Epoch, in.Progress, in.Interrupt, in.Cancel = 2, nil, nil, nil
			result := mustRun(t, j, in)
			if result.Stop != tc.stop || !strings.Contains(result.Message, tc.says) || result.Record.Usage.InputTokens == 0 {
				t.Fatalf("the Turn ended with %s: %s, want %s, %q and the usage: %s",
					result.Stop, result.Message, tc.stop, tc.says, tc.reason)
			}
			if tc.stop != turn.StopCompleted {
				return
			}
			first, second := s.requests[0].Messages, s.requests[1].Messages
			if diff := cmp.Diff(first, second[:len(first)]); diff != "" {
				t.Errorf("the prompt after the restart: %s: -before +after:\n%s", tc.reason, diff)
			}
		})
	}
}

// TestJournalOfAnOlderVersionContainsItsHistory continues a Turn that an older version began.
func TestJournalOfAnOlderVersionContainsItsHistory(t *testing.T) {
	j := &journaltest.Store{}
	c, _ := candidate("p0", 1, says("One."))
	mustRun(t, j, inTalk("a", "First?", c))
	c, _ = candidate("p0", 1, says("Two."))
	in := inTalk("uid", "Second?", c)
	in.Interrupt = interrupted()
	if _, err := engine(j).Run(t.Context(), new(in)); !errors.Is(err, loop.ErrInterrupted) {
		t.Fatal(err)
	}
	old := &journaltest.Store{}
	said := []map[string]string{{"Role": "user", "Content": "First?"}, {"Role": "assistant", "Content": "One."}}
	for _, e := range entries(t, j, "uid") {
		whole, err := turn.Expand(t.Context(), j, e)
		if err != nil {
			t.Fatal(err)
		}
		var payload map[string]any
		if err := json.Unmarshal(whole.Payload, &payload); err != nil {
			t.Fatal(err)
		}
		delete(payload, "history")
		if input, ok := payload["input"].(map[string]any); ok {
			input["Turn"].(map[string]any)["History"] = said
		}
		if e.Payload, err = json.Marshal(payload); err != nil {
			t.Fatal(err)
		}
		if err := old.Append(t.Context(), "uid", e); err != nil {
			t.Fatal(err)
		}
	}
	one, _ := candidate("p0", 1, fails(model.Auth))
	two, s := candidate("p1", 1, says("Two."))
	in = inTalk("uid", "Second?", one, two)
	in.Epoch = 2
	if result := mustRun(t, old, in); result.Stop != turn.StopCompleted {
		t.Fatalf("the Turn ended with %s: %s; want an answer", result.Stop, result.Message)
	}
	var received []string
	for _, m := range s.requests[0].Messages {
		if m.Name == prepare.MessageHistory {
			received = append(received, m.Content)
		}
	}
	if diff := cmp.Diff([]string{"First?", "One."}, received); diff != "" {
		t.Errorf("the messages that the second model received: -want +got:\n%s", diff)
	}
}

// chatty is a model that answers each question and writes summaries.
type chatty struct {
	summaries int
	requests  []model.Request
	fails     bool
}

// Generate returns an answer or a summary, or an error if fails is set.
func (c *chatty) Generate(_ context.Context, r *model.Request) (*model.Reply, error) {
	if r.Messages[0].Name == "compaction" {
		c.summaries++
		return &model.Reply{Text: fmt.Sprintf("Summary %d.", c.summaries), FinishReason: model.FinishStop}, nil
	}
	c.requests = append(c.requests, *r)
	if c.fails {
		return nil, &model.Error{Kind: model.Auth, Message: "the key has expired"}
	}
	question := r.Messages[len(r.Messages)-1].Content
	return &model.Reply{Text: "Re: " + question, FinishReason: model.FinishStop}, nil
}

// ask runs the next Turn. Its question has about 100 tokens, and the context window of the model has 3000.
func (c *chatty) ask(t *testing.T, j journal.Journal, n int) *turn.Result {
	t.Helper()
	link := loop.Candidate{ProviderName: "p0", Model: "m", Provider: c, Retry: loop.Retry{MaxAttempts: 1}, ContextWindow: 3000}
	in := inTalk(fmt.Sprint("uid-", n), fmt.Sprintf("Question %d.%s", n, strings.Repeat(" word", 100)), link)
	in.Context = loop.ContextPolicy{Compact: true, CompactPercent: 80}
	return mustRun(t, j, in)
}

// said returns the beginning of each message of the conversation in the newest request.
func (c *chatty) said() []string {
	var all []string
	for _, m := range c.requests[len(c.requests)-1].Messages {
		switch {
		case m.Name == prepare.MessageSummary:
			all = append(all, m.Name)
		case m.Role != model.RoleSystem:
			all = append(all, m.Name+": "+m.Content[:strings.Index(m.Content, ".")+1])
		}
	}
	return all
}

// TestSummaryIsPaidForOnce checks that later Turns begin with the summary that an earlier Turn has paid for, and that
// the last two exchanges are not summarized.
func TestSummaryIsPaidForOnce(t *testing.T) {
	for store, open := range journals {
		for _, fails := range []bool{false, true} {
			t.Run(fmt.Sprintf("%s, failure after the summary: %t", store, fails), func(t *testing.T) {
				j, c, n := open(t), &chatty{}, 0
				for c.summaries == 0 {
					if n++; n > 20 {
						t.Fatal("no summary was made")
					}
					c.ask(t, j, n)
				}
				want := []string{
					"conversation_summary", fmt.Sprintf("history: Question %d.", n-2), fmt.Sprintf("history: Re: Question %d.", n-2),
					fmt.Sprintf("history: Question %d.", n-1), fmt.Sprintf("history: Re: Question %d.", n-1),
					fmt.Sprintf("user_message: Question %d.", n),
				}
				if diff := cmp.Diff(want, c.said()); diff != "" {
					t.Errorf("the Turn that is compacted must receive a summary and the last two exchanges: -want +got:\n%s", diff)
				}
				// A Turn fails, then one succeeds, until a failing Turn has paid for the second summary.
				for c.fails = fails; c.fails && c.summaries < 2; n++ {
					c.ask(t, j, n+1)
					if c.fails = false; c.summaries < 2 {
						c.ask(t, j, n+100)
						c.fails = true
					}
				}
				paid := c.summaries
				if result := c.ask(t, j, n+1); c.summaries != paid || result.Counts.Compactions != 0 {
					t.Errorf("%d summaries were made, want %d: the next Turn must begin with the newest summary", c.summaries, paid)
				}
				last := c.requests[len(c.requests)-1].Messages
				at := slices.IndexFunc(last, func(m model.Message) bool { return m.Name == prepare.MessageSummary })
				if at < 0 || !strings.Contains(last[at].Content, fmt.Sprintf("Summary %d.", paid)) ||
					strings.Count(last[at].Content, "</untrusted-text>") != 1 {
					t.Fatalf("the next Turn receives %q, want summary %d within one fence", c.said(), paid)
				}
				for _, e := range entries(t, j, fmt.Sprint("uid-", n+1)) {
					if bytes.Contains(e.Payload, []byte("Summary ")) {
						t.Errorf("entry %q repeats the summary", e.Kind)
					}
					whole, err := turn.Expand(t.Context(), j, e)
					if err != nil {
						t.Fatal(err)
					}
					if e.Kind != journal.Prepared {
						continue
					}
					if diff := cmp.Diff(last, decoded[prepare.Prepared](t, whole).Messages); diff != "" {
						t.Errorf("Expand must return the messages of the request: -want +got:\n%s", diff)
					}
				}
			})
		}
	}
}

// measured is a journal that counts the entries that are read from the Session's journal.
type measured struct {
	journal.Journal
	entries int
}

// Read counts the entries of the Session.
func (m *measured) Read(ctx context.Context, uid string, after int64) iter.Seq2[journal.Entry, error] {
	return func(yield func(journal.Entry, error) bool) {
		for e, err := range m.Journal.Read(ctx, uid, after) {
			if uid == "talk-uid" {
				m.entries++
			}
			if !yield(e, err) {
				return
			}
		}
	}
}

// TestACompactedConversationIsNotReadAsAWhole checks that the number of entries that a Turn reads does not grow
// with the conversation.
func TestACompactedConversationIsNotReadAsAWhole(t *testing.T) {
	j, c := &measured{Journal: &journaltest.Store{}}, &chatty{}
	for n := range 60 {
		j.entries = 0
		c.ask(t, j, n)
		if j.entries > 25 {
			t.Fatalf("Turn %d has read %d entries of its Session, want at most 25: those since the last summary", n+1, j.entries)
		}
	}
	if c.summaries < 5 || c.summaries > 40 {
		t.Errorf("%d summaries were made for 60 Turns, want 5 to 40", c.summaries)
	}
}

// TestASessionThatLostItsHistory checks that the Session's totals never decrease, that each prompt mentions the missing
// Turns, and that OnLoss decides whether the next Turn runs.
func TestASessionThatLostItsHistory(t *testing.T) {
	for store, open := range journals {
		t.Run(store, func(t *testing.T) {
			c, _ := candidate("p0", 1, says("Yes."))
			var known session.Totals
			for i, j := range []journal.Journal{open(t), open(t)} {
				for n := range 3 {
					in := inTalk(fmt.Sprint("uid-", i, n), "Is it so?", c)
					in.Session.Known = known
					reported := int64(0)
					in.Session.OnLoss = func(_ context.Context, missing int64) error {
						reported = missing
						return nil
					}
					result := mustRun(t, j, in)
					after := result.Session.Totals
					if after.Turns != known.Turns+1 || after.Usage.InputTokens != known.Usage.InputTokens+1000 ||
						after.KnownCost.LessThanOrEqual(known.KnownCost) {
						t.Errorf("after Turn %d of store %d the totals are %+v, want one Turn more than %+v",
							n+1, i+1, after, known)
					}
					missing := int64(3 * i)
					if after.Missing != missing || result.MissingTurns != missing || (reported > 0) != (i == 1 && n == 0) {
						t.Errorf("Turn %d of store %d: missing %d in the result, %d in the totals, %d reported; want %d, and a report "+
							"only in the first Turn of the second store",
							n+1, i+1, result.MissingTurns, after.Missing, reported, missing)
					}
					prepared := ""
					for _, e := range entries(t, j, in.UID) {
						if e.Kind == journal.Prepared {
							prepared = string(e.Payload)
						}
					}
					if strings.Contains(prepared, "- missing_history: 3 earlier turns") != (i == 1) {
						t.Errorf("the prompt of Turn %d of store %d must mention missing Turns if and only if it is the second store",
							n+1, i+1)
					}
					if in.Epoch = 2; n == 0 { // runs again, as after a kill between the Turn's end and the write to the Session's status
						if again := mustRun(t, j, in); !cmp.Equal(again.Session.Totals, after) {
							t.Errorf("run again, the totals are %+v, want %+v", again.Session.Totals, after)
						}
						in.Session.Known = after
						if again := mustRun(t, j, in); !cmp.Equal(again.Session.Totals, after) {
							t.Errorf("run again after the status was written, the totals are %+v, want %+v", again.Session.Totals, after)
						}
					}
					known = after
				}
			}
		})
	}
	t.Run("OnLoss returns an error", func(t *testing.T) {
		c, s := candidate("p0", 1, says("never asked"))
		in := inTalk("uid", "Is it so?", c)
		in.Session.Known = session.Totals{Turns: 4}
		in.Session.OnLoss = func(context.Context, int64) error { return errBroken }
		j := &journaltest.Store{}
		if _, err := engine(j).Run(t.Context(), new(in)); !errors.Is(err, errBroken) || s.asked() != 0 || len(entries(t, j, "uid")) != 0 {
			t.Errorf("Run: %v after %d requests, want the error of OnLoss, no request and an empty journal", err, s.asked())
		}
	})
}

// BenchmarkALongConversation measures the first and the last Turns of a conversation of 160 Turns, with a journal
// in a file.
func BenchmarkALongConversation(b *testing.B) {
	for b.Loop() {
		s, err := sqlite.Open(b.Context(), filepath.Join(b.TempDir(), "journal.db"))
		if err != nil {
			b.Fatal(err)
		}
		took := func(from, to int) float64 {
			begin := time.Now()
			talk(b, s, from, to)
			return float64(time.Since(begin).Microseconds()) / float64(to-from) / 1000
		}
		first := took(0, 10)
		took(10, 150)
		last := took(150, 160)
		z, err := s.Size(b.Context())
		if err != nil {
			b.Fatal(err)
		}
		b.ReportMetric(first, "ms/first-turn")
		b.ReportMetric(last, "ms/last-turn")
		b.ReportMetric(float64(z.Bytes), "bytes")
		if err := s.Close(); err != nil {
			b.Fatal(err)
		}
	}
}
