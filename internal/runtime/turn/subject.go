package turn

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"

	"github.com/capstan-dev/capstan/internal/runtime/journal"
	"github.com/capstan-dev/capstan/internal/runtime/judge"
	"github.com/capstan-dev/capstan/internal/runtime/loop"
	"github.com/capstan-dev/capstan/internal/runtime/model"
	"github.com/capstan-dev/capstan/internal/runtime/prepare"
)

// ErrNoAnswer is returned for a Turn that has no answer to judge.
var ErrNoAnswer = errors.New("the turn has no answer")

// Subject reads from the journal of a Turn that has ended what its judges receive: the answer, and the texts that the
// model had received. The history that only the journal of the Session has is left out, and counted. Subject returns
// ErrNoAnswer if the Turn did not end with an answer.
func Subject(ctx context.Context, j journal.Journal, uid string) (*judge.Subject, error) {
	s, answered := &judge.Subject{}, false
	for e, err := range j.Read(ctx, uid, 0) {
		if err != nil {
			return nil, fmt.Errorf("failed to read the journal of %q: %w", uid, err)
		}
		switch e.Kind { // a judge sees only the prompt, the results of tools and the answer
		case journal.Prepared, journal.ToolFinished, journal.Finalized:
		default:
			continue
		}
		if err := journal.LoadPayload(ctx, j, uid, &e); err != nil {
			return nil, err
		}
		switch e.Kind {
		case journal.Prepared:
			err = readPrompt(s, e.Payload)
		case journal.ToolFinished:
			err = readResult(s, e.Payload)
		default:
			answered, err = readAnswer(ctx, j, uid, s, &e)
		}
		if err != nil {
			return nil, fmt.Errorf("failed to read entry %d (%q) of the journal of %q: %w", e.Seq, e.Kind, uid, err)
		}
	}
	if !answered {
		return nil, ErrNoAnswer
	}
	return s, nil
}

// readPrompt replaces the messages by those of a newer prompt.
func readPrompt(s *judge.Subject, payload []byte) error {
	var r preparedRecord
	if err := json.Unmarshal(payload, &r); err != nil {
		return err
	}
	if r.Prepared == nil {
		return errors.New("the prompt has no messages")
	}
	s.Messages, s.Context, s.Request, s.LeftOut = nil, "", "", 0
	if r.History != nil {
		s.LeftOut = r.History.Messages
	}
	for _, m := range r.Messages {
		if m.Name == prepare.MessageUser && m.Role == model.RoleUser {
			s.Request = m.Content
		}
		switch {
		case m.Name == prepare.MessageContextPack:
			s.Context = m.Content
		case m.Role != model.RoleTool && m.Content != "":
			s.Messages = append(s.Messages, judge.Message{Role: m.Role, Text: m.Content})
		}
	}
	return nil
}

// readResult adds the result of a call of the model. The results of context tools are in the prompt.
func readResult(s *judge.Subject, payload []byte) error {
	var f loop.CallResult
	if err := json.Unmarshal(payload, &f); err != nil {
		return err
	}
	if f.Step > 0 && (f.Outcome == loop.Succeeded || f.Outcome == loop.Reused) {
		s.Tools = append(s.Tools, judge.ToolResult{Name: f.Name, Text: f.Content})
	}
	return nil
}

// readAnswer reads the answer, and reports whether there is one.
func readAnswer(ctx context.Context, j journal.Journal, uid string, s *judge.Subject, e *journal.Entry) (bool, error) {
	var result Result
	if err := json.Unmarshal(e.Payload, &result); err != nil {
		return false, err
	}
	s.Answer = result.WithoutSources()
	if s.Answer == "" && result.hasTextApart() {
		content := journal.Entry{Seq: e.Seq, Kind: e.Kind, Artifact: result.Answer.SHA256}
		if err := journal.LoadPayload(ctx, j, uid, &content); err != nil {
			return false, err
		}
		s.Answer = string(content.Payload)
	}
	return result.Stop.answered() && s.Answer != "", nil
}
