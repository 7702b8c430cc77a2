package loop

import (
	"encoding/json"
	"slices"

	"github.com/capstan-dev/capstan/internal/runtime/journal"
	"github.com/capstan-dev/capstan/internal/runtime/model"
	"github.com/capstan-dev/capstan/internal/runtime/tool"
)

// Request is a request that is about to be sent, as the journal keeps it.
type Request struct {
	// Step it is for, from 1.
	Step int `json:"step"`
	// Purpose of it.
	Purpose  Purpose `json:"purpose,omitempty"`
	Provider string  `json:"provider"`
	Model    string  `json:"model"`
	// Attempt counts the requests to this model for this step, over all runs, from 1.
	Attempt int `json:"attempt"`
	// ID of the request, as the endpoint was told it.
	ID string `json:"id,omitempty"`
	// EstimatedTokens is about how many tokens its prompt has, and EstimatedCost what they cost at the prices of its time; nil
	// where the model has none. The budget counts them if the request was cut off, so that nobody knows what it used.
	EstimatedTokens int64       `json:"estimatedTokens,omitempty"`
	EstimatedCost   *model.Cost `json:"estimatedCost,omitempty"`
}

// Attempt is a failed request, as the journal keeps it.
type Attempt struct {
	Step     int             `json:"step"`
	Purpose  Purpose         `json:"purpose,omitempty"`
	Provider string          `json:"provider"`
	Model    string          `json:"model"`
	Kind     model.ErrorKind `json:"kind"`
	Message  string          `json:"message"`
	// Said is what the endpoint has said, or the network. Journals of older versions have it at the end of Message.
	Said       string      `json:"said,omitempty"`
	Usage      model.Usage `json:"usage"`
	Cost       *model.Cost `json:"cost,omitempty"`
	DurationMS int64       `json:"durationMilliseconds"`
	// Unsent is true if nothing reached the endpoint, as where a credential is missing.
	Unsent bool `json:"unsent,omitempty"`
	// Stack is where the adapter panicked, if it did.
	Stack string `json:"stack,omitempty"`
}

// Step is a reply, as the journal keeps it.
type Step struct {
	// Step is its number, from 1; that of a reply with a purpose of its own is that of the step which comes next, or is checked.
	Step     int         `json:"step"`
	Purpose  Purpose     `json:"purpose,omitempty"`
	Provider string      `json:"provider"`
	Model    string      `json:"model"`
	Reply    model.Reply `json:"reply"`
	// Cost of the reply at the prices of its time; nil where the model has none.
	Cost       *model.Cost `json:"cost,omitempty"`
	DurationMS int64       `json:"durationMilliseconds"`
	// Last is true for the answer that was asked for when the Turn was out of steps.
	Last bool `json:"last,omitempty"`
}

// Intent is a call of a tool that is about to be made, as the journal keeps it.
type Intent struct {
	Step      int             `json:"step"`
	CallID    string          `json:"callID"`
	Name      string          `json:"name"`
	Arguments json.RawMessage `json:"arguments"`
	// Effect as it was known then. It decides whether the call may be made again.
	Effect tool.Effect `json:"effect"`
	// IdempotencyKey that the tool was given.
	IdempotencyKey string `json:"idempotencyKey"`
	// Attempt counts the intents of this call, over all runs, from 1.
	Attempt int `json:"attempt"`
	// Retry is true where the call is made once more because it gave no result in time.
	Retry bool `json:"retry,omitempty"`
	// Descendants is the reservation of a call of a sub-agent: how many Turns it may create, its own included. It is the same
	// for all attempts, and 0 for other tools.
	Descendants int `json:"descendants,omitempty"`
}

// Outcome is what became of a call.
type Outcome string

const (
	// Succeeded means that the tool gave a result.
	Succeeded Outcome = "Succeeded"
	// Failed means that the tool was called and gave none.
	Failed Outcome = "Failed"
	// Refused means that the tool was not called.
	Refused Outcome = "Refused"
	// Reused means that the same read-only call had succeeded before, and its result is given again.
	Reused Outcome = "Reused"
	// Unknown means that nobody knows whether the call was done, and it must not be done twice.
	Unknown Outcome = "Unknown"
)

// Finish is the end of a call, as the journal keeps it.
type Finish struct {
	Step    int     `json:"step"`
	CallID  string  `json:"callID"`
	Name    string  `json:"name"`
	Outcome Outcome `json:"outcome"`
	// Class of the failure; empty for a success.
	Class tool.Class `json:"class,omitempty"`
	// Content is what the model is told.
	Content string `json:"content"`
	// Bytes of the whole output, and Artifact that has it where Content does not, at most its first 32 MiB.
	Bytes      int64  `json:"bytes,omitempty"`
	Artifact   string `json:"artifact,omitempty"`
	DurationMS int64  `json:"durationMilliseconds,omitempty"`
	// ArtifactName is the name by which read_artifact knows Artifact.
	ArtifactName string `json:"artifactName,omitempty"`
	// EndsTurn is true for a success that ends the Turn, and Text is what the tool gave then, without a fence, at most its first
	// MiB: the answer.
	EndsTurn bool   `json:"endsTurn,omitempty"`
	Text     string `json:"text,omitempty"`
	// Spent is what a sub-agent took.
	Spent *tool.Spent `json:"spent,omitempty"`
	// Descendants is how many Turns a call of a sub-agent has created or may still create, its own included. If it is nil, all
	// that the call reserved count.
	Descendants *int `json:"descendants,omitempty"`
	// Stack is where the adapter panicked, if it did.
	Stack string `json:"stack,omitempty"`
}

// State is what the journal of a Turn says of its loop: a fold over its entries. What it holds has happened and is never
// done again. The zero State is that of a Turn that has just begun.
type State struct {
	// Requests that were sent or were about to be, and Attempts, those of them that failed.
	Requests []Request
	Attempts []Attempt
	// Steps are the replies.
	Steps []Step
	// Asides are replies that are no steps: summaries, and checks of drafts.
	Asides []Step
	// Intents and Finishes of calls.
	Intents  []Intent
	Finishes []Finish
	// Repairs of calls' arguments, and Approvals that were asked for.
	Repairs   []Repair
	Approvals []Approval
	// Compactions, Rejections of answers, Reflections on drafts, and the Warning of a long conversation; nil for none.
	Compactions []Compaction
	Rejections  []Rejection
	Reflections []Reflection
	Warning     *Warning
	// cutOff are the requests without an end: no reply and no failure follows before the next request. open says whether the
	// last of them is the newest request of all, whose end may follow.
	cutOff []Request
	open   bool
	// intents and finishes are their places by call: the newest intent, and the first end.
	intents, finishes map[called]int
	// same are the calls that were made, by their tools and arguments, in the order of their first intents.
	same map[signature][]called
	// changed is the place of the newest intent of a call that may have changed something, from 1; 0 if there is none.
	changed int
	// Distrusted are the names of tools whose effects an older version took from their servers' hints. Their intents count as
	// Destructive, whatever the journal says.
	Distrusted []string
	// repairs and approvals are their places by call: all repairs, and the newest request for approval.
	repairs   map[called][]int
	approvals map[called]int
	// begun are the UIDs of the Turns that calls of sub-agents have begun.
	begun map[called]string
	// decisions about the newest requests, by call: of each the first counts.
	decisions map[called]Decision
	// rejections by step.
	rejections map[int]*Rejection
}

// called names a call.
type called struct {
	step   int
	callID string
}

// Apply takes an entry in. Those of other parts of the engine change nothing.
func (s *State) Apply(e journal.Entry) error {
	switch e.Kind { //nolint:exhaustive // because the others are not the loop's
	case journal.ModelRequested:
		return s.requested(e)
	case journal.ModelFailed:
		s.answered()
		return add(&s.Attempts, e)
	case journal.ModelReplied:
		s.answered()
		return s.replied(e)
	case journal.ToolIntended:
		return s.intended(e)
	case journal.ToolFinished:
		return s.finished(e)
	case journal.ToolRepaired:
		return s.repaired(e)
	case journal.ApprovalRequested:
		return s.awaited(e)
	case journal.ApprovalDecided:
		return s.decided(e)
	case journal.OutputRejected:
		return s.rejected(e)
	case journal.Compacted:
		return add(&s.Compactions, e)
	case journal.Reflected:
		return add(&s.Reflections, e)
	case journal.RunParked:
		return s.parked(e)
	case journal.ContextWarned:
		s.Warning = &Warning{}
		return json.Unmarshal(e.Payload, s.Warning)
	}
	return nil
}

// replied takes a reply in: a step, or one beside the steps.
func (s *State) replied(e journal.Entry) error {
	var step Step
	if err := json.Unmarshal(e.Payload, &step); err != nil {
		return err
	}
	if step.aside() {
		s.Asides = append(s.Asides, step)
		return nil
	}
	s.Steps = append(s.Steps, step)
	return nil
}

// parked takes in which Turns the calls of sub-agents have begun that are waited for.
func (s *State) parked(e journal.Entry) error {
	var p struct {
		Begun []Begun `json:"begun"`
	}
	if err := json.Unmarshal(e.Payload, &p); err != nil {
		return err
	}
	for _, b := range p.Begun {
		if s.begun == nil {
			s.begun = map[called]string{}
		}
		s.begun[called{b.Step, b.CallID}] = b.TurnUID
	}
	return nil
}

// TurnUID returns the UID of the Turn that a call of a sub-agent has begun; empty where that is not known.
func (s *State) TurnUID(step int, callID string) string { return s.begun[called{step, callID}] }

func (s *State) decided(e journal.Entry) error {
	var d Decision
	if err := json.Unmarshal(e.Payload, &d); err != nil {
		return err
	}
	if s.decisions == nil {
		s.decisions = map[called]Decision{}
	}
	of := called{d.Step, d.CallID}
	if a := s.approval(d.Step, d.CallID); a != nil && a.Request != d.Request {
		return nil // it is about another request
	}
	if s.decisions[of] == (Decision{}) {
		s.decisions[of] = d
	}
	return nil
}

func (s *State) rejected(e journal.Entry) error {
	if err := add(&s.Rejections, e); err != nil {
		return err
	}
	if s.rejections == nil {
		s.rejections = map[int]*Rejection{}
	}
	r := s.Rejections[len(s.Rejections)-1]
	s.rejections[r.Step] = &r
	return nil
}

// Decision returns what was decided about a call; ok is false while nothing was.
func (s *State) Decision(step int, callID string) (d Decision, ok bool) {
	d, ok = s.decisions[called{step, callID}]
	return d, ok
}

func (s *State) requested(e journal.Entry) error {
	if err := add(&s.Requests, e); err != nil {
		return err
	}
	newest := &s.Requests[len(s.Requests)-1]
	if newest.Step == 0 { // an old journal does not say: it is for the reply that follows
		newest.Step = len(s.Steps) + 1
	}
	s.cutOff, s.open = append(s.cutOff, *newest), true
	return nil
}

// answered says that the newest request has an end.
func (s *State) answered() {
	if s.open {
		s.cutOff, s.open = s.cutOff[:len(s.cutOff)-1], false
	}
}

func (s *State) intended(e journal.Entry) error {
	if err := add(&s.Intents, e); err != nil {
		return err
	}
	if s.intents == nil {
		s.intents = map[called]int{}
	}
	last := len(s.Intents) - 1
	if slices.Contains(s.Distrusted, s.Intents[last].Name) {
		s.Intents[last].Effect = tool.Destructive
	}
	i := s.Intents[last]
	of := called{i.Step, i.CallID}
	_, before := s.intents[of]
	s.intents[of] = last
	if i.Effect != tool.ReadOnly {
		s.changed = last + 1
	}
	if before {
		return nil
	}
	if s.same == nil {
		s.same = map[signature][]called{}
	}
	signature := sign(i.Name, i.Arguments)
	s.same[signature] = append(s.same[signature], of)
	return nil
}

func (s *State) finished(e journal.Entry) error {
	if err := add(&s.Finishes, e); err != nil {
		return err
	}
	if s.finishes == nil {
		s.finishes = map[called]int{}
	}
	last := len(s.Finishes) - 1
	of := called{s.Finishes[last].Step, s.Finishes[last].CallID}
	if _, ok := s.finishes[of]; !ok {
		s.finishes[of] = last
	}
	return nil
}

func add[T any](all *[]T, e journal.Entry) error {
	var v T
	if err := json.Unmarshal(e.Payload, &v); err != nil {
		return err
	}
	*all = append(*all, v)
	return nil
}

// Messages are what was said since the prompt: each reply with the tools it asked for and what became of them. Calls that
// have not ended are left out, as no endpoint accepts one without an answer, and so is a reply that says nothing beside them.
// Those of a last reply, and those that the budget did not allow, never end.
func (s *State) Messages() []model.Message { return s.MessagesFrom(1) }

// MessagesFrom are those of a step and of later ones.
func (s *State) MessagesFrom(first int) []model.Message {
	return s.between(first, len(s.Steps)+1)
}

// LastStep is the newest reply; nil if there is none.
func (s *State) LastStep() *Step {
	if len(s.Steps) == 0 {
		return nil
	}
	return &s.Steps[len(s.Steps)-1]
}

// Spending is what one request used, and what that cost; Cost is nil where the model had no price.
type Spending struct {
	Provider, Model string
	Usage           model.Usage
	Cost            *model.Cost
}

// Spendings yields the spending of each request. A request that was cut off counts by the estimate of its prompt: the endpoint may
// have billed it, whether or not a reply came back, and a run that is cut off again and again would spend without bound.
func (s *State) Spendings(yield func(Spending) bool) {
	for _, a := range s.Attempts {
		if !yield(Spending{a.Provider, a.Model, a.Usage, a.Cost}) {
			return
		}
	}
	for _, steps := range [][]Step{s.Steps, s.Asides} {
		for i := range steps {
			step := &steps[i]
			if !yield(Spending{step.Provider, step.Model, step.Reply.Usage, step.Cost}) {
				return
			}
		}
	}
	for _, r := range s.cutOff {
		estimate := model.Usage{InputTokens: r.EstimatedTokens, Estimated: r.EstimatedTokens > 0}
		if !yield(Spending{r.Provider, r.Model, estimate, r.EstimatedCost}) {
			return
		}
	}
}

// sent counts the requests to a candidate for a step and a purpose that earlier runs have sent, and those of them that were
// cut off.
func (s *State) sent(step int, purpose Purpose, c *Candidate) (all, cutOff int) {
	count := func(requests []Request) int {
		n := 0
		for _, r := range requests {
			if r.Step == step && r.Purpose == purpose && r.Provider == c.ProviderName && r.Model == c.Model {
				n++
			}
		}
		return n
	}
	return count(s.Requests), count(s.cutOff)
}
