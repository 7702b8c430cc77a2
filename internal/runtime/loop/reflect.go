package loop

import (
	"context"
	"errors"
	"strings"

	"github.com/capstan-dev/capstan/internal/runtime/journal"
	"github.com/capstan-dev/capstan/internal/runtime/model"
	"github.com/capstan-dev/capstan/internal/runtime/untrusted"
)

// reflectionNote is the instruction to check a draft.
const reflectionNote = `Your last message is a draft of the answer. The user has not seen it. ` +
	`Check it against the user's request and the tool results: does it
answer everything, do you have evidence for each statement, and is anything wrong, missing or unnecessary?
Reply only with the final answer: the corrected answer, or the unchanged draft if nothing needs correction. ` +
	`Do not mention the draft or this check.`

// reflect makes the model check an answer, once in a Turn, and records the final answer. The draft stays the answer if
// the request fails, if the Turn's limits, a Budget or the time does not allow it now, or if the new answer does not
// fit the schema.
func (run *runner) reflect(ctx context.Context, c *Candidate, draft *Step) error {
	s := run.State
	if !run.Reflect || untrusted.Blank(draft.Reply.Text) || len(s.Reflections) > 0 {
		return nil
	}
	if s.otherReply(draft.Step, ForReflection) == nil && s.gaveUp(draft.Step, ForReflection, c, run.placeOf(c)) == nil {
		err := run.askReflection(ctx, c, draft.Step)
		if err != nil && !run.outOfTime(ctx, err) && !waitsForBudget(err) {
			return err
		}
	}
	r := Reflection{Step: draft.Step, Text: draft.Reply.Text}
	if checked := s.otherReply(draft.Step, ForReflection); checked != nil && run.improves(ctx, checked.Reply, r.Text) {
		r.Replaced, r.Text = true, checked.Reply.Text
	}
	return run.Record(journal.Record{Kind: journal.Reflected, Payload: r})
}

func (run *runner) askReflection(ctx context.Context, c *Candidate, step int) error {
	if ctx.Err() != nil {
		return context.Cause(ctx)
	}
	prepared, err := run.Prepare(ctx, *c)
	if err != nil {
		return err
	}
	r := model.Request{Messages: run.messagesFor(ctx, c, prepared), Output: run.nativeOutput(c, prepared), NoCalls: true}
	if r.Tools, err = run.modelTools(prepared); err != nil {
		return err
	}
	r.Messages = append(r.Messages, model.Message{Role: model.RoleSystem, Name: MessageReflection, Content: reflectionNote})
	_, err = run.askOptional(ctx, c, &modelRequest{request: r, step: step, purpose: ForReflection, tokens: estimate(run.State, r)})
	return err
}

// improves reports whether a reply replaces the draft.
func (run *runner) improves(ctx context.Context, reply model.Reply, draft string) bool {
	switch {
	case reply.FinishReason == model.FinishLength, reply.FinishReason == model.FinishRefusal, hasNoAnswer(&reply),
		strings.TrimSpace(reply.Text) == strings.TrimSpace(draft):
		return false
	}
	return run.Output == nil || len(run.violations(ctx, reply.Text)) == 0
}

// outOfTime reports whether the Turn's deadline ended a request. It returns false for a run that was given up,
// which must end.
func (run *runner) outOfTime(ctx context.Context, err error) bool {
	return errors.Is(ctx.Err(), context.DeadlineExceeded) && errors.Is(err, context.Cause(ctx)) && !run.Abandoned()
}

// reflection returns the reflection on the answer of a step, or nil if there is none.
func (s *State) reflection(step int) *Reflection {
	for i := range s.Reflections {
		if s.Reflections[i].Step == step {
			return &s.Reflections[i]
		}
	}
	return nil
}
