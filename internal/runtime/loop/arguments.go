package loop

import (
	"encoding/json"
	"strings"

	"github.com/capstan-dev/capstan/internal/runtime/schema"
	"github.com/capstan-dev/capstan/internal/runtime/tool"
)

// maxRepairs is the number of times that the arguments of one call may be repaired.
const maxRepairs = 2

// validArguments is gate 5: the arguments are an object that fits the schema of the tool, unchanged or after
// repairs that can mean only one thing. If the schema of the tool is unusable, the tool itself must check the
// arguments.
func validArguments(v view) verdict {
	a := arguments{view: v, text: v.given()}
	for !a.fit() {
		if !a.repair() {
			return verdict{
				ruling: refused, class: tool.InvalidArguments, message: a.wrong, arguments: json.RawMessage("{}"), repairs: a.repairs,
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
	// schema is the schema that the arguments were checked against, or nil. wrong describes the violations.
	schema *schema.Schema
	wrong  string
}

// fit reports whether the tool may receive the arguments.
func (a *arguments) fit() bool {
	const object = "the arguments must be a JSON object that fits the tool's schema: correct them and call the tool again"
	text := json.RawMessage(a.text)
	plain := schema.Ambiguities(text)
	switch {
	case len(plain) > 0 && !json.Valid(text):
		a.wrong = object
	case len(plain) > 0:
		a.wrong = describeViolations(plain)
	case !strings.HasPrefix(a.text, "{"):
		a.wrong = object
	case a.policy.Unvalidated:
		return true
	default:
		return a.fitSchema(text)
	}
	return false
}

func (a *arguments) fitSchema(text json.RawMessage) bool {
	source, err := a.tool.JSONSchema()
	if err != nil {
		return true
	}
	if a.schema, err = schema.Cached(source); err != nil {
		return true
	}
	violations := a.schema.Validate(text)
	if len(violations) > 0 {
		a.wrong = describeViolations(violations)
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

// repair makes one repair that can mean only one thing, and reports whether it did.
func (a *arguments) repair() bool {
	attempt := len(a.state.repairsOf(a.step, a.call.ID)) + len(a.repairs) + 1
	if a.policy.Unvalidated || a.alreadyBegun || attempt > maxRepairs {
		return false
	}
	after, changes := unwrapJSON(a.text)
	if after == nil && a.schema != nil {
		mend := a.schema.RepairKeeping // do not drop unknown properties: one may make the call harmless, such as a dry run
		if effectOf(a.tool) == tool.ReadOnly {
			mend = a.schema.Repair
		}
		after, changes = mend(json.RawMessage(a.text))
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

// unwrapJSON returns the JSON object or the JSON string that text contains as a JSON string. It returns nil if there
// is none.
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
