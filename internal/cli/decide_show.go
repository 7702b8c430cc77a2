package cli

import (
	"encoding/json"
	"fmt"
	"strings"
	"time"

	"github.com/capstan-dev/capstan/api/v1alpha1"
	"github.com/capstan-dev/capstan/internal/termsafe"
	"github.com/capstan-dev/capstan/internal/transcript"
)

const (
	// mostArguments is the maximum number of lines of arguments that are shown, widestArguments the maximum number
	// of bytes.
	mostArguments, widestArguments = 200, 16_000
)

// show returns the text that a person sees before the decision about a call.
func (c *decisions) show(p v1alpha1.PendingApproval, arguments json.RawMessage) string {
	rows := []row{
		{"turn", c.turn.Namespace + "/" + c.turn.Name},
		{"agent", termsafe.Line(c.turn.Spec.AgentRef.Name, longestID)},
	}
	elsewhere := fmt.Sprintf("run capstan logs %s -n %s to see all", c.turn.Name, c.turn.Namespace)
	return callCard(rows, cardOf(p), arguments, elsewhere, c.env.Now())
}

// card holds the facts about a pending call that a person sees.
type card struct {
	tool, toolServerUID, schemaHash string
	step                            int
	callID, requestID, hash         string
	requested, expires              time.Time
}

func cardOf(p v1alpha1.PendingApproval) card {
	return card{
		tool: p.Name, toolServerUID: p.ToolServerUID, schemaHash: p.SchemaHash, step: int(p.Step), callID: p.CallID, requestID: p.RequestID,
		hash: p.ArgumentsHash, requested: p.RequestTime.Time, expires: p.ExpiryTime.Time,
	}
}

// callCard returns the facts about a call and its arguments. Long arguments are cut, and elsewhere says how to see
// all of them.
func callCard(rows []row, c card, arguments json.RawMessage, elsewhere string, now time.Time) string {
	rows = append(rows, row{"tool", termsafe.Exact(termsafe.Line(c.tool, longestID))})
	if c.toolServerUID != "" { // a sub-agent has the UID of its Agent here
		rows = append(rows, row{"source", termsafe.Line(c.toolServerUID, longestID)})
	}
	rows = append(rows,
		row{"schema", termsafe.Line(c.schemaHash, longestID)},
		row{"step", fmt.Sprint(c.step)},
		row{"call", termsafe.Exact(termsafe.Line(c.callID, longestID))},
		row{"request", termsafe.Line(c.requestID, longestID)},
		row{"asked", c.requested.UTC().Format(time.RFC3339)},
		row{"expires", expiry(c.expires, now)},
		row{"hash", termsafe.Line(c.hash, longestID)},
	)
	text := "A tool call requires approval\n" + table(rows)
	if arguments == nil {
		return text
	}
	shown, more := shortened(transcript.Arguments(arguments))
	text += "arguments\n" + shown
	if more > 0 {
		text += fmt.Sprintf("%s more lines, or a part of one, are not shown: %s\n", termsafe.Thousands(more), elsewhere)
	}
	return text
}

// expiry returns when a request expires, and how much time is left.
func expiry(at, now time.Time) string {
	left := at.Sub(now).Round(time.Second)
	if left <= 0 {
		return at.UTC().Format(time.RFC3339) + ", which has passed: the call is denied"
	}
	return fmt.Sprintf("%s, in %s", at.UTC().Format(time.RFC3339), left)
}

// shortened returns the first lines of a text, and the number of lines that it leaves out or cuts.
func shortened(text string) (kept string, more int) {
	lines := strings.SplitAfter(text, "\n")
	room := widestArguments
	for i, line := range lines {
		if room -= len(line); i == mostArguments || room < 0 {
			return strings.Join(lines[:i], ""), len(lines) - i - 1
		}
	}
	return text, 0
}
