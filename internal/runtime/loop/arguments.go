package loop

import (
	"encoding/json"
	"strings"

	"github.com/capstan-dev/capstan/internal/fairgate"
	"github.com/capstan-dev/capstan/internal/runtime/schema"
	"github.com/capstan-dev/capstan/internal/runtime/tool"
)

// maxRepairs is the number of times that the arguments of one call may be repaired.
const maxRepairs = 2

// validArguments is gate 5: the arguments are a JSON object that fits the schema of the tool, unchanged or after
// unambiguous repairs. If the schema of the tool is unusable, the tool itself must check the arguments.
func validArguments(v view) verdict {
	a := arguments{view: v, text: v.given()}
	for !a.valid() {
		if !a.repair() {
			return verdict{
				ruling: refused, class: tool.InvalidArguments, message: a.problem, arguments: json.RawMessage("{}"), repairs: a.repairs,
			}
		}
	}
	return verdict{arguments: json.RawMessage(a.text), repairs: a.repairs}
}

// given returns the arguments as the model wrote them, or as an earlier repair left them.
func (v view) given() string {
	if before := v.state.intent(v.step, v.call.ID); before != nil {
		return string(before.Arguments)
	}
	if done := v.state.repairsOf(v.step, v.call.ID); len(done) > 0 {
		return string(done[len(done)-1].After)
	}
	if text := strings.TrimSpace(v.call.Arguments); text != "" {
		return text
	}
	return "{}"
}

// arguments holds the arguments of a call during the check.
type arguments struct {
	view
	// text is the current text of the arguments, and repairs are the repairs that led to it.
	text    string
	repairs []Repair
	// schema is the schema that the arguments were checked against, or nil. problem says why they are invalid.
	schema  *schema.Schema
	problem string
}

// valid reports whether the tool may receive the arguments. If not, it sets problem.
func (a *arguments) valid() bool {
	const notObject = "the arguments must be a JSON object that fits the tool's schema: correct them and call the tool again"
	text := json.RawMessage(a.text)
	done := fairgate.AcquireProcessor(a.ctx, len(text))
	ambiguities := schema.Ambiguities(text)
	done()
	switch {
	case len(ambiguities) > 0 && !json.Valid(text):
		a.problem = notObject
	case len(ambiguities) > 0:
		a.problem = describeViolations(ambiguities)
	case !strings.HasPrefix(a.text, "{"):
		a.problem = notObject
	case a.policy.Unvalidated:
		return true
	default:
		return a.fitsSchema(text)
	}
	return false
}

// fitsSchema reports whether the arguments fit the schema of the tool, or whether that schema is unusable.
func (a *arguments) fitsSchema(text json.RawMessage) bool {
	source, err := a.tool.JSONSchema()
	if err != nil {
		return true
	}
	if a.schema, err = schema.Cached(a.ctx, source); err != nil {
		return true
	}
	violations := a.schema.Validate(a.ctx, text)
	if len(violations) > 0 {
		a.problem = describeViolations(violations)
	}
	return len(violations) == 0
}

// describeViolations describes violations on one line.
func describeViolations(violations []schema.Violation) string {
	var all []string
	for _, v := range violations {
		all = append(all, v.String())
	}
	return "the arguments do not fit the tool's schema: " + strings.Join(all, "; ") + ". Correct them and call the tool again"
}

// repair makes one unambiguous repair, and reports whether it did.
func (a *arguments) repair() bool {
	attempt := len(a.state.repairsOf(a.step, a.call.ID)) + len(a.repairs) + 1
	if a.policy.Unvalidated || a.alreadyBegun || attempt > maxRepairs {
		return false
	}
	after, changes := unwrapJSON(a.text)
	if after == nil && a.schema != nil {
		repair := a.schema.RepairKeeping // do not drop unknown properties: one may make the call harmless, such as a dry run
		if effectOf(a.tool) == tool.ReadOnly {
			repair = a.schema.Repair
		}
		after, changes = repair(a.ctx, json.RawMessage(a.text))
	}
	if after == nil {
		return false
	}
	a.repairs = append(a.repairs, Repair{
		Step: a.step, CallID: a.call.ID, Name: a.tool.Name, Attempt: attempt, Before: a.text, After: after, Changes: changes,
	})
	a.text = string(after)
	return true
}

// unwrapJSON unwraps a JSON object or a JSON string that text contains as the value of a JSON string. It returns nil if
// text is anything else.
func unwrapJSON(text string) (json.RawMessage, []string) {
	var inner string
	if !strings.HasPrefix(text, `"`) || json.Unmarshal([]byte(text), &inner) != nil {
		return nil, nil
	}
	inner = strings.TrimSpace(inner)
	if !json.Valid([]byte(inner)) || !strings.HasPrefix(inner, "{") && !strings.HasPrefix(inner, `"`) {
		return nil, nil
	}
	return json.RawMessage(inner), []string{"parsed the text as JSON"}
}
