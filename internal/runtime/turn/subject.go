package turn

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"

	"github.com/capstan-dev/capstan/internal/runtime/attachment"
	"github.com/capstan-dev/capstan/internal/runtime/journal"
	"github.com/capstan-dev/capstan/internal/runtime/judge"
	"github.com/capstan-dev/capstan/internal/runtime/loop"
	"github.com/capstan-dev/capstan/internal/runtime/model"
	"github.com/capstan-dev/capstan/internal/runtime/prepare"
	"github.com/capstan-dev/capstan/internal/runtime/session"
)

// ErrNoAnswer is returned for a Turn that has no answer to judge.
var ErrNoAnswer = errors.New("the turn has no answer")

// Subject reads the texts for judges from the journal of an ended Turn: the answer, and the texts that the model had
// received, with the history of the Session. Before it reads the history, it calls admit with the size of the history
// in bytes; admit may be nil. If admit returns false or the history is gone, the history is left out and its messages
// are counted. If admit returns an error, Subject returns this error. If the Turn did not end with an answer, Subject
// returns ErrNoAnswer.
func Subject(ctx context.Context, j journal.Journal, uid string, admit func(bytes int64) (bool, error)) (*judge.Subject, error) {
	s, answered := &judge.Subject{}, false
	results := resultReader{subject: s}
	var prompt *preparedRecord
	for e, err := range j.Read(ctx, uid, 0) {
		if err != nil {
			return nil, fmt.Errorf("failed to read the journal of %q: %w", uid, err)
		}
		switch e.Kind { // a judge sees only the prompt, the accepted results of tools and the answer
		case journal.Prepared, journal.ToolFinished, journal.OutputRejected, journal.Finalized:
		default:
			continue
		}
		if err := journal.LoadPayload(ctx, j, uid, &e); err != nil {
			return nil, err
		}
		switch e.Kind {
		case journal.Prepared:
			prompt, err = readPrepared(e) // the newest prompt counts
		case journal.ToolFinished:
			err = results.add(e.Payload)
		case journal.OutputRejected:
			err = results.reject(e.Payload)
		default:
			answered, err = readAnswer(ctx, j, uid, s, &e)
		}
		if err != nil {
			return nil, fmt.Errorf("failed to read entry %d (%q) of the journal of %q: %w", e.Seq, e.Kind, uid, err)
		}
	}
	if !answered || prompt == nil {
		return nil, ErrNoAnswer
	}
	if err := prompt.addTo(ctx, j, s, admit); err != nil {
		return nil, fmt.Errorf("failed to read the prompt of %q: %w", uid, err)
	}
	return s, nil
}

// errNotAdmitted means that a history is left out.
var errNotAdmitted = errors.New("the history is left out")

// addTo adds the messages of a prompt and of the history to a Subject.
func (r *preparedRecord) addTo(ctx context.Context, j journal.Journal, s *judge.Subject, admit func(bytes int64) (bool, error)) error {
	if h := r.History; h != nil && h.Messages > 0 {
		c, err := h.read(ctx, j, func(bytes int64) error {
			if admit == nil {
				return nil
			}
			ok, err := admit(bytes)
			if err == nil && !ok {
				err = errNotAdmitted
			}
			return err
		})
		if err == nil {
			err = h.insert(c, &r.Prompt)
		}
		switch {
		case err == nil:
		case errors.Is(err, errNotAdmitted), errors.Is(err, session.ErrLost), errors.Is(err, journal.ErrDamaged),
			errors.Is(err, journal.ErrNewer):
			s.LeftOut = h.Messages
		default:
			return err
		}
	}
	addPrompt(&r.Prompt, s)
	return nil
}

// addPrompt adds the messages of a prompt to a Subject. Results of calls in the history are placed before the results
// of the Turn. Of an attachment, only its name, media type and size are added.
func addPrompt(p *prepare.Prompt, s *judge.Subject) {
	var earlier []judge.ToolResult
	names := map[string]string{}
	for _, m := range p.Messages {
		for _, c := range m.ToolCalls {
			names[c.ID] = c.Name
		}
		if m.Name == prepare.MessageUser && m.Role == model.RoleUser {
			s.Request = m.Content
		}
		switch {
		case m.Name == prepare.MessageContextPack:
			s.Context = m.Content
		case m.Role == model.RoleTool:
			earlier = append(earlier, judge.ToolResult{Name: names[m.ToolCallID], Text: m.Content})
		case m.Content != "":
			s.Messages = append(s.Messages, judge.Message{Role: m.Role, Text: m.Content + attachment.Note(m.Attachments)})
		}
	}
	s.Tools = append(earlier, s.Tools...)
}

// resultReader adds the results of the calls of the model to a Subject. The results of context packs are in the prompt.
type resultReader struct {
	subject *judge.Subject
	// index has the positions of the results in the Subject.
	index map[callKey]int
}

// add adds the result of a call.
func (r *resultReader) add(payload []byte) error {
	var f loop.CallResult
	if err := json.Unmarshal(payload, &f); err != nil {
		return err
	}
	if f.Step > 0 && (f.Outcome == loop.Succeeded || f.Outcome == loop.Reused) {
		if r.index == nil {
			r.index = map[callKey]int{}
		}
		r.index[callKey{f.Step, f.CallID}] = len(r.subject.Tools)
		r.subject.Tools = append(r.subject.Tools, judge.ToolResult{Name: f.Name, Text: f.Content})
	}
	return nil
}

// reject removes the text of a result that output policies have refused as the answer: it must not reach other models,
// nor the memories of the Agent.
func (r *resultReader) reject(payload []byte) error {
	var rejection loop.Rejection
	if err := json.Unmarshal(payload, &rejection); err != nil {
		return err
	}
	if at, ok := r.index[callKey{rejection.Step, rejection.CallID}]; ok && rejection.IsByPolicies() {
		r.subject.Tools[at].Text = loop.RefusedResult
	}
	return nil
}

// readAnswer reads the answer, and reports whether there is one.
func readAnswer(ctx context.Context, j journal.Journal, uid string, s *judge.Subject, e *journal.Entry) (bool, error) {
	var result Result
	if err := json.Unmarshal(e.Payload, &result); err != nil {
		return false, err
	}
	if result.Text == "" && result.hasTextApart() {
		content := journal.Entry{Seq: e.Seq, Kind: e.Kind, Artifact: result.Answer.SHA256}
		if err := journal.LoadPayload(ctx, j, uid, &content); err != nil {
			return false, err
		}
		result.Text = string(content.Payload) // with the list of sources
	}
	s.Answer = result.WithoutSources()
	return result.Stop.answered() && s.Answer != "", nil
}
