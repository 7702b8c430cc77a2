package loop

import (
	"cmp"
	"slices"

	"github.com/capstan-dev/capstan/internal/runtime/journal"
	"github.com/capstan-dev/capstan/internal/runtime/model"
)

// FailedRequest is a journal entry: a failed request.
type FailedRequest struct {
	Step     int             `json:"step"`
	Purpose  Purpose         `json:"purpose,omitempty"`
	Provider string          `json:"provider"`
	Model    string          `json:"model"`
	Kind     model.ErrorKind `json:"kind"`
	Message  string          `json:"message"`
	// Place is the place of the candidate in the chain, from 1. It is 0 in journals of older versions.
	Place int `json:"place,omitempty"`
	// RemoteMessage is the text of the endpoint or of the network. Journals of older versions contain it at the end of
	// Message.
	RemoteMessage string      `json:"said,omitempty"`
	Usage         model.Usage `json:"usage"`
	Cost          *model.Cost `json:"cost,omitempty"`
	DurationMS    int64       `json:"durationMilliseconds"`
	// Unsent is true if the request was not attempted, for example because a credential is missing. NotReached is true
	// if no part of it reached the endpoint: see model.Error. NotReached is false in journals of older versions.
	Unsent     bool `json:"unsent,omitempty"`
	NotReached bool `json:"notReached,omitempty"`
	// StoreUnread is true if the request was not attempted because the store could not be read.
	StoreUnread bool `json:"storeUnread,omitempty"`
	// OwnShortage is true if the request was not sent because this process had no socket for it.
	OwnShortage bool `json:"ownShortage,omitempty"`
	// MayBeBilled is true if the endpoint may bill the failed request: see model.Error.
	MayBeBilled bool `json:"mayBeBilled,omitempty"`
	// Empty is true if the reply had neither text nor calls: see model.Error. It is false in journals of older
	// versions.
	Empty bool `json:"empty,omitempty"`
	// GaveUp is the message with which the run stopped asking this model for this step and purpose. It is empty if the
	// model may be asked again, and in journals of older versions.
	GaveUp string `json:"gaveUp,omitempty"`
	// Stack is the stack trace of the adapter if it panicked.
	Stack string `json:"stack,omitempty"`
}

// WasSent reports whether a part of the request may have reached the endpoint. Only such a request counts as one.
func (f *FailedRequest) WasSent() bool { return !f.Unsent && !f.NotReached }

// applyFailure folds a failure into the state. A request that a budget refused was never sent, so its failure is not
// the end of an earlier request that was cut off.
func (s *State) applyFailure(e journal.Entry) error {
	if err := appendEntry(&s.FailedRequests, e); err != nil {
		return err
	}
	newest := &s.FailedRequests[len(s.FailedRequests)-1]
	if newest.Kind != model.OverBudget {
		if !newest.WasSent() && s.newestOpen && s.cutOff[len(s.cutOff)-1].CountsTurn {
			s.counted = false
		}
		s.closeRequest()
	}
	s.place = newest.Place
	return nil
}

// countSent returns the number of requests in the journal for the same model, step and purpose, and how many of them
// were cut off: by a kill, or by the end of their run. Requests that were not sent because the store could not be read,
// or because of a shortage of this process, do not count.
func (s *State) countSent(like *Request) (all, cutOff int) {
	count := func(requests []Request) int {
		n := 0
		for _, r := range requests {
			if r.Step == like.Step && r.Purpose == like.Purpose && r.Provider == like.Provider && r.Model == like.Model {
				n++
			}
		}
		return n
	}
	all, cutOff = count(s.Requests), count(s.cutOff)
	for i := range s.FailedRequests {
		switch f := &s.FailedRequests[i]; {
		case !f.isLike(like):
		case f.Kind == model.Cancelled:
			cutOff++
		case f.StoreUnread, f.OwnShortage:
			all--
		}
	}
	return all, cutOff
}

// gaveUp returns the failure with which a run stopped asking a candidate for a step and a purpose. It returns nil if
// the candidate may be asked. A chain may have the same model in several places.
func (s *State) gaveUp(step int, purpose Purpose, c *Candidate, place int) *model.Error {
	like := &Request{Step: step, Purpose: purpose, Provider: c.ProviderName, Model: c.Model}
	for i := range slices.Backward(s.FailedRequests) {
		f := &s.FailedRequests[i]
		switch {
		case !f.isLike(like), f.Place > 0 && f.Place != place:
			continue
		case f.GaveUp == "", f.Kind == model.ContextLength && i < s.shortened:
			return nil
		}
		return &model.Error{Kind: f.Kind, Message: f.GaveUp}
	}
	return nil
}

// OpenFailures returns the failures of requests for the reply that the Turn still needs, oldest first: those for the
// step and the purpose of the newest request, to any model. It returns none if a reply has followed them.
func (s *State) OpenFailures() []FailedRequest {
	if len(s.Requests) == 0 {
		return nil
	}
	var open []FailedRequest
	newest := &s.Requests[len(s.Requests)-1]
	for _, f := range s.FailedRequests[s.overcome:] {
		if f.Step == newest.Step && f.Purpose == newest.Purpose {
			open = append(open, f)
		}
	}
	return open
}

// lastFailure returns the newest failure of a request for the same model, step and purpose.
func (s *State) lastFailure(r *Request) *model.Error {
	for i := range slices.Backward(s.FailedRequests) {
		if f := &s.FailedRequests[i]; f.isLike(r) {
			return &model.Error{Kind: f.Kind, Message: cmp.Or(f.GaveUp, f.Message)}
		}
	}
	return cutOffFailure(s.countSent(r)) // no request has ended
}

// wasEmpty reports whether the newest request like r failed because its reply was empty.
func (s *State) wasEmpty(r *Request) bool {
	for i := range slices.Backward(s.FailedRequests) {
		if f := &s.FailedRequests[i]; f.isLike(r) {
			return f.Empty
		}
	}
	return false
}

// isLike reports whether the failed request and r are for the same model, step and purpose.
func (f *FailedRequest) isLike(r *Request) bool {
	return f.Step == r.Step && f.Purpose == r.Purpose && f.Provider == r.Provider && f.Model == r.Model
}
