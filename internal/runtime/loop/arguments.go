package loop

import (
	"encoding/json"
	"strings"

	"github.com/capstan-dev/capstan/internal/runtime/schema"
	"github.com/capstan-dev/capstan/internal/runtime/tool"
)

// maxRepairs is how often the arguments of one call are repaired.
const maxRepairs = 2

// validArguments is gate 5: the arguments are an object that fits the schema of the tool, as they are or after repairs that are
// certain. Where nobody can use the schema, the tool judges.
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

// given are the arguments as the model wrote them, or as they were repaired before.
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

// arguments are those of a call while they are looked at.
type arguments struct {
	view
	// text of them by now, and the repairs that made it.
	text    string
	repairs []Repair
	// schema they were held against, nil for none, and what is wrong with them.
	schema *schema.Schema
	wrong  string
}

// fit says whether a tool may get the arguments.
func (a *arguments) fit() bool {
	const object = "the arguments must be a JSON object: write them as one that fits the tool's schema and call the tool again"
	text := json.RawMessage(a.text)
	plain := schema.Plain(text)
	switch {
	case len(plain) > 0 && !json.Valid(text):
		a.wrong = object
	case len(plain) > 0:
		a.wrong = misfit(plain)
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
		a.wrong = misfit(violations)
	}
	return len(violations) == 0
}

// misfit tells of violations on one line.
func misfit(violations []schema.Violation) string {
	var all []string
	for _, v := range violations {
		all = append(all, v.String())
	}
	return "the arguments do not fit the tool's schema: " + strings.Join(all, "; ") + ". Mend them and call the tool again"
}

// repair mends what is certain, once, and says whether it has.
func (a *arguments) repair() bool {
	attempt := len(a.state.repairsOf(a.step, a.call.ID)) + len(a.repairs) + 1
	if a.policy.Unvalidated || a.again || attempt > maxRepairs {
		return false
	}
	after, changes := unwrapped(a.text)
	if after == nil && a.schema != nil {
		mend := a.schema.RepairKeeping // an unknown property may be what holds a call back, such as a dry run
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

// unwrapped is the object that a JSON string holds, or the string within.
func unwrapped(text string) (json.RawMessage, []string) {
	var inner string
	if !strings.HasPrefix(text, `"`) || json.Unmarshal([]byte(text), &inner) != nil {
		return nil, nil
	}
	inner = strings.TrimSpace(inner)
	if !json.Valid([]byte(inner)) || !strings.HasPrefix(inner, "{") && !strings.HasPrefix(inner, `"`) {
		return nil, nil
	}
	return json.RawMessage(inner), []string{"read the text as the object that it holds"}
}
