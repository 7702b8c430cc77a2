package cli

import (
	"encoding/json"
	"fmt"
	"strings"
	"time"

	"github.com/capstan-dev/capstan/api/v1alpha1"
	"github.com/capstan-dev/capstan/internal/screen"
	"github.com/capstan-dev/capstan/internal/transcript"
)

const (
	// mostArguments bounds the lines of arguments that are shown, and widestArguments the characters.
	mostArguments, widestArguments = 200, 16_000
)

// show is what a person decides by.
func (c *decisions) show(p v1alpha1.PendingApproval, arguments json.RawMessage) string {
	rows := []row{
		{"turn", c.turn.Namespace + "/" + c.turn.Name},
		{"agent", screen.Line(c.turn.Spec.AgentRef.Name, longestID)},
	}
	elsewhere := fmt.Sprintf("capstan logs %s -n %s shows all", c.turn.Name, c.turn.Namespace)
	return callCard(rows, cardOf(p), arguments, elsewhere, c.env.Now())
}

// card is a call that waits for a decision.
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

// callCard shows a call and its arguments. Those that are too long are cut, and elsewhere says where they are whole.
func callCard(rows []row, c card, arguments json.RawMessage, elsewhere string, now time.Time) string {
	rows = append(rows, row{"tool", screen.Exact(screen.Line(c.tool, longestID))})
	if c.toolServerUID != "" { // that of a sub-agent is its Agent's
		rows = append(rows, row{"of uid", screen.Line(c.toolServerUID, longestID)})
	}
	rows = append(rows,
		row{"schema", screen.Line(c.schemaHash, longestID)},
		row{"step", fmt.Sprint(c.step)},
		row{"call", screen.Exact(screen.Line(c.callID, longestID))},
		row{"request", screen.Line(c.requestID, longestID)},
		row{"asked", c.requested.UTC().Format(time.RFC3339)},
		row{"expires", expiry(c.expires, now)},
		row{"hash", screen.Line(c.hash, longestID)},
	)
	text := "A call awaits approval\n" + table(rows)
	if arguments == nil {
		return text
	}
	shown, more := shortened(transcript.Arguments(arguments))
	text += "arguments\n" + shown
	if more > 0 {
		text += fmt.Sprintf("%s more lines or a part of one are not shown: %s\n", screen.Thousands(more), elsewhere)
	}
	return text
}

// expiry says until when, and how long that is.
func expiry(at, now time.Time) string {
	left := at.Sub(now).Round(time.Second)
	if left <= 0 {
		return at.UTC().Format(time.RFC3339) + ", which is over: the call counts as denied"
	}
	return fmt.Sprintf("%s, in %s", at.UTC().Format(time.RFC3339), left)
}

// shortened keeps the first lines of a text, and says how many it leaves out or cuts.
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
