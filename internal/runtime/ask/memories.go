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

// maxReplyTokens is the maximum length of a reply with memories, in tokens. A model that reasons uses a part of them
// for that.
const maxReplyTokens = 4096

// Learning asks for the memories of one Turn.
type Learning struct {
	// Chain are the models to ask, in order.
	Chain []loop.Candidate
	// Questions are the questions, one for each scope.
	Questions []memories.Question
	// About is a memory of the Turn without scope, text and model.
	About memories.Memory
	// MaxPerTurn and MinConfidence are the bounds of each reply, and MaxItems is the number of memories of an owner.
	MaxPerTurn, MinConfidence, MaxItems int
	// Redact returns a text without what must not be kept. It may be nil.
	Redact func(string) string
	// Account keeps account of the requests. It may be nil.
	Account Account
}

// Ask puts the questions one after another. It returns what was learned, and what each question has used. A question
// that fails, or for which no time is left, leads to no memory.
func (l *Learning) Ask(ctx context.Context) (*task.Learned, []Outcome) {
	// All questions have the time of one, so that they do not hold a slot for long.
	ctx, cancel := context.WithTimeout(ctx, Timeout)
	defer cancel()
	out := &task.Learned{MaxItems: l.MaxItems, Kept: map[memories.Scope]int{}}
	var all []Outcome
	for i := range l.Questions {
		q := &l.Questions[i]
		var found memories.Found
		used, err := Ask(ctx, l.Chain, &Question{
			Request: q.Request, MaxOutputTokens: maxReplyTokens, Purpose: loop.Purpose(task.Learn), Account: l.Account,
			Read: func(reply *model.Reply) (err error) {
				found, err = q.Read(reply, l.MaxPerTurn, l.MinConfidence, l.Redact)
				return err
			},
		})
		all = append(all, used)
		out.Usage = out.Usage.Add(used.Usage)
		if err != nil {
			out.Failed++
			reason := fmt.Sprintf("memories of the scope %s: %s", q.Scope, err)
			if l.Redact != nil {
				reason = l.Redact(reason)
			}
			out.Failures = append(out.Failures, verdicts.Reason(reason))
			continue
		}
		out.Refused, out.Unsure = out.Refused+found.Refused, out.Unsure+found.Unsure
		for _, item := range found.Items {
			m := l.About
			m.Scope, m.Text, m.Confidence, m.Model = q.Scope, item.Text, item.Confidence, used.Provider+"/"+used.Model
			m.Identify()
			out.Memories = append(out.Memories, m)
			out.Kept[q.Scope]++
		}
	}
	return out, all
}
