// Package task defines the work that follows the end of a Turn: its evaluation. A task is stored in the transaction
// that ends the Turn, so it is neither lost nor added twice. Executors claim tasks, and a claim expires, so the work of
// an executor that is gone is done by another one.
package task

import (
	"encoding/json"
	"errors"
	"fmt"
	"time"

	"github.com/capstan-dev/capstan/internal/runtime/budget"
	"github.com/capstan-dev/capstan/internal/runtime/turnrecord"
)

// Task is the evaluation of one Turn. A Turn has at most one task.
type Task struct {
	// UID is the UID of the Turn, and the key of the task.
	UID string
	// Namespace, Turn and Agent are the names of the Turn's namespace, of the Turn and of its Agent.
	Namespace, Turn, Agent string
	// Created is the time of the end of the Turn, in UTC and to the microsecond.
	Created time.Time
	// Claim is the number of the claim. It grows with each claim, and calls with an older one are refused. It is 0
	// before the first claim.
	Claim int64
	// Attempts is the number of times that the work has begun.
	Attempts int
	// Result is the result. It is nil until the work is done.
	Result *Result
}

// Held identifies a claimed task.
type Held struct {
	UID   string
	Claim int64
}

// Held returns the claim of the task.
func (t *Task) Held() Held { return Held{t.UID, t.Claim} }

// MaxResult is the maximum size of a result, in bytes of JSON.
const MaxResult = 16 << 10

// Result is the result of a task. Exactly one of its fields is set.
type Result struct {
	// Skipped is why the Turn is not evaluated. It is empty if it was evaluated.
	Skipped Skip `json:"skipped,omitempty"`
	// Evaluations are the evaluations, at most one of each judge.
	Evaluations []Evaluation `json:"evaluations,omitempty"`
}

// Evaluation is an evaluation with the words of the judge.
type Evaluation struct {
	turnrecord.Evaluation
	// Reason is the reason of the judge, which may quote the answer. A failed evaluation has one of Capstan's own.
	Reason string `json:"reason,omitempty"`
}

// Marshal returns the result as JSON of at most MaxResult bytes. If it is larger, it leaves out the reasons.
func (r *Result) Marshal() ([]byte, error) {
	data, err := json.Marshal(r)
	if err == nil && len(data) > MaxResult {
		short := Result{Skipped: r.Skipped}
		for _, e := range r.Evaluations {
			e.Reason = ""
			short.Evaluations = append(short.Evaluations, e)
		}
		data, err = json.Marshal(short)
	}
	if err == nil && len(data) > MaxResult {
		err = fmt.Errorf("it has %d bytes, and the maximum is %d", len(data), MaxResult)
	}
	if err != nil {
		return nil, fmt.Errorf("failed to marshal the result of a task: %w", err)
	}
	return data, nil
}

// Recorded returns the part of the result that the record of the Turn keeps, which contains no text of a model.
func (r *Result) Recorded() []turnrecord.Evaluation {
	var all []turnrecord.Evaluation
	for i := range r.Evaluations {
		all = append(all, r.Evaluations[i].Evaluation)
	}
	return all
}

// Skip is why a Turn is not evaluated.
type Skip string

// The reasons for which a Turn is not evaluated.
const (
	// NotEnabled means that the Agent is gone, or does not evaluate Turns any more.
	NotEnabled Skip = "NotEnabled"
	// TurnDeleted means that the Turn was deleted.
	TurnDeleted Skip = "TurnDeleted"
	// HourlyLimit means that the Agent has evaluated as many Turns within an hour as it may.
	HourlyLimit Skip = "HourlyLimit"
	// TokenLimit means that the evaluations of the Agent have used as many tokens within a day as they may.
	TokenLimit Skip = "TokenLimit"
	// BudgetExceeded means that a Budget does not allow it.
	BudgetExceeded Skip = "BudgetExceeded"
	// QueueFull means that too many Turns of the namespace wait for their evaluation.
	QueueFull Skip = "QueueFull"
	// Expired means that the Turn has waited too long for its evaluation.
	Expired Skip = "Expired"
	// Unreadable means that the journal of the Turn cannot be read.
	Unreadable Skip = "Unreadable"
)

// Start is what must hold for the work on a task to begin.
type Start struct {
	// Now is the present time.
	Now time.Time
	// MaxPerHour is the number of tasks of the Agent that may begin within an hour.
	MaxPerHour int64
	// MaxTokensPerDay is the number of tokens that the tasks of the Agent may use within a day; 0 means no limit.
	MaxTokensPerDay int64
	// Tokens is the number of tokens that the task uses at most. They count until the task is done.
	Tokens int64
	// Reserve are the reservations in budgets.
	Reserve []budget.Reservation
}

// Refusal is the error of a Start that limits do not allow. Nothing has changed.
type Refusal struct{ Skip Skip }

// Error describes the refusal.
func (r *Refusal) Error() string { return "the task may not begin: " + string(r.Skip) }

// ErrLost is returned for a claim that does not count any more: another executor has claimed the task, its Turn was
// deleted, or it is done. The caller must stop.
var ErrLost = errors.New("the claim of the task was lost")

// Holder returns the key under which the task of a Turn reserves budgets. It differs from that of the Turn.
func Holder(uid string) string { return uid + "/evaluation" }

// Periods of the limits.
const (
	Hour = time.Hour
	Day  = 24 * time.Hour
)

// Use is the number of tasks of a namespace that are not done.
type Use struct {
	Namespace string
	Waiting   int64
	// Oldest is the time of creation of the oldest of them.
	Oldest time.Time
}

// Check returns a *Refusal if the limits do not allow the start. begun is the number of other tasks of the Agent that
// have begun within the last hour, and tokens the number of tokens that its tasks have used or reserved within the last
// day.
func (s *Start) Check(begun, tokens int64) error {
	switch {
	case begun >= s.MaxPerHour:
		return &Refusal{HourlyLimit}
	case s.MaxTokensPerDay > 0 && tokens+s.Tokens > s.MaxTokensPerDay:
		return &Refusal{TokenLimit}
	}
	return nil
}
