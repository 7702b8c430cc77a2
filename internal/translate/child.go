package translate

import (
	"bytes"
	"cmp"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"strings"
	"time"
	"unicode/utf8"

	"github.com/shopspring/decimal"
	"k8s.io/apimachinery/pkg/api/equality"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/capstan-dev/capstan/api/v1alpha1"
	"github.com/capstan-dev/capstan/internal/runtime/model"
	"github.com/capstan-dev/capstan/internal/runtime/tool"
)

// The bounds of a child that the schema of Turns sets.
const (
	maxMessageChars   = 32768
	maxTimeoutSeconds = 86_400
	maxTurnTokens     = 1_000_000_000
	maxChildName      = 63
)

// ParentLabel is on the Turn of a sub-agent: the name of the Turn that has called it, shortened to what a label may have.
const ParentLabel = "capstan.dev/parent"

// ChildCall is a call of a sub-agent.
type ChildCall struct {
	// Parent is the Turn that calls, and Caller its Agent.
	Parent *v1alpha1.Turn
	Caller *v1alpha1.Agent
	// Agent is the name of the Agent that is called.
	Agent string
	// Step of the call, and CallID that the model gave it.
	Step   int
	CallID string
	// Task and Context that the model gives the sub-agent.
	Task, Context string
	// Left is what the parent may still take.
	Left tool.Left
	// Descendants is how many Turns the call may create, the child included; 0 for a call of an older version, which said
	// nothing of it.
	Descendants int
}

// ChildOf returns the Turn that a call of an Agent is, by a parent and its Agent. The error, a *tool.Error, says what is wrong
// with the arguments. Arguments that the sub-agent would not be told, such as a dry run, are an error: without them it would do
// more than it was asked to.
func ChildOf(parent *v1alpha1.Turn, caller *v1alpha1.Agent, agent string, c tool.Call) (*v1alpha1.Turn, error) {
	var arguments struct {
		Task    string `json:"task"`
		Context string `json:"context"`
	}
	d := json.NewDecoder(bytes.NewReader(c.Arguments))
	if c.Attempt <= 1 { // a call that was begun by an earlier version has its Turn already
		d.DisallowUnknownFields()
	}
	if err := d.Decode(&arguments); err != nil {
		return nil, &tool.Error{
			Class: tool.InvalidArguments, Message: `the arguments must be {"task": "...", "context": "..."}, with context left out if there is none`, Err: err,
		}
	}
	return Child(ChildCall{
		Parent: parent, Caller: caller, Agent: agent, Step: c.Step, CallID: c.CallID, Task: arguments.Task, Context: arguments.Context, Left: c.Left, Descendants: c.Descendants,
	})
}

// ChildResult is what the caller of a child that has ended is told, by its whole answer. What it took counts in any case. The
// error, a *tool.Error, is that of a child that did not succeed.
func ChildResult(child *v1alpha1.Turn, answer string) (tool.Result, error) {
	spent, created := Spent(child), Descendants(child)
	end := meta.FindStatusCondition(child.Status.Conditions, v1alpha1.ConditionSucceeded)
	if end.Status == metav1.ConditionTrue {
		return tool.Result{Content: answer, Spent: spent, Descendants: created}, nil
	}
	said := end.Message
	if answer != "" {
		said += "\nIts answer by then:\n" + answer
	}
	return tool.Result{Spent: spent, Descendants: created}, &tool.Error{Class: tool.Failed, Message: fmt.Sprintf("the sub-agent did not succeed (%s)", end.Reason), Said: said}
}

// Descendants returns how many Turns exist because of a child that has ended, itself included; nil if nobody knows, because its
// journal did not say.
func Descendants(child *v1alpha1.Turn) *int {
	recorded := meta.FindStatusCondition(child.Status.Conditions, v1alpha1.ConditionFinalized) != nil && child.Status.StopReason != v1alpha1.StopInterrupted
	if !recorded && child.Epoch() > 0 {
		return nil
	}
	return new(1 + int(child.Status.Descendants))
}

// Child returns the Turn that a call of a sub-agent is. It has the same name when the call is made again. The error, a
// *tool.Error, says what is wrong with the arguments.
func Child(c ChildCall) (*v1alpha1.Turn, error) {
	message := c.Task
	if strings.TrimSpace(c.Context) != "" {
		message += "\n\nContext:\n" + c.Context
	}
	if err := checkMessage(c.Task, message); err != nil {
		return nil, err
	}
	p := c.Parent
	limits := []*v1alpha1.Limits{p.Spec.Limits, c.Caller.Spec.Limits}
	depth := int32(1)
	if p.Spec.Depth != nil {
		depth += *p.Spec.Depth
	}
	child := &v1alpha1.Turn{
		ObjectMeta: metav1.ObjectMeta{
			Namespace: p.Namespace, Name: ChildName(p, c.Step, c.CallID), Labels: map[string]string{ParentLabel: ParentLabelOf(p.Name)},
			OwnerReferences: []metav1.OwnerReference{{
				APIVersion: v1alpha1.GroupVersion.String(), Kind: "Turn", Name: p.Name, UID: p.UID, Controller: new(true), BlockOwnerDeletion: new(false),
			}},
		},
		Spec: v1alpha1.TurnSpec{
			AgentRef: v1alpha1.ObjectReference{Name: c.Agent}, Message: message, Depth: &depth, WebMode: p.Spec.WebMode,
			Limits: childLimits(c.Left, v1alpha1.Timeout(limits...)), OnJournalLoss: p.Spec.OnJournalLoss,
		},
	}
	child.Spec.Limits.MaxDepth = new(int32(v1alpha1.MaxDepth(limits...)))                                    //nolint:gosec // because it is at most 8
	child.Spec.Limits.ApprovalTimeoutSeconds = new(int32(v1alpha1.ApprovalTimeout(limits...) / time.Second)) //nolint:gosec // because it was an int32
	if c.Descendants > 0 {
		child.Spec.Limits.MaxDescendants = new(count(c.Descendants - 1))
	}
	if err := child.Spec.CheckSize(); err != nil {
		return nil, tooLong()
	}
	return child, nil
}

// checkMessage says what the schema of Turns would refuse, in words for the model.
func checkMessage(task, message string) error {
	switch {
	case strings.TrimSpace(task) == "":
		return &tool.Error{Class: tool.InvalidArguments, Message: "task must not be blank: say what is to be done"}
	case strings.ContainsRune(message, 0):
		return &tool.Error{Class: tool.InvalidArguments, Message: "task and context must not hold the character U+0000"}
	case utf8.RuneCountInString(message) > maxMessageChars:
		return tooLong()
	}
	return nil
}

func tooLong() error {
	return &tool.Error{Class: tool.InvalidArguments, Message: fmt.Sprintf("task and context may have %d characters together: shorten them", maxMessageChars-16)}
}

// childLimits are what a Turn has left, as the limits of a child. It can take no more than that, and waits no longer for its
// start. By clocks that differ a Turn may seem to have more time left than it ever had.
func childLimits(left tool.Left, most time.Duration) *v1alpha1.Limits {
	seconds := int32(min(max(1, int64(min(left.Time, most)/time.Second)), maxTimeoutSeconds))
	out := &v1alpha1.Limits{TimeoutSeconds: &seconds, StartingDeadlineSeconds: &seconds}
	if left.Tokens != nil {
		out.MaxTokens = new(min(max(1, *left.Tokens), maxTurnTokens))
	}
	if left.Cost != nil {
		most := decimal.New(1, 12).Sub(leastCost)
		out.MaxCost = new(decimal.Min(most, decimal.Max(leastCost, left.Cost.Truncate(10))).String())
	}
	return out
}

// ChildName names the Turn of a call: after its parent, for people, and by a hash of the call, which no other has.
func ChildName(p *v1alpha1.Turn, step int, callID string) string {
	return shortenTo(p.Name, fmt.Sprintf("%s/%d/%s", p.UID, step, callID), true)
}

// ParentLabelOf returns the value of ParentLabel for a caller of this name.
func ParentLabelOf(name string) string { return shorten(name, name) }

// shorten returns a name that is too long for a label with a hash in place of its end.
func shorten(name, of string) string { return shortenTo(name, of, false) }

func shortenTo(name, of string, always bool) string {
	if !always && len(name) <= maxChildName {
		return name
	}
	sum := sha256.Sum256([]byte(of))
	hash := hex.EncodeToString(sum[:])[:16]
	return strings.TrimRight(name[:min(len(name), maxChildName-1-len(hash))], ".-") + "-" + hash
}

// SameChild says whether a Turn is the one that a call of a parent has made. All that Child writes is compared, but for what
// the parent had left then, which is not known any more: that must be within the limits that the parent itself was given. How many
// Turns the child may create is known: the call has reserved them.
func SameChild(t, wanted, parent *v1alpha1.Turn) bool {
	owner, own := metav1.GetControllerOf(t), metav1.GetControllerOf(wanted)
	if owner == nil || own == nil || owner.UID != own.UID || !isChildLimits(t.Spec.Limits, parent.Spec.Limits) ||
		!equality.Semantic.DeepEqual(t.Spec.Limits.MaxDescendants, wanted.Spec.Limits.MaxDescendants) {
		return false
	}
	return equality.Semantic.DeepEqual(lasting(t), lasting(wanted))
}

// lasting is what is the same however often a call is made, with the defaults that the API server gives. Somebody may suspend
// or cancel any Turn, and say how long it is kept.
func lasting(t *v1alpha1.Turn) v1alpha1.TurnSpec {
	s := t.Spec
	s.Limits, s.DesiredState, s.TTLSecondsAfterFinished = nil, "", nil
	s.Execution, s.Citations = cmp.Or(s.Execution, v1alpha1.ExecutionRun), cmp.Or(s.Citations, v1alpha1.CitationsShow)
	s.OnJournalLoss = cmp.Or(s.OnJournalLoss, v1alpha1.JournalLossInterrupt)
	return s
}

// isChildLimits says whether limits may be those that Child once gave: its fields and no others, none of them more than the
// parent's own. The Agents' may have changed since.
func isChildLimits(l, parent *v1alpha1.Limits) bool {
	if l == nil || l.TimeoutSeconds == nil || l.StartingDeadlineSeconds == nil || *l.TimeoutSeconds != *l.StartingDeadlineSeconds ||
		l.MaxDepth == nil || l.ApprovalTimeoutSeconds == nil || l.MaxSteps != nil || l.MaxToolCalls != nil {
		return false
	}
	if parent == nil {
		return true
	}
	return isWithin(l.TimeoutSeconds, parent.TimeoutSeconds) && isWithin(l.MaxTokens, parent.MaxTokens) && isWithin(l.MaxDepth, parent.MaxDepth) &&
		isWithin(l.ApprovalTimeoutSeconds, parent.ApprovalTimeoutSeconds) && isWithin(costOf(l), costOf(parent))
}

// isWithin says whether a limit is no more than another one, where there is one.
func isWithin[T int32 | int64 | float64](n, most *T) bool {
	return most == nil || n != nil && *n <= *most
}

// costOf is a bound of costs, close enough to be compared.
func costOf(l *v1alpha1.Limits) *float64 {
	if l.MaxCost == nil {
		return nil
	}
	amount, err := decimal.NewFromString(*l.MaxCost)
	if err != nil {
		return nil
	}
	return new(amount.InexactFloat64())
}

// Parent returns the Turn that controls this one; ok is false for a Turn that is no sub-agent's.
func Parent(t *v1alpha1.Turn) (owner *metav1.OwnerReference, ok bool) {
	owner = metav1.GetControllerOf(t)
	if owner == nil || owner.Kind != "Turn" || !strings.HasPrefix(owner.APIVersion, v1alpha1.GroupVersion.Group+"/") {
		return nil, false
	}
	return owner, true
}

// Spent is what a Turn that has ended took, its sub-agents included. The cost is absent where a part of it is unknown, and
// where parts are of several currencies; what is known of it counts all the same.
func Spent(t *v1alpha1.Turn) *tool.Spent {
	out := &tool.Spent{Turn: t.Name}
	whole, known := true, decimal.Zero
	for _, u := range []*v1alpha1.Usage{t.Status.Usage, t.Status.SubAgentUsage} {
		if u == nil {
			continue
		}
		out.Usage = out.Usage.Add(model.Usage{
			InputTokens: u.InputTokens, OutputTokens: u.OutputTokens, ReasoningTokens: u.ReasoningTokens, CacheReadTokens: u.CacheReadTokens,
			Estimated: u.Estimated,
		})
		out.Cost, whole = addCost(out.Cost, u.Cost, whole)
		if u.Cost != nil {
			if amount, err := decimal.NewFromString(u.Cost.Amount); err == nil {
				known = known.Add(amount)
			}
		}
	}
	if !whole {
		out.Cost = nil
		if known.IsPositive() {
			out.Known = &known
		}
	}
	return out
}

// addCost adds a cost to a sum; it is not known any more where that cannot be done.
func addCost(sum *model.Cost, c *v1alpha1.Cost, known bool) (*model.Cost, bool) {
	if c == nil {
		return sum, false
	}
	amount, err := decimal.NewFromString(c.Amount)
	switch {
	case err != nil, sum != nil && sum.Currency != c.Currency:
		return sum, false
	case sum == nil:
		return &model.Cost{Amount: amount, Currency: c.Currency}, known
	}
	return &model.Cost{Amount: sum.Amount.Add(amount), Currency: c.Currency}, known
}
