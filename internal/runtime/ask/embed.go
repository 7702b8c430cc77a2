package ask

import (
	"context"

	"github.com/capstan-dev/capstan/internal/runtime/loop"
	"github.com/capstan-dev/capstan/internal/runtime/model"
	"github.com/capstan-dev/capstan/internal/runtime/task"
)

// Embed asks a model for the vectors of texts, in as many requests as necessary. It returns a vector for each text,
// which is nil if there is none, also together with an error. account keeps account of the requests. It may be nil.
func Embed(
	ctx context.Context, c *loop.Candidate, texts []string, dimensions int, account Account,
) (vectors [][]float32, used Outcome, err error) {
	vectors = make([][]float32, len(texts))
	for from := 0; from < len(texts); from += model.MaxEmbedTexts {
		batch := texts[from:min(from+model.MaxEmbedTexts, len(texts))]
		var one Outcome
		one, err = Ask(ctx, []loop.Candidate{*c}, &Question{
			Request: func(bool) model.Request {
				return model.Request{Embed: &model.Embed{Texts: batch, Dimensions: dimensions}}
			},
			Read: func(reply *model.Reply) error {
				copy(vectors[from:], reply.Vectors)
				return nil
			},
			Purpose: loop.Purpose(task.Learn), Account: account,
		})
		used.Usage = used.Usage.Add(one.Usage)
		if err != nil {
			return vectors, used, err
		}
	}
	return vectors, used, nil
}
