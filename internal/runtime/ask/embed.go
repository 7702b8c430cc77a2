package ask

import (
	"context"
	"errors"
	"fmt"

	"github.com/capstan-dev/capstan/internal/runtime/loop"
	"github.com/capstan-dev/capstan/internal/runtime/memories"
	"github.com/capstan-dev/capstan/internal/runtime/model"
	"github.com/capstan-dev/capstan/internal/runtime/ranking"
	"github.com/capstan-dev/capstan/internal/runtime/task"
	"github.com/capstan-dev/capstan/internal/runtime/vectors"
)

// maxInvalid is the number of single texts after which Embed gives up if the model has refused all of them as invalid
// and has not accepted any text. The model then probably accepts no text at all, for example because it is unknown.
const maxInvalid = 3

// Embed asks a model for the vectors of memories, in as many requests as necessary. It returns the vectors that it
// received, even together with an error. space identifies the model and everything else that the vectors depend on.
// dimensions is the length of the vectors; if it is 0, the model decides. account keeps account of the requests; it may
// be nil.
//
// If the model refuses several texts, possibly because of one of them, each is requested alone: see vectors.Batches. A
// single text that is refused gets a vector without values, so that it is not requested again. If it is refused as
// invalid, this requires that the model accepts another text, because the request may be invalid whatever the text is.
// The same applies to a text for which the endpoint fails: github.com/ollama/ollama/issues/12921. Before that, this
// text is requested once more.
func Embed(
	ctx context.Context, c *loop.Candidate, space string, dimensions int, all []memories.Memory, account Account,
) (embedded []memories.Embedded, used Outcome, err error) {
	e := &embedding{model: c, space: space, dimensions: dimensions, account: account}
	err = e.requestAll(ctx, all)
	if len(e.embedded) > 0 {
		e.refused = append(e.refused, e.invalid...)
	}
	for _, m := range e.refused {
		e.embedded = append(e.embedded, memories.Embedded{ID: m.ID, Vector: ranking.Vector{Space: space}})
	}
	if n := len(e.refused); n > 0 {
		err = errors.Join(err, fmt.Errorf("the model refused %d of %d texts: %w", n, len(all), e.refusal))
	}
	return e.embedded, e.used, err
}

// embedding is a list of memories whose vectors are being requested.
type embedding struct {
	model      *loop.Candidate
	space      string
	dimensions int
	account    Account
	// embedded are the memories with their vectors, and used is the usage of the requests.
	embedded []memories.Embedded
	used     Outcome
	// refused are the memories that were refused alone because of their texts, and invalid those that were refused
	// alone as invalid. refusal is the last of these failures.
	refused, invalid []memories.Memory
	refusal          error
	// failing are the memories for which alone the endpoint failed.
	failing []memories.Memory
}

// requestAll requests all vectors. It returns the failure after which another request would fail, too.
func (e *embedding) requestAll(ctx context.Context, all []memories.Memory) error {
	batches := vectors.BatchesOf(all)
	for batch, ok := batches.Next(); ok; batch, ok = batches.Next() {
		err := e.request(ctx, batch)
		failure, failed := errors.AsType[*model.Error](err)
		switch {
		case err == nil:
			batches.Accepted()
		case ctx.Err() != nil, failed && failure.Internal && !batches.Halve(batch):
			return err
		case failed && failure.Internal:
			if len(batch) == 1 {
				e.failing, e.refusal = append(e.failing, batch...), err
			}
		case !failed, !failure.Kind.MayConcernText():
			return err
		case batches.Split(batch):
		case failure.Kind == model.InvalidRequest:
			e.invalid, e.refusal = append(e.invalid, batch...), err
			if len(e.embedded) == 0 && len(e.invalid) == maxInvalid {
				return err
			}
		default:
			e.refused, e.refusal = append(e.refused, batch...), err
		}
	}
	if len(e.embedded) == 0 && len(e.invalid)+len(e.failing) > 0 {
		return e.refusal
	}
	return e.confirm(ctx)
}

// confirm requests the failing texts once more. If the endpoint fails again, it counts as a refusal of the text.
// confirm returns any other failure.
func (e *embedding) confirm(ctx context.Context) error {
	for _, m := range e.failing {
		err := e.request(ctx, []memories.Memory{m})
		failure, failed := errors.AsType[*model.Error](err)
		switch {
		case err == nil:
		case !failed, !failure.Internal, ctx.Err() != nil:
			return err
		default:
			e.refused, e.refusal = append(e.refused, m), err
		}
	}
	return nil
}

// request requests the vectors of memories with one request.
func (e *embedding) request(ctx context.Context, batch []memories.Memory) error {
	var texts []string
	for i := range batch {
		texts = append(texts, batch[i].Text)
	}
	outcome, err := Ask(ctx, []loop.Candidate{*e.model}, &Question{
		Request: func(bool) model.Request {
			return model.Request{Embed: &model.Embed{Texts: texts, Dimensions: e.dimensions}}
		},
		Read: func(reply *model.Reply) error {
			for i, values := range reply.Vectors { // values is nil if the vector is unusable; it is not requested again
				vector := ranking.Vector{Space: e.space, Values: values}
				e.embedded = append(e.embedded, memories.Embedded{ID: batch[i].ID, Vector: vector})
			}
			return nil
		},
		Purpose: loop.Purpose(task.Learn), Account: e.account,
	})
	e.used.Usage = e.used.Usage.Add(outcome.Usage)
	return err
}
