package turn_test

import (
	"context"
	"errors"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/capstan-dev/capstan/internal/runtime/journal"
	"github.com/capstan-dev/capstan/internal/runtime/journal/journaltest"
	"github.com/capstan-dev/capstan/internal/runtime/model"
	"github.com/capstan-dev/capstan/internal/runtime/tool"
	"github.com/capstan-dev/capstan/internal/runtime/turn"
)

// TestSubject checks the texts that judges receive about a Turn with tools: the prompt, the results and the answer,
// each once.
func TestSubject(t *testing.T) {
	c, _ := candidate("p0", 1, asks("find", `{"n":1}`), says("Found."))
	in := input(c)
	in.Tools = []tool.Tool{named("find", tool.ReadOnly, saying("It is under the desk."))}
	j := &journaltest.Store{}
	mustRun(t, j, in)
	s, err := turn.Subject(t.Context(), j, in.UID, nil)
	if err != nil {
		t.Fatal(err)
	}
	if s.Answer != "Found." || !strings.Contains(s.Context, "[a] One. (source: notes/a.md)") || s.LeftOut != 0 {
		t.Errorf("answer %q, context %q, want the answer and the facts of the Turn", s.Answer, s.Context)
	}
	if len(s.Tools) != 1 || s.Tools[0].Name != "find" || !strings.Contains(s.Tools[0].Text, "It is under the desk.") {
		t.Errorf("results %+v, want the result of the call", s.Tools)
	}
	last := s.Messages[len(s.Messages)-1]
	if s.Messages[0].Role != model.RoleSystem || last.Role != model.RoleUser || last.Text != "What is new?" {
		t.Errorf("messages %+v, want the system prompt first and the request last", s.Messages)
	}
	for _, m := range s.Messages {
		if strings.Contains(m.Text, "notes/a.md") {
			t.Errorf("the message context_pack is among the messages: %q", m.Text)
		}
	}
}

// TestSubjectOfALongAnswer checks that judges receive the whole of an answer that is in an artifact, without the list
// of sources that Capstan has appended, and that a backtest compares the same text.
func TestSubjectOfALongAnswer(t *testing.T) {
	text := strings.Repeat("all of it \n", 30_000)
	for name, appended := range map[string]bool{"without sources": false, "with sources": true} {
		t.Run(name, func(t *testing.T) {
			c, _ := candidate("p0", 1, says(text))
			in := input(c)
			in.ShowCitations, in.AppendCitations = appended, appended
			want := text
			if appended {
				want = strings.TrimRight(text, "\n") // the list follows after an empty line
			}
			j := &journaltest.Store{}
			if got := mustRun(t, j, in); strings.Contains(got.Text, "Sources:") != appended {
				t.Fatalf("the answer ends with %q, want a list of sources: %t", got.Text[len(got.Text)-50:], appended)
			}
			s, err := turn.Subject(t.Context(), j, "uid", nil)
			if err != nil || s.Answer != want {
				t.Errorf("an answer of %d bytes (error %v), want %d", len(s.Answer), err, len(want))
			}
			entries := func(yield func(journal.Entry, error) bool) {
				for e, err := range j.Read(t.Context(), "uid", 0) {
					if err == nil {
						err = journal.LoadPayload(t.Context(), j, "uid", &e)
					}
					if !yield(e, err) {
						return
					}
				}
			}
			r, err := turn.ReadRecording(t.Context(), entries, func(ctx context.Context, sha256 string, _ int64) ([]byte, error) {
				e := journal.Entry{Artifact: sha256}
				err := journal.LoadPayload(ctx, j, "uid", &e)
				return e.Payload, err
			})
			if err != nil || r.Subject.Answer != want {
				t.Errorf("the recording does not have the same answer (error %v)", err)
			}
		})
	}
}

// TestSubjectInASession checks that a judge receives the messages that only the journal of the Session has. If these
// messages are too large or gone, they are only counted.
func TestSubjectInASession(t *testing.T) {
	j := &journaltest.Store{}
	for _, uid := range []string{"a", "b"} {
		c, _ := candidate("p0", 1, says("Answer "+uid))
		mustRun(t, j, inTalk(uid, "Ask "+uid, c))
	}
	short := errors.New("there is not enough memory")
	var admitted int64
	admits := func(ok bool, err error) func(int64) (bool, error) {
		return func(bytes int64) (bool, error) { admitted += bytes; return ok, err }
	}
	for _, tc := range []struct {
		name    string
		admit   func(int64) (bool, error)
		leftOut int
		err     error
	}{
		{"all", nil, 0, nil},
		{"admitted", admits(true, nil), 0, nil},
		{"too large", admits(false, nil), 2, nil},
		{"short", admits(false, short), 0, short},
		{"lost", nil, 2, nil},
	} {
		t.Run(tc.name, func(t *testing.T) {
			if tc.name == "lost" {
				j.Lose("talk-uid", 0)
			}
			s, err := turn.Subject(t.Context(), j, "b", tc.admit)
			if !errors.Is(err, tc.err) {
				t.Fatalf("error %v, want %v", err, tc.err)
			}
			if err != nil {
				return
			}
			var all []string
			for _, m := range s.Messages {
				if m.Role != model.RoleSystem {
					all = append(all, string(m.Role)+": "+m.Text)
				}
			}
			want := []string{"user: Ask a", "assistant: Answer a", "user: Ask b"}
			if diff := cmp.Diff(want[tc.leftOut:], all); diff != "" || s.LeftOut != tc.leftOut || s.Answer != "Answer b" ||
				s.Request != "Ask b" {
				t.Errorf("answer %q to %q with %d messages left out, want %d; messages -want +got:\n%s", s.Answer, s.Request, s.LeftOut,
					tc.leftOut, diff)
			}
		})
	}
	if admitted == 0 {
		t.Error("admit did not receive the size of the history")
	}
}

// TestSubjectWithoutAnAnswer checks a Turn that failed, and a Turn without a journal.
func TestSubjectWithoutAnAnswer(t *testing.T) {
	c, _ := candidate("p0", 1, fails(model.Auth))
	j := &journaltest.Store{}
	mustRun(t, j, input(c))
	for _, uid := range []string{"uid", "unknown"} {
		if s, err := turn.Subject(t.Context(), j, uid, nil); !errors.Is(err, turn.ErrNoAnswer) {
			t.Errorf("Subject of %q = %+v, %v; want ErrNoAnswer", uid, s, err)
		}
	}
}

// TestSubjectWithEarlierResults checks that a judge receives the results of calls in earlier Turns of the Session,
// before those of this Turn.
func TestSubjectWithEarlierResults(t *testing.T) {
	j := &journaltest.Store{}
	first, _ := candidate("p0", 1, asks("find", `{"n":1}`), says("Found."))
	in := inTalk("a", "Where is it?", first)
	in.Tools = []tool.Tool{named("find", tool.ReadOnly, saying("It is under the desk."))}
	mustRun(t, j, in)
	second, _ := candidate("p0", 1, asks("find", `{"n":2}`), says("Still there."))
	in = inTalk("b", "And now?", second)
	in.Tools = []tool.Tool{named("find", tool.ReadOnly, saying("It has not moved."))}
	mustRun(t, j, in)
	s, err := turn.Subject(t.Context(), j, "b", nil)
	if err != nil {
		t.Fatal(err)
	}
	var all []string
	for _, result := range s.Tools {
		all = append(all, result.Name+": "+result.Text)
	}
	if len(all) != 2 || !strings.HasPrefix(all[0], "find: ") || !strings.Contains(all[0], "under the desk") ||
		!strings.Contains(all[1], "has not moved") {
		t.Errorf("the judge receives the results %q, want the result of each Turn", all)
	}
}
