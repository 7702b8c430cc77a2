// Package tool defines tools as the engine sees them: arguments in, one result or one classified error out.
// Adapters for real tools implement Caller and live outside internal/runtime.
package tool

import (
	"context"
	"encoding/json"
	"errors"
	"strings"
	"time"

	"github.com/shopspring/decimal"

	"github.com/capstan-dev/capstan/internal/runtime/canonical"
	"github.com/capstan-dev/capstan/internal/runtime/model"
	"github.com/capstan-dev/capstan/internal/runtime/prompt"
)

// Effect is the declared consequence of a call. It decides whether the call may be repeated.
type Effect string

const (
	// ReadOnly calls change nothing.
	ReadOnly Effect = "ReadOnly"
	// Idempotent calls change nothing more when they are repeated.
	Idempotent Effect = "Idempotent"
	// Destructive calls must not be repeated. A tool of unknown effect is Destructive.
	Destructive Effect = "Destructive"
)

// Repeatable reports whether a call whose outcome is unknown may be made again.
func (e Effect) Repeatable() bool { return e == ReadOnly || e == Idempotent }

// DefaultTimeout limits a call whose tool has no time-out.
const DefaultTimeout = 45 * time.Second

// Role is the purpose of a tool.
type Role string

// The roles of tools.
const (
	// WebSearch tools search the web.
	WebSearch Role = "WebSearch"
	// LocalSearch tools search the data of the organization.
	LocalSearch Role = "LocalSearch"
	// ContextPack tools are called before the model is asked, and add facts to the prompt. They are not offered to
	// the model.
	ContextPack Role = "ContextPack"
	// Other is the role of all other tools.
	Other Role = "Other"
)

// Source identifies the origin of a tool. The engine uses it to find the Caller of the tool, even after a restart.
// Capstan's own tools have the zero Source.
type Source struct {
	// Server is the name of the tool's ToolServer, or NAMESPACE/NAME if the reference to the ToolServer has a
	// namespace. Name is the name that this server gives the tool.
	Server string `json:"server,omitempty"`
	Name   string `json:"name,omitempty"`
	// Agent is the name of the sub-agent, in the same form, if the tool is one.
	Agent string `json:"agent,omitempty"`
	// UID is the UID of the ToolServer or Agent when the tools of the Turn were selected. It matters because another
	// object may get the same name later. It is empty if the object has no UID, for example without a cluster, and in
	// journals of older versions.
	UID string `json:"uid,omitempty"`
}

// Tool is a tool with its description for the model, its properties and its Caller. Without the Caller it marshals
// to JSON and back without loss.
type Tool struct {
	prompt.Tool
	// Schema is the JSON Schema of the arguments as the server gave it, with a missing type or missing properties
	// added. A schema that could not be used was repaired. If Schema is empty, the schema follows from Parameters.
	Schema json.RawMessage `json:"schema,omitempty"`
	// Shown is the form of Schema that the model receives. It is empty if the two are equal.
	Shown json.RawMessage `json:"shown,omitempty"`
	// Effect is the effect of a call. An empty effect means Destructive.
	Effect Effect `json:"effect,omitempty"`
	// Role is the role of the tool. An empty role means Other.
	Role Role `json:"role,omitempty"`
	// Timeout limits each call. 0 means DefaultTimeout.
	Timeout time.Duration `json:"timeout,omitempty"`
	// RetryOnTimeout repeats a call once after a time-out, if its effect is repeatable.
	RetryOnTimeout bool `json:"retryOnTimeout,omitempty"`
	// MaxCalls is the maximum number of calls of this tool in a Turn. 0 means that only the Turn's limit of all
	// calls applies.
	MaxCalls int `json:"maxCalls,omitempty"`
	// RequiresApproval means that each call requires approval.
	RequiresApproval bool `json:"requiresApproval,omitempty"`
	// Compensation says how a call of the tool is undone. It is nil if calls cannot be undone.
	Compensation *Compensation `json:"compensation,omitempty"`
	// Source identifies the origin of the tool.
	Source Source `json:"source,omitzero"`
	// Trusted is true for a tool of Capstan's own whose results people have written for the model, such as skills.
	// The model receives these results without a fence. Tools of servers and sub-agents are never trusted.
	Trusted bool `json:"trusted,omitempty"`
	// Caller makes the calls.
	Caller Caller `json:"-"`
}

// Compensation is the call that undoes a call of a tool.
type Compensation struct {
	// Tool is the name of a tool of the same server, as the server knows it.
	Tool string `json:"tool"`
	// Arguments are the arguments of that call.
	Arguments []CompensationArgument `json:"arguments,omitempty"`
}

// CompensationArgument is one argument of a compensation.
type CompensationArgument struct {
	Name string `json:"name"`
	// Value is a CEL expression over the arguments and the result of the call to undo.
	Value string `json:"value"`
}

// JSONSchema returns the schema of the arguments.
func (t Tool) JSONSchema() (json.RawMessage, error) {
	if len(t.Schema) > 0 {
		return t.Schema, nil
	}
	return t.Tool.JSONSchema()
}

// SchemaHash returns the SHA-256 of the canonical form of the schema of the arguments, in hexadecimal.
func (t Tool) SchemaHash() string {
	source, err := t.JSONSchema()
	if err != nil {
		return "" // only if the default of a parameter is not JSON, which is impossible in a schema
	}
	data, err := canonical.JSON(source)
	if err != nil {
		data = source
	}
	return canonical.Sum(data)
}

// ShownSchema returns the schema of the arguments in the form that the model receives. No description in it can be
// mistaken for a control token. Arguments are validated against JSONSchema instead.
func (t Tool) ShownSchema() (json.RawMessage, error) {
	if len(t.Shown) > 0 {
		return t.Shown, nil
	}
	return t.JSONSchema()
}

// Caller makes the calls of one tool.
//
// Call returns the result of a call. If the call failed, it returns an *Error with the class of the failure. If the
// result comes later, it returns a *Pending. Call must return promptly when ctx ends, must not leave anything
// running, and must not retry a call that it may have sent: the loop does that. It must be safe for concurrent use.
type Caller interface {
	Call(ctx context.Context, c Call) (Result, error)
}

// CallerFunc is a function that implements Caller.
type CallerFunc func(ctx context.Context, c Call) (Result, error)

// Call calls the function.
func (f CallerFunc) Call(ctx context.Context, c Call) (Result, error) { return f(ctx, c) }

// Checker is a Caller that can check whether its tool is still the one that the Turn started with.
type Checker interface {
	// Check returns an *Error that wraps ErrChanged if another object provides the tool now, or if the schema of the
	// tool has changed. If the check is not possible, it returns another *Error; MayPass reports whether a repetition
	// of the check may soon succeed. Check is called before an approval is requested, and before an approved call is
	// made.
	Check(ctx context.Context) error
}

// ErrChanged is the cause of an *Error about a tool that is no longer the one that the Turn started with.
var ErrChanged = errors.New("the tool has changed since the turn began")

// ErrUnread is the cause of an *Error about a tool whose object, or its credentials, could not be read for the moment.
// This says nothing about the tool.
var ErrUnread = errors.New("the API server gave no answer about the tool")

// ErrOwnShortage is the cause of an *Error about a call that was not sent, or a check that was not made, because this
// process or its machine had no socket for it. This says nothing about the tool.
var ErrOwnShortage = errors.New("no socket in this process")

// MayPass reports whether an error says nothing about the tool, and may pass soon: it wraps ErrUnread or
// ErrOwnShortage.
func MayPass(err error) bool { return errors.Is(err, ErrUnread) || errors.Is(err, ErrOwnShortage) }

// Call is one call of a tool.
type Call struct {
	// IdempotencyKey identifies the call permanently: a repeated call has the same key. Servers may use it to
	// detect repeats.
	IdempotencyKey string
	// Step is the step of the call, from 1. It is 0 for a call before the first step. CallID is the ID of the call,
	// which is unique in the Turn.
	Step   int
	CallID string
	// Attempt is the attempt number, from 1. It is above 1 if the call may have been made before.
	Attempt int
	// Repeatable is true if the effect of the tool allows a repeated call. If it is false, an adapter must not send the
	// call again, unless the first request was certainly not sent.
	Repeatable bool
	// TurnUID is the UID of the Turn that an earlier attempt of the call of a sub-agent has created. It is empty if it
	// is not known.
	TurnUID string
	// NotCreated is true if the earlier attempts of the call of a sub-agent have certainly created no Turn.
	NotCreated bool
	// Arguments are a JSON object.
	Arguments json.RawMessage
	// Left is the remainder of the Turn's limits.
	Left Left
	// Descendants is the number of Turns that the call of a sub-agent may create: its own Turn and the Turns below it.
	// It is 0 for other tools, and for a call that an older version of Capstan began, which reserved no Turns.
	Descendants int
}

// Left is the remainder of a Turn's limits.
type Left struct {
	// Time is the time until the deadline of the Turn. It is 0 if the Turn has no deadline.
	Time time.Duration
	// Tokens and Cost are nil if they are not limited.
	Tokens *int64
	Cost   *decimal.Decimal
}

// Result is the result of a call.
type Result struct {
	// Content is the text for the model.
	Content string
	// Structured is a JSON value that belongs to the result, and that Content does not contain, except as items. It is
	// empty if there is none. The model receives it after Content.
	Structured string
	// ContentIsExtra is true if Content is not the data of the result, even if it is JSON. An example is an embedded
	// resource beside Structured, which may be about another object.
	ContentIsExtra bool
	// ContentIsItems is true if Structured is a list and Content has its items, one after another: see Items. The model
	// receives Content alone.
	ContentIsItems bool
	// Spent is the usage of a sub-agent. It is nil for any other tool.
	Spent *Spent
	// Descendants is the number of Turns that the call of a sub-agent has created or may still create. It is nil if
	// that number is unknown, and for any other tool. It is valid even if the call returned an error.
	Descendants *int
	// UndoneBy is the name of another Turn that has already done the work of this call, which undoes a call. The tool
	// was then not called, and Content is Capstan's own text. It is empty for any other call.
	UndoneBy string
}

// Whole returns the text that the model receives: Content, followed by Structured if there is one and Content does not
// have its items.
func (r Result) Whole() string {
	switch {
	case r.Structured == "" || r.ContentIsItems:
		return r.Content
	case r.Content == "":
		return r.Structured
	}
	return r.Content + "\n" + r.Structured
}

// Data returns the part of the result for readers that expect JSON: Structured if there is one, unless Content itself
// is JSON, and neither extra nor the items of Structured.
func (r Result) Data() string {
	if r.Structured == "" || !r.ContentIsExtra && !r.ContentIsItems && json.Valid([]byte(r.Content)) {
		return r.Content
	}
	return r.Structured
}

// Split returns the result with a whole text: see Whole. If its last line is a JSON object or list, and other text
// precedes it, this line is Structured.
func Split(whole string) Result {
	content, last, found := cutLast(whole)
	if found && last != "" && (last[0] == '{' || last[0] == '[') && json.Valid([]byte(last)) {
		return Result{Content: content, Structured: last}
	}
	return Result{Content: whole}
}

func cutLast(text string) (before, last string, found bool) {
	i := strings.LastIndexByte(text, '\n')
	if i <= 0 {
		return "", text, false
	}
	return text[:i], text[i+1:], true
}

// Map returns a copy of the result in which f has replaced its whole text. If f has changed both parts, Structured is
// the last line, as long as it is JSON. Otherwise it is empty in the copy, because the end of Content is unknown. If
// Content has the items of Structured, the copy has their new texts in both: see withItems.
func (r Result) Map(f func(text string) string) Result {
	before := r.Whole()
	after := f(before)
	switch {
	case after == before:
	case r.ContentIsItems:
		return r.withItems(after)
	case r.Structured != "" && strings.HasSuffix(after, "\n"+r.Structured):
		r.Content = strings.TrimSuffix(after, "\n"+r.Structured)
	case r.Structured != "" && strings.HasPrefix(after, r.Content+"\n"):
		r.Structured = strings.TrimPrefix(after, r.Content+"\n")
	default:
		had := r.Structured != ""
		r.Content, r.Structured = after, ""
		if content, last, found := cutLast(after); had && found && json.Valid([]byte(last)) {
			r.Content, r.Structured = content, last
		}
	}
	return r
}

// Spent is the usage of a sub-agent's Turn, including the Turns of its own sub-agents.
type Spent struct {
	// Turn is the name of the Turn.
	Turn  string      `json:"turn,omitempty"`
	Usage model.Usage `json:"usage"`
	Cost  *model.Cost `json:"cost,omitempty"`
	// Known is the sum of the known parts of a cost that is not fully known, in any currency. It is nil if Cost is
	// set, or if no part is known.
	Known *decimal.Decimal `json:"known,omitempty"`
}

// KnownCost returns the cost, or its known part, in any currency. It counts against budgets.
func (s *Spent) KnownCost() decimal.Decimal {
	switch {
	case s.Cost != nil:
		return s.Cost.Amount
	case s.Known != nil:
		return *s.Known
	}
	return decimal.Zero
}

// Pending is returned for a call that has begun and whose result comes later, such as the call of a sub-agent. The
// Turn is parked. When it continues, the call is made again and then returns its result.
type Pending struct {
	// Turn is the name of the pending Turn, and UID is its UID. Each is empty if it is not known.
	Turn, UID string
	// NotCreated is true if the call has certainly not created the Turn yet, so that a later attempt may create it.
	NotCreated bool
}

// Error names the pending Turn.
func (p *Pending) Error() string { return "turn " + p.Turn + " has not ended" }

// Class is the kind of failure of a call. It is part of the message that the model receives.
type Class string

// The classes of failures.
const (
	// InvalidArguments means that the tool does not accept the arguments.
	InvalidArguments Class = "invalid_arguments"
	// Timeout means that there was no result in time. The call may have been completed nevertheless.
	Timeout Class = "timeout"
	// Unavailable means that the tool cannot be reached, or is unknown. The call was certainly not made.
	Unavailable Class = "unavailable"
	// Denied means that the call is not allowed.
	Denied Class = "denied"
	// Failed means that the tool failed, or that its result is an error.
	Failed Class = "failed"
	// OutcomeUnknown means that the call may or may not have been made: the run was cut off, or the adapter of the
	// tool failed.
	OutcomeUnknown Class = "outcome_unknown"
)

// Blocks reports whether a failure of this class blocks the tool for the rest of the Turn, because later calls would
// fail, too.
func (c Class) Blocks() bool { return c == Denied }

// Error is a failed call.
type Error struct {
	// Class is the class of the failure.
	Class Class
	// Message is for the model and for people. It is Capstan's own text, and quotes at most a name from outside.
	Message string
	// RemoteMessage is the message of the other side: a server, a sub-agent or an adapter. The model receives it
	// within a fence. It may be empty.
	RemoteMessage string
	// MayHaveActed is true if the call may have taken effect even if the class says otherwise, because the adapter sent
	// it twice and does not know the outcome of the first request.
	MayHaveActed bool
	// Err is the cause. It may be nil.
	Err error
}

// Error returns Message, followed by RemoteMessage if there is one.
func (e *Error) Error() string {
	if e.RemoteMessage == "" {
		return e.Message
	}
	return e.Message + ": " + e.RemoteMessage
}

// Unwrap returns the cause.
func (e *Error) Unwrap() error { return e.Err }

// AsError returns err as an *Error. An error without a class gets the class Failed, and its text as RemoteMessage.
func AsError(err error) *Error {
	if e, ok := errors.AsType[*Error](err); ok {
		return e
	}
	return &Error{Class: Failed, Message: "the tool failed", RemoteMessage: err.Error(), Err: err}
}
