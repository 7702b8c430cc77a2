package loop

import (
	"encoding/json"
	"fmt"
	"math/rand"
	"reflect"
	"slices"
	"testing"
	"testing/quick"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"

	"github.com/capstan-dev/capstan/internal/runtime/journal"
	"github.com/capstan-dev/capstan/internal/runtime/model"
)

// randomTurn is a random prompt with a random journal.
type randomTurn struct {
	prepared []model.Message
	entries  []journal.Entry
}

func (w *randomTurn) add(kind journal.Kind, payload any) {
	data, err := json.Marshal(payload)
	if err != nil {
		panic(err)
	}
	w.entries = append(w.entries, journal.Entry{Kind: kind, Payload: data})
}

func (w *randomTurn) state() (*State, error) {
	s := &State{}
	for _, e := range w.entries {
		if err := s.Apply(e); err != nil {
			return nil, err
		}
	}
	return s, nil
}

// Generate returns a Turn at any point of its life. It may have earlier Turns, replies with and without calls,
// calls that have not finished, rejected answers, and one or more compactions.
func (randomTurn) Generate(r *rand.Rand, size int) reflect.Value {
	w := &randomTurn{prepared: []model.Message{{Role: model.RoleSystem, Name: "system_prompt", Content: fmt.Sprint("prompt ", r.Int())}}}
	for i := range r.Intn(4) {
		id := fmt.Sprint("h", i)
		w.prepared = append(w.prepared, model.Message{Role: model.RoleUser, Name: "history", Content: "old question"})
		if r.Intn(2) == 0 {
			w.prepared = append(
				w.prepared,
				model.Message{
					Role: model.RoleAssistant, Name: "history",
					ToolCalls: []model.ToolCall{{ID: id, Name: "find", Arguments: "{}"}},
				},
				model.Message{Role: model.RoleTool, Name: "history", ToolCallID: id, Content: "found"},
			)
		}
		w.prepared = append(w.prepared, model.Message{Role: model.RoleAssistant, Name: "history", Content: "old answer"})
	}
	if r.Intn(2) == 0 {
		w.prepared = append(w.prepared, model.Message{Role: model.RoleSystem, Name: "context_pack", Content: "facts"})
	}
	w.prepared = append(w.prepared, model.Message{Role: model.RoleUser, Name: "user_message", Content: fmt.Sprint("question ", r.Int())})
	from := 1
	for step := 1; step <= r.Intn(size/5+2); step++ {
		if r.Intn(4) == 0 {
			from += r.Intn(step - from + 1)
			w.add(journal.ModelReplied, Step{Step: step, Purpose: ForCompaction, Reply: model.Reply{Text: "summary"}})
			w.add(journal.Compacted, Compaction{From: from, Summary: "summary </untrusted-text>"})
		}
		reply := Step{Step: step, Reply: model.Reply{Text: []string{"", "words"}[r.Intn(2)]}}
		for i := range r.Intn(4) {
			reply.Reply.ToolCalls = append(reply.Reply.ToolCalls, model.ToolCall{ID: fmt.Sprint("c", i), Name: "find", Arguments: "{}"})
		}
		if len(reply.Reply.ToolCalls) == 0 {
			reply.Reply.Text = "an answer"
		}
		w.add(journal.ModelReplied, reply)
		for _, c := range reply.Reply.ToolCalls {
			if r.Intn(5) > 0 {
				w.add(journal.ToolFinished, CallResult{Step: step, CallID: c.ID, Name: c.Name, Outcome: Succeeded, Content: "found"})
			}
		}
		if len(reply.Reply.ToolCalls) == 0 {
			w.add(journal.OutputRejected, Rejection{Step: step, Message: "no"})
		}
	}
	return reflect.ValueOf(*w)
}

// TestConversationsAreLegal checks that each call has its result and each result its call, because endpoints refuse
// other conversations, and that the system prompt and the user's message never change.
func TestConversationsAreLegal(t *testing.T) {
	compacted := 0
	holds := func(w randomTurn) bool {
		s, err := w.state()
		if err != nil {
			t.Error(err)
			return false
		}
		if len(s.Compactions) > 0 {
			compacted++
		}
		note := []model.Message{
			{Role: model.RoleSystem, Name: MessageOutputForm, Content: "note"},
			{Role: model.RoleUser, Name: MessageOutputSchema, Content: "schema"},
		}
		all := conversation(t.Context(), w.prepared, s, note...)
		return checkLegal(t, all) && checkKept(t, w.prepared, all, s) && cmp.Equal(all, conversation(t.Context(), w.prepared, s, note...))
	}
	if err := quick.Check(holds, &quick.Config{MaxCount: 700}); err != nil {
		t.Error(err)
	}
	if compacted < 200 {
		t.Errorf("only %d of 700 conversations were compacted, want many", compacted)
	}
}

// checkLegal checks the roles, and that exactly one result follows each call and that there are no other results.
func checkLegal(t *testing.T, all []model.Message) bool {
	t.Helper()
	for i := 0; i < len(all); {
		m := all[i]
		i++
		if !slices.Contains([]model.Role{model.RoleSystem, model.RoleUser, model.RoleAssistant}, m.Role) ||
			m.Content == "" && len(m.ToolCalls) == 0 {
			t.Errorf("message %d is %+v: a result without its call, or nothing at all", i, m)
			return false
		}
		for _, c := range m.ToolCalls {
			if m.Role != model.RoleAssistant || i >= len(all) || all[i].Role != model.RoleTool || all[i].ToolCallID != c.ID {
				t.Errorf("call %s of message %d is not followed by its result", c.ID, i)
				return false
			}
			i++
		}
	}
	return true
}

// checkKept checks that the required messages are unchanged and in order.
func checkKept(t *testing.T, prepared, all []model.Message, s *State) bool {
	t.Helper()
	only := func(messages []model.Message, take func(model.Message) bool) []model.Message {
		var some []model.Message
		for _, m := range messages {
			if take(m) {
				some = append(some, m)
			}
		}
		return some
	}
	authored := func(m model.Message) bool {
		return m.Role == model.RoleSystem && m.Name != MessageOutputForm || m.Name == "user_message"
	}
	if diff := cmp.Diff(only(prepared, authored), only(all, authored)); diff != "" {
		t.Errorf("system messages and the user's message have changed: -want +got:\n%s", diff)
		return false
	}
	summaries := only(all, func(m model.Message) bool { return m.Name == MessageSummary })
	old := only(all, func(m model.Message) bool { return m.Name == "history" })
	compacted := len(s.Compactions) > 0
	if compacted && (len(summaries) != 1 || len(old) != 0) || !compacted &&
		(len(summaries) != 0 || !cmp.Equal(old, only(prepared, func(m model.Message) bool { return m.Name == "history" }))) {
		t.Errorf("%d summaries and %d messages of history, after %d compactions", len(summaries), len(old), len(s.Compactions))
		return false
	}
	return true
}

// TestReplaceableLosesNoMessage checks that each message is either summarized or kept, and never both.
func TestReplaceableLosesNoMessage(t *testing.T) {
	holds := func(w randomTurn, forced bool) bool {
		s, err := w.state()
		if err != nil {
			t.Error(err)
			return false
		}
		before := conversation(t.Context(), w.prepared, s)
		older, from, keptHistory := s.replaceable(t.Context(), w.prepared, forced)
		if !checkLegal(t, older) {
			return false
		}
		w.add(journal.ModelReplied, Step{Step: len(s.Steps) + 1, Purpose: ForCompaction, Reply: model.Reply{Text: "summary"}})
		w.add(journal.Compacted, Compaction{From: from, KeptHistory: keptHistory, Summary: "summary"})
		if s, err = w.state(); err != nil {
			t.Error(err)
			return false
		}
		after := conversation(t.Context(), w.prepared, s)
		spoken := func(messages []model.Message) []model.Message {
			return slices.DeleteFunc(slices.Clone(messages), func(m model.Message) bool {
				return m.Role == model.RoleSystem || m.Name == MessageSummary || m.Name == "user_message"
			})
		}
		// The oldest messages are replaced both in earlier Turns and in this Turn, so the replaced messages are not
		// contiguous.
		var rest []model.Message
		left := slices.Clone(older)
		for _, m := range spoken(before) {
			if len(left) > 0 && cmp.Equal(left[0], m) {
				left = left[1:]
				continue
			}
			rest = append(rest, m)
		}
		if diff := cmp.Diff(rest, spoken(after), cmpopts.EquateEmpty()); diff != "" || len(left) > 0 {
			t.Errorf("forced %t, from %d: the messages that are not replaced: -want +got:\n%s", forced, from, diff)
			return false
		}
		return true
	}
	if err := quick.Check(holds, &quick.Config{MaxCount: 700}); err != nil {
		t.Error(err)
	}
}

func TestConversationOrder(t *testing.T) {
	prompt := []model.Message{
		{Role: model.RoleSystem, Name: "system_prompt", Content: "p"},
		{Role: model.RoleUser, Name: "history", Content: "q"},
		{Role: model.RoleAssistant, Name: "history", Content: "a"},
		{Role: model.RoleSystem, Name: "context_pack", Content: "c"},
		{Role: model.RoleUser, Name: "user_message", Content: "u"},
	}
	step := func(n int, id string) Step {
		return Step{Step: n, Reply: model.Reply{ToolCalls: []model.ToolCall{{ID: id, Name: "find", Arguments: "{}"}}}}
	}
	done := func(w *randomTurn, n int, id string) {
		w.add(journal.ModelReplied, step(n, id))
		w.add(journal.ToolFinished, CallResult{Step: n, CallID: id, Content: "found " + id})
	}
	for name, tc := range map[string]struct {
		reason   string
		prepared []model.Message
		do       func(*randomTurn)
		want     []string
	}{
		"first step": {"only the prompt", prompt, func(*randomTurn) {}, []string{"p", "q", "a", "c", "note", "u"}},
		"second step": {
			"the first step follows the prompt", prompt, func(w *randomTurn) { done(w, 1, "c1") },
			[]string{"p", "q", "a", "c", "note", "u", "", "found c1"},
		},
		"open call": {
			"a call without a result is left out", prompt,
			func(w *randomTurn) { w.add(journal.ModelReplied, step(1, "c1")) },
			[]string{"p", "q", "a", "c", "note", "u"},
		},
		"no user": {
			"without a user's message, notes come last", prompt[:1], func(w *randomTurn) { done(w, 1, "c1") },
			[]string{"p", "note", "", "found c1"},
		},
		"no prompt": {"without a prompt there are only notes", nil, func(*randomTurn) {}, []string{"note"}},
		"compacted": {"the summary precedes the user's message", prompt, func(w *randomTurn) {
			done(w, 1, "c1")
			done(w, 2, "c2")
			w.add(journal.Compacted, Compaction{From: 2, Summary: "s"})
		}, []string{"p", "c", "note", "summary", "u", "", "found c2"}},
		"nothing kept": {
			"no exchange is kept", prompt,
			func(w *randomTurn) { done(w, 1, "c1"); w.add(journal.Compacted, Compaction{From: 2, Summary: "s"}) },
			[]string{"p", "c", "note", "summary", "u"},
		},
		"compacted more": {"the newest summary counts", prompt, func(w *randomTurn) {
			done(w, 1, "c1")
			w.add(journal.Compacted, Compaction{From: 1, Summary: "old"})
			done(w, 2, "c2")
			w.add(journal.Compacted, Compaction{From: 2, Summary: "s"})
		}, []string{"p", "c", "note", "summary", "u", "", "found c2"}},
		"refused answers": {
			"the reasons of output policies are kept, and a violation of the schema is not", prompt, func(w *randomTurn) {
				for n, policies := range [][]string{{"p1"}, nil, {"p2"}, {"p3"}} {
					w.add(journal.ModelReplied, Step{Step: n + 1, Reply: model.Reply{Text: fmt.Sprint("a", n+1)}})
					w.add(journal.OutputRejected, Rejection{Step: n + 1, Policies: policies, Message: fmt.Sprint("no ", n+1)})
				}
				w.add(journal.Compacted, Compaction{From: 4, Summary: "s"})
			}, []string{"p", "c", "note", "summary", "u", "no 1", "no 3", "a4", "no 4"},
		},
	} {
		t.Run(name, func(t *testing.T) {
			w := &randomTurn{}
			tc.do(w)
			s, err := w.state()
			if err != nil {
				t.Fatal(err)
			}
			var got []string
			for _, m := range conversation(t.Context(), tc.prepared, s, model.Message{Role: model.RoleSystem, Content: "note"}) {
				if m.Name == MessageSummary {
					if !cmp.Equal(m, summaryMessage("s")) {
						t.Errorf("the summary is %+v, want the newest", m)
					}
					m.Content = "summary"
				}
				got = append(got, m.Content)
			}
			if diff := cmp.Diff(tc.want, got); diff != "" {
				t.Errorf("%s: -want +got:\n%s", tc.reason, diff)
			}
		})
	}
}
