package loop

import (
	"context"
	"encoding/json"
	"slices"

	"github.com/capstan-dev/capstan/internal/runtime/citation"
	"github.com/capstan-dev/capstan/internal/runtime/compensation"
	"github.com/capstan-dev/capstan/internal/runtime/journal"
	"github.com/capstan-dev/capstan/internal/runtime/model"
	"github.com/capstan-dev/capstan/internal/runtime/smallmap"
	"github.com/capstan-dev/capstan/internal/runtime/tool"
)

// Request is a journal entry: a request that is about to be sent.
type Request struct {
	// Step is the number of the step that the request is for, from 1. It is 0 for a request before the first step.
	Step int `json:"step"`
	// Purpose is the purpose of the request.
	Purpose  Purpose `json:"purpose,omitempty"`
	Provider string  `json:"provider"`
	Model    string  `json:"model"`
	// Place is the place of the candidate in the chain, from 1. It is 0 in journals of older versions.
	Place int `json:"place,omitempty"`
	// Attempt counts the requests to this model for this step, over all runs, from 1.
	Attempt int `json:"attempt"`
	// ID is the request ID that the endpoint received.
	ID string `json:"id,omitempty"`
	// OutputLimit is the output limit of the request if the budget or the context window leaves less than the request
	// would have allowed. Otherwise it is 0.
	OutputLimit int64 `json:"outputLimit,omitempty"`
	// Budget is the name of the shared budget because of which OutputLimit is lower. It is empty if the Turn's own
	// limits or the context window are the reason.
	Budget string `json:"budget,omitempty"`
	// Reserved is true if the request is reserved in the budgets that apply to the Turn.
	Reserved bool `json:"reserved,omitempty"`
	// CountsTurn is true if these budgets count the Turn from this request on, unless it is not sent. It is false in
	// journals of older versions.
	CountsTurn bool `json:"countsTurn,omitempty"`
	// EstimatedTokens is the estimated size of the prompt. EstimatedCost is the price of these tokens when the request
	// was sent, or nil if the model has no price. If the request was cut off, its real usage is unknown, so the budget
	// counts these estimates.
	EstimatedTokens int64       `json:"estimatedTokens,omitempty"`
	EstimatedCost   *model.Cost `json:"estimatedCost,omitempty"`
}

// Step is a journal entry: a reply of a model.
type Step struct {
	// Step is the number of the reply, from 1. A reply whose Purpose is not ForStep has the number of the step that it
	// prepares or checks.
	Step     int         `json:"step"`
	Purpose  Purpose     `json:"purpose,omitempty"`
	Provider string      `json:"provider"`
	Model    string      `json:"model"`
	Reply    model.Reply `json:"reply"`
	// Cost is the price of the reply when it arrived, or nil if the model has no price.
	Cost       *model.Cost `json:"cost,omitempty"`
	DurationMS int64       `json:"durationMilliseconds"`
	// FirstEventMS is the time until the first part of the reply arrived, in milliseconds. It is 0 if it is not known,
	// and in journals of older versions.
	FirstEventMS int64 `json:"firstEventMilliseconds,omitempty"`
	// ResponseModel is the name of the model that replied, as the endpoint states it, if it is not Model.
	ResponseModel string `json:"responseModel,omitempty"`
	// Last is true if the Turn was out of steps and the model was asked for its final answer.
	Last bool `json:"last,omitempty"`
	// OverBudget is true if the reply is cut off because the budget left no more tokens for it.
	OverBudget bool `json:"overBudget,omitempty"`
}

// Intent is a journal entry: a tool call that is about to be made.
type Intent struct {
	Step      int             `json:"step"`
	CallID    string          `json:"callID"`
	Name      string          `json:"name"`
	Arguments json.RawMessage `json:"arguments"`
	// Effect is the effect of the tool when the call was recorded. It decides whether the call may be repeated.
	Effect tool.Effect `json:"effect"`
	// IdempotencyKey is the key that the tool server receives. All attempts of the call have the same key.
	IdempotencyKey string `json:"idempotencyKey"`
	// Attempt counts the intents of this call, over all runs, from 1.
	Attempt int `json:"attempt"`
	// Retry is true if the call is repeated because it gave no result in time.
	Retry bool `json:"retry,omitempty"`
	// Descendants is the number of Turns that a call of a sub-agent may create, its own Turn included. All attempts
	// of the call have the same number. It is 0 for other tools.
	Descendants int `json:"descendants,omitempty"`
}

// Outcome says how a call ended.
type Outcome string

const (
	// Succeeded means that the tool returned a result.
	Succeeded Outcome = "Succeeded"
	// Failed means that the call was attempted and did not succeed: the tool could not be reached, gave no result in
	// time, or returned an error, or the Turn ended during the call.
	Failed Outcome = "Failed"
	// Refused means that the tool was not called.
	Refused Outcome = "Refused"
	// Reused means that the same read-only call succeeded earlier and its result is used again.
	Reused Outcome = "Reused"
	// Unknown means that the call may or may not have been made, and must not be made again.
	Unknown Outcome = "Unknown"
)

// CallResult is a journal entry: the result of a tool call, whatever its outcome.
type CallResult struct {
	Step    int     `json:"step"`
	CallID  string  `json:"callID"`
	Name    string  `json:"name"`
	Outcome Outcome `json:"outcome"`
	// Class is the class of the failure or the refusal. It is empty if Outcome is Succeeded or Reused.
	Class tool.Class `json:"class,omitempty"`
	// MayHaveActed is true for a Failed or Refused call that may have taken effect, because an attempt may have reached
	// the tool and its outcome is unknown. It is false in journals of older versions.
	MayHaveActed bool `json:"mayHaveActed,omitempty"`
	// Content is the text that the model receives.
	Content string `json:"content"`
	// Bytes is the size of the whole output. Artifact names the stored output, at most its first 32 MiB, if Content
	// does not contain all of it.
	Bytes      int64  `json:"bytes,omitempty"`
	Artifact   string `json:"artifact,omitempty"`
	DurationMS int64  `json:"durationMilliseconds,omitempty"`
	// ArtifactName is the name of Artifact in calls of read_artifact.
	ArtifactName string `json:"artifactName,omitempty"`
	// EndsTurn is true if the call succeeded and ends the Turn. Text is then the answer: the output without a fence, at
	// most its first MiB.
	EndsTurn bool   `json:"endsTurn,omitempty"`
	Text     string `json:"text,omitempty"`
	// Pages are the sources of a web search, and Documents those of a search of local data. Journals of older versions
	// have none.
	Pages     []citation.Page `json:"pages,omitempty"`
	Documents []string        `json:"documents,omitempty"`
	// Spent is the usage of a sub-agent's Turn.
	Spent *tool.Spent `json:"spent,omitempty"`
	// Descendants is the number of Turns that a call of a sub-agent has created or may still create, its own Turn
	// included. If it is nil, the whole reservation of the call counts.
	Descendants *int `json:"descendants,omitempty"`
	// Stack is the stack trace of the adapter if it panicked.
	Stack string `json:"stack,omitempty"`
	// Undo is the call that undoes this one. It is nil if the tool had no compensation, and for a call that did not
	// succeed.
	Undo *compensation.Undo `json:"undo,omitempty"`
	// UndoneBy is tool.Result.UndoneBy.
	UndoneBy string `json:"undoneBy,omitempty"`
}

// TookEffect reports whether a call that began and has ended took effect, or may have taken effect. It must not be
// called for a call of a ReadOnly tool.
func (f *CallResult) TookEffect() bool {
	switch f.Outcome {
	case Succeeded, Unknown:
		return f.UndoneBy == "" // otherwise, the tool was not called
	case Failed: // in journals of older versions, only the class shows this
		return f.MayHaveActed || f.Class == tool.Timeout || f.Class == tool.OutcomeUnknown
	case Refused, Reused:
	}
	return f.MayHaveActed
}

// State is the state of the loop, folded from the entries of a Turn's journal. A run does not repeat any action that
// State contains. The zero State is the state of a new Turn.
type State struct {
	// Requests are the requests that were sent or were about to be sent. FailedRequests are those that failed.
	Requests       []Request
	FailedRequests []FailedRequest
	// Steps are the replies that are steps.
	Steps []Step
	// OtherReplies are replies that are not steps, such as summaries and checks of drafts. Replies with vectors are
	// here, too, but without the vectors.
	OtherReplies []Step
	// Intents and CallResults are the intents and the results of calls, in the order of the journal.
	Intents     []Intent
	CallResults []CallResult
	// Repairs are the repairs of arguments, and Approvals the requests for approval.
	Repairs   []Repair
	Approvals []Approval
	// Compactions, Rejections and Reflections are the compactions, the rejected answers and the checked drafts.
	Compactions []Compaction
	Rejections  []Rejection
	Reflections []Reflection
	// Checks are the checks of answers against the output policies.
	Checks []AnswerCheck
	// Warning is the warning about a long conversation, or nil if there was none.
	Warning *Warning
	// cutOff holds the requests that have neither a reply nor a failure. newestOpen is true if the last of them is the
	// newest request, whose reply or failure may still follow: no other run has begun.
	cutOff     []Request
	newestOpen bool
	// counted is true if the budgets have counted the Turn.
	counted bool
	// place is the place in the chain of the candidate in the newest request or failure.
	place int
	// shortened is the number of failed requests before the newest compaction. If an endpoint refused the prompt as too
	// long in one of them, the refusal no longer counts, because the prompt is shorter now.
	shortened int
	// overcome is the number of failed requests before the newest reply.
	overcome int
	// intentIndex and resultIndex are positions by call: of its newest intent in Intents, and of its first result in
	// CallResults.
	intentIndex, resultIndex smallmap.Map[callKey, int]
	// attempts has the number of intents of each call since the newest result of any call, or since the newest park.
	attempts smallmap.Map[callKey, int]
	// callsBySignature lists the calls with the same tool and arguments, in the order of their first intents.
	callsBySignature smallmap.Map[signature, []callKey]
	// lastChange is the position of the newest intent of a call that may have changed something, from 1. It is 0 if
	// there is none.
	lastChange int
	// Distrusted lists the tools whose effects an older version of Capstan took from hints of their servers. Intents to
	// call these tools count as Destructive, whatever effect the journal contains.
	Distrusted []string
	// repairIndex and approvalIndex are positions by call: of all its repairs in Repairs, and of its newest request for
	// approval in Approvals.
	repairIndex   map[callKey][]int
	approvalIndex map[callKey]int
	// subAgentTurns holds the newest entry about the Turn of each call of a sub-agent.
	subAgentTurns map[callKey]SubAgentCall
	// decisions holds the first decision about the newest request for approval of each call.
	decisions map[callKey]Decision
	// rejections holds the rejected answers by step.
	rejections map[int]*Rejection
}

// callKey identifies a call.
type callKey struct {
	step   int
	callID string
}

// Apply folds an entry into the state. Entries of other parts of the engine change nothing.
func (s *State) Apply(e journal.Entry) error {
	switch e.Kind { //nolint:exhaustive // because the loop ignores the others
	case journal.RunStarted:
		s.newestOpen = false
	case journal.ModelRequested:
		return s.applyRequest(e)
	case journal.ModelFailed:
		return s.applyFailure(e)
	case journal.ModelReplied:
		s.closeRequest()
		return s.applyReply(e)
	case journal.ToolIntended:
		return s.applyIntent(e)
	case journal.ToolFinished:
		return s.applyResult(e)
	case journal.ToolRepaired:
		return s.applyRepair(e)
	case journal.ApprovalRequested:
		return s.applyApproval(e)
	case journal.ApprovalDecided:
		return s.applyDecision(e)
	case journal.OutputRejected:
		return s.applyRejection(e)
	case journal.Compacted:
		s.shortened = len(s.FailedRequests)
		return appendEntry(&s.Compactions, e)
	case journal.Reflected:
		return appendEntry(&s.Reflections, e)
	case journal.OutputChecked:
		return appendEntry(&s.Checks, e)
	case journal.RunParked:
		return s.applyParked(e)
	case journal.UndoPlanned:
		return s.applyFixed(e)
	case journal.ContextWarned:
		s.Warning = &Warning{}
		return json.Unmarshal(e.Payload, s.Warning)
	}
	return nil
}

// applyReply adds a reply to Steps or to OtherReplies.
func (s *State) applyReply(e journal.Entry) error {
	var step Step
	if err := json.Unmarshal(e.Payload, &step); err != nil {
		return err
	}
	s.overcome = len(s.FailedRequests)
	if !step.isStep() {
		s.OtherReplies = append(s.OtherReplies, step)
		return nil
	}
	s.Steps = append(s.Steps, step)
	return nil
}

// applyParked folds in the Turns that calls of sub-agents created and that the run waits for.
func (s *State) applyParked(e journal.Entry) error {
	var p struct {
		SubAgentCalls []SubAgentCall `json:"begun"`
	}
	if err := json.Unmarshal(e.Payload, &p); err != nil {
		return err
	}
	s.attempts = smallmap.Map[callKey, int]{}
	for _, b := range p.SubAgentCalls {
		if s.subAgentTurns == nil {
			s.subAgentTurns = map[callKey]SubAgentCall{}
		}
		s.subAgentTurns[callKey{b.Step, b.CallID}] = b
	}
	return nil
}

// TurnUID returns the UID of the Turn that a call of a sub-agent created. It is empty if the UID is not known.
func (s *State) TurnUID(step int, callID string) string {
	return s.subAgentTurns[callKey{step, callID}].TurnUID
}

// hasNotCreated reports whether it is certain that the attempts before this one have not created the Turn of a
// sub-agent. If an attempt began after the newest park, it may have created the Turn.
func (s *State) hasNotCreated(i Intent) bool {
	before := s.subAgentTurns[callKey{i.Step, i.CallID}].NotCreated
	return before > 0 && before == i.Attempt-1
}

func (s *State) applyDecision(e journal.Entry) error {
	var d Decision
	if err := json.Unmarshal(e.Payload, &d); err != nil {
		return err
	}
	if s.decisions == nil {
		s.decisions = map[callKey]Decision{}
	}
	of := callKey{d.Step, d.CallID}
	if a := s.approval(d.Step, d.CallID); a != nil && a.Request != d.Request {
		return nil // this decision is about another request
	}
	if s.decisions[of] == (Decision{}) {
		s.decisions[of] = d
	}
	return nil
}

func (s *State) applyRejection(e journal.Entry) error {
	if err := appendEntry(&s.Rejections, e); err != nil {
		return err
	}
	if s.rejections == nil {
		s.rejections = map[int]*Rejection{}
	}
	r := s.Rejections[len(s.Rejections)-1]
	s.rejections[r.Step] = &r
	return nil
}

// Decision returns the decision about a call. If none was made, ok is false.
func (s *State) Decision(step int, callID string) (d Decision, ok bool) {
	d, ok = s.decisions[callKey{step, callID}]
	return d, ok
}

func (s *State) applyRequest(e journal.Entry) error {
	if err := appendEntry(&s.Requests, e); err != nil {
		return err
	}
	newest := &s.Requests[len(s.Requests)-1]
	s.place = newest.Place
	if newest.Step == 0 && newest.Purpose != ForEmbedding { // an old journal has no step: the request belongs to the next reply
		newest.Step = len(s.Steps) + 1
	}
	s.cutOff, s.newestOpen = append(s.cutOff, *newest), true
	s.counted = s.counted || newest.Reserved
	return nil
}

// closeRequest notes that the newest request has ended.
func (s *State) closeRequest() {
	if s.newestOpen {
		s.cutOff, s.newestOpen = s.cutOff[:len(s.cutOff)-1], false
	}
}

func (s *State) applyIntent(e journal.Entry) error {
	if err := appendEntry(&s.Intents, e); err != nil {
		return err
	}
	last := len(s.Intents) - 1
	if slices.Contains(s.Distrusted, s.Intents[last].Name) {
		s.Intents[last].Effect = tool.Destructive
	}
	i := s.Intents[last]
	of := callKey{i.Step, i.CallID}
	_, before := s.intentIndex.Get(of)
	s.intentIndex.Set(of, last)
	s.attempts.Set(of, s.cutOffAttempts(i.Step, i.CallID)+1)
	if i.Effect != tool.ReadOnly {
		s.lastChange = last + 1
	}
	if before {
		return nil
	}
	signature := signatureOf(i.Name, i.Arguments)
	same, _ := s.callsBySignature.Get(signature)
	s.callsBySignature.Set(signature, append(same, of))
	return nil
}

// cutOffAttempts returns the number of attempts of an open call from an earlier run that were cut off without progress:
// no call has ended since the first of them, and no run has parked the Turn. A run that ends after the result of
// another call may not have made this one, although its intent is in the journal. A park follows each wait for a
// sub-agent.
func (s *State) cutOffAttempts(step int, callID string) int {
	n, _ := s.attempts.Get(callKey{step, callID})
	return n
}

func (s *State) applyResult(e journal.Entry) error {
	if err := appendEntry(&s.CallResults, e); err != nil {
		return err
	}
	s.attempts = smallmap.Map[callKey, int]{}
	last := len(s.CallResults) - 1
	of := callKey{s.CallResults[last].Step, s.CallResults[last].CallID}
	if _, ok := s.resultIndex.Get(of); !ok {
		s.resultIndex.Set(of, last)
	}
	return nil
}

func appendEntry[T any](all *[]T, e journal.Entry) error {
	var v T
	if err := json.Unmarshal(e.Payload, &v); err != nil {
		return err
	}
	*all = append(*all, v)
	return nil
}

// Messages returns the conversation since the prompt: each reply, its calls and their results. Every endpoint refuses a
// call without a result, so calls that have not finished are left out. A reply without text whose calls are all left
// out is left out too. The calls of a last reply (see Step.Last) are also left out, unless the model
// was asked again.
func (s *State) Messages(ctx context.Context) []model.Message {
	return s.between(ctx, 1, len(s.Steps)+1, s.exchange)
}

// KeptMessagesFrom returns the messages of a step and of all later steps, like Messages, but as they are kept after the
// end of the Turn: without the texts that output policies have refused.
func (s *State) KeptMessagesFrom(ctx context.Context, first int) []model.Message {
	return s.between(ctx, first, len(s.Steps)+1, s.keptExchange)
}

// LastStep returns the newest reply, or nil if there is none.
func (s *State) LastStep() *Step {
	if len(s.Steps) == 0 {
		return nil
	}
	return &s.Steps[len(s.Steps)-1]
}

// Spending is the usage and the cost of one request. Cost is nil if the model had no price, so the cost is unknown.
type Spending struct {
	Purpose         Purpose
	Provider, Model string
	Usage           model.Usage
	Cost            *model.Cost
}

// Spendings yields the spending of each request. A request that was cut off counts with the estimate of its prompt:
// the endpoint may have billed it even if no reply came back. Otherwise a run that is cut off again and again would
// spend without bound.
func (s *State) Spendings(yield func(Spending) bool) {
	for _, a := range s.FailedRequests {
		if !yield(Spending{a.Purpose, a.Provider, a.Model, a.Usage, a.Cost}) {
			return
		}
	}
	for _, steps := range [][]Step{s.Steps, s.OtherReplies} {
		for i := range steps {
			step := &steps[i]
			if !yield(Spending{step.Purpose, step.Provider, step.Model, step.Reply.Usage, step.Cost}) {
				return
			}
		}
	}
	for _, r := range s.cutOff {
		estimate := model.Usage{InputTokens: r.EstimatedTokens, Estimated: r.EstimatedTokens > 0}
		if !yield(Spending{r.Purpose, r.Provider, r.Model, estimate, r.EstimatedCost}) {
			return
		}
	}
}

// Place returns the place in the chain of the candidate that was asked last, from 1. It returns 0 if no candidate was
// asked, or if an older version of Capstan recorded the request.
func (s *State) Place() int { return s.place }

// asked returns the first request for a step to each model, in order. Models that the budget did not allow come first.
func (s *State) asked(step int) []Request {
	var all []Request
	for _, f := range s.FailedRequests {
		if f.Step == step && f.Purpose == ForStep && f.Kind == model.OverBudget {
			all = append(all, Request{Step: f.Step, Provider: f.Provider, Model: f.Model, Place: f.Place})
		}
	}
	for _, r := range s.Requests {
		same := func(o Request) bool { return o.Provider == r.Provider && o.Model == r.Model }
		if r.Step == step && r.Purpose == ForStep && !slices.ContainsFunc(all, same) {
			all = append(all, r)
		}
	}
	return all
}
