// Package transcript shows the journal of a Turn to people. It also redacts journals for readers who may not see the
// content of the conversation.
package transcript

import (
	"encoding/json"
	"fmt"
	"strings"
	"time"

	"github.com/capstan-dev/capstan/internal/runtime/journal"
	"github.com/capstan-dev/capstan/internal/runtime/loop"
	"github.com/capstan-dev/capstan/internal/runtime/model"
	"github.com/capstan-dev/capstan/internal/runtime/turn"
	"github.com/capstan-dev/capstan/internal/termsafe"
)

const (
	// longestName is the maximum number of characters of a name that are shown.
	longestName = 256
	// longestReason is the maximum number of characters of a reason, such as the error text of an endpoint, that are
	// shown.
	longestReason = 2048
)

// Headline returns one line that describes an entry. The line contains no content of the conversation except reasons of
// failures. It is empty for entries that need no line. The payload must be filled. The result is safe for a terminal.
func Headline(e journal.Entry) (string, error) {
	text, err := headline(e)
	if err != nil {
		return "", fmt.Errorf("failed to read entry %d (%q): %w", e.Seq, e.Kind, err)
	}
	return text, nil
}

func headline(e journal.Entry) (string, error) {
	switch e.Kind {
	case journal.RunStarted, journal.PreparationInput, journal.PromptRendered, journal.Prepared, journal.SessionTurn:
		return "", nil // the head of a transcript shows their main facts
	case journal.RunParked:
		return describe(e, parkedLine)
	case journal.ModelRequested:
		return describe(e, requestedLine)
	case journal.ModelFailed:
		return describe(e, failedLine)
	case journal.ModelReplied:
		return describe(e, repliedLine)
	case journal.Finalized:
		return describe(e, endedLine)
	case journal.OutputRejected:
		return describe(e, rejectedLine)
	case journal.Compacted:
		return describe(e, compactedLine)
	case journal.Reflected:
		return describe(e, reflectedLine)
	case journal.OutputChecked:
		return describe(e, checkedLine)
	case journal.ContextWarned:
		return describe(e, warnedLine)
	case journal.TextRedacted:
		return describe(e, redactedLine)
	case journal.UndoPlanned:
		return describe(e, undoPlannedLine)
	case journal.UndoBegun:
		return describe(e, undoBegunLine)
	case journal.UndoEnded:
		return describe(e, undoEndedLine)
	case journal.ToolsExposed, journal.ToolRepaired, journal.ApprovalRequested, journal.ApprovalDecided,
		journal.ToolIntended, journal.ToolFinished:
		return toolHeadline(e)
	}
	return termsafe.Line(string(e.Kind), longestName), nil
}

// describe decodes the payload of an entry, and returns the result of the function text for the payload.
func describe[T any](e journal.Entry, text func(T) string) (string, error) {
	var v T
	if err := json.Unmarshal(e.Payload, &v); err != nil {
		return "", err
	}
	return text(v), nil
}

// parked is the payload of an entry about a parked run.
type parked struct {
	Approvals int      `json:"approvals"`
	Turns     []string `json:"turns"`
	Budget    string   `json:"budget"`
}

func parkedLine(p parked) string {
	var all []string
	if p.Approvals > 0 {
		all = append(all, number(p.Approvals, "approval"))
	}
	for _, name := range p.Turns {
		all = append(all, "turn "+termsafe.Line(name, longestName))
	}
	if p.Budget != "" {
		all = append(all, "budget "+termsafe.Line(p.Budget, longestName))
	}
	return termsafe.Line("parked, waiting for "+strings.Join(all, " and "), longestReason)
}

func requestedLine(r loop.Request) string {
	text := "asking " + modelName(r.Provider, r.Model)
	switch r.Purpose {
	case loop.ForStep:
	case loop.ForCompaction:
		text += " for a summary of older messages"
	case loop.ForReflection:
		text += " to check its draft"
	case loop.ForPolicy:
		text += " to check the answer against the output policies"
	case loop.ForEmbedding:
		text += " for embeddings"
	default:
		text += " for " + termsafe.Line(string(r.Purpose), longestName)
	}
	if r.Attempt > 1 {
		text += fmt.Sprintf(" (attempt %d)", r.Attempt)
	}
	return text
}

func failedLine(a loop.FailedRequest) string {
	what := "the request"
	switch p := purpose(a.Purpose); {
	case p == "":
	case a.Purpose == loop.ForEmbedding: // a plural
		what += " for " + p
	default:
		what += " for a " + p
	}
	if a.Unsent {
		what += " was not sent"
	} else {
		what += " failed"
	}
	why := a.Message
	if a.RemoteMessage != "" {
		why += ": " + a.RemoteMessage
	}
	return join(fmt.Sprintf("%s: %s: %s", what, termsafe.Line(string(a.Kind), longestName), termsafe.Line(why, longestReason)),
		usageText(a.Usage, a.Cost), durationText(a.DurationMS))
}

func repliedLine(s loop.Step) string {
	text := fmt.Sprintf("step %d", s.Step)
	if s.Last {
		text = "last answer, no steps left"
	}
	if p := purpose(s.Purpose); p != "" {
		text = p
	}
	names := make([]string, 0, len(s.Reply.ToolCalls))
	for _, c := range s.Reply.ToolCalls {
		names = append(names, termsafe.Line(c.Name, longestName))
	}
	asks := ""
	if len(names) > 0 {
		asks = "asks for " + strings.Join(names, ", ")
	}
	cut := ""
	if s.Reply.FinishReason == model.FinishLength {
		cut = "cut off at the length limit"
	}
	return join(text+": "+modelName(s.Provider, s.Model), usageText(s.Reply.Usage, s.Cost), durationText(s.DurationMS), cut, asks)
}

// purpose returns the purpose of a request that is not a step, or an empty string for a step.
func purpose(p loop.Purpose) string {
	switch p {
	case loop.ForStep:
		return ""
	case loop.ForCompaction:
		return "summary of older messages"
	case loop.ForReflection:
		return "check of the draft"
	case loop.ForPolicy:
		return "check against the output policies"
	case loop.ForEmbedding:
		return "embeddings"
	}
	return termsafe.Line(string(p), longestName)
}

// redactedTexts is the payload of an entry about redaction.
type redactedTexts struct {
	Redactions []turn.Redaction `json:"redactions"`
}

func redactedLine(r redactedTexts) string {
	var rules []string
	for _, redaction := range r.Redactions {
		rules = append(rules, fmt.Sprintf("%s (%d)", termsafe.Line(redaction.Rule, longestName), redaction.Matches))
	}
	return "removed texts by the rules " + strings.Join(rules, ", ")
}

func undoPlannedLine(p turn.UndoPlan) string {
	text := fmt.Sprintf("undoes %s of Turn %s", number(p.Possible(), "call"), termsafe.Line(p.Name, longestName))
	unselected := 0
	for i := range p.Calls {
		if p.Calls[i].State == turn.UndoNotSelected {
			unselected++
		}
	}
	if left := len(p.Calls) - p.Possible() - unselected; left > 0 {
		text += "; " + termsafe.Counted(left, "call cannot be undone or was undone before", "calls cannot be undone or were undone before")
	}
	if unselected > 0 {
		text += fmt.Sprintf("; %s not selected", number(unselected, "call"))
	}
	return text
}

func undoBegunLine(m turn.UndoMark) string {
	return fmt.Sprintf("Turn %s begins to undo the call %s", termsafe.Line(m.Turn, longestName), termsafe.Line(m.CallID, longestName))
}

func undoEndedLine(m turn.UndoMark) string {
	call, by := termsafe.Line(m.CallID, longestName), termsafe.Line(m.Turn, longestName)
	if m.Undone {
		return fmt.Sprintf("Turn %s has undone the call %s", by, call)
	}
	return fmt.Sprintf("Turn %s could not undo the call %s; another Turn may try", by, call)
}

func checkedLine(c loop.AnswerCheck) string {
	var violated, unchecked []string
	for _, f := range c.Findings {
		if name := termsafe.Line(f.Policy, longestName); f.Unchecked {
			unchecked = append(unchecked, name)
		} else {
			violated = append(violated, name)
		}
	}
	text := fmt.Sprintf("the answer of step %d ", c.Step)
	switch {
	case len(c.Findings) == 0:
		return text + "complies with all output policies"
	case len(violated) == 0:
		text += "could not be checked against " + strings.Join(unchecked, ", ")
	default:
		text += "violates " + strings.Join(violated, ", ")
		if len(unchecked) > 0 {
			text += ", and could not be checked against " + strings.Join(unchecked, ", ")
		}
	}
	switch {
	case c.Refused():
		return text + ": it is not delivered"
	case len(violated) == 0:
		return text + ": it is delivered, and the missing check is recorded"
	}
	return text + ": it is delivered, and the violation is recorded"
}

func rejectedLine(r loop.Rejection) string {
	if len(r.Policies) > 0 {
		return fmt.Sprintf("the answer of step %d was sent back to the model", r.Step)
	}
	if r.NoText {
		return fmt.Sprintf("the reply of step %d has no answer and was sent back", r.Step)
	}
	return fmt.Sprintf("the answer of step %d does not match the schema and was sent back", r.Step)
}

func compactedLine(c loop.Compaction) string {
	text := fmt.Sprintf("messages before step %d were replaced by a summary", c.From)
	if c.Tokens > 0 {
		text += fmt.Sprintf(", at about %s tokens", termsafe.Thousands(c.Tokens))
	}
	if c.Forced {
		text += ", because the endpoint reported that the prompt is too long"
	}
	return text
}

func reflectedLine(r loop.Reflection) string {
	if r.Replaced {
		return fmt.Sprintf("the draft of step %d was checked and replaced", r.Step)
	}
	return fmt.Sprintf("the draft of step %d was checked and kept", r.Step)
}

func warnedLine(w loop.Warning) string {
	return fmt.Sprintf("the conversation is near the context window: about %s of %s tokens", termsafe.Thousands(w.Tokens),
		termsafe.Thousands(w.ContextWindow))
}

func endedLine(r turn.Result) string {
	return fmt.Sprintf("%s: %s", termsafe.Line(string(r.Stop), longestName), termsafe.Line(r.Message, longestReason))
}

// modelName returns the names of a model and its ModelProvider.
func modelName(provider, name string) string {
	return fmt.Sprintf("%s of ModelProvider %s", termsafe.Line(name, longestName), termsafe.Line(provider, longestName))
}

// usageText returns the usage and the cost of requests, or an empty string if there is no usage.
func usageText(u model.Usage, c *model.Cost) string {
	if u == (model.Usage{}) {
		return ""
	}
	text := tokens(u)
	if c != nil {
		text += fmt.Sprintf(", cost %s %s", c.Amount, termsafe.Line(c.Currency, longestName))
	}
	return text
}

func tokens(u model.Usage) string {
	form := "%s tokens (%s in, %s out)"
	if u.Estimated {
		form = "%s tokens (%s in, %s out, partly estimated)"
	}
	return fmt.Sprintf(form, termsafe.Thousands(u.InputTokens+u.OutputTokens),
		termsafe.Thousands(u.InputTokens), termsafe.Thousands(u.OutputTokens))
}

// durationText returns a duration, or an empty string if it is 0.
func durationText(ms int64) string {
	if ms == 0 {
		return ""
	}
	return fmt.Sprintf("%.1f s", (time.Duration(ms) * time.Millisecond).Seconds())
}

// join joins the non-empty parts with commas.
func join(parts ...string) string {
	var nonEmpty []string
	for _, p := range parts {
		if p != "" {
			nonEmpty = append(nonEmpty, p)
		}
	}
	return strings.Join(nonEmpty, ", ")
}
