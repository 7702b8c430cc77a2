package loop

import (
	"context"
	"fmt"
	"time"

	"github.com/capstan-dev/capstan/internal/runtime/model"
)

const (
	// maxBilledTimeouts is the number of requests to a candidate for one step that are repeated after a time-out, a
	// broken connection or a whole reply without a usable answer, although the endpoint may bill them.
	maxBilledTimeouts = 1
	// typicalReply is the time that a model is assumed to take if the Turn has no reply yet.
	typicalReply = 10 * time.Second
)

// firstEventTimeout returns the time that a request may wait for the first part of its answer, or 0 if it may wait
// until the Turn's deadline. A slow model gets half of the time that is left if something must follow: the next model
// of the chain, or the step that a summary is for.
func (run *runner) firstEventTimeout(ctx context.Context, c *Candidate, purpose Purpose) time.Duration {
	deadline, ok := ctx.Deadline()
	if !ok || purpose != ForCompaction && !run.hasFallback(c, purpose, model.Timeout) {
		return 0
	}
	return max(time.Until(deadline)/2, 1)
}

// hasFallback reports whether another candidate may answer after a failure of this kind.
func (run *runner) hasFallback(c *Candidate, purpose Purpose, failure model.ErrorKind) bool {
	place := run.placeOf(c)
	if purpose != ForStep || place == 0 {
		return false
	}
	for next := run.nextCandidate(place-1, failure); next < len(run.Chain); next++ {
		if !run.Chain[next].Unusable {
			return true
		}
	}
	return false
}

// fallbackTime returns the time that another model is assumed to take: the duration of the Turn's newest reply.
func (run *runner) fallbackTime() time.Duration {
	if last := run.State.LastStep(); last != nil && last.DurationMS > 0 {
		return time.Duration(last.DurationMS) * time.Millisecond
	}
	return typicalReply
}

// billedTimeouts returns the number of requests like this one that may be billed although they failed, for example with
// a time-out. It leaves out cancelled requests, because these say nothing about the endpoint.
func (s *State) billedTimeouts(r *Request) int {
	n := 0
	for i := range s.FailedRequests {
		f := &s.FailedRequests[i]
		if f.MayBeBilled && f.Kind != model.Cancelled && f.isLike(r) {
			n++
		}
	}
	return n
}

// waitTooLongFailure returns the failure of an endpoint that asks for a wait so long that another model can answer
// before its end.
func waitTooLongFailure(failure *model.Error) *model.Error {
	e := *failure
	e.Message = fmt.Sprintf("%s (the endpoint asks for a wait of %s, in which another model can answer)", failure.Message,
		rounded(failure.RetryAfter))
	return &e
}
