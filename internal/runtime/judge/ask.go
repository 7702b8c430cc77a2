package judge

import (
	"context"

	"github.com/capstan-dev/capstan/internal/runtime/ask"
	"github.com/capstan-dev/capstan/internal/runtime/loop"
	"github.com/capstan-dev/capstan/internal/runtime/model"
	"github.com/capstan-dev/capstan/internal/runtime/task"
	"github.com/capstan-dev/capstan/internal/runtime/verdicts"
)

// Asker asks models on behalf of judges.
type Asker struct {
	// Chain are the models to ask, in order: see ask.Ask.
	Chain []loop.Candidate
	// Redact removes from a text of a model everything that must not be kept. If it is nil, texts stay unchanged.
	Redact func(text string) string
	// Account keeps account of the requests. It may be nil.
	Account ask.Account
}

// maxReplyTokens is the length that suffices for a verdict, in tokens. It includes the reasoning of a model.
const maxReplyTokens = 8192

// Ask makes the judge evaluate an answer. It always returns an evaluation. If the judge fails, the verdict is Failed,
// with a reason that Capstan has written. An unusable reply is requested once more.
func (a *Asker) Ask(ctx context.Context, j *Judge, s *Subject) Evaluation {
	var score Score
	var reason string
	used, err := ask.Ask(ctx, a.Chain, &ask.Question{
		MaxOutputTokens: maxReplyTokens, Purpose: loop.Purpose(task.Evaluate), Account: a.Account,
		Request: func(structured bool) model.Request { return j.Request(s, structured) },
		Read: func(reply *model.Reply) (err error) {
			score, reason, err = Read(reply, a.Redact)
			return err
		},
	})
	e := j.New()
	e.Provider, e.Model, e.Usage, e.Cost, e.MayRetry = used.Provider, used.Model, used.Usage, used.Cost, used.MayRetry
	if err == nil {
		e.Evaluate(score, reason)
		return e
	}
	reason = err.Error()
	if a.Redact != nil {
		reason = a.Redact(reason)
	}
	e.Reason = verdicts.Reason(reason)
	return e
}
