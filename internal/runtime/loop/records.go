package loop

import (
	"encoding/json"
	"time"

	"github.com/capstan-dev/capstan/internal/runtime/fence"
	"github.com/capstan-dev/capstan/internal/runtime/model"
	"github.com/capstan-dev/capstan/internal/runtime/tool"
)

// Purpose is what a request is for, beside a step of the loop.
type Purpose string

const (
	// ForStep is the purpose of the requests that make the steps of a Turn.
	ForStep Purpose = ""
	// ForCompaction is that of a request for a summary of older messages.
	ForCompaction Purpose = "compaction"
	// ForReflection is that of a request to check a draft.
	ForReflection Purpose = "reflection"
)

// Repair is a change of a call's arguments, as the journal keeps it.
type Repair struct {
	Step   int    `json:"step"`
	CallID string `json:"callID"`
	Name   string `json:"name"`
	// Attempt counts the repairs of this call, from 1.
	Attempt int `json:"attempt"`
	// Before is what the model wrote, and After what became of it.
	Before string          `json:"before"`
	After  json.RawMessage `json:"after"`
	// Changes says what was done, path by path.
	Changes []string `json:"changes"`
}

// Approval is a call that requires approval, as the journal keeps it.
type Approval struct {
	// Request names this request for a decision. It is random, so a decision that names it is younger. Empty in journals of older
	// versions: such a call is asked about again before it is made.
	Request string `json:"request,omitempty"`
	Step    int    `json:"step"`
	CallID  string `json:"callID"`
	Name    string `json:"name"`
	// ToolServerUID is the UID of the object that has the tool, a ToolServer or an Agent; empty where there is none.
	ToolServerUID string `json:"toolServerUID,omitempty"`
	// SchemaHash is that of the schema of the arguments, as the Turn has the tool.
	SchemaHash string `json:"schemaHash,omitempty"`
	// Arguments as they will be used, and the SHA-256 of these, in hexadecimal.
	Arguments     json.RawMessage `json:"arguments"`
	ArgumentsHash string          `json:"argumentsHash"`
	// Requested is when the decision was asked for, and Expires when the call counts as denied.
	Requested time.Time `json:"requested"`
	Expires   time.Time `json:"expires"`
}

// Decided returns a decision about exactly this request, by nobody yet.
func (a *Approval) Decided(approved bool) *Decision {
	return &Decision{
		Request: a.Request, Step: a.Step, CallID: a.CallID, Name: a.Name, ToolServerUID: a.ToolServerUID, SchemaHash: a.SchemaHash,
		ArgumentsHash: a.ArgumentsHash, Approved: approved,
	}
}

// shows reports whether people were asked about a call of this tool with these arguments. An older version asked about less.
func (a *Approval) shows(t *tool.Tool, arguments json.RawMessage) bool {
	if a.Name != t.Name || a.ArgumentsHash != hashOf(arguments) {
		return false
	}
	return a.Request == "" || a.ToolServerUID == t.Source.UID && a.SchemaHash == t.SchemaHash()
}

// Decision is what somebody decided about a call, as the journal keeps it.
type Decision struct {
	// Request to ArgumentsHash are those of the Approval. In journals of older versions there are Step and CallID alone.
	Request       string `json:"request,omitempty"`
	Step          int    `json:"step"`
	CallID        string `json:"callID"`
	Name          string `json:"name,omitempty"`
	ToolServerUID string `json:"toolServerUID,omitempty"`
	SchemaHash    string `json:"schemaHash,omitempty"`
	ArgumentsHash string `json:"argumentsHash,omitempty"`
	// Approved is false for a denial, and for a wait that has come to its end.
	Approved bool `json:"approved"`
	// Expired is true where nobody has decided in time.
	Expired bool `json:"expired,omitempty"`
	// By is the name of the user who decided, and Reason why.
	By     string `json:"by,omitempty"`
	Reason string `json:"reason,omitempty"`
}

// isAbout reports whether a decision names all that people were asked about, and nothing else.
func (d *Decision) isAbout(a *Approval) bool {
	return d.Request == a.Request && d.Step == a.Step && d.CallID == a.CallID && d.Name == a.Name && d.ToolServerUID == a.ToolServerUID &&
		d.SchemaHash == a.SchemaHash && d.ArgumentsHash == a.ArgumentsHash
}

// Rejection is an answer that does not fit the Turn's schema, as the journal keeps it.
type Rejection struct {
	Step int `json:"step"`
	// CallID is that of the call whose result was to be the answer; empty for an answer of the model. The model is told of it behind
	// the result of the call.
	CallID string `json:"callID,omitempty"`
	// Message is what the model is told.
	Message string `json:"message"`
}

// Compaction replaces older messages, as the journal keeps it.
type Compaction struct {
	// From is the first step whose messages are kept whole: those of earlier steps are replaced. Steps+1 keeps none.
	From int `json:"from"`
	// KeptHistory is how many messages at the end of the history before the user's message are kept whole: those before them
	// are replaced. It is 0 in entries of older versions, which kept none.
	KeptHistory int `json:"keptHistory,omitempty"`
	// Summary stands for what is replaced.
	Summary string `json:"summary"`
	// Forced is true where the endpoint said that the prompt was too long.
	Forced bool `json:"forced,omitempty"`
	// Tokens is about how many tokens the prompt had before.
	Tokens int64 `json:"tokens,omitempty"`
}

// Reflection is a draft that was checked, as the journal keeps it.
type Reflection struct {
	Step int `json:"step"`
	// Replaced is true where Text differs from the draft.
	Replaced bool `json:"replaced,omitempty"`
	// Text is the answer.
	Text string `json:"text"`
}

// Warning is a conversation that has come near the model's context window, as the journal keeps it.
type Warning struct {
	// Tokens the prompt has, about, of ContextWindow.
	Tokens        int64 `json:"tokens"`
	ContextWindow int64 `json:"contextWindow"`
}

// aside says whether a reply is no step of the loop.
func (s Step) aside() bool { return s.Purpose != ForStep }

// useful says whether a reply beside the steps says something of use.
func (s Step) useful() bool {
	return !fence.Blank(s.Reply.Text) && s.Reply.FinishReason != model.FinishRefusal
}

// messages that stand for a step: the reply, and what became of the calls that have ended. The calls of a last reply are never
// made, and are left out unless the model is asked again. Arguments that cannot be sent are those of the call that was made, if one
// was.
func (s *State) exchange(step Step) []model.Message {
	var calls []model.ToolCall
	var results []model.Message
	for _, c := range step.Reply.ToolCalls {
		if step.Last && s.rejections[step.Step] == nil {
			break
		}
		if f := s.finish(step.Step, c.ID); f != nil {
			if i := s.intent(step.Step, c.ID); i != nil && sendableArguments(c.Arguments) == noArguments {
				c.Arguments = string(i.Arguments)
			}
			calls = append(calls, c)
			results = append(results, model.Message{Role: model.RoleTool, Content: f.Content, ToolCallID: c.ID})
		}
	}
	var all []model.Message
	if len(calls) > 0 || len(step.Reply.ToolCalls) == 0 || step.Reply.Text != "" {
		all = append(all, sendable(model.Message{Role: model.RoleAssistant, Content: step.Reply.Text, ToolCalls: calls}))
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
