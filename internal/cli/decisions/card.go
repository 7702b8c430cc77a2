package decisions

import (
	"encoding/json"
	"fmt"
	"strings"
	"time"

	"github.com/capstan-dev/capstan/api/v1alpha1"
	"github.com/capstan-dev/capstan/internal/cli/output"
	"github.com/capstan-dev/capstan/internal/termsafe"
	"github.com/capstan-dev/capstan/internal/transcript"
)

const (
	// maxArgumentLines is the maximum number of lines of arguments that are shown.
	maxArgumentLines = 200
	// maxArgumentBytes is the maximum number of bytes of these lines.
	maxArgumentBytes = 16_000
)

// card returns the text that a person sees before the decision about a call.
func (c *pendingCalls) card(p v1alpha1.PendingApproval, arguments json.RawMessage) string {
	elsewhere := fmt.Sprintf("run capstan logs %s -n %s to see all lines", c.turn.Name, c.turn.Namespace)
	return Card{
		Turn: c.turn.Namespace + "/" + c.turn.Name, Agent: c.turn.AgentName(),
		Tool: p.Name, ToolServerUID: p.ToolServerUID, SchemaHash: p.SchemaHash, Step: int(p.Step), CallID: p.CallID, RequestID: p.RequestID,
		ArgumentsHash: p.ArgumentsHash, Requested: p.RequestTime.Time, Expires: p.ExpiryTime.Time,
	}.Text(arguments, elsewhere, c.Env.Now())
}

// Card holds the facts about a pending call that a person sees before the decision.
type Card struct {
	Turn, Agent                      string
	Tool, ToolServerUID, SchemaHash  string
	Step                             int
	CallID, RequestID, ArgumentsHash string
	Requested, Expires               time.Time
}

// Text returns the facts about a call and its arguments. Long arguments are cut, and elsewhere says how to see
// all of them.
func (c Card) Text(arguments json.RawMessage, elsewhere string, now time.Time) string {
	rows := []output.Row{
		{Name: "turn", Value: c.Turn},
		{Name: "agent", Value: termsafe.Line(c.Agent, output.LongestID)},
		{Name: "tool", Value: termsafe.Exact(termsafe.Line(c.Tool, output.LongestID))},
	}
	if c.ToolServerUID != "" { // the UID of the ToolServer, or for a sub-agent that of its Agent
		rows = append(rows, output.Row{Name: "server", Value: termsafe.Line(c.ToolServerUID, output.LongestID)})
	}
	rows = append(rows,
		output.Row{Name: "schema", Value: termsafe.Line(c.SchemaHash, output.LongestID)},
		output.Row{Name: "step", Value: fmt.Sprint(c.Step)},
		output.Row{Name: "call", Value: termsafe.Exact(termsafe.Line(c.CallID, output.LongestID))},
		output.Row{Name: "request", Value: termsafe.Line(c.RequestID, output.LongestID)},
		output.Row{Name: "asked", Value: c.Requested.UTC().Format(time.RFC3339)},
		output.Row{Name: "expires", Value: expiry(c.Expires, now)},
		output.Row{Name: "hash", Value: termsafe.Line(c.ArgumentsHash, output.LongestID)},
	)
	text := "A tool call requires approval\n" + output.Table(rows)
	if arguments == nil {
		return text
	}
	shown, more := shortened(transcript.Arguments(arguments))
	text += "arguments\n" + shown
	if more > 0 {
		text += fmt.Sprintf("lines that are not shown: %s; %s\n", termsafe.Thousands(more), elsewhere)
	}
	return text
}

// expiry returns when a request expires, and how much time is left.
func expiry(expires, now time.Time) string {
	left := expires.Sub(now).Round(time.Second)
	if left <= 0 {
		return expires.UTC().Format(time.RFC3339) + ", which has passed: the call is denied"
	}
	return fmt.Sprintf("%s, in %s", expires.UTC().Format(time.RFC3339), left)
}

// shortened returns the first lines of a text, and the number of lines that it leaves out.
func shortened(text string) (kept string, more int) {
	lines := strings.SplitAfter(text, "\n")
	left := maxArgumentBytes
	for i, line := range lines {
		if left -= len(line); i == maxArgumentLines || left < 0 {
			return strings.Join(lines[:i], ""), len(lines) - i - 1
		}
	}
	return text, 0
}
