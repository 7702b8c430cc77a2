package vectors

import (
	"slices"

	"github.com/capstan-dev/capstan/internal/runtime/model"
)

// maxFailures is the number of requests in a row for which an endpoint must fail until no more are sent.
const maxFailures = 3

// Batches divides texts among requests for vectors. If the model refuses a batch, possibly because of one text, the
// texts of the batch are requested one by one after the other batches. After a second refusal, single texts are
// requested first, because the model may accept only one text at a time. If the endpoint fails instead, the batch is
// requested in halves: a failure is less often the fault of a text, and halves need fewer requests.
type Batches[T any] struct {
	batches, singles [][]T
	refusals         int
	// failures counts the requests in a row for which the endpoint failed.
	failures int
}

// BatchesOf returns batches of texts, in their order, with at most model.MaxEmbedTexts texts each.
func BatchesOf[T any](texts []T) *Batches[T] {
	return &Batches[T]{batches: slices.Collect(slices.Chunk(texts, model.MaxEmbedTexts))}
}

// Next returns the texts of the next request. ok is false if all texts were requested.
func (b *Batches[T]) Next() (batch []T, ok bool) {
	from := &b.batches
	if len(b.batches) == 0 || b.refusals > 1 && len(b.singles) > 0 {
		from = &b.singles
	}
	if len(*from) == 0 {
		return nil, false
	}
	batch, *from = (*from)[0], (*from)[1:]
	return batch, true
}

// Accepted notes that the endpoint has returned vectors.
func (b *Batches[T]) Accepted() { b.failures = 0 }

// Halve makes Next return the halves of a batch for which the endpoint failed, after the other batches. A single text
// is not requested again. Halve returns false if the endpoint has failed so often that it probably fails for all texts.
func (b *Batches[T]) Halve(batch []T) bool {
	b.failures++
	if b.failures >= maxFailures {
		return false
	}
	if len(batch) > 1 {
		b.batches = slices.AppendSeq(b.batches, slices.Chunk(batch, (len(batch)+1)/2))
	}
	return true
}

// Split makes Next return the texts of a refused batch one by one. It returns false for a single text, which is not
// requested again.
func (b *Batches[T]) Split(batch []T) bool {
	if len(batch) < 2 {
		return false
	}
	b.refusals++
	b.singles = slices.AppendSeq(b.singles, slices.Chunk(batch, 1))
	return true
}
