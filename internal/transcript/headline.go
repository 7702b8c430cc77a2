// Package transcript shows the journal of a Turn to people, and takes out of it what was said where only its course may be
// seen.
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
	"github.com/capstan-dev/capstan/internal/screen"
)

const (
	// longestName is how many characters of a name are shown.
	longestName = 256
	// longestReason is how many characters of a reason are shown: of an endpoint's words, for example.
	longestReason = 2048
)

// Headline says on one line what an entry is about, without a word of what was said but for the reasons of failures. It is
// empty for entries that need none. The payload must be there. It is safe for a terminal.
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
		return "", nil // the head of a transcript tells of them
	case journal.RunParked:
		return of(e, waiting)
	case journal.ModelRequested:
		return of(e, requested)
	case journal.ModelFailed:
		return of(e, failed)
	case journal.ModelReplied:
		return of(e, replied)
	case journal.Finalized:
		return of(e, ended)
	case journal.OutputRejected:
		return of(e, rejected)
	case journal.Compacted:
		return of(e, compacted)
	case journal.Reflected:
		return of(e, reflected)
	case journal.ContextWarned:
		return of(e, warned)
	case journal.ToolsExposed, journal.ToolRepaired, journal.ApprovalRequested, journal.ApprovalDecided, journal.ToolIntended, journal.ToolFinished:
		return ofTools(e)
	}
	return screen.Line(string(e.Kind), longestName), nil
}

// of reads the payload of an entry and says something of it.
func of[T any](e journal.Entry, say func(T) string) (string, error) {
	var v T
	if err := json.Unmarshal(e.Payload, &v); err != nil {
		return "", err
	}
	return say(v), nil
}

// parked is what the journal says of a run that ended because its Turn waits.
type parked struct {
	Approvals int      `json:"approvals"`
	Turns     []string `json:"turns"`
}

func waiting(p parked) string {
	var all []string
	if p.Approvals > 0 {
		all = append(all, number(p.Approvals, "decision"))
	}
	for _, name := range p.Turns {
		all = append(all, "turn "+screen.Line(name, longestName))
	}
	return screen.Line("parked, waits for "+strings.Join(all, " and "), longestReason)
}

func requested(r loop.Request) string {
	text := "asking " + served(r.Provider, r.Model)
	switch r.Purpose {
	case loop.ForStep:
	case loop.ForCompaction:
		text += " for a summary of older messages"
	case loop.ForReflection:
		text += " to check its draft"
	default:
		text += " for " + screen.Line(string(r.Purpose), longestName)
	}
	if r.Attempt > 1 {
		text += fmt.Sprintf(" (attempt %d)", r.Attempt)
	}
	return text
}

func failed(a loop.Attempt) string {
	what := "the request"
	if of := purpose(a.Purpose); of != "" {
		what += " for a " + of
	}
	if a.Unsent {
		what += " was not sent"
	} else {
		what += " failed"
	}
	why := a.Message
	if a.Said != "" {
		why += ": " + a.Said
	}
	return join(fmt.Sprintf("%s: %s: %s", what, screen.Line(string(a.Kind), longestName), screen.Line(why, longestReason)),
		spent(a.Usage, a.Cost), took(a.DurationMS))
}

func replied(s loop.Step) string {
	text := fmt.Sprintf("step %d", s.Step)
	if s.Last {
		text = "last answer, out of steps"
	}
	if of := purpose(s.Purpose); of != "" {
		text = of
	}
	names := make([]string, 0, len(s.Reply.ToolCalls))
	for _, c := range s.Reply.ToolCalls {
		names = append(names, screen.Line(c.Name, longestName))
	}
	asks := ""
	if len(names) > 0 {
		asks = "asks for " + strings.Join(names, ", ")
	}
	cut := ""
	if s.Reply.FinishReason == model.FinishLength {
		cut = "cut off at a limit of its length"
	}
	return join(text+": "+served(s.Provider, s.Model), spent(s.Reply.Usage, s.Cost), took(s.DurationMS), cut, asks)
}

// purpose says what a request is for that makes no step; empty for one that does.
func purpose(p loop.Purpose) string {
	switch p {
	case loop.ForStep:
		return ""
	case loop.ForCompaction:
		return "summary of older messages"
	case loop.ForReflection:
		return "check of the draft"
	}
	return screen.Line(string(p), longestName)
}

func rejected(r loop.Rejection) string {
	return fmt.Sprintf("the answer of step %d does not fit the schema, and was sent back", r.Step)
}

func compacted(c loop.Compaction) string {
	text := fmt.Sprintf("messages before step %d were replaced by a summary", c.From)
	if c.Tokens > 0 {
		text += fmt.Sprintf(", at about %s tokens", screen.Thousands(c.Tokens))
	}
	if c.Forced {
		text += ", because the endpoint said that the prompt is too long"
	}
	return text
}

func reflected(r loop.Reflection) string {
	if r.Replaced {
		return fmt.Sprintf("the draft of step %d was checked and replaced", r.Step)
	}
	return fmt.Sprintf("the draft of step %d was checked and stays", r.Step)
}

func warned(w loop.Warning) string {
	return fmt.Sprintf("the conversation is near the context window: about %s of %s tokens", screen.Thousands(w.Tokens), screen.Thousands(w.ContextWindow))
}

func ended(r turn.Result) string {
	return fmt.Sprintf("%s: %s", screen.Line(string(r.Stop), longestName), screen.Line(r.Message, longestReason))
}

// served names a model as the commands do.
func served(provider, name string) string {
	return fmt.Sprintf("%s of ModelProvider %s", screen.Line(name, longestName), screen.Line(provider, longestName))
}

// spent says what a request took, empty if nobody said.
func spent(u model.Usage, c *model.Cost) string {
	if u == (model.Usage{}) {
		return ""
	}
	text := tokens(u)
	if c != nil {
		text += fmt.Sprintf(", cost %s %s", c.Amount, screen.Line(c.Currency, longestName))
	}
	return text
}

func tokens(u model.Usage) string {
	form := "%s tokens (%s in, %s out)"
	if u.Estimated {
		form = "%s tokens (%s in, %s out, in part estimated)"
	}
	return fmt.Sprintf(form, screen.Thousands(u.InputTokens+u.OutputTokens),
		screen.Thousands(u.InputTokens), screen.Thousands(u.OutputTokens))
}

// took says how long something lasted, empty for a time too short to measure.
func took(ms int64) string {
	if ms == 0 {
		return ""
	}
	return fmt.Sprintf("%.1f s", (time.Duration(ms) * time.Millisecond).Seconds())
}

// join puts a comma between the parts that are there.
func join(parts ...string) string {
	var there []string
	for _, p := range parts {
		if p != "" {
			there = append(there, p)
		}
	}
	return strings.Join(there, ", ")
}
