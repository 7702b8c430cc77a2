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

// Writer shows the journal of one Turn, entry by entry in order, so it can follow a growing journal. It writes a bar
// before each line of content, so that no content can imitate a line of the transcript. The output is safe for a
// terminal.
type Writer struct {
	out io.Writer
	// runs is the number of runs so far. agent is the name of the Agent, if it is known. introduced is true once the
	// Agent and its profile were shown. message is the last user's message that was shown: if the prompt is prepared
	// again for another model, the same message must not be shown twice.
	runs       int
	agent      string
	introduced bool
	message    string
}

// NewWriter returns a Writer to out.
func NewWriter(out io.Writer) *Writer { return &Writer{out: out} }

// Write shows an entry, whose payload must be filled. It returns an error if the payload cannot be decoded, or if the
// text cannot be written.
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
	switch e.Kind { //nolint:exhaustive // because the other kinds have only a headline
	case journal.RunStarted:
		return describe(e, func(s runStarted) string { return w.run(e, s) })
	case journal.PreparationInput:
		return describe(e, func(m preparationInput) string {
			w.agent = m.Input.Agent.Name
			return ""
		})
	case journal.ToolsExposed:
		return describe(e, toolRows)
	case journal.Prepared:
		return describe(e, w.prepared)
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
		return describe(e, func(a loop.FailedRequest) string { return quoted(a.Stack) })
	case journal.ModelReplied:
		return describe(e, replyBody)
	case journal.ToolRepaired:
		return describe(e, repairBody)
	case journal.ApprovalRequested:
		return describe(e, func(a loop.Approval) string { return Arguments(a.Arguments) })
	case journal.ApprovalDecided:
		return describe(e, func(d loop.Decision) string { return quoted(d.Reason) })
	case journal.ToolFinished:
		return describe(e, outcomeBody)
	case journal.OutputRejected:
		return describe(e, func(r loop.Rejection) string { return quoted(r.Message) })
	case journal.OutputChecked:
		return describe(e, findingsBody)
	case journal.Compacted:
		return describe(e, func(c loop.Compaction) string { return quoted(c.Summary) })
	case journal.Reflected:
		return describe(e, reflectionBody)
	case journal.UndoPlanned:
		return describe(e, planBody)
	case journal.Finalized:
		return describe(e, resultBody)
	}
	return "", nil
}

// runStarted is the payload of an entry about the start of a run.
type runStarted struct {
	Executor  string `json:"executor"`
	Namespace string `json:"namespace"`
	Name      string `json:"name"`
	Requester string `json:"requester"`
	// EndOnly is true if the run only writes the end of the Turn.
	EndOnly bool `json:"endOnly"`
}

// preparationInput is the part of a preparation input that names the Turn and its Agent.
type preparationInput struct {
	Input struct {
		Agent struct{ Name string }
		Turn  struct{ Namespace, Name string }
	} `json:"input"`
}

func (w *Writer) run(e journal.Entry, s runStarted) string {
	if s.EndOnly && w.runs > 0 {
		return row("end", fmt.Sprintf("epoch %d, %s, by the leader, because no executor runs the Turn",
			e.Epoch, e.Time.UTC().Format(time.RFC3339)))
	}
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

// prompt is a prepared prompt. History.Messages is the number of messages that the entry omits, because the journal of
// the Session has them.
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
	b.WriteString(row("model", modelName(p.Provider, p.Model)))
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

// row returns an indented line with a name and a value.
func row(name, value string) string { return fmt.Sprintf("  %-8s %s\n", name, value) }

func replyBody(s loop.Step) string {
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

// findingsBody returns the reasons why an answer violates policies.
func findingsBody(c loop.AnswerCheck) string {
	var lines []string
	for _, f := range c.Findings {
		if f.Reason != "" {
			lines = append(lines, f.Policy+": "+f.Reason)
		}
	}
	return quoted(strings.Join(lines, "\n"))
}

// planBody returns a row for each call of the Turn to undo.
func planBody(p turn.UndoPlan) string {
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

// reflectionBody returns the answer that replaced a draft.
func reflectionBody(r loop.Reflection) string {
	if !r.Replaced {
		return ""
	}
	return quoted(r.Text)
}

func resultBody(r turn.Result) string {
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

// number returns a number with a noun in the singular or the plural.
func number(n int, noun string) string {
	many := noun + "s"
	if stem, ok := strings.CutSuffix(noun, "y"); ok {
		many = stem + "ies"
	}
	return termsafe.Counted(n, noun, many)
}

// more returns a number with a word in parentheses, or an empty string for 0.
func more(n int, what string) string {
	if n == 0 {
		return ""
	}
	return fmt.Sprintf(" (%d %s)", n, what)
}

// quoted returns a text with a bar before each line. A blank text becomes empty.
func quoted(text string) string {
	if strings.TrimSpace(text) == "" {
		return ""
	}
	return termsafe.Quote(strings.TrimRight(text, "\n"))
}

// Title returns the namespace and the name of a Turn from the first entry of its journal. ok is false if the entry does
// not name a Turn. Older versions wrote no entry for the start of a run; their journals start with the input of the
// preparation.
func Title(first journal.Entry) (namespace, name string, ok bool) {
	switch first.Kind { //nolint:exhaustive // because no journal of a Turn begins with another kind
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
