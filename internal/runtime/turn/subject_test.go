package turn_test

import (
	"errors"
	"strings"
	"testing"

	"github.com/capstan-dev/capstan/internal/runtime/journal/journaltest"
	"github.com/capstan-dev/capstan/internal/runtime/model"
	"github.com/capstan-dev/capstan/internal/runtime/tool"
	"github.com/capstan-dev/capstan/internal/runtime/turn"
)

// TestSubject checks what judges receive of a Turn with tools: the prompt, the results and the answer, each once.
func TestSubject(t *testing.T) {
	c, _ := candidate("p0", 1, asks("find", `{"n":1}`), says("Found."))
	in := input(c)
	in.Tools = []tool.Tool{named("find", tool.ReadOnly, saying("It is under the desk."))}
	j := &journaltest.Memory{}
	mustRun(t, j, in)
	s, err := turn.Subject(t.Context(), j, in.UID)
	if err != nil {
		t.Fatal(err)
	}
	if s.Answer != "Found." || !strings.Contains(s.Context, "[a] One. (source: notes/a.md)") || s.LeftOut != 0 {
		t.Errorf("answer %q, context %q, want those of the Turn", s.Answer, s.Context)
	}
	if len(s.Tools) != 1 || s.Tools[0].Name != "find" || !strings.Contains(s.Tools[0].Text, "It is under the desk.") {
		t.Errorf("results %+v, want that of the one call", s.Tools)
	}
	last := s.Messages[len(s.Messages)-1]
	if s.Messages[0].Role != model.RoleSystem || last.Role != model.RoleUser || last.Text != "What is new?" {
		t.Errorf("messages %+v, want the system prompt first and the request last", s.Messages)
	}
	for _, m := range s.Messages {
		if strings.Contains(m.Text, "notes/a.md") {
			t.Errorf("the context pack is among the messages: %q", m.Text)
		}
	}
}

// TestSubjectOfALongAnswer checks that an answer that an artifact has is judged whole.
func TestSubjectOfALongAnswer(t *testing.T) {
	text := strings.Repeat("all of it \n", 30_000)
	c, _ := candidate("p0", 1, says(text))
	j := &journaltest.Memory{}
	mustRun(t, j, input(c))
	s, err := turn.Subject(t.Context(), j, "uid")
	if err != nil || s.Answer != text {
		t.Errorf("an answer of %d bytes (error %v), want %d", len(s.Answer), err, len(text))
	}
}

// TestSubjectInASession checks that the messages that only the journal of the Session has are counted.
func TestSubjectInASession(t *testing.T) {
	j := &journaltest.Memory{}
	for _, uid := range []string{"a", "b"} {
		c, _ := candidate("p0", 1, says("Answer "+uid))
		mustRun(t, j, inTalk(uid, "Ask "+uid, c))
	}
	s, err := turn.Subject(t.Context(), j, "b")
	if err != nil || s.Answer != "Answer b" || s.LeftOut != 2 {
		t.Errorf("answer %q with %d messages left out (error %v), want the second answer and 2", s.Answer, s.LeftOut, err)
	}
}

// TestSubjectWithoutAnAnswer checks that there is nothing to judge.
func TestSubjectWithoutAnAnswer(t *testing.T) {
	c, _ := candidate("p0", 1, fails(model.Auth))
	j := &journaltest.Memory{}
	mustRun(t, j, input(c))
	for _, uid := range []string{"uid", "unknown"} {
		if s, err := turn.Subject(t.Context(), j, uid); !errors.Is(err, turn.ErrNoAnswer) {
			t.Errorf("Subject of %q = %+v, %v; want ErrNoAnswer", uid, s, err)
		}
	}
}
