// Package task defines the work that follows the end of a Turn: its evaluation, and the extraction of memories. A task
// is stored in the transaction that ends the Turn, so it is neither lost nor added twice. Executors claim tasks. A
// claim expires, so another executor takes over the task of an executor that is gone.
package task

import (
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/shopspring/decimal"

	"github.com/capstan-dev/capstan/internal/runtime/budget"
	"github.com/capstan-dev/capstan/internal/runtime/memories"
	"github.com/capstan-dev/capstan/internal/runtime/model"
	"github.com/capstan-dev/capstan/internal/runtime/turnrecord"
)

// Kind is the kind of work.
type Kind string

// The kinds.
const (
	// Evaluate is the evaluation of the answer by judges.
	Evaluate Kind = "evaluation"
	// Learn is the extraction of memories.
	Learn Kind = "memory"
)

// Kinds are all kinds.
var Kinds = []Kind{Evaluate, Learn}

// Task is one piece of work about a Turn. A Turn has at most one task of each kind.
type Task struct {
	// UID is the UID of the Turn.
	UID string
	// Kind is the kind of work.
	Kind Kind
	// Namespace, Turn and Agent are the names of the Turn's namespace, of the Turn and of its Agent.
	Namespace, Turn, Agent string
	// Session is the name of the Turn's Session, or empty. Requester is the name of the user who asked for the Turn, or
	// empty if it is not known.
	Session, Requester string
	// Created is the time of the end of the Turn, in UTC and to the microsecond.
	Created time.Time
	// Claim is the number of the claim. It grows with each claim, and calls with an older number are refused. It is 0
	// before the first claim.
	Claim int64
	// Attempts is the number of attempts that have begun. An attempt that ended with a Delay without CutOff does not
	// count.
	Attempts int
	// Result is the result. It is nil until the work is done.
	Result *Result
	// Partial is the partial result of earlier attempts, whose questions must not be asked again. It is nil if there is
	// none, and once the work is done.
	Partial *Result
}

// SetResult sets the result, or the partial result if done is false, from the JSON of Result.Marshal. If data is empty,
// both become nil.
func (t *Task) SetResult(data []byte, done bool) error {
	t.Result, t.Partial = nil, nil
	if len(data) == 0 {
		return nil
	}
	r := &Result{}
	if err := json.Unmarshal(data, r); err != nil {
		return fmt.Errorf("failed to read the result of a task: %w", err)
	}
	if done {
		t.Result = r
	} else {
		t.Partial = r
	}
	return nil
}

// Key identifies the task in a store.
func (t *Task) Key() string { return Key(t.UID, t.Kind) }

// Key returns the key of the task of a Turn and a kind. The key of an evaluation is the UID alone, as in earlier
// versions. An executor of an earlier version finds no Turn for a key of another kind, and drops the task.
func Key(uid string, kind Kind) string {
	if kind == Evaluate {
		return uid
	}
	return uid + "/" + string(kind)
}

// Keys returns the keys of the tasks of all kinds for the given Turns.
func Keys(uids ...string) []string {
	keys := make([]string, 0, len(uids)*len(Kinds))
	for _, uid := range uids {
		for _, kind := range Kinds {
			keys = append(keys, Key(uid, kind))
		}
	}
	return keys
}

// Search selects the task to claim.
type Search struct {
	// After is the namespace of the task that was claimed last, so that the next task is from another namespace if
	// possible. Tasks of the namespaces in Except are not claimed.
	After  string
	Except []string
	// Now is the current time. Until is the time at which the claim expires.
	Now, Until time.Time
}

// Latest returns the latest time at which a valid claim or delay can end. A later time is from a clock that was ahead:
// claims and delays are short, and processes that are running extend their claims again and again.
func (s *Search) Latest() time.Time { return s.Until.Add(time.Hour) }

// Held identifies a claimed task.
type Held struct {
	UID   string
	Kind  Kind
	Claim int64
}

// Key identifies the task in a store.
func (h Held) Key() string { return Key(h.UID, h.Kind) }

// HeldOf returns the task with this key, without a claim.
func HeldOf(key string) Held {
	uid, kind, hasKind := strings.Cut(key, "/")
	if !hasKind {
		return Held{UID: uid, Kind: Evaluate}
	}
	return Held{UID: uid, Kind: Kind(kind)}
}

// Held returns the claim of the task.
func (t *Task) Held() Held { return Held{t.UID, t.Kind, t.Claim} }

// MaxResult is the maximum size of a result, in bytes of JSON.
const MaxResult = 16 << 10

// Result is the result of a task.
type Result struct {
	// Skipped is the reason why the work, or the rest of it after earlier attempts, is not done. It is empty if the
	// work was done.
	Skipped Skip `json:"skipped,omitempty"`
	// Evaluations are the evaluations, at most one of each judge.
	Evaluations []Evaluation `json:"evaluations,omitempty"`
	// Learned has the memories of the Turn, or is nil.
	Learned *Learned `json:"learned,omitempty"`
}

// WithoutScope returns r with one more scope in which nothing more is learned. r may be nil.
func (r *Result) WithoutScope(s memories.Scope) *Result {
	out, l := Result{}, Learned{}
	if r != nil {
		out = *r
	}
	if out.Learned != nil {
		l = *out.Learned
	}
	if !slices.Contains(l.Scopes, s) {
		l.Scopes = append(slices.Clone(l.Scopes), s)
	}
	out.Learned = &l
	return &out
}

// Learned is the result of the extraction of memories from a Turn.
type Learned struct {
	// Memories are stored in the same transaction as the result, whose JSON does not contain them. Each owner keeps at
	// most MaxItems memories.
	Memories []memories.Memory `json:"-"`
	MaxItems int               `json:"-"`
	// Scopes are the scopes in which nothing more is learned: their questions have ended, or their memories were
	// deleted.
	Scopes []memories.Scope `json:"scopes,omitempty"`
	// Kept is the number of memories of each scope. Refused is the number of entries in replies of the model that have
	// another scope, are not in the right form, or are too many. Unsure is the number of entries with too little
	// confidence. Failed is the number of questions without a usable reply.
	Kept    map[memories.Scope]int `json:"kept,omitempty"`
	Refused int                    `json:"refused,omitempty"`
	Unsure  int                    `json:"unsure,omitempty"`
	Failed  int                    `json:"failed,omitempty"`
	// Failures are the reasons why questions failed, and why the observation of the Turn could not be stored, each in
	// one line without a part of the conversation.
	Failures []string `json:"failures,omitempty"`
	// Usage is the usage of the requests.
	Usage model.Usage `json:"usage"`
}

// Owners returns the owners of the memories, each once.
func (l *Learned) Owners() (owners []memories.Owner) {
	for i := range l.Memories {
		if o := l.Memories[i].Owner(); !slices.Contains(owners, o) {
			owners = append(owners, o)
		}
	}
	return owners
}

// With returns the combined result of two questions, or groups of questions.
func (l *Learned) With(o *Learned) *Learned {
	kept := maps.Clone(l.Kept)
	if kept == nil {
		kept = map[memories.Scope]int{}
	}
	for scope, n := range o.Kept {
		kept[scope] += n
	}
	return &Learned{
		Memories: slices.Concat(l.Memories, o.Memories), MaxItems: max(l.MaxItems, o.MaxItems),
		Scopes: slices.Concat(l.Scopes, o.Scopes), Kept: kept,
		Refused: l.Refused + o.Refused, Unsure: l.Unsure + o.Unsure, Failed: l.Failed + o.Failed,
		Failures: slices.Concat(l.Failures, o.Failures), Usage: l.Usage.Add(o.Usage),
	}
}

// Evaluation is an evaluation with the reason of the judge.
type Evaluation struct {
	turnrecord.Evaluation
	// Reason is the reason of the judge, which may quote the answer. If the evaluation failed, Capstan has written it.
	Reason string `json:"reason,omitempty"`
}

// Marshal returns the result as JSON of at most MaxResult bytes. If the JSON is larger, Marshal leaves out the reasons.
func (r *Result) Marshal() ([]byte, error) {
	data, err := json.Marshal(r)
	if err == nil && len(data) > MaxResult {
		short := Result{Skipped: r.Skipped, Learned: r.Learned}
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

// Recorded returns the evaluations for the record of the Turn, which contain no text of a model.
func (r *Result) Recorded() []turnrecord.Evaluation {
	var all []turnrecord.Evaluation
	for i := range r.Evaluations {
		all = append(all, r.Evaluations[i].Evaluation)
	}
	return all
}

// Skip is the reason why the work on a task is not done.
type Skip string

// The reasons why the work is not done.
const (
	// NotEnabled means that the Agent is gone, or no longer enables the work.
	NotEnabled Skip = "NotEnabled"
	// TurnDeleted means that the Turn was deleted.
	TurnDeleted Skip = "TurnDeleted"
	// SessionDeleted means that the Session of the Turn was deleted.
	SessionDeleted Skip = "SessionDeleted"
	// HourlyLimit means that the Agent has reached its hourly limit of tasks of this kind.
	HourlyLimit Skip = "HourlyLimit"
	// TokenLimit means that the Agent has reached its daily limit of tokens for tasks of this kind.
	TokenLimit Skip = "TokenLimit"
	// BudgetExceeded means that a Budget does not allow the work.
	BudgetExceeded Skip = "BudgetExceeded"
	// QueueFull means that too many tasks of the namespace wait.
	QueueFull Skip = "QueueFull"
	// Expired means that the task has waited too long. A task that was cut off too often fails instead.
	Expired Skip = "Expired"
	// Unreadable means that the journal of the Turn cannot be read.
	Unreadable Skip = "Unreadable"
)

// Start has the limits for beginning an attempt of a task.
type Start struct {
	// Now is the current time.
	Now time.Time
	// MaxPerHour is the maximum number of tasks of this kind that may begin for the Agent within an hour.
	MaxPerHour int64
	// MaxTokensPerDay is the maximum number of tokens that the tasks of this kind may use for the Agent within a day; 0
	// means no limit.
	MaxTokensPerDay int64
	// Tokens is the number of tokens that the task is expected to use. They count until the attempt ends.
	Tokens int64
}

// Charge ends the open request of a task, if there is one, and begins the next request, if there is one.
type Charge struct {
	// Ended is the expense of the open request. If Ended is nil, the expense is not known, and the estimate counts.
	// Ended is ignored if no request is open, so a Charge may be repeated.
	Ended *turnrecord.Expense
	// Next is the estimate of the next request. It counts if the end of that request stays unknown. Reserve are the
	// reservations of the next request in budgets; either all are made, or none.
	Next    *turnrecord.Expense
	Reserve []budget.Reservation
	// Found is the result of all questions that have ended, in this attempt and in earlier attempts. It replaces the
	// partial result of the task, and its memories are stored. If Found is nil, the partial result stays.
	Found *Result
}

// Delay postpones a task.
type Delay struct {
	// Until is the earliest time at which the task may be claimed again.
	Until time.Time
	// Used is the number of tokens that the attempt has used, or 0 if no attempt has begun.
	Used int64
	// CutOff is true if the attempt counts in Attempts, which are limited, because it may have paid for requests
	// without a result.
	CutOff bool
}

// Account is the account of the requests of a task in a store.
type Account struct {
	// Open is the estimate of the open request, or nil.
	Open *turnrecord.Expense
	// Expenses are the expenses in the record of the Turn.
	Expenses []turnrecord.Expense
}

// Apply returns the account after a charge, and the change of the ledger.
func (c *Charge) Apply(a Account) (Account, *budget.Change, error) {
	change := &budget.Change{Reserve: c.Reserve}
	if a.Open != nil {
		ended := a.Open
		if c.Ended != nil {
			ended = c.Ended
			used, err := amountOf(ended)
			if err != nil {
				return a, nil, err
			}
			change.Outcome = &used
		}
		var err error
		if ended.Usage != (model.Usage{}) {
			if a.Expenses, err = turnrecord.WithExpense(a.Expenses, *ended); err != nil {
				return a, nil, err
			}
		}
	}
	a.Open = c.Next
	return a, change, nil
}

// amountOf converts an expense for the ledger.
func amountOf(e *turnrecord.Expense) (budget.Amount, error) {
	a := budget.Amount{Tokens: e.Usage.InputTokens + e.Usage.OutputTokens}
	if e.Cost == nil {
		return a, nil
	}
	cost, err := decimal.NewFromString(e.Cost.Amount)
	if err != nil {
		return a, fmt.Errorf("failed to read the cost of an expense: %w", err)
	}
	a.Cost, a.Currency = cost, e.Cost.Currency
	return a, nil
}

// Refusal is the error of a Start whose limits are reached. The task has not changed.
type Refusal struct{ Skip Skip }

// Error describes the refusal.
func (r *Refusal) Error() string { return "the task may not begin: " + string(r.Skip) }

// ErrLost is returned for a claim that is no longer valid: another executor has claimed the task, its Turn was deleted,
// or it is done. The caller must stop.
var ErrLost = errors.New("the claim of the task was lost")

// Holder returns the key under which a task reserves budgets. It differs from the key of its Turn.
func Holder(uid string, kind Kind) string { return uid + "/" + string(kind) }

// Holder returns the key under which the task reserves budgets.
func (h Held) Holder() string { return Holder(h.UID, h.Kind) }

// Holders returns the keys under which the tasks of Turns reserve budgets.
func Holders(uids ...string) []string {
	var all []string
	for _, uid := range uids {
		for _, kind := range Kinds {
			all = append(all, Holder(uid, kind))
		}
	}
	return all
}

// Periods of the limits.
const (
	Hour = time.Hour
	Day  = 24 * time.Hour
)

// Use is the number of tasks of a namespace that are not done.
type Use struct {
	Namespace string
	Waiting   int64
	// Oldest is the time of creation of the oldest of these tasks.
	Oldest time.Time
}

// Since returns the time from which the tasks that have begun count against the limits. Without a limit for a day, it
// is an hour ago, so that a store need not read the tasks of a day.
func (s *Start) Since() time.Time {
	if s.MaxTokensPerDay > 0 {
		return s.Now.Add(-Day)
	}
	return s.Now.Add(-Hour)
}

// Until returns the time up to which the tasks that have begun count against the limits. A later time is from a clock
// that was ahead, and says nothing about the last hour or day. The clocks of two executors may differ by seconds.
func (s *Start) Until() time.Time { return s.Now.Add(time.Minute) }

// Check returns a *Refusal if the limits do not allow the start. begun is the number of other tasks of this kind of the
// Agent that have begun within the last hour, and tokens is the number of tokens that its tasks of this kind that have
// begun after Since have used or reserved.
func (s *Start) Check(begun, tokens int64) error {
	switch {
	case begun >= s.MaxPerHour:
		return &Refusal{HourlyLimit}
	case s.MaxTokensPerDay > 0 && tokens+s.Tokens > s.MaxTokensPerDay:
		return &Refusal{TokenLimit}
	}
	return nil
}
