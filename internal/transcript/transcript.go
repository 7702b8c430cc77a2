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
	"github.com/capstan-dev/capstan/internal/termsafe"
)

// Writer shows the journal of one Turn, entry by entry in order, so it can follow a growing journal. A bar stands
// before each line of content, so that no content can imitate a line of the transcript. The output is safe for a
// terminal.
type Writer struct {
	out io.Writer
	// runs is the number of runs so far, agent the name of the Agent if known, and introduced whether the Agent and
	// its profile were shown. message is the user's message that was shown last: the prompt is prepared again for
	// another model, and the same message must not be shown twice.
	runs       int
	agent      string
	introduced bool
	message    string
}

// NewWriter returns a Writer to out.
func NewWriter(out io.Writer) *Writer { return &Writer{out: out} }

// Write shows an entry, whose payload must be present. It returns an error if the payload cannot be decoded or out
// fails.
func (w *Writer) Write(e journal.Entry) error {
	text, err := w.text(e)
	if err != nil {
		return fmt.Errorf("failed to read entry %d (%q): %w", e.Seq, e.Kind, err)
	}
	if text == "" {
		return nil
	}
	if _, err := io.WriteString(w.out, termsafe.Safe(text)); err != nil {
		return fmt.Errorf("failed to write the transcript: %w", err)
	}
	return nil
}

// text returns the text for an entry, or an empty string.
func (w *Writer) text(e journal.Entry) (string, error) {
	switch e.Kind { //nolint:exhaustive // because the others have a headline only
	case journal.RunStarted:
		return of(e, func(s runStarted) string { return w.run(e, s) })
	case journal.PreparationInput:
		return of(e, func(m preparationInput) string {
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

// body returns the text below the headline of an entry.
func body(e journal.Entry) (string, error) {
	switch e.Kind { //nolint:exhaustive // because the others have no text
	case journal.ModelFailed:
		return of(e, func(a loop.FailedRequest) string { return quoted(a.Stack) })
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
	case journal.OutputChecked:
		return of(e, findings)
	case journal.Compacted:
		return of(e, func(c loop.Compaction) string { return quoted(c.Summary) })
	case journal.Reflected:
		return of(e, replacement)
	case journal.UndoPlanned:
		return of(e, planned)
	case journal.Finalized:
		return of(e, totals)
	}
	return "", nil
}

// runStarted is the payload of an entry about the start of a run.
type runStarted struct {
	Executor  string `json:"executor"`
	Namespace string `json:"namespace"`
	Name      string `json:"name"`
	Requester string `json:"requester"`
}

// preparationInput is the part of a preparation input that names the Turn and its Agent.
type preparationInput struct {
	Input struct {
		Agent struct{ Name string }
		Turn  struct{ Namespace, Name string }
	} `json:"input"`
}

func (w *Writer) run(e journal.Entry, s runStarted) string {
	w.runs++
	text, again := "", ""
	if w.runs == 1 {
		text = fmt.Sprintf("Turn %s/%s\n", termsafe.Line(s.Namespace, longestName), termsafe.Line(s.Name, longestName))
		if s.Requester != "" {
			text += row("asked by", termsafe.Line(s.Requester, longestName))
		}
	} else {
		again = ", continues from the journal"
	}
	return text + row(fmt.Sprintf("run %d", w.runs), fmt.Sprintf("executor %s, epoch %d, %s%s",
		termsafe.Line(s.Executor, longestName), e.Epoch, e.Time.UTC().Format(time.RFC3339), again))
}

// prompt is a prepared prompt, with the number of messages that its entry refers to without containing them.
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
			b.WriteString(row("agent", termsafe.Line(w.agent, longestName)))
		}
		b.WriteString(row("profile", termsafe.Line(fmt.Sprintf("%s (%s %s)", profile.Name, profile.ID, profile.Version), longestName)))
	}
	b.WriteString(row("model", served(p.Provider, p.Model)))
	b.WriteString(row("prompt", fmt.Sprintf("%s, %s, promptRenderHash %s",
		number(len(p.Messages)+p.History.Messages, "message"), number(len(p.Tools), "tool"),
		termsafe.Line(p.Report.RenderHash, longestName))))
	if n := len(p.Messages); n > 0 && p.Messages[n-1].Role == model.RoleUser && p.Messages[n-1].Content != w.message {
		last := &p.Messages[n-1]
		w.message = last.Content
		b.WriteString("user\n" + quoted(w.message))
		for _, a := range last.Attachments {
			b.WriteString(row("attached", fmt.Sprintf("%s, %s, %s, artifact %s", termsafe.Line(a.Name, longestName),
				termsafe.Line(a.MediaType, longestName), number(int(a.Bytes), "byte"), termsafe.Line(a.SHA256, longestName))))
		}
	}
	return b.String()
}

// row returns a line of the head.
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

// findings returns the reasons for which an answer violates policies.
func findings(c loop.AnswerCheck) string {
	var lines []string
	for _, f := range c.Findings {
		if f.Reason != "" {
			lines = append(lines, f.Policy+": "+f.Reason)
		}
	}
	return quoted(strings.Join(lines, "\n"))
}

// planned returns a line for each call of the other Turn.
func planned(p turn.UndoPlan) string {
	var b strings.Builder
	for i := range p.Calls {
		c := &p.Calls[i]
		line := call(c.Name, c.CallID) + ": "
		if c.State == turn.UndoPossible {
			line += "by " + termsafe.Line(c.Tool, longestName)
		} else {
			line += termsafe.Line(c.Reason, longestReason)
		}
		b.WriteString(row("call", line))
	}
	return b.String()
}

// replacement returns the answer that replaced a draft.
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
		parts = append(parts, number(c.ToolCalls, "tool call")+more(c.ToolRetries, "repeated")+more(c.UnknownOutcomes,
			"of UNKNOWN outcome"))
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
		took += fmt.Sprintf(", cost %s %s", termsafe.Line(cost.Amount, longestName), termsafe.Line(cost.Currency, longestName))
	}
	b.WriteString(row("took", took))
	if s := r.SubAgents; s != nil {
		took := tokens(s.Usage)
		if s.Cost != nil {
			took += fmt.Sprintf(", cost %s %s", termsafe.Line(s.Cost.Amount, longestName), termsafe.Line(s.Cost.Currency, longestName))
		}
		b.WriteString(row("agents", took))
	}
	if f := r.Fallback; f != nil {
		b.WriteString(row("fallback", termsafe.Line(f.String(), longestReason)))
	}
	for _, source := range r.Record.Citations {
		b.WriteString(row("source", termsafe.Line(source, longestReason)))
	}
	for _, page := range r.Record.WebCitations {
		b.WriteString(row("source", termsafe.Line(strings.TrimSpace(page.Title+" <"+page.URL+">"), longestReason)))
	}
	for _, failure := range r.Record.Failures {
		b.WriteString(row("failed", termsafe.Line(failure, longestReason)))
	}
	if a := r.Answer; a != nil {
		b.WriteString(row("answer", fmt.Sprintf("%s bytes, artifact %s", termsafe.Thousands(a.Bytes),
			termsafe.Line(a.SHA256, longestName))))
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

// quoted puts a bar before each line of a text. An empty text stays empty.
func quoted(text string) string {
	if strings.TrimSpace(text) == "" {
		return ""
	}
	return termsafe.Quote(strings.TrimRight(text, "\n"))
}

// Title returns the namespace and the name of the Turn whose journal starts with an entry. ok is false if the entry
// does not name a Turn. Older versions wrote no entry for the start of a run; their journals start with the input
// of the preparation.
func Title(first journal.Entry) (namespace, name string, ok bool) {
	switch first.Kind { //nolint:exhaustive // because no journal of a Turn begins with another
	case journal.RunStarted:
		var s runStarted
		ok = json.Unmarshal(first.Payload, &s) == nil
		namespace, name = s.Namespace, s.Name
	case journal.PreparationInput:
		var m preparationInput
		ok = json.Unmarshal(first.Payload, &m) == nil
		namespace, name = m.Input.Turn.Namespace, m.Input.Turn.Name
	}
	if !ok || name == "" {
		return "", "", false
	}
	return namespace, name, true
}
