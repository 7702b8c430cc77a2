package turn

import (
	"context"
	"errors"
	"slices"
	"time"

	"github.com/capstan-dev/capstan/internal/runtime/loop"
	"github.com/capstan-dev/capstan/internal/runtime/memories"
	"github.com/capstan-dev/capstan/internal/runtime/model"
	"github.com/capstan-dev/capstan/internal/runtime/ranking"
	"github.com/capstan-dev/capstan/internal/runtime/vectors"
)

// Embeddings is the model that turns texts into vectors.
type Embeddings struct {
	// Model is the model. Its requests are requests of the Turn.
	Model loop.Candidate
	// Dimensions is the length of the vectors. If it is 0, the model decides.
	Dimensions int
	// Space names all that the vectors depend on.
	Space string
	// Vectors keeps the vectors of tools for later Turns. It must not be nil if tools are selected by their meaning.
	Vectors *vectors.Namespace
}

// toolVectorsTimeout is the maximum time for which a Turn waits for the vectors of its tools, and maxToolRequests the
// number of requests for them. Tools without a vector are ranked by their words. Later Turns request the rest, but not
// the texts that the model has refused.
const (
	toolVectorsTimeout = 2 * time.Second
	maxToolRequests    = 8
)

// mayEmbed reports whether this run may request vectors. A run that only prepares sends no request. If an earlier run
// has requested vectors and was killed before the input was recorded, they are not bought again.
func (r *run) mayEmbed() bool {
	return r.in.Embeddings != nil && !r.in.PrepareOnly && !r.embeddedBefore
}

// vectorOf returns the vector of a text for which others are ranked, or none if there is none within a time. It is
// requested once. An error ends the run.
func (r *run) vectorOf(ctx context.Context, text string, within time.Duration) (ranking.Vector, error) {
	text = memories.Excerpt(text)
	if q := r.query; q != nil && q.text == text {
		return q.vector, nil
	}
	r.query = &query{text: text}
	if !r.mayEmbed() || text == "" || within <= 0 {
		return ranking.Vector{}, nil
	}
	all, _, err := r.embed(ctx, []string{text}, within)
	if len(all) > 0 && err == nil {
		r.query.vector = ranking.Vector{Space: r.in.Embeddings.Space, Values: all[0]}
	}
	return r.query.vector, err
}

// query is a text with its vector.
type query struct {
	text   string
	vector ranking.Vector
}

// embed requests vectors. It returns none, and no error, if the Turn should continue without them. refused is true if
// this is because of the texts, so that a request for others may succeed.
func (r *run) embed(ctx context.Context, texts []string, within time.Duration) (all [][]float32, refused bool, err error) {
	e := r.in.Embeddings
	all, err = loop.Embed(ctx, r.loopInput(), &e.Model, texts, e.Dimensions, within)
	failure, failed := errors.AsType[*model.Error](err)
	if !failed {
		return all, false, err
	}
	if ctx.Err() != nil {
		return nil, false, context.Cause(ctx)
	}
	if r.in.NotEmbedded != nil {
		r.in.NotEmbedded(failure)
	}
	switch failure.Kind { //nolint:exhaustive // because the next request would fail for the other reasons, too
	case model.InvalidRequest, model.ContextLength, model.ContentFiltered:
		refused = true
	}
	return nil, refused, nil
}

// similarities returns how similar texts about tools are to a query. It is nil for a text without a vector, and as a
// whole if no vector can be compared.
func (r *run) similarities(ctx context.Context, text string, tools []string) ([]*float64, error) {
	if !r.mayEmbed() {
		return nil, nil
	}
	until := time.Now().Add(toolVectorsTimeout) //nolint:forbidigo // because a duration is measured, not a time of day
	to, err := r.vectorOf(ctx, text, toolVectorsTimeout)
	if err != nil || !to.Given() {
		return nil, err
	}
	found, missing := r.cachedVectors(tools)
	if err := r.embedTools(ctx, tools, found, missing, until); err != nil {
		return nil, err
	}
	out := make([]*float64, len(tools))
	for i, values := range found {
		if s, ok := to.Similarity(ranking.Vector{Space: to.Space, Values: values}); ok {
			out[i] = &s
		}
	}
	return out, nil
}

// embedTools requests the missing vectors, adds them to found, and keeps them for later Turns. One text may be the
// reason for which a whole batch is refused, so its texts are then requested one by one, after the other batches. After
// a second refusal they go first, because the model may take only one text at a time. A text that is refused alone is
// kept as one without a vector.
func (r *run) embedTools(ctx context.Context, tools []string, found [][]float32, missing []int, until time.Time) error {
	batches, refusals := slices.Collect(slices.Chunk(missing, model.MaxEmbedTexts)), 0
	var singles [][]int
	for n := 0; n < maxToolRequests && len(batches)+len(singles) > 0 && time.Until(until) > 0; n++ {
		from := &batches
		if len(batches) == 0 || refusals > 1 && len(singles) > 0 {
			from = &singles
		}
		batch := (*from)[0]
		*from = (*from)[1:]
		var texts []string
		for _, i := range batch {
			texts = append(texts, memories.Excerpt(tools[i]))
		}
		all, refused, err := r.embed(ctx, texts, time.Until(until))
		switch {
		case err != nil:
			return err
		case refused && len(batch) > 1:
			refusals++
			singles = append(singles, slices.Collect(slices.Chunk(batch, 1))...)
			continue
		case refused:
			all = make([][]float32, 1)
		case all == nil: // the next request would fail, too
			return nil
		}
		for n, i := range batch {
			found[i] = all[n]
			r.in.Embeddings.Vectors.Put(r.in.Embeddings.Space, tools[i], all[n])
		}
	}
	return nil
}

// cachedVectors returns the vectors of texts that are known, and the positions of the others.
func (r *run) cachedVectors(texts []string) (found [][]float32, missing []int) {
	found = make([][]float32, len(texts))
	e := r.in.Embeddings
	for i, text := range texts {
		ok := memories.Excerpt(text) == "" // a text without words has no vector
		if !ok {
			found[i], ok = e.Vectors.Get(e.Space, text)
		}
		if !ok {
			missing = append(missing, i)
		}
	}
	return found, missing
}
