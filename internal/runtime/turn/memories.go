package turn

import (
	"context"
	"fmt"
	"time"

	"github.com/capstan-dev/capstan/internal/runtime/journal"
	"github.com/capstan-dev/capstan/internal/runtime/memories"
	"github.com/capstan-dev/capstan/internal/runtime/ranking"
	"github.com/capstan-dev/capstan/internal/runtime/turncontext"
)

// RecallTimeout is the maximum time for which a Turn waits for its learned memories.
const RecallTimeout = 2 * time.Second

// Recalled is the result of Input.Recall.
type Recalled struct {
	// Memories are the memories that match best, best match first.
	Memories []turncontext.Memory
	// More is true if there are other memories, so that the vector of the message may find better matches.
	More bool
}

// recall returns the learned memories for the prompt. The Turn never waits longer than RecallTimeout for Recall and for
// the endpoint for embeddings, and never fails because of them. The vector of the message is only requested if there
// are more memories than fit into the prompt.
func (r *run) recall(ctx context.Context, message string) ([]turncontext.Memory, error) {
	if r.in.Recall == nil {
		return nil, nil
	}
	bounded, cancel := context.WithTimeoutCause(ctx, RecallTimeout,
		fmt.Errorf("the store did not return memories within %s", RecallTimeout))
	defer cancel()
	found, matches := r.recallBy(ctx, bounded, message, ranking.Vector{})
	defer func() { r.inInput = sum(r.inInput, matches) }() // only those of the memories that are returned
	if !found.More {
		return found.Memories, nil
	}
	deadline, _ := bounded.Deadline()
	vector, err := r.queryVector(ctx, message, time.Until(deadline))
	if err != nil {
		return nil, err
	}
	if vector.Given() {
		if better, inBetter := r.recallBy(ctx, bounded, message, vector); len(better.Memories) > 0 {
			found, matches = better, inBetter
		}
	}
	return found.Memories, nil
}

// recallBy returns the memories that Recall finds, and the matches of redaction rules in them.
func (r *run) recallBy(
	ctx, bounded context.Context, message string, vector ranking.Vector,
) (found Recalled, matches map[string]int64) {
	matches = r.matchesOf(func() { found = r.awaitRecall(ctx, bounded, message, vector) })
	return found, matches
}

// awaitRecall calls Recall once, and waits for it until the context bounded ends.
func (r *run) awaitRecall(ctx, bounded context.Context, message string, vector ranking.Vector) Recalled {
	type outcome struct {
		found Recalled
		err   error
	}
	done := make(chan outcome, 1) // buffered, so that the goroutine ends whether or not the Turn still waits
	go func() {
		var o outcome
		defer func() {
			if recover() != nil { // the value may contain a part of the message
				o = outcome{err: fmt.Errorf("the memories could not be read because of a bug in Capstan")}
			}
			done <- o
		}()
		o.found, o.err = r.in.Recall(bounded, message, vector)
	}()
	var o outcome
	select {
	case o = <-done:
	case <-bounded.Done():
		o.err = context.Cause(bounded)
	}
	if o.err != nil {
		if r.in.NotRecalled != nil && ctx.Err() == nil {
			r.in.NotRecalled(o.err)
		}
		return Recalled{}
	}
	return o.found
}

// LearnFrom reads the texts from which memories may be learned from the journal of an ended Turn. isOfUser is true if a
// verified user has written the message of the Turn. LearnFrom returns ErrNoAnswer if the Turn did not end with an
// answer.
func LearnFrom(ctx context.Context, j journal.Journal, uid string, isOfUser bool) (*memories.Source, error) {
	// The history is left out, because memories of earlier Turns were learned at the end of those Turns.
	s, err := Subject(ctx, j, uid, func(int64) (bool, error) { return false, nil })
	if err != nil {
		return nil, err
	}
	out := &memories.Source{Message: s.Request, IsOfUser: isOfUser, Answer: s.Answer}
	for _, t := range s.Tools {
		out.Tools = append(out.Tools, memories.ToolResult{Name: t.Name, Text: t.Text})
	}
	return out, nil
}
