package turn

import (
	"context"
	"errors"
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
// number of requests for them. Tools without a vector are ranked by their words, and get one in a later Turn.
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
	all, err := r.embed(ctx, []string{text}, within)
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

// embed requests vectors. It returns none, and no error, if the Turn should continue without them.
func (r *run) embed(ctx context.Context, texts []string, within time.Duration) ([][]float32, error) {
	e := r.in.Embeddings
	all, err := loop.Embed(ctx, r.loopInput(), &e.Model, texts, e.Dimensions, within)
	failure, failed := errors.AsType[*model.Error](err)
	if !failed {
		return all, err
	}
	if ctx.Err() != nil {
		return nil, context.Cause(ctx)
	}
	if r.in.NotEmbedded != nil {
		r.in.NotEmbedded(failure)
	}
	return nil, nil
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
	for n := 0; n < maxToolRequests && len(missing) > 0 && time.Until(until) > 0; n++ {
		batch := missing[:min(len(missing), model.MaxEmbedTexts)]
		missing = missing[len(batch):]
		var texts []string
		for _, i := range batch {
			texts = append(texts, memories.Excerpt(tools[i]))
		}
		all, err := r.embed(ctx, texts, time.Until(until))
		if err != nil {
			return nil, err
		}
		if all == nil { // the next request would fail, too
			break
		}
		for n, i := range batch {
			if found[i] = all[n]; all[n] != nil {
				r.in.Embeddings.Vectors.Put(to.Space, tools[i], all[n])
			}
		}
	}
	out := make([]*float64, len(tools))
	for i, values := range found {
		if s, ok := to.Similarity(ranking.Vector{Space: to.Space, Values: values}); ok {
			out[i] = &s
		}
	}
	return out, nil
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
