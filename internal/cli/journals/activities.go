package journals

import (
	"encoding/json"
	"fmt"
	"strings"

	"github.com/capstan-dev/capstan/internal/cli/terminal"
	"github.com/capstan-dev/capstan/internal/runtime/journal"
	"github.com/capstan-dev/capstan/internal/termsafe"
)

// Activities are the current activities of a Turn, in the order in which they began.
type Activities []struct{ key, text string }

// Follow updates the activities after a journal entry, and reports whether they may have changed.
func (a *Activities) Follow(e journal.Entry) (changed bool) {
	var payload struct {
		Step         int
		CallID, Name string
		Model        string
	}
	if json.Unmarshal(e.Payload, &payload) != nil {
		return false
	}
	call := fmt.Sprintf("%d/%s", payload.Step, payload.CallID)
	const request = "request"
	switch e.Kind {
	case journal.ModelRequested:
		*a = a.begin(request, "waiting for "+termsafe.Line(payload.Model, terminal.LongestActivity))
	case journal.ModelReplied, journal.ModelFailed:
		*a = a.end(request)
	case journal.ToolIntended:
		*a = a.begin(call, termsafe.Line(payload.Name, terminal.LongestActivity)+" is running")
	case journal.ToolFinished:
		*a = a.end(call)
	case journal.RunStarted, journal.RunParked, journal.Finalized:
		*a = nil
	default:
		return false
	}
	return true
}

// begin returns the activities with a new one. It replaces an activity with the same key.
func (a Activities) begin(key, text string) Activities {
	return append(a.end(key), struct{ key, text string }{key, text})
}

// end returns the activities without the activity with a key.
func (a Activities) end(key string) Activities {
	var rest Activities
	for _, one := range a {
		if one.key != key {
			rest = append(rest, one)
		}
	}
	return rest
}

// String returns the activities on one line.
func (a Activities) String() string {
	all := make([]string, 0, len(a))
	for _, one := range a {
		all = append(all, one.text)
	}
	return strings.Join(all, ", ")
}
