package transcript

import (
	"encoding/json"
	"fmt"
	"io"
	"strings"
	"time"

	"github.com/capstan-dev/capstan/internal/runtime/journal"
	"github.com/capstan-dev/capstan/internal/runtime/loop"
	"github.com/capstan-dev/capstan/internal/runtime/model"
	"github.com/capstan-dev/capstan/internal/runtime/prepare"
	"github.com/capstan-dev/capstan/internal/runtime/turn"
	"github.com/capstan-dev/capstan/internal/screen"
)

// Writer shows the journal of one Turn, entry by entry in their order, so that a journal that grows is shown as it grows.
// What was said stands behind bars, so that none of it can pass for a line of the transcript, and all of it is safe for a
// terminal.
type Writer struct {
	out io.Writer
	// runs that were seen, the agent, as far as it is known, whether it and its profile were named, and the user's message that
	// was shown last. The messages are made anew for another model, and of the same.
	runs       int
	agent      string
	introduced bool
	message    string
}

// NewWriter returns a Writer to out.
func NewWriter(out io.Writer) *Writer { return &Writer{out: out} }

// Write shows an entry, whose payload must be there. It fails if the payload cannot be read or out fails.
func (w *Writer) Write(e journal.Entry) error {
	text, err := w.text(e)
	if err != nil {
		return fmt.Errorf("failed to read entry %d (%q): %w", e.Seq, e.Kind, err)
	}
	if text == "" {
		return nil
	}
	if _, err := io.WriteString(w.out, screen.Safe(text)); err != nil {
		return fmt.Errorf("failed to write the transcript: %w", err)
	}
	return nil
}

// text is what is to be shown of an entry, empty for nothing.
func (w *Writer) text(e journal.Entry) (string, error) {
	switch e.Kind { //nolint:exhaustive // because the others have a headline only
	case journal.RunStarted:
		return of(e, func(s started) string { return w.run(e, s) })
	case journal.PreparationInput:
		return of(e, func(m made) string {
			w.agent = m.Input.Agent.Name
			return ""
		})
	case journal.ToolsExposed:
		return of(e, offered)
	case journal.Prepared:
		return of(e, w.prepared)
	}
	line, err := headline(e)
	if err != nil || line == "" {
		return "", err
	}
	content, err := body(e)
	return e.Time.UTC().Format("15:04:05Z ") + line + "\n" + content, err
}

// body is what stands below the headline of an entry.
func body(e journal.Entry) (string, error) {
	switch e.Kind { //nolint:exhaustive // because the others have nothing to say
	case journal.ModelFailed:
		return of(e, func(a loop.Attempt) string { return quoted(a.Stack) })
	case journal.ModelReplied:
		return of(e, reply)
	case journal.ToolRepaired:
		return of(e, repair)
	case journal.ApprovalRequested:
		return of(e, func(a loop.Approval) string { return Arguments(a.Arguments) })
	case journal.ApprovalDecided:
		return of(e, func(d loop.Decision) string { return quoted(d.Reason) })
	case journal.ToolFinished:
		return of(e, outcome)
	case journal.OutputRejected:
		return of(e, func(r loop.Rejection) string { return quoted(r.Message) })
	case journal.Compacted:
		return of(e, func(c loop.Compaction) string { return quoted(c.Summary) })
	case journal.Reflected:
		return of(e, replacement)
	case journal.Finalized:
		return of(e, totals)
	}
	return "", nil
}

// started is what the journal says of the beginning of a run.
type started struct {
	Executor  string `json:"executor"`
	Namespace string `json:"namespace"`
	Name      string `json:"name"`
}

// made is the part of what messages are made of that tells of the Turn.
type made struct {
	Input struct {
		Agent struct{ Name string }
		Turn  struct{ Namespace, Name string }
	} `json:"input"`
}

func (w *Writer) run(e journal.Entry, s started) string {
	w.runs++
	text, again := "", ""
	if w.runs == 1 {
		text = fmt.Sprintf("Turn %s/%s\n", screen.Line(s.Namespace, longestName), screen.Line(s.Name, longestName))
	} else {
		again = ", goes on with what the journal holds"
	}
	return text + row(fmt.Sprintf("run %d", w.runs), fmt.Sprintf("executor %s, epoch %d, %s%s",
		screen.Line(s.Executor, longestName), e.Epoch, e.Time.UTC().Format(time.RFC3339), again))
}

// prompt is a prompt that was prepared, and the number of messages that its entry refers to and does not hold.
type prompt struct {
	prepare.Prepared
	History struct {
		Messages int `json:"messages"`
	} `json:"history"`
}

func (w *Writer) prepared(p prompt) string {
	var b strings.Builder
	if profile := p.Report.Profile; !w.introduced {
		w.introduced = true
		if w.agent != "" {
			b.WriteString(row("agent", screen.Line(w.agent, longestName)))
		}
		b.WriteString(row("profile", screen.Line(fmt.Sprintf("%s (%s %s)", profile.Name, profile.ID, profile.Version), longestName)))
	}
	b.WriteString(row("model", served(p.Provider, p.Model)))
	b.WriteString(row("prompt", fmt.Sprintf("%s, %s, promptRenderHash %s",
		number(len(p.Messages)+p.History.Messages, "message"), number(len(p.Tools), "tool"), screen.Line(p.Report.RenderHash, longestName))))
	if n := len(p.Messages); n > 0 && p.Messages[n-1].Role == model.RoleUser && p.Messages[n-1].Content != w.message {
		w.message = p.Messages[n-1].Content
		b.WriteString("user\n" + quoted(w.message))
	}
	return b.String()
}

// row is a line of the head.
func row(name, value string) string { return fmt.Sprintf("  %-8s %s\n", name, value) }

func reply(s loop.Step) string {
	var b strings.Builder
	if s.Reply.Reasoning != "" {
		b.WriteString("  thought\n" + quoted(s.Reply.Reasoning))
	}
	b.WriteString(quoted(s.Reply.Text))
	for _, c := range s.Reply.ToolCalls {
		b.WriteString(row("call", call(c.Name, c.ID)) + quoted(c.Arguments))
	}
	return b.String()
}

// replacement is the answer that took the place of a draft.
func replacement(r loop.Reflection) string {
	if !r.Replaced {
		return ""
	}
	return quoted(r.Text)
}

func totals(r turn.Result) string {
	c := r.Counts
	parts := []string{number(c.Steps, "step"), number(c.ModelRequests, "model request") + more(c.ModelRetries, "repeated")}
	if c.ToolCalls > 0 || c.UnknownOutcomes > 0 {
		parts = append(parts, number(c.ToolCalls, "tool call")+more(c.ToolRetries, "repeated")+more(c.UnknownOutcomes, "of UNKNOWN outcome"))
	}
	for _, n := range []struct {
		count int
		what  string
	}{{c.ToolRepairs, "repair"}, {c.Compactions, "summary"}, {c.Reflections, "check"}} {
		if n.count > 0 {
			parts = append(parts, number(n.count, n.what))
		}
	}
	if c.Resumes > 0 {
		parts = append(parts, "resumed "+number(c.Resumes, "time"))
	}
	var b strings.Builder
	b.WriteString(row("did", strings.Join(parts, ", ")))
	took := tokens(r.Record.Usage)
	if cost := r.Record.Cost; cost != nil {
		took += fmt.Sprintf(", cost %s %s", screen.Line(cost.Amount, longestName), screen.Line(cost.Currency, longestName))
	}
	b.WriteString(row("took", took))
	if s := r.SubAgents; s != nil {
		took := tokens(s.Usage)
		if s.Cost != nil {
			took += fmt.Sprintf(", cost %s %s", screen.Line(s.Cost.Amount, longestName), screen.Line(s.Cost.Currency, longestName))
		}
		b.WriteString(row("agents", took))
	}
	if f := r.Fallback; f != nil {
		b.WriteString(row("fallback", fmt.Sprintf("%s answered in place of %s", screen.Line(f.To, longestName), screen.Line(f.From, longestName))))
	}
	for _, source := range r.Record.Citations {
		b.WriteString(row("source", screen.Line(source, longestReason)))
	}
	for _, failure := range r.Record.Failures {
		b.WriteString(row("failed", screen.Line(failure, longestReason)))
	}
	if a := r.Answer; a != nil {
		b.WriteString(row("answer", fmt.Sprintf("%s bytes, artifact %s", screen.Thousands(a.Bytes), screen.Line(a.SHA256, longestName))))
	}
	return b.String()
}

func number(n int, what string) string {
	if n == 1 {
		return "1 " + what
	}
	if stem, ok := strings.CutSuffix(what, "y"); ok {
		what = stem + "ie"
	}
	return fmt.Sprintf("%d %ss", n, what)
}

func more(n int, what string) string {
	if n == 0 {
		return ""
	}
	return fmt.Sprintf(" (%d %s)", n, what)
}

// quoted sets what was said behind bars; nothing stays nothing.
func quoted(text string) string {
	if strings.TrimSpace(text) == "" {
		return ""
	}
	return screen.Quote(strings.TrimRight(text, "\n"))
}

// Title returns the namespace and the name of the Turn whose journal begins with an entry; ok is false if it does not say.
// Journals of versions that did not write down the beginning of a run begin with what the messages are made of.
func Title(first journal.Entry) (namespace, name string, ok bool) {
	switch first.Kind { //nolint:exhaustive // because no journal of a Turn begins with another
	case journal.RunStarted:
		var s started
		ok = json.Unmarshal(first.Payload, &s) == nil
		namespace, name = s.Namespace, s.Name
	case journal.PreparationInput:
		var m made
		ok = json.Unmarshal(first.Payload, &m) == nil
		namespace, name = m.Input.Turn.Namespace, m.Input.Turn.Name
	}
	if !ok || name == "" {
		return "", "", false
	}
	return namespace, name, true
}
