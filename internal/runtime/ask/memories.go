package ask

import (
	"context"
	"fmt"

	"github.com/capstan-dev/capstan/internal/runtime/loop"
	"github.com/capstan-dev/capstan/internal/runtime/memories"
	"github.com/capstan-dev/capstan/internal/runtime/model"
	"github.com/capstan-dev/capstan/internal/runtime/task"
	"github.com/capstan-dev/capstan/internal/runtime/verdicts"
)

// maxReplyTokens is the maximum length of a reply with memories, in tokens. It includes the reasoning of a model.
const maxReplyTokens = 4096

// Learning asks for the memories of one Turn.
type Learning struct {
	// Chain are the models to ask, in order.
	Chain []loop.Candidate
	// Questions are the questions, one for each scope.
	Questions []memories.Question
	// About is the template for the memories of the Turn, without scope, text, confidence and model.
	About memories.Memory
	// MaxPerTurn and MinConfidence limit the memories of each reply. MaxItems is the maximum number of memories of an
	// owner.
	MaxPerTurn, MinConfidence, MaxItems int
	// Redact removes texts that must not be kept. It may be nil.
	Redact func(string) string
	// Account keeps account of the requests. It may be nil.
	Account Account
}

// Ask asks the questions one after another, and returns the combined result.
func (l *Learning) Ask(ctx context.Context) *task.Learned {
	out := &task.Learned{}
	l.Each(ctx, func(learned *task.Learned, _ Outcome) bool {
		out = out.With(learned)
		return true
	})
	return out
}

// Each asks the questions one after another. After each question it calls yield with the result and the outcome of the
// question. If yield returns false, Each asks no further question. A question that fails, or for which no time is left,
// yields no memories.
func (l *Learning) Each(ctx context.Context, yield func(*task.Learned, Outcome) bool) {
	// All questions together have the time of one question, so that they do not hold a slot for long.
	ctx, cancel := context.WithTimeout(ctx, Timeout)
	defer cancel()
	for i := range l.Questions {
		if !yield(l.ask(ctx, &l.Questions[i])) {
			return
		}
	}
}

// ask asks one question.
func (l *Learning) ask(ctx context.Context, q *memories.Question) (*task.Learned, Outcome) {
	var found memories.Found
	used, err := Ask(ctx, l.Chain, &Question{
		Request: q.Request, MaxOutputTokens: maxReplyTokens, Purpose: loop.Purpose(task.Learn), Account: l.Account,
		Read: func(reply *model.Reply) (err error) {
			found, err = q.Read(reply, l.MaxPerTurn, l.MinConfidence, l.Redact)
			return err
		},
	})
	out := &task.Learned{MaxItems: l.MaxItems, Scopes: []memories.Scope{q.Scope}, Usage: used.Usage}
	if err != nil {
		reason := fmt.Sprintf("memories of the scope %s: %s", q.Scope, err)
		if l.Redact != nil {
			reason = l.Redact(reason)
		}
		out.Failed, out.Failures = 1, []string{verdicts.Reason(reason)}
		return out, used
	}
	out.Refused, out.Unsure = found.Refused, found.Unsure
	for _, item := range found.Items {
		m := l.About
		m.Scope, m.Text, m.Confidence, m.Model = q.Scope, item.Text, item.Confidence, used.Provider+"/"+used.Model
		m.Identify()
		out.Memories = append(out.Memories, m)
	}
	if n := len(out.Memories); n > 0 {
		out.Kept = map[memories.Scope]int{q.Scope: n}
	}
	return out, used
}
