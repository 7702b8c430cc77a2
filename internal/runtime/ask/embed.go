package ask

import (
	"context"

	"github.com/capstan-dev/capstan/internal/runtime/loop"
	"github.com/capstan-dev/capstan/internal/runtime/memories"
	"github.com/capstan-dev/capstan/internal/runtime/model"
	"github.com/capstan-dev/capstan/internal/runtime/ranking"
	"github.com/capstan-dev/capstan/internal/runtime/task"
)

// Embed asks a model for the vectors of memories, in as many requests as necessary. It returns the vectors that it
// received, even together with an error. space identifies the model and everything else that the vectors depend on.
// dimensions is the length of the vectors; if it is 0, the model decides. account keeps account of the requests; it may
// be nil.
func Embed(
	ctx context.Context, c *loop.Candidate, space string, dimensions int, all []memories.Memory, account Account,
) (embedded []memories.Embedded, used Outcome, err error) {
	for from := 0; from < len(all); from += model.MaxEmbedTexts {
		batch := all[from:min(from+model.MaxEmbedTexts, len(all))]
		var texts []string
		for i := range batch {
			texts = append(texts, batch[i].Text)
		}
		var outcome Outcome
		outcome, err = Ask(ctx, []loop.Candidate{*c}, &Question{
			Request: func(bool) model.Request {
				return model.Request{Embed: &model.Embed{Texts: texts, Dimensions: dimensions}}
			},
			Read: func(reply *model.Reply) error {
				for i, values := range reply.Vectors {
					if values != nil {
						vector := ranking.Vector{Space: space, Values: values}
						embedded = append(embedded, memories.Embedded{ID: batch[i].ID, Vector: vector})
					}
				}
				return nil
			},
			Purpose: loop.Purpose(task.Learn), Account: account,
		})
		used.Usage = used.Usage.Add(outcome.Usage)
		if err != nil {
			return embedded, used, err
		}
	}
	return embedded, used, nil
}
