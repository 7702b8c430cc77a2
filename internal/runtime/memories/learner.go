package memories

import (
	"context"
	"encoding/json"
	"fmt"
	"time"
)

// Learner stores observations of ended Turns. It does not learn the memories: a model extracts those.
type Learner interface {
	// Observe receives an observation of a Turn. After a failure, it may receive the same observation again. An error
	// affects neither the Turn nor the memories that are learned from it.
	Observe(ctx context.Context, o Observation) error
}

// MaxObservation is the maximum size of an observation, in bytes of JSON.
const MaxObservation = 8 << 10

// Observation describes how a Turn was answered. It has no text of the conversation. Stores keep an observation until
// the Turn or its Session is deleted, or until all memories of the Turn, its Session or its requester are deleted.
type Observation struct {
	TurnUID    string `json:"turnUID"`
	Namespace  string `json:"namespace"`
	Turn       string `json:"turn"`
	Agent      string `json:"agent"`
	Session    string `json:"session,omitempty"`
	SessionUID string `json:"sessionUID,omitempty"`
	Requester  string `json:"requester,omitempty"`
	// Time is the time of the end of the Turn, in UTC and to the microsecond.
	Time time.Time `json:"time"`
	Details
}

// Details are the part of an observation that describes the Turn.
type Details struct {
	// Reason is the reason why the Turn ended. Strategy and Tools say how the answer was reached.
	Reason   string   `json:"reason"`
	Strategy string   `json:"strategy,omitempty"`
	Tools    []string `json:"tools,omitempty"`
	// Recalled are the IDs of the memories in the prompt.
	Recalled []string `json:"recalled,omitempty"`
	// ElapsedMilliseconds is the duration of the Turn.
	ElapsedMilliseconds int64 `json:"elapsedMilliseconds,omitempty"`
}

// Marshal returns the details as JSON of at most MaxObservation bytes. If they are larger, it leaves out the lists.
func (d Details) Marshal() ([]byte, error) {
	data, err := json.Marshal(d)
	if err == nil && len(data) > MaxObservation {
		d.Tools, d.Recalled = nil, nil
		data, err = json.Marshal(d)
	}
	if err == nil && len(data) > MaxObservation {
		err = fmt.Errorf("it has %d bytes, and the maximum is %d", len(data), MaxObservation)
	}
	if err != nil {
		return nil, fmt.Errorf("failed to marshal an observation: %w", err)
	}
	return data, nil
}
