package loop

import (
	"context"
	"encoding/json"
	"slices"
	"time"

	"github.com/capstan-dev/capstan/internal/runtime/model"
	"github.com/capstan-dev/capstan/internal/runtime/tool"
	"github.com/capstan-dev/capstan/internal/runtime/untrusted"
)

// Purpose says what a request is for.
type Purpose string

const (
	// ForStep is the purpose of requests that make the steps of a Turn.
	ForStep Purpose = ""
	// ForCompaction is the purpose of a request for a summary of older messages.
	ForCompaction Purpose = "compaction"
	// ForReflection is the purpose of a request to check a draft.
	ForReflection Purpose = "reflection"
	// ForPolicy is the purpose of a request to check an answer against output policies.
	ForPolicy Purpose = "policy"
	// ForEmbedding is the purpose of a request for vectors, before the first step.
	ForEmbedding Purpose = "embedding"
)

// Repair is a journal entry: a repair of a call's arguments.
type Repair struct {
	Step   int    `json:"step"`
	CallID string `json:"callID"`
	Name   string `json:"name"`
	// Attempt counts the repairs of this call, from 1.
	Attempt int `json:"attempt"`
	// Before is the text of the model, and After the repaired arguments.
	Before string          `json:"before"`
	After  json.RawMessage `json:"after"`
	// Changes describes the repairs, path by path.
	Changes []string `json:"changes"`
}

// Approval is a journal entry: a request for approval of a call.
type Approval struct {
	// Request is the random ID of the request. A decision that names this ID was made after the request. The ID is
	// empty in journals of older versions; a call with such a request is requested again before it is made.
	Request string `json:"request,omitempty"`
	Step    int    `json:"step"`
	CallID  string `json:"callID"`
	Name    string `json:"name"`
	// ToolServerUID is the UID of the ToolServer or Agent that provides the tool. It is empty if there is none.
	ToolServerUID string `json:"toolServerUID,omitempty"`
	// SchemaHash is the hash of the schema of the arguments that the Turn uses.
	SchemaHash string `json:"schemaHash,omitempty"`
	// Arguments are the arguments that the call will use. ArgumentsHash is their SHA-256 in hexadecimal.
	Arguments     json.RawMessage `json:"arguments"`
	ArgumentsHash string          `json:"argumentsHash"`
	// Requested is the time of the request. At Expires, the call counts as denied.
	Requested time.Time `json:"requested"`
	Expires   time.Time `json:"expires"`
}

// Decided returns a decision about exactly this request. The caller must set By, or Expired for a request that expired.
func (a *Approval) Decided(approved bool) *Decision {
	return &Decision{
		Request: a.Request, Step: a.Step, CallID: a.CallID, Name: a.Name, ToolServerUID: a.ToolServerUID, SchemaHash: a.SchemaHash,
		ArgumentsHash: a.ArgumentsHash, Approved: approved,
	}
}

// shows reports whether the request shows people a call of this tool with these arguments. A request of an older
// version shows only the name and the arguments.
func (a *Approval) shows(t *tool.Tool, arguments json.RawMessage) bool {
	if a.Name != t.Name || a.ArgumentsHash != hashOf(arguments) {
		return false
	}
	return a.Request == "" || a.ToolServerUID == t.Source.UID && a.SchemaHash == t.SchemaHash()
}

// Decision is a journal entry: the decision about a request for approval.
type Decision struct {
	// Request to ArgumentsHash are copied from the Approval. Journals of older versions contain only Step and
	// CallID.
	Request       string `json:"request,omitempty"`
	Step          int    `json:"step"`
	CallID        string `json:"callID"`
	Name          string `json:"name,omitempty"`
	ToolServerUID string `json:"toolServerUID,omitempty"`
	SchemaHash    string `json:"schemaHash,omitempty"`
	ArgumentsHash string `json:"argumentsHash,omitempty"`
	// Approved is false if the call was denied or the request expired.
	Approved bool `json:"approved"`
	// Expired is true if the request expired without a decision.
	Expired bool `json:"expired,omitempty"`
	// By is the name of the user who decided, and Reason the user's reason.
	By     string `json:"by,omitempty"`
	Reason string `json:"reason,omitempty"`
}

// isAbout reports whether a decision names exactly what the request showed.
func (d *Decision) isAbout(a *Approval) bool {
	return d.Request == a.Request && d.Step == a.Step && d.CallID == a.CallID && d.Name == a.Name && d.ToolServerUID == a.ToolServerUID &&
		d.SchemaHash == a.SchemaHash && d.ArgumentsHash == a.ArgumentsHash
}

// Rejection is a journal entry: an answer that does not fit the Turn's schema, that violates output policies, or that
// is missing.
type Rejection struct {
	Step int `json:"step"`
	// CallID is the ID of the call whose result should have been the answer. The model then receives Message after the
	// result of the call. CallID is empty if the model wrote the answer.
	CallID string `json:"callID,omitempty"`
	// Policies are the names of the output policies that the answer violates. It is empty for an answer that does not
	// fit the schema.
	Policies []string `json:"policies,omitempty"`
	// NoText is true if the reply to the request for a final answer has only calls, which cannot be made any more.
	NoText bool `json:"noText,omitempty"`
	// Message is the text that the model receives.
	Message string `json:"message"`
}

// Compaction is a journal entry: the replacement of older messages by a summary.
type Compaction struct {
	// From is the first step whose messages stay whole. The messages of earlier steps are replaced. If From is one
	// more than the number of steps, all steps are replaced.
	From int `json:"from"`
	// KeptHistory is the number of messages that stay whole at the end of the history before the user's message.
	// Earlier messages are replaced. It is 0 in entries of older versions, which kept no history.
	KeptHistory int `json:"keptHistory,omitempty"`
	// Summary is the text that replaces the messages of earlier steps and the earlier history.
	Summary string `json:"summary"`
	// Forced is true if the endpoint said that the prompt was too long.
	Forced bool `json:"forced,omitempty"`
	// Tokens is the estimated size of the prompt before the compaction.
	Tokens int64 `json:"tokens,omitempty"`
}

// Reflection is a journal entry: the result of checking a draft.
type Reflection struct {
	Step int `json:"step"`
	// Replaced is true if Text differs from the draft.
	Replaced bool `json:"replaced,omitempty"`
	// Text is the answer.
	Text string `json:"text"`
}

// Warning is a journal entry: the conversation has come close to the model's context window.
type Warning struct {
	// Tokens is the estimated size of the prompt.
	Tokens        int64 `json:"tokens"`
	ContextWindow int64 `json:"contextWindow"`
}

// isStep reports whether a reply is a step of the loop.
func (s Step) isStep() bool { return s.Purpose == ForStep }

// useful reports whether a reply that is not a step contains usable text.
func (s Step) useful() bool {
	return !untrusted.Blank(s.Reply.Text) && s.Reply.FinishReason != model.FinishRefusal
}

// exchange returns the messages of a step: the reply, and the results of its calls, as far as there are any. The calls
// of a last reply are never made, so they are left out unless the model is asked again. If an endpoint could not read
// the model's arguments, exchange uses the arguments with which the call was made, if it was made.
func (s *State) exchange(ctx context.Context, step Step) []model.Message {
	var calls []model.ToolCall
	var results []model.Message
	for _, c := range step.Reply.ToolCalls {
		if step.Last && s.rejections[step.Step] == nil {
			break
		}
		if f := s.result(step.Step, c.ID); f != nil {
			if i := s.intent(step.Step, c.ID); i != nil && sendableArguments(ctx, c.Arguments) == noArguments {
				c.Arguments = string(i.Arguments)
			}
			calls = append(calls, c)
			results = append(results, model.Message{Role: model.RoleTool, Content: f.Content, ToolCallID: c.ID})
		}
	}
	var all []model.Message
	text := step.Reply.Text
	if c := s.reflection(step.Step); c != nil && s.rejections[step.Step] != nil {
		text = c.Text // the answer that was rejected
	}
	if len(calls) > 0 || len(step.Reply.ToolCalls) == 0 || text != "" {
		all = append(all, sendable(ctx, model.Message{
			Role: model.RoleAssistant, Content: text, ToolCalls: calls, ProviderData: step.Reply.ProviderData,
		}))
	}
	r := s.rejections[step.Step]
	for i := range results {
		if r != nil && r.CallID != "" && results[i].ToolCallID == r.CallID {
			results[i].Content += "\n" + r.Message
		}
	}
	all = append(all, results...)
	if r != nil && r.CallID == "" {
		all = append(all, model.Message{Role: model.RoleUser, Name: MessageViolations, Content: r.Message})
	}
	return all
}

const (
	// RefusedResult replaces the result of a tool that output policies have refused as the answer, wherever results are
	// kept after the end of the Turn.
	RefusedResult = "The result was not accepted as the answer."
	// refusedAnswer replaces a refused answer of the model, and repeatAnswer the message about its violations.
	refusedAnswer = "[an answer that was not accepted]"
	repeatAnswer  = "The answer was not accepted. Answer again."
)

// IsByPolicies reports whether output policies have refused the answer. Such an answer, and the reasons, which may
// quote it, must not be kept after the end of the Turn, except in its journal.
func (r *Rejection) IsByPolicies() bool { return len(r.Policies) > 0 }

// isRefusedResult reports whether output policies have refused the result of a call as the answer.
func (s *State) isRefusedResult(f *CallResult) bool {
	r := s.rejections[f.Step]
	return r != nil && r.CallID == f.CallID && r.IsByPolicies()
}

// NewestRefusedResult returns the result to which the newest rejection applies, if output policies have refused this
// result of a call as the answer. Otherwise it returns nil.
func (s *State) NewestRefusedResult() *CallResult {
	if len(s.Rejections) == 0 {
		return nil
	}
	r := &s.Rejections[len(s.Rejections)-1]
	if r.CallID == "" || !r.IsByPolicies() {
		return nil
	}
	return s.result(r.Step, r.CallID)
}

// withoutArguments returns a message without the arguments of the call with this ID, because they may contain the text
// of its result. The data of the provider is left out with them, because it may repeat them.
func withoutArguments(m model.Message, callID string) model.Message {
	i := slices.IndexFunc(m.ToolCalls, func(c model.ToolCall) bool { return c.ID == callID })
	if i < 0 {
		return m
	}
	m = m.WithoutProviderData()
	m.ToolCalls = slices.Clone(m.ToolCalls)
	m.ToolCalls[i].Arguments = noArguments
	return m
}

// keptExchange returns the messages of a step as they are kept after the end of the Turn: without the texts that output
// policies have refused.
func (s *State) keptExchange(ctx context.Context, step Step) []model.Message {
	all, r := s.exchange(ctx, step), s.rejections[step.Step]
	if r == nil || !r.IsByPolicies() {
		return all
	}
	for i := range all {
		switch m := &all[i]; {
		case r.CallID != "" && m.ToolCallID == r.CallID:
			m.Content = RefusedResult
		case r.CallID != "":
			*m = withoutArguments(*m, r.CallID)
		case m.Name == MessageViolations:
			m.Content = repeatAnswer
		case m.Role == model.RoleAssistant:
			m.Content, m.ProviderData = refusedAnswer, nil
		}
	}
	return all
}
