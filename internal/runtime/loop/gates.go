package loop

import (
	"context"
	"encoding/json"
	"fmt"
	"strings"
	"time"

	"github.com/capstan-dev/capstan/internal/runtime/canonical"
	"github.com/capstan-dev/capstan/internal/runtime/model"
	"github.com/capstan-dev/capstan/internal/runtime/tool"
	"github.com/capstan-dev/capstan/internal/runtime/untrusted"
)

// gates are the checks that a call must pass before it is made, in this order. The first gate that does not allow
// the call decides.
var gates = []gate{knownTool, permitted, notBlocked, withinBudget, validArguments, notRepeated, approved}

// gate checks one condition of a call. It reads the view and changes nothing.
type gate func(view) verdict

// view is the information that gates have about a call and its Turn.
type view struct {
	ctx  context.Context //nolint:containedctx // because it identifies the namespace for fairgate
	step int
	call model.ToolCall
	// tool is the tool with the called name, or nil if there is none. In that case, tools lists the tools that the
	// prompt offered.
	tools []tool.Tool
	tool  *tool.Tool
	// state, limits and policy are those of the Turn.
	state  *State
	limits Limits
	policy Policy
	// own is the call if Capstan makes it without a model's request, and nil otherwise.
	own *OwnCall
	// callsMade counts the calls of all tools, and callsOfTool those of this tool, including calls that are about to be
	// made.
	callsMade, callsOfTool int
	// descendants is the number of Turns that sub-agents may still create.
	descendants int
	// left is the time until the deadline of the Turn, or nil if the Turn has no deadline.
	left *time.Duration
	// alreadyBegun is true for a call that an earlier run made before it was cut off or parked. Such a call is already
	// counted.
	alreadyBegun bool
	// arguments are the arguments that validArguments returned. They are nil before that gate.
	arguments json.RawMessage
}

// ruling says how to continue with a call.
type ruling int

const (
	// allowed calls go to the next gate. They are made after the last gate.
	allowed ruling = iota
	// refused calls are not made. The model receives the reason and what to do instead.
	refused
	// answered calls are not made, because their result is known.
	answered
	// waiting calls are made after a person has approved them.
	waiting
)

// verdict is the result of a gate.
type verdict struct {
	ruling ruling
	// class is the class of a refusal. message is one line that tells the model what to do instead.
	class   tool.Class
	message string
	// known is the result of an earlier identical call. It answers this call.
	known *CallResult
	// arguments are the arguments that the gate allowed, and repairs the repairs that the gate made. Both are nil if
	// the gate did not check the arguments.
	arguments json.RawMessage
	repairs   []Repair
}

// checkGates passes a call through all gates.
func checkGates(v view) verdict {
	var repairs []Repair
	all := gates
	if v.own != nil {
		all = ownGates
	}
	for _, check := range all {
		got := check(v)
		repairs = append(repairs, got.repairs...)
		if got.arguments != nil {
			v.arguments = got.arguments
		}
		if got.ruling != allowed {
			got.arguments, got.repairs = v.arguments, repairs
			return got
		}
	}
	return verdict{arguments: v.arguments, repairs: repairs}
}

func refuse(class tool.Class, format string, args ...any) verdict {
	return verdict{ruling: refused, class: class, message: fmt.Sprintf(format, args...)}
}

// knownTool is gate 1: the name is exactly the name of a tool of this Turn.
func knownTool(v view) verdict {
	if v.tool != nil {
		return verdict{}
	}
	return refuse(tool.Unavailable, "there is no tool %q: %s", quotableName(v.call.Name), listTools(v.tools))
}

// quotableName returns a name that the model made up in a form that is safe to repeat: on one line and short.
func quotableName(text string) string {
	kept, out := untrusted.Cap(text, maxNameChars)
	if kept = untrusted.NeutralLine(kept, ""); out > 0 {
		kept += "..."
	}
	return kept
}

const (
	// maxNameChars bounds the part of an unknown name that a message repeats, in characters.
	maxNameChars = 64
	// maxNames is the number of tools that a message lists.
	maxNames = 25
)

func listTools(tools []tool.Tool) string {
	if len(tools) == 0 {
		return "no tools are available, so answer without tools"
	}
	var all []string
	for _, t := range tools[:min(maxNames, len(tools))] {
		all = append(all, t.Name)
	}
	if more := len(tools) - maxNames; more > 0 {
		return fmt.Sprintf("use one of %s, or one of %d other tools", strings.Join(all, ", "), more)
	}
	return "use one of " + strings.Join(all, ", ")
}

// permitted is gate 2: the policy of the Turn allows the tool. A call that has already begun was allowed before.
func permitted(v view) verdict {
	switch {
	case v.alreadyBegun:
	case v.policy.NoWeb && v.tool.Role == tool.WebSearch:
		return refuse(tool.Denied, "this turn must not use the web (its webMode is Off): use another tool, or answer from "+
			"the information you have")
	case v.policy.ReadOnly && effectOf(v.tool) != tool.ReadOnly:
		return refuse(tool.Denied, "this turn may call only read-only tools, and %q is not read-only: use a read-only tool, "+
			"or say what you would do", v.tool.Name)
	}
	return verdict{}
}

// notBlocked is gate 3: the tool is not blocked for the rest of the Turn. Two events block a tool: a failure that every
// further call of the tool would repeat, and a denied approval. An approval that expires counts as denied.
//
// A denial does not affect calls that have their own request for approval. Calls that have already begun pass,
// because the model must not read that such a call was never made.
func notBlocked(v view) verdict {
	if v.alreadyBegun {
		return verdict{}
	}
	for i := range v.state.CallResults {
		if f := &v.state.CallResults[i]; f.Name == v.tool.Name && f.Outcome == Failed && f.Class.Blocks() {
			return refuse(tool.Denied, "%q is blocked for the rest of the turn, because it has denied a call: use "+
				"another tool, or answer without it", v.tool.Name)
		}
	}
	if v.state.approval(v.step, v.call.ID) != nil {
		return verdict{}
	}
	for _, a := range v.state.Approvals {
		if d, ok := v.state.Decision(a.Step, a.CallID); ok && !d.Approved && a.Name == v.tool.Name {
			return refuse(tool.Denied, "%q is blocked for the rest of the turn, because a call of it was not "+
				"approved: use another tool, or answer without it", v.tool.Name)
		}
	}
	return verdict{}
}

// leastTime is the minimum time that must be left before the deadline of the Turn when a call begins.
const leastTime = time.Second

// withinBudget is gate 4: calls and time are left. The budgets of tokens and cost end the whole Turn, so no gate
// checks them.
func withinBudget(v view) verdict {
	switch {
	case v.alreadyBegun:
	case v.callsMade >= v.limits.MaxToolCalls:
		return refuse(tool.Denied, "the turn has used all of its %d tool calls: answer from the information you have",
			v.limits.MaxToolCalls)
	case v.tool.MaxCalls > 0 && v.callsOfTool >= v.tool.MaxCalls:
		return refuse(tool.Denied, "the turn has used all of its %d calls of %q: use another tool, or answer from the "+
			"information you have", v.tool.MaxCalls, v.tool.Name)
	case isSubAgent(v.tool) && v.descendants < 1:
		return refuse(tool.Denied, "no more sub-agents can be called in this turn (limits.maxDescendants is %d): do the task "+
			"without a sub-agent, or answer from the information you have", v.limits.MaxDescendants)
	case v.left != nil && *v.left < leastTime:
		return refuse(tool.Denied, "the turn has almost no time left: answer from the information you have")
	}
	return verdict{}
}

// notRepeated is gate 6: no identical call in this Turn has an unknown outcome, and the newest identical call has not
// failed. If that call is read-only and succeeded, its result answers this call, unless output policies have refused
// the result as the answer. The result of a read-only call no longer counts once a later call may have changed
// something. The class of a refusal is not Denied, because a model would read Denied as a ban on the tool.
func notRepeated(v view) verdict {
	if v.alreadyBegun {
		return verdict{}
	}
	same := signatureOf(v.tool.Name, v.arguments)
	if v.state.hasUnknownOutcome(same) {
		return refuse(tool.OutcomeUnknown, "the call was not made, because the outcome of an identical call in this turn is unknown: "+
			"check whether that call took effect, or tell the user")
	}
	before, intent := v.state.newestResult(same)
	reads := effectOf(v.tool) == tool.ReadOnly
	switch {
	case before == nil || reads && v.state.lastChange > intent:
	case before.Outcome == Failed:
		return refuse(tool.Failed, "an identical call has failed before in this turn: change the arguments, use another tool, "+
			"or answer without it")
	case before.Outcome == Succeeded && reads && v.state.isRefusedResult(before):
		return refuse(tool.Failed, "the result of an identical call in this turn was not accepted as the answer: answer without it")
	case before.Outcome == Succeeded && reads:
		return verdict{ruling: answered, known: before}
	}
	return verdict{}
}

// approved is gate 7: if the call requires approval, a person has approved exactly this tool with these arguments.
func approved(v view) verdict {
	if !v.tool.RequiresApproval {
		return verdict{}
	}
	asked := v.state.approval(v.step, v.call.ID)
	decision, decided := v.state.Decision(v.step, v.call.ID)
	switch {
	case !model.ValidCallID(v.call.ID): // from a journal of an older version: no status can show this ID
		return refuse(tool.Denied, "the ID of this call is invalid, so its approval cannot be requested: make the call again")
	case asked == nil, asked.Request == "" && !v.alreadyBegun: // the request of an older version does not name the tool
		return verdict{ruling: waiting}
	case !asked.shows(v.tool, v.arguments):
		return refuse(tool.Denied, "the tool or the arguments have changed since approval was requested: answer without this call")
	case !decided:
		return verdict{ruling: waiting}
	case decision.Expired:
		return refuse(tool.Denied, "this call was not approved in time: continue without it, and say so")
	case !decision.Approved:
		return refuse(tool.Denied, "%s has denied this call%s: continue without it, and do not request it again",
			personName(decision.By), reasonSuffix(decision.Reason))
	}
	return verdict{}
}

// hashOf returns the SHA-256 of arguments in their canonical form, in hexadecimal.
func hashOf(arguments json.RawMessage) string {
	data, err := canonical.JSON(arguments)
	if err != nil {
		data = arguments
	}
	return canonical.Sum(data)
}
