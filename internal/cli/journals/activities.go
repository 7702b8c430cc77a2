package journals

import (
	"encoding/json"
	"fmt"
	"strings"

	"github.com/capstan-dev/capstan/internal/cli/terminal"
	"github.com/capstan-dev/capstan/internal/runtime/journal"
	"github.com/capstan-dev/capstan/internal/termsafe"
)

// Activities are the activities at the moment, in the order in which they began.
type Activities []struct{ key, what string }

// Follow updates the activities after a journal entry, and reports whether they may have changed.
func (a *Activities) Follow(e journal.Entry) (changed bool) {
	var said struct {
		Step         int
		CallID, Name string
		Model        string
	}
	if json.Unmarshal(e.Payload, &said) != nil {
		return false
	}
	call := fmt.Sprintf("%d/%s", said.Step, said.CallID)
	const request = "request"
	switch e.Kind {
	case journal.ModelRequested:
		*a = a.begin(request, "waiting for "+termsafe.Line(said.Model, terminal.LongestActivity))
	case journal.ModelReplied, journal.ModelFailed:
		*a = a.end(request)
	case journal.ToolIntended:
		*a = a.begin(call, termsafe.Line(said.Name, terminal.LongestActivity)+" is running")
	case journal.ToolFinished:
		*a = a.end(call)
	case journal.RunStarted, journal.RunParked, journal.Finalized:
		*a = nil
	default:
		return false
	}
	return true
}

// begin returns the activities with one more.
func (a Activities) begin(key, what string) Activities {
	return append(a.end(key), struct{ key, what string }{key, what})
}

// end returns the activities without the activity of a key.
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
		all = append(all, one.what)
	}
	return strings.Join(all, ", ")
}
