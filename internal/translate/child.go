package translate

import (
	"bytes"
	"cmp"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"
	"unicode/utf8"

	"github.com/shopspring/decimal"
	"k8s.io/apimachinery/pkg/api/equality"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/capstan-dev/capstan/api/v1alpha1"
	"github.com/capstan-dev/capstan/internal/runtime/model"
	"github.com/capstan-dev/capstan/internal/runtime/tool"
)

// The bounds of a child. The schema of Turns sets all of them except maxChildName.
const (
	maxMessageChars   = 32768
	maxTimeoutSeconds = 86_400
	maxTurnTokens     = 1_000_000_000
	maxChildName      = 63
)

// ParentLabel is a label on the Turn of a sub-agent. Its value is the name of the Turn that called the sub-agent,
// shortened to the length that a label may have.
const ParentLabel = "capstan.dev/parent"

// CancelPatch returns a merge patch that cancels the Turn with this UID. For another Turn with the same name, the API
// server refuses the patch with an error for which IsOtherObject is true.
func CancelPatch(uid types.UID) []byte {
	return fmt.Appendf(nil, `{"metadata":{"uid":%q},"spec":{"desiredState":%q}}`, uid, v1alpha1.DesiredStateCancelled)
}

// IsOtherObject reports whether the API server has refused a patch with a UID because the object now has another UID.
// It then reports a change of an immutable field. A conflict is another error: the object was changed at the same time,
// and the caller must send the patch again.
func IsOtherObject(err error) bool {
	status, ok := errors.AsType[*apierrors.StatusError](err)
	if !ok || status.ErrStatus.Details == nil {
		return false
	}
	return slices.ContainsFunc(status.ErrStatus.Details.Causes, func(c metav1.StatusCause) bool { return c.Field == "metadata.uid" })
}

// ChildCall is a call of a sub-agent.
type ChildCall struct {
	// Parent is the Turn that makes the call, and Caller is its Agent.
	Parent *v1alpha1.Turn
	Caller *v1alpha1.Agent
	// Agent is the name of the called Agent. It may be NAMESPACE/NAME.
	Agent string
	// Step is the step of the call, and CallID is the call's ID within the Turn.
	Step   int
	CallID string
	// Task and Context are the model's texts for the sub-agent.
	Task, Context string
	// Left is what is left of the parent's limits.
	Left tool.Left
	// Descendants is the number of Turns that the call may create, including the child. It is 0 for a call that an
	// older version began, which did not record this number.
	Descendants int
}

// ChildOf returns the Turn for a call of an Agent by a parent. The error is a *tool.Error that says how to correct the
// arguments. An unknown argument, such as dry_run, is an error: the sub-agent would not receive it, and might do more
// than the caller asked for.
func ChildOf(parent *v1alpha1.Turn, caller *v1alpha1.Agent, agent string, c tool.Call) (*v1alpha1.Turn, error) {
	var arguments struct {
		Task    string `json:"task"`
		Context string `json:"context"`
	}
	d := json.NewDecoder(bytes.NewReader(c.Arguments))
	if c.Attempt <= 1 { // an earlier version may have begun a repeated call, so its Turn may exist already
		d.DisallowUnknownFields()
	}
	if err := d.Decode(&arguments); err != nil {
		return nil, &tool.Error{
			Class: tool.InvalidArguments, Message: `the arguments must be {"task": "...", "context": "..."}; ` +
				`context is optional`, Err: err,
		}
	}
	return Child(ChildCall{
		Parent: parent, Caller: caller, Agent: agent, Step: c.Step, CallID: c.CallID, Task: arguments.Task,
		Context: arguments.Context, Left: c.Left, Descendants: c.Descendants,
	})
}

// ChildResult returns the result of a call whose child has ended; answer is the child's whole answer. The result
// counts what the child used, even if the child failed. If the child did not succeed, the error is a *tool.Error.
func ChildResult(child *v1alpha1.Turn, answer string) (tool.Result, error) {
	spent, created := SubAgentUsage(child), Descendants(child)
	end := meta.FindStatusCondition(child.Status.Conditions, v1alpha1.ConditionSucceeded)
	if end.Status == metav1.ConditionTrue {
		return tool.Result{Content: answer, Spent: spent, Descendants: created}, nil
	}
	message := end.Message
	if answer != "" {
		message += "\nIts answer so far:\n" + answer
	}
	return tool.Result{Spent: spent, Descendants: created},
		&tool.Error{Class: tool.Failed, Message: fmt.Sprintf("the sub-agent did not succeed (%s)", end.Reason), RemoteMessage: message}
}

// Descendants returns the number of Turns that the call of a child has created: the child and the Turns below it. The
// child must have ended. Descendants returns nil if the number is unknown because the child's journal was not read.
func Descendants(child *v1alpha1.Turn) *int {
	recorded := meta.FindStatusCondition(child.Status.Conditions, v1alpha1.ConditionFinalized) != nil &&
		child.Status.StopReason != v1alpha1.StopInterrupted
	if !recorded && child.Epoch() > 0 {
		return nil
	}
	return new(1 + int(child.Status.Descendants))
}

// Child returns the Turn for a call of a sub-agent. The same call always has the same name, so a repeated call
// finds its Turn. The error is a *tool.Error that says how to correct the arguments.
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
	called := v1alpha1.ParseSharedReference(c.Agent)
	if called.Namespace == p.Namespace {
		called.Namespace = "" // so the Turn of a call has the same spec, whether or not the caller names the namespace
	}
	depth := int32(1)
	if p.Spec.Depth != nil {
		depth += *p.Spec.Depth
	}
	child := &v1alpha1.Turn{
		ObjectMeta: metav1.ObjectMeta{
			Namespace: p.Namespace, Name: ChildName(p, c.Step, c.CallID), Labels: map[string]string{ParentLabel: ParentLabelOf(p.Name)},
			OwnerReferences: []metav1.OwnerReference{{
				APIVersion: v1alpha1.GroupVersion.String(), Kind: "Turn", Name: p.Name, UID: p.UID, Controller: new(true),
				BlockOwnerDeletion: new(false),
			}},
		},
		Spec: v1alpha1.TurnSpec{
			AgentRef: called, RequestedBy: p.Spec.RequestedBy.DeepCopy(), Message: message,
			Depth: &depth, WebMode: p.Spec.WebMode,
			Limits: childLimits(c.Left, v1alpha1.Timeout(limits...)), OnJournalLoss: p.Spec.OnJournalLoss,
		},
	}
	//nolint:gosec // because it is at most 8
	child.Spec.Limits.MaxDepth = new(int32(v1alpha1.MaxDepth(limits...)))
	//nolint:gosec // because the value was an int32 before
	child.Spec.Limits.ApprovalTimeoutSeconds = new(int32(v1alpha1.ApprovalTimeout(limits...) / time.Second))
	if c.Descendants > 0 {
		child.Spec.Limits.MaxDescendants = new(toInt32(c.Descendants - 1))
	}
	if err := child.Spec.CheckSize(); err != nil {
		return nil, &tool.Error{
			Class: tool.InvalidArguments, Err: err,
			Message: "task and context together are too long as JSON, where a character takes up to 6 bytes: shorten them",
		}
	}
	return child, nil
}

// checkMessage returns an error for the model if the schema of Turns would reject the message.
func checkMessage(task, message string) error {
	switch {
	case strings.TrimSpace(task) == "":
		return &tool.Error{Class: tool.InvalidArguments, Message: "task must not be blank: describe the task"}
	case strings.ContainsRune(message, 0):
		return &tool.Error{Class: tool.InvalidArguments, Message: "task and context must not contain the character U+0000"}
	case utf8.RuneCountInString(message) > maxMessageChars:
		return &tool.Error{
			Class:   tool.InvalidArguments,
			Message: fmt.Sprintf("task and context together must have at most %d characters: shorten them", maxMessageChars-16),
		}
	}
	return nil
}

// maxReportTime is the longest time that a parent keeps for itself, to continue after a child has used up its time.
const maxReportTime = 30 * time.Second

// childLimits returns the limits of a child: what is left of the parent's limits. The child may not wait longer for its
// start than this time, either, and both limits count from the beginning of that wait (see turnstatus.TimeLeft),
// because the parent's time runs meanwhile. The parent keeps a tenth of the time, at most maxReportTime, because it
// must still continue and ask its model. maxTime limits the time: if clocks differ, the parent may seem to have more
// time left than its limit.
func childLimits(left tool.Left, maxTime time.Duration) *v1alpha1.Limits {
	available := min(left.Time, maxTime)
	available -= min(available/10, maxReportTime)
	seconds := int32(min(max(1, int64(available/time.Second)), maxTimeoutSeconds))
	out := &v1alpha1.Limits{TimeoutSeconds: &seconds, StartingDeadlineSeconds: &seconds}
	if left.Tokens != nil {
		out.MaxTokens = new(min(max(1, *left.Tokens), maxTurnTokens))
	}
	if left.Cost != nil {
		highest := decimal.New(1, 12).Sub(leastCost)
		out.MaxCost = new(decimal.Min(highest, decimal.Max(leastCost, left.Cost.Truncate(10))).String())
	}
	return out
}

// ChildName returns the name of the Turn of a call: the parent's name, for people, and a hash that is unique to the
// call.
func ChildName(p *v1alpha1.Turn, step int, callID string) string {
	return shortenTo(p.Name, fmt.Sprintf("%s/%d/%s", p.UID, step, callID), true)
}

// ParentLabelOf returns the value of ParentLabel for a caller with this name.
func ParentLabelOf(name string) string { return shortenTo(name, name, false) }

// shortenTo returns a name of at most maxChildName characters. If the name is longer than that, or if always is true,
// the result ends with a hash of identity.
func shortenTo(name, identity string, always bool) string {
	if !always && len(name) <= maxChildName {
		return name
	}
	sum := sha256.Sum256([]byte(identity))
	hash := hex.EncodeToString(sum[:])[:16]
	return strings.TrimRight(name[:min(len(name), maxChildName-1-len(hash))], ".-") + "-" + hash
}

// SameChild reports whether t is the Turn that a call of parent has created, if its UID is unknown. wanted is the Turn
// that the same call would create now. All fields that Child writes are compared, with one exception: what was left of
// the parent's limits at that time is not known anymore, so the limits of t must only be within the parent's own
// limits. MaxDescendants must be equal, because the call has reserved that number.
func SameChild(t, wanted, parent *v1alpha1.Turn) bool {
	owner, wantedOwner := metav1.GetControllerOf(t), metav1.GetControllerOf(wanted)
	if owner == nil || wantedOwner == nil || owner.UID != wantedOwner.UID || !isChildLimits(t.Spec.Limits, parent.Spec.Limits) ||
		!equality.Semantic.DeepEqual(t.Spec.Limits.MaxDescendants, wanted.Spec.Limits.MaxDescendants) {
		return false
	}
	return equality.Semantic.DeepEqual(repeatableSpec(t), repeatableSpec(wanted))
}

// repeatableSpec returns the part of a spec that is the same each time a call is made, with the defaults of the API
// server. It leaves out the fields that people may change on any Turn: desiredState and ttlSecondsAfterFinished.
func repeatableSpec(t *v1alpha1.Turn) v1alpha1.TurnSpec {
	s := t.Spec
	s.Limits, s.DesiredState, s.TTLSecondsAfterFinished = nil, "", nil
	s.Execution, s.Citations = cmp.Or(s.Execution, v1alpha1.ExecutionRun), cmp.Or(s.Citations, v1alpha1.CitationsShow)
	s.OnJournalLoss = cmp.Or(s.OnJournalLoss, v1alpha1.JournalLossInterrupt)
	return s
}

// isChildLimits reports whether Child may have written these limits: exactly its fields are set, and none exceeds
// the parent's own limit. The limits of the Agents do not count, because they may have changed since.
func isChildLimits(l, parent *v1alpha1.Limits) bool {
	if l == nil || l.TimeoutSeconds == nil || l.StartingDeadlineSeconds == nil || *l.TimeoutSeconds != *l.StartingDeadlineSeconds ||
		l.MaxDepth == nil || l.ApprovalTimeoutSeconds == nil || l.MaxSteps != nil || l.MaxToolCalls != nil {
		return false
	}
	if parent == nil {
		return true
	}
	return isWithin(l.TimeoutSeconds, parent.TimeoutSeconds) && isWithin(l.MaxTokens, parent.MaxTokens) &&
		isWithin(l.MaxDepth, parent.MaxDepth) &&
		isWithin(l.ApprovalTimeoutSeconds, parent.ApprovalTimeoutSeconds) && isWithin(costOf(l), costOf(parent))
}

// isWithin reports whether a limit does not exceed another limit. If highest is nil, there is no other limit.
func isWithin[T int32 | int64 | float64](n, highest *T) bool {
	return highest == nil || n != nil && *n <= *highest
}

// costOf returns the limit on the cost, precise enough for comparisons, or nil if there is none.
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

// Caller returns the reference to the Turn whose call of a sub-agent has created t. ok is false if t is not the Turn of
// a sub-agent. Without the label, another client has created t, and may set owner references for other reasons.
func Caller(t *v1alpha1.Turn) (caller *metav1.OwnerReference, ok bool) {
	if _, called := t.Labels[ParentLabel]; !called {
		return nil, false
	}
	return Parent(t)
}

// Parent returns the reference to the Turn that controls t. ok is false if no Turn does.
func Parent(t *v1alpha1.Turn) (owner *metav1.OwnerReference, ok bool) {
	owner = metav1.GetControllerOf(t)
	if owner == nil || owner.Kind != "Turn" || !strings.HasPrefix(owner.APIVersion, v1alpha1.GroupVersion.Group+"/") {
		return nil, false
	}
	return owner, true
}

// SubAgentUsage returns the usage of a Turn that has ended, including that of its sub-agents. If a part of the cost is
// unknown or in another currency, Cost is nil, and Known is the sum of the known parts.
func SubAgentUsage(t *v1alpha1.Turn) *tool.Spent {
	out := &tool.Spent{Turn: t.Name}
	complete, known := true, decimal.Zero
	for _, u := range []*v1alpha1.Usage{t.Status.Usage, t.Status.SubAgentUsage} {
		if u == nil || u.TotalTokens == 0 { // nothing was used, so nothing is unknown
			continue
		}
		out.Usage = out.Usage.Add(model.Usage{
			InputTokens: u.InputTokens, OutputTokens: u.OutputTokens, ReasoningTokens: u.ReasoningTokens,
			CacheReadTokens: u.CacheReadTokens, CacheCreationTokens: u.CacheCreationTokens,
			Estimated: u.Estimated,
		})
		out.Cost, complete = addCost(out.Cost, u.Cost, complete)
		amount := u.KnownCost
		if u.Cost != nil {
			amount = u.Cost.Amount
		}
		if one, err := decimal.NewFromString(amount); err == nil {
			known = known.Add(one)
		}
	}
	if !complete {
		out.Cost = nil
		if known.IsPositive() {
			out.Known = &known
		}
	}
	return out
}

// addCost adds a cost to a sum. It returns the sum, and false if complete is false or if c is nil, cannot be parsed or
// has another currency.
func addCost(sum *model.Cost, c *v1alpha1.Cost, complete bool) (*model.Cost, bool) {
	if c == nil {
		return sum, false
	}
	amount, err := decimal.NewFromString(c.Amount)
	switch {
	case err != nil, sum != nil && sum.Currency != c.Currency:
		return sum, false
	case sum == nil:
		return &model.Cost{Amount: amount, Currency: c.Currency}, complete
	}
	return &model.Cost{Amount: sum.Amount.Add(amount), Currency: c.Currency}, complete
}
