// Package tool is the engine's view of a tool: arguments in, one result or one classified error out. Adapters for real
// tools implement Caller and live outside internal/runtime.
package tool

import (
	"context"
	"encoding/json"
	"errors"
	"time"

	"github.com/shopspring/decimal"

	"github.com/capstan-dev/capstan/internal/runtime/canonical"
	"github.com/capstan-dev/capstan/internal/runtime/model"
	"github.com/capstan-dev/capstan/internal/runtime/prompt"
)

// Effect is what a call does to the world, and so whether it may be made again.
type Effect string

const (
	// ReadOnly calls change nothing.
	ReadOnly Effect = "ReadOnly"
	// Idempotent calls change no more when they are made twice.
	Idempotent Effect = "Idempotent"
	// Destructive calls must not be made twice. So are those of which nobody knows.
	Destructive Effect = "Destructive"
)

// Repeatable says whether a call whose outcome is unknown may be made again.
func (e Effect) Repeatable() bool { return e == ReadOnly || e == Idempotent }

// DefaultTimeout bounds a call where its tool says nothing.
const DefaultTimeout = 45 * time.Second

// Role is what a tool is used for.
type Role string

// The roles of tools.
const (
	// WebSearch tools look things up on the web.
	WebSearch Role = "WebSearch"
	// LocalSearch tools look things up in what the organisation has.
	LocalSearch Role = "LocalSearch"
	// ContextPack tools are called before the model is asked, and fill the prompt's context. No model is offered them.
	ContextPack Role = "ContextPack"
	// Other is the role of all others.
	Other Role = "Other"
)

// Source says where a tool comes from: what makes its calls is found by it, also after a restart. The zero Source is that of
// Capstan's own tools.
type Source struct {
	// Server is the name of the ToolServer that has the tool, and Name the tool's name there.
	Server string `json:"server,omitempty"`
	Name   string `json:"name,omitempty"`
	// Agent is the name of the sub-agent that the tool is.
	Agent string `json:"agent,omitempty"`
	// UID of the ToolServer or the Agent when the tools of the Turn were chosen, since another one may get its name. Empty where the
	// object has none, as without a cluster, and in journals of older versions.
	UID string `json:"uid,omitempty"`
}

// Tool is what a model is told of a tool, what is known of it, and how it is called. Without its Caller it marshals to JSON
// and back without loss.
type Tool struct {
	prompt.Tool
	// Schema is the JSON Schema of the arguments as the server gave it; empty for that of the Parameters.
	Schema json.RawMessage `json:"schema,omitempty"`
	// Shown is the Schema as a model is shown it; empty where that is the same.
	Shown json.RawMessage `json:"shown,omitempty"`
	// Effect of a call; Destructive if empty.
	Effect Effect `json:"effect,omitempty"`
	// Role of the tool; Other if empty.
	Role Role `json:"role,omitempty"`
	// Timeout of a call; DefaultTimeout if 0.
	Timeout time.Duration `json:"timeout,omitempty"`
	// RetryOnTimeout makes a call without a result in time once more, if its effect is repeatable.
	RetryOnTimeout bool `json:"retryOnTimeout,omitempty"`
	// MaxCalls is how often a Turn may call the tool; 0 for as often as it may call tools at all.
	MaxCalls int `json:"maxCalls,omitempty"`
	// RequiresApproval makes each call wait for somebody's decision.
	RequiresApproval bool `json:"requiresApproval,omitempty"`
	// Source of the tool.
	Source Source `json:"source,omitzero"`
	// Trusted is true for a tool of Capstan's own whose results people have written for the model, as skills are: they are told
	// without a fence. Those of servers and of sub-agents never are.
	Trusted bool `json:"trusted,omitempty"`
	// Caller makes the calls.
	Caller Caller `json:"-"`
}

// JSONSchema is the schema of the arguments.
func (t Tool) JSONSchema() (json.RawMessage, error) {
	if len(t.Schema) > 0 {
		return t.Schema, nil
	}
	return t.Tool.JSONSchema()
}

// SchemaHash is the SHA-256 of the canonical form of the schema of the arguments, in hexadecimal.
func (t Tool) SchemaHash() string {
	source, err := t.JSONSchema()
	if err != nil {
		return "" // of a parameter whose default is no JSON, which no schema can have
	}
	data, err := canonical.JSON(source)
	if err != nil {
		data = source
	}
	return canonical.Sum(data)
}

// ShownSchema is the schema of the arguments as a model is shown it: nothing that describes in it can pass for a control token.
// What decides about arguments is JSONSchema.
func (t Tool) ShownSchema() (json.RawMessage, error) {
	if len(t.Shown) > 0 {
		return t.Shown, nil
	}
	return t.JSONSchema()
}

// Caller makes the calls of one tool.
//
// Call returns the result, or an *Error that says what kind of failure it was, or a *Pending where the result comes later. It stops promptly when ctx ends and leaves
// nothing running behind. It never retries: the loop does. It is safe for concurrent use.
type Caller interface {
	Call(ctx context.Context, c Call) (Result, error)
}

// CallerFunc is a function that is a Caller.
type CallerFunc func(ctx context.Context, c Call) (Result, error)

// Call calls the function.
func (f CallerFunc) Call(ctx context.Context, c Call) (Result, error) { return f(ctx, c) }

// Checker is a Caller that can find out whether its tool is still the one that the Turn has.
type Checker interface {
	// Check returns an *Error that wraps ErrChanged if another object has the tool now, or if the tool has another schema. It returns
	// another *Error if that cannot be found out. It is called before people are asked about a call, and before the call is made.
	Check(ctx context.Context) error
}

// ErrChanged is the cause of an *Error that says that a tool is no longer the one that the Turn has.
var ErrChanged = errors.New("the tool has changed since the turn began")

// Call of a tool.
type Call struct {
	// IdempotencyKey names the call for ever: it is the same when the call is made again. For servers that can use one.
	IdempotencyKey string
	// Step of the call, from 1, and CallID that the model gave it.
	Step   int
	CallID string
	// Attempt is 1 for the first time that the call is made, and more when it may have been made before.
	Attempt int
	// Repeatable is true if the effect of the tool allows the call to be made twice. An adapter must not send any other call
	// again unless the first was surely not sent.
	Repeatable bool
	// TurnUID is the UID of the Turn that an earlier attempt of the call of a sub-agent has begun; empty where that is not known.
	TurnUID string
	// Arguments are a JSON object.
	Arguments json.RawMessage
	// Left is what the Turn may still take.
	Left Left
	// Descendants is how many Turns the call of a sub-agent may create: its own and those below it. It is 0 for other tools,
	// and for a call that an older version began, which reserved none.
	Descendants int
}

// Left is what is left of a Turn's limits.
type Left struct {
	// Time until its deadline.
	Time time.Duration
	// Tokens and Cost; nil for no bound.
	Tokens *int64
	Cost   *decimal.Decimal
}

// Result of a call.
type Result struct {
	// Content for the model.
	Content string
	// Spent is what a sub-agent took; nil for any other tool.
	Spent *Spent
	// Descendants is how many Turns the call of a sub-agent has created or may still create; nil if that is unknown, and for any
	// other tool. It is also valid beside an error.
	Descendants *int
}

// Spent is what the Turn of a sub-agent took, those of its own sub-agents included.
type Spent struct {
	// Turn is its name.
	Turn  string      `json:"turn,omitempty"`
	Usage model.Usage `json:"usage"`
	Cost  *model.Cost `json:"cost,omitempty"`
	// Known is the sum of what is known of a cost that is not known as a whole, whatever its currencies; nil where Cost says all,
	// and where nothing is known. It counts against budgets and is not reported.
	Known *decimal.Decimal `json:"known,omitempty"`
}

// Pending is returned for a call that was begun and whose result comes later, as that of a sub-agent. The Turn is parked; when
// it goes on, the call is made again and then has its result.
type Pending struct {
	// Turn is the name of the Turn whose end is waited for, and UID its UID; empty where that is not known.
	Turn, UID string
}

// Error says what is waited for.
func (p *Pending) Error() string { return "turn " + p.Turn + " has not ended" }

// Class says what kind of failure a call has ended with. Models are told.
type Class string

// The classes of failures.
const (
	// InvalidArguments means that the tool cannot work with the arguments.
	InvalidArguments Class = "invalid_arguments"
	// Timeout means that there was no result in time. The call may have been done all the same.
	Timeout Class = "timeout"
	// Unavailable means that the tool is out of reach, or unknown.
	Unavailable Class = "unavailable"
	// Denied means that the call is not allowed.
	Denied Class = "denied"
	// Failed means that the tool has failed, or that its result is an error.
	Failed Class = "failed"
	// OutcomeUnknown means that nobody knows whether the call was done: the run was cut off, or the adapter of the tool failed.
	OutcomeUnknown Class = "outcome_unknown"
)

// Blocks says whether a call that has failed so takes the tool from the rest of the Turn: it would fail again.
func (c Class) Blocks() bool { return c == Denied }

// Error is a failed call.
type Error struct {
	// Class of the failure.
	Class Class
	// Message for the model and for people, in words of Capstan's own: what it quotes from outside is a name at most.
	Message string
	// Said is what the other side has said of it: a server, a sub-agent, an adapter. A model is told it within a fence. May be
	// empty.
	Said string
	// Err is the cause; may be nil.
	Err error
}

// Error returns the message, and what the other side has said.
func (e *Error) Error() string {
	if e.Said == "" {
		return e.Message
	}
	return e.Message + ": " + e.Said
}

// Unwrap returns the cause.
func (e *Error) Unwrap() error { return e.Err }

// AsError returns an error as an *Error; one of no class has Failed, and is the word of an adapter.
func AsError(err error) *Error {
	if e, ok := errors.AsType[*Error](err); ok {
		return e
	}
	return &Error{Class: Failed, Message: "the tool failed", Said: err.Error(), Err: err}
}
