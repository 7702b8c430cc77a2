package loop

import (
	"encoding/json"
	"fmt"
	"strings"
	"time"

	"github.com/capstan-dev/capstan/internal/runtime/canonical"
	"github.com/capstan-dev/capstan/internal/runtime/fence"
	"github.com/capstan-dev/capstan/internal/runtime/model"
	"github.com/capstan-dev/capstan/internal/runtime/tool"
)

// gates are what a call must pass before it is made, in this order. The first that does not let it pass decides.
var gates = []gate{known, permitted, notBlocked, withinBudget, validArguments, notRepeated, approved}

// gate is one condition of a call. It reads what it is shown and changes nothing.
type gate func(view) verdict

// view is what a gate is shown of a call and of the Turn.
type view struct {
	step int
	call model.ToolCall
	// tool that is called; nil if none has its name, and then tools are those that the model was told of.
	tools []tool.Tool
	tool  *tool.Tool
	// state of the Turn, with its limits and its policy.
	state  *State
	limits Limits
	policy Policy
	// made counts the calls of all tools, and madeOf those of this one, with those that are about to be made.
	made, madeOf int
	// descendants is how many Turns sub-agents may still create.
	descendants int
	// left is the time until the deadline of the Turn; nil if it has none.
	left *time.Duration
	// again is true for a call that was made before, by a run that was cut off or has waited for it: it is counted already.
	again bool
	// arguments as they are to be used: those of the model, until a gate has passed others.
	arguments json.RawMessage
}

// ruling is what becomes of a call.
type ruling int

const (
	// allowed calls go on to the next gate, and are made after the last.
	allowed ruling = iota
	// refused calls are not made; the model is told why, and what to do instead.
	refused
	// answered calls are not made, as their result is known.
	answered
	// waiting calls are made when somebody has approved them.
	waiting
)

// verdict is what a gate says of a call.
type verdict struct {
	ruling ruling
	// class of a refusal, and message that says on one line what to do instead.
	class   tool.Class
	message string
	// known is the end of the call that answers this one, too.
	known *Finish
	// arguments that a gate has passed, and how it has repaired them; nil where it did not look at them.
	arguments json.RawMessage
	repairs   []Repair
}

// judge holds a call against all gates.
func judge(v view) verdict {
	var repairs []Repair
	for _, passes := range gates {
		got := passes(v)
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

// known is gate 1: the name is that of a tool of this Turn, to the letter.
func known(v view) verdict {
	if v.tool != nil {
		return verdict{}
	}
	return refuse(tool.Unavailable, "there is no tool %q: %s", name(v.call.Name), others(v.tools))
}

// name is one that a model made up, as it can be told: on one line and not long.
func name(text string) string {
	kept, out := fence.Cap(text, maxNameChars)
	if kept = fence.NeutralLine(kept, ""); out > 0 {
		kept += "..."
	}
	return kept
}

const (
	// maxNameChars is how much of a name that is no tool's is told, in characters.
	maxNameChars = 64
	// maxNames is how many tools are named.
	maxNames = 25
)

func others(tools []tool.Tool) string {
	if len(tools) == 0 {
		return "there is none at all, answer without"
	}
	var all []string
	for _, t := range tools[:min(maxNames, len(tools))] {
		all = append(all, t.Name)
	}
	if more := len(tools) - maxNames; more > 0 {
		return fmt.Sprintf("use one of %s, or of %d more", strings.Join(all, ", "), more)
	}
	return "use one of " + strings.Join(all, ", ")
}

// permitted is gate 2: the policy of the Turn allows the tool. It was allowed to a call that is under way.
func permitted(v view) verdict {
	switch {
	case v.again:
	case v.policy.NoWeb && v.tool.Role == tool.WebSearch:
		return refuse(tool.Denied, "this turn must not use the web (its webMode is Off): use another tool, or answer from what is known")
	case v.policy.ReadOnly && effectOf(v.tool) != tool.ReadOnly:
		return refuse(tool.Denied, "this turn may only read, and %q may change something: use a tool that only reads, or say what you would do", v.tool.Name)
	}
	return verdict{}
}

// notBlocked is gate 3: the tool has not failed in a way that it would fail in again, and nobody has denied a call of it. The
// end of the time for a decision is a denial. A denial does not reach calls that people were asked about themselves,
// nor does anything reach one that is under way: what was called is not told as if it were not.
func notBlocked(v view) verdict {
	if v.again {
		return verdict{}
	}
	for i := range v.state.Finishes {
		if f := &v.state.Finishes[i]; f.Name == v.tool.Name && f.Outcome == Failed && f.Class.Blocks() {
			return refuse(tool.Denied, "%q is blocked for the rest of the turn, as it has denied a call: use another tool, or answer without it", v.tool.Name)
		}
	}
	if v.state.approval(v.step, v.call.ID) != nil {
		return verdict{}
	}
	for _, a := range v.state.Approvals {
		if d, ok := v.state.Decision(a.Step, a.CallID); ok && !d.Approved && a.Name == v.tool.Name {
			return refuse(tool.Denied, "%q is blocked for the rest of the turn, as a call of it was not approved: use another tool, or answer without it", v.tool.Name)
		}
	}
	return verdict{}
}

// leastTime is how much of the Turn's time a call needs at least.
const leastTime = time.Second

// withinBudget is gate 4: there are calls and time left. Tokens and cost end the Turn, which no gate does.
func withinBudget(v view) verdict {
	switch {
	case v.again:
	case v.made >= v.limits.MaxToolCalls:
		return refuse(tool.Denied, "the turn has made all of the %d calls of tools that it may make: answer from what is known", v.limits.MaxToolCalls)
	case v.tool.MaxCalls > 0 && v.madeOf >= v.tool.MaxCalls:
		return refuse(tool.Denied, "the turn has made all of the %d calls of %q that it may make: use another tool, or answer from what is known", v.tool.MaxCalls, v.tool.Name)
	case isSubAgent(v.tool) && v.descendants < 1:
		return refuse(tool.Denied, "all of the %d Turns of sub-agents that limits.maxDescendants allows have been created: do the task without a sub-agent, or answer from what is known", v.limits.MaxDescendants)
	case v.left != nil && *v.left < leastTime:
		return refuse(tool.Denied, "the time of the turn is nearly over: answer from what is known")
	}
	return verdict{}
}

// notRepeated is gate 6: the same call has not failed before in this Turn, nor is its outcome unknown. One that has
// succeeded and only reads is answered from its result. What only reads is read again where something may have changed
// since. The class of a refusal is not denied, which reads like a ban of the tool.
func notRepeated(v view) verdict {
	if v.again {
		return verdict{}
	}
	same := sign(v.tool.Name, v.arguments)
	if v.state.unknown(same) {
		return refuse(tool.OutcomeUnknown, "whether the same call was done before in this turn is unknown, and it is not made twice: find out whether it was, or tell the user")
	}
	before, intent := v.state.lastOf(same)
	reads := effectOf(v.tool) == tool.ReadOnly
	switch {
	case before == nil || reads && v.state.changed > intent:
	case before.Outcome == Failed:
		return refuse(tool.Failed, "the same call with the same arguments has failed before in this turn: change the arguments, use another tool, or answer without it")
	case before.Outcome == Succeeded && reads:
		return verdict{ruling: answered, known: before}
	}
	return verdict{}
}

// approved is gate 7: a person has approved a call that requires it, of this very tool and with these arguments.
func approved(v view) verdict {
	if !v.tool.RequiresApproval {
		return verdict{}
	}
	asked := v.state.approval(v.step, v.call.ID)
	decision, decided := v.state.Decision(v.step, v.call.ID)
	switch {
	case !model.ValidCallID(v.call.ID): // of a journal of an older version: no status can show it
		return refuse(tool.Denied, "nobody can be asked about a call with this ID: make the call again")
	case asked == nil, asked.Request == "" && !v.again: // what an older version asked does not name the tool
		return verdict{ruling: waiting}
	case !asked.shows(v.tool, v.arguments):
		return refuse(tool.Denied, "the tool or the arguments are no longer those that people were asked about: answer without this call")
	case !decided:
		return verdict{ruling: waiting}
	case decision.Expired:
		return refuse(tool.Denied, "nobody has approved this call in time: go on without it, and say so")
	case !decision.Approved:
		return refuse(tool.Denied, "%s has denied this call%s: go on without it, and do not ask for it again", somebody(decision.By), why(decision.Reason))
	}
	return verdict{}
}

// hashOf is the SHA-256 of arguments in their canonical form, in hexadecimal.
func hashOf(arguments json.RawMessage) string {
	data, err := canonical.JSON(arguments)
	if err != nil {
		data = arguments
	}
	return canonical.Sum(data)
}
