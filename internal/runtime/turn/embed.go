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
	// Space identifies everything that the vectors depend on. Only vectors of the same space can be compared.
	Space string
	// Vectors keeps the vectors of tools for later Turns. It must not be nil if tools are selected by their meaning.
	Vectors *vectors.Namespace
}

// toolVectorsTimeout is the maximum time for which a Turn waits for the vectors of its tools, and maxToolRequests is
// the maximum number of requests for them. Tools without a vector are ranked by their words. Later Turns request the
// missing vectors, except those of texts that the model has refused.
const (
	toolVectorsTimeout = 2 * time.Second
	maxToolRequests    = 8
)

// mayEmbed reports whether this run may request vectors. A run that only prepares sends no request. If an earlier run
// has requested vectors and was killed before the input was recorded, they are not paid for again.
func (r *run) mayEmbed() bool {
	return r.in.Embeddings != nil && !r.in.PrepareOnly && !r.embeddedBefore
}

// queryVector returns the vector of a text by which memories or tools are ranked. It returns an empty vector if the
// model does not return one within the given time. It requests the vector of a text only once. An error ends the run.
func (r *run) queryVector(ctx context.Context, text string, within time.Duration) (ranking.Vector, error) {
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

// embed requests vectors. It returns the failure, and no error, if the request failed and the Turn should continue
// without the vectors.
func (r *run) embed(ctx context.Context, texts []string, within time.Duration) (all [][]float32, failure *model.Error, err error) {
	all, err = r.embedWithSocket(ctx, texts, within)
	failure, failed := errors.AsType[*model.Error](err)
	if !failed {
		return all, nil, err
	}
	if ctx.Err() != nil {
		return nil, nil, context.Cause(ctx)
	}
	if r.in.NotEmbedded != nil {
		r.in.NotEmbedded(failure)
	}
	return nil, failure, nil
}

// shortagePause is the pause after a request for vectors for which this process had no socket.
const shortagePause = 250 * time.Millisecond

// embedWithSocket requests vectors. If this process has no socket for the request, it tries again until the time is
// over: such a shortage ends by itself, and says nothing about the endpoint.
func (r *run) embedWithSocket(ctx context.Context, texts []string, within time.Duration) ([][]float32, error) {
	e := r.in.Embeddings
	until := time.Now().Add(within) //nolint:forbidigo // because a duration is measured, not a time of day
	for {
		all, err := loop.Embed(ctx, r.loopInput(), &e.Model, texts, e.Dimensions, time.Until(until))
		if !errors.Is(err, model.ErrOwnShortage) || time.Until(until) <= shortagePause {
			return all, err
		}
		pause := time.NewTimer(shortagePause)
		select {
		case <-pause.C:
		case <-ctx.Done():
			pause.Stop()
			return nil, err
		}
	}
}

// similarities returns the similarity of a query to each text about a tool. An element is nil if its text has no
// vector. The result is nil if the query has no vector.
func (r *run) similarities(ctx context.Context, text string, tools []string) ([]*float64, error) {
	if !r.mayEmbed() {
		return nil, nil
	}
	until := time.Now().Add(toolVectorsTimeout) //nolint:forbidigo // because a duration is measured, not a time of day
	target, err := r.queryVector(ctx, text, toolVectorsTimeout)
	if err != nil || !target.Given() {
		return nil, err
	}
	found, missing := r.cachedVectors(tools, len(target.Values))
	if err := r.embedTools(ctx, tools, found, missing, until); err != nil {
		return nil, err
	}
	out := make([]*float64, len(tools))
	for i, values := range found {
		if s, ok := target.Similarity(ranking.Vector{Space: target.Space, Values: values}); ok {
			out[i] = &s
		}
	}
	return out, nil
}

// embedTools requests the missing vectors, adds them to found, and keeps them for later Turns. If the model refuses a
// batch, or the endpoint fails, its texts are requested in smaller batches: see vectors.Batches. A single text that is
// refused is kept as a text without a vector. The same applies to a text for which alone the endpoint fails if it has
// accepted another text of the same batch.
func (r *run) embedTools(ctx context.Context, tools []string, found [][]float32, missing []int, until time.Time) error {
	batches := vectors.BatchesOf(missing)
	accepted := false
	for n := 0; n < maxToolRequests && time.Until(until) > 0; n++ {
		batch, ok := batches.Next()
		if !ok {
			break
		}
		var texts []string
		for _, i := range batch {
			texts = append(texts, memories.Excerpt(tools[i]))
		}
		all, failure, err := r.embed(ctx, texts, time.Until(until))
		switch {
		case err != nil:
			return err
		case failure == nil:
			batches.Accepted()
			accepted = true
		case failure.Internal && batches.Halve(batch):
			if len(batch) > 1 || !accepted {
				continue
			}
			all = make([][]float32, 1)
		case !failure.Kind.MayConcernText(): // the next request would fail, too
			return nil
		case batches.Split(batch):
			continue
		default:
			all = make([][]float32, 1)
		}
		for n, i := range batch {
			found[i] = all[n]
			r.in.Embeddings.Vectors.Put(r.in.Embeddings.Space, tools[i], all[n])
		}
	}
	return nil
}

// cachedVectors returns the known vectors of texts, and the indexes of the texts whose vectors are missing. A vector
// with another length than that of the query is missing, because the model now makes other vectors.
func (r *run) cachedVectors(texts []string, length int) (found [][]float32, missing []int) {
	found = make([][]float32, len(texts))
	e := r.in.Embeddings
	for i, text := range texts {
		ok := memories.Excerpt(text) == "" // a text without words has no vector
		if !ok {
			found[i], ok = e.Vectors.Get(e.Space, text)
		}
		if len(found[i]) > 0 && len(found[i]) != length {
			found[i], ok = nil, false
		}
		if !ok {
			missing = append(missing, i)
		}
	}
	return found, missing
}
