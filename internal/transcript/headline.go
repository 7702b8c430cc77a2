// Package transcript shows the journal of a Turn to people, and takes out of it what was said where only its course may be
// seen.
package transcript

import (
	"cmp"
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
	case journal.ModelRequested:
		return of(e, requested)
	case journal.ModelFailed:
		return of(e, failed)
	case journal.ModelReplied:
		return of(e, replied)
	case journal.ToolIntended:
		return of(e, intended)
	case journal.ToolFinished:
		return of(e, finished)
	case journal.Finalized:
		return of(e, ended)
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

func requested(r loop.Request) string {
	text := "asking " + served(r.Provider, r.Model)
	if r.Attempt > 1 {
		text += fmt.Sprintf(" (attempt %d)", r.Attempt)
	}
	return text
}

func failed(a loop.Attempt) string {
	what := "the request failed"
	if a.Unsent {
		what = "the request was not sent"
	}
	return join(fmt.Sprintf("%s: %s: %s", what, screen.Line(string(a.Kind), longestName), screen.Line(a.Message, longestReason)),
		spent(a.Usage, a.Cost), took(a.DurationMS))
}

func replied(s loop.Step) string {
	text := fmt.Sprintf("step %d", s.Step)
	if s.Last {
		text = "last answer, out of steps"
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

func intended(i loop.Intent) string {
	text := "calling " + call(i.Name, i.CallID)
	if i.Attempt > 1 {
		text += fmt.Sprintf(" (attempt %d)", i.Attempt)
	}
	return text
}

func finished(f loop.Finish) string {
	what, class := call(f.Name, f.CallID), screen.Line(string(f.Class), longestName)
	switch f.Outcome {
	case loop.Succeeded:
		return join(what+" succeeded", screen.Thousands(f.Bytes)+" bytes", took(f.DurationMS))
	case loop.Failed:
		return join(fmt.Sprintf("%s failed (%s)", what, class), took(f.DurationMS))
	case loop.Refused:
		return fmt.Sprintf("%s was not called (%s)", what, class)
	case loop.Unknown:
		return join(what+": OUTCOME UNKNOWN, nobody knows whether it was done", took(f.DurationMS))
	}
	return what + ": " + screen.Line(string(f.Outcome), longestName)
}

func ended(r turn.Result) string {
	return fmt.Sprintf("%s: %s", screen.Line(string(r.Stop), longestName), screen.Line(r.Message, longestReason))
}

// served names a model as the commands do.
func served(provider, name string) string {
	return fmt.Sprintf("%s of ModelProvider %s", screen.Line(name, longestName), screen.Line(provider, longestName))
}

// call names one call of a tool.
func call(name, id string) string {
	return fmt.Sprintf("%s (%s)", cmp.Or(screen.Line(name, longestName), "a tool without a name"), screen.Line(id, longestName))
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
	return fmt.Sprintf("%s tokens (%s in, %s out)", screen.Thousands(u.InputTokens+u.OutputTokens),
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
