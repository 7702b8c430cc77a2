package loop

import (
	"fmt"
	"strings"
	"unicode/utf8"

	"github.com/capstan-dev/capstan/internal/runtime/citation"
	"github.com/capstan-dev/capstan/internal/runtime/journal"
	"github.com/capstan-dev/capstan/internal/runtime/tool"
	"github.com/capstan-dev/capstan/internal/runtime/untrusted"
)

const (
	// MaxToolMessage bounds the text of an output that the model receives, in characters, fence included. An
	// artifact holds the whole output.
	MaxToolMessage = 12_000
	// maxErrorChars bounds each part of an error that the model receives, in characters. If the other side has
	// described the error too, maxPrefaceChars bounds Capstan's own part.
	maxErrorChars, maxPrefaceChars = 4000, 1000
	// maxChangesChars bounds the note about repaired arguments, in characters.
	maxChangesChars = 1000
	// maxOutput bounds the part of an output that is kept, in bytes. The rest is lost.
	maxOutput = 32 << 20
	// maxText bounds an answer that a tool gave, in bytes.
	maxText = 1 << 20
)

// ending builds the end of a call.
type ending struct {
	CallResult
	// position is the position of the call in its reply, from 1.
	position int
	// nonce of the Turn. It marks the fence of an output that is not trusted.
	nonce   string
	trusted bool
	// role is the role of the tool.
	role tool.Role
	// ends is true for a call whose success ends the Turn.
	ends bool
	// note is a line of Capstan about the call. It stands before the result and outside its fence. It may be empty.
	note string
	// redact returns a text from outside without the credentials that the Turn must not have. It may be nil if the
	// end contains no such text.
	redact func(text string) string
	// convert returns the content of a result that the journal keeps. If it is nil, the content is text for a model.
	convert func(content string) string
}

// repairNote returns the line that tells the model how its arguments were repaired, or "" if they were not repaired.
// Names in the line come from the model.
func repairNote(repairs []Repair, nonce string) string {
	var all []string
	for _, r := range repairs {
		all = append(all, r.Changes...)
	}
	if len(all) == 0 {
		return ""
	}
	kept, out := untrusted.Cap(strings.Join(all, "; "), maxChangesChars)
	if kept = untrusted.NeutralLine(kept, nonce); out > 0 {
		kept += "..."
	}
	return "The arguments were changed before the call: " + kept + ".\n"
}

// failed records an error or a refusal as one line of Capstan, after the note if the call was made. The line may
// quote names and the model's arguments.
func (e ending) failed(o Outcome, class tool.Class, message string) journal.Record {
	return e.failedAs(o, class, message, "")
}

// failedAs records an error as failed does. Below that line, it adds the description of the other side in a fence.
func (e ending) failedAs(o Outcome, class tool.Class, message, said string) journal.Record {
	if e.redact != nil {
		message, said = e.redact(message), e.redact(said)
	}
	e.Outcome, e.Class = o, class
	whole, most := fmt.Sprintf("error (%s): %s", class, message), maxErrorChars
	if said != "" {
		whole, most = whole+"\n"+said, maxPrefaceChars
	}
	message, out := untrusted.Cap(message, most)
	said, outOfSaid := untrusted.Cap(said, maxErrorChars)
	record := journal.Record{Kind: journal.ToolFinished}
	if out > 0 || outOfSaid > 0 {
		record.Artifacts = []journal.Artifact{e.keepArtifact(whole)}
	}
	e.Content = fmt.Sprintf("error (%s): %s", class, untrusted.NeutralLine(message, e.nonce))
	if o != Refused {
		e.Content = e.note + e.Content
	}
	if out > 0 {
		e.Content += fmt.Sprintf(" [... %d characters are omitted here: %s]", out, e.artifactHint())
	}
	if said != "" {
		e.Content += "\n" + e.quoted(said, outOfSaid)
	}
	record.Payload = e.CallResult
	return record
}

// quoted returns the other side's description of an error in a fence.
func (e ending) quoted(said string, out int) string {
	note := ""
	if out > 0 {
		note = fmt.Sprintf("It is too long: %d characters are omitted at its end, and %s.", out, e.artifactHint())
	}
	return untrusted.Tool(e.nonce, note, untrusted.Neutral(said, e.nonce))
}

// succeeded records a result, in a fence unless the tool is trusted.
func (e ending) succeeded(r tool.Result) journal.Record {
	if e.redact != nil {
		r.Content = e.redact(r.Content)
	}
	e.Outcome, e.Bytes, e.Spent = Succeeded, int64(len(r.Content)), r.Spent
	if e.convert != nil {
		e.Content = e.convert(r.Content)
		return journal.Record{Kind: journal.ToolFinished, Payload: e.CallResult}
	}
	switch e.role { //nolint:exhaustive // because other tools have no sources
	case tool.WebSearch:
		e.Pages = citation.Pages(r.Content)
	case tool.LocalSearch:
		e.Documents = citation.Documents(r.Content)
	}
	if e.ends {
		e.EndsTurn, e.Text = true, strings.ToValidUTF8(r.Content[:min(len(r.Content), maxText)], "\uFFFD")
	}
	told := e.neutralize(r.Content[:min(len(r.Content), maxOutput)])
	if content := e.fenced("", told.text()); told.out == 0 && utf8.RuneCountInString(content) <= MaxToolMessage {
		e.Content = content
		return journal.Record{Kind: journal.ToolFinished, Payload: e.CallResult}
	}
	a := e.keepArtifact(r.Content)
	e.Content = e.shortened(told)
	return journal.Record{Kind: journal.ToolFinished, Payload: e.CallResult, Artifacts: []journal.Artifact{a}}
}

// keepArtifact makes an artifact of an output and sets its name.
func (e *ending) keepArtifact(output string) journal.Artifact {
	a := journal.NewArtifact([]byte(output[:min(len(output), maxOutput)]))
	e.Artifact, e.Bytes = a.SHA256, int64(len(output))
	e.ArtifactName = fmt.Sprintf("call-%d-%d", e.Step, e.position)
	return a
}

func (e ending) artifactHint() string {
	return fmt.Sprintf("read_artifact(%q, offset, limit) returns any part of it", e.ArtifactName)
}

func (e ending) fenced(note, body string) string {
	if e.trusted {
		return e.note + body
	}
	return e.note + untrusted.Tool(e.nonce, note, body)
}

// neutralOutput is an output that is safe to show: its head, its tail, and the number of characters between them
// that are left out. A short output has only a head.
type neutralOutput struct {
	head, tail string
	out        int
}

// text returns an output of which nothing is left out.
func (c neutralOutput) text() string { return c.head }

// neutralize neutralizes an output. Of a long output it reads only the parts that may be shown.
func (e ending) neutralize(output string) neutralOutput {
	const some = 2 * MaxToolMessage
	neutral := func(text string) string {
		if e.trusted {
			return strings.Map(func(r rune) rune { return r }, text) // replaces each invalid byte by U+FFFD
		}
		return untrusted.Neutral(text, e.nonce)
	}
	if total := utf8.RuneCountInString(output); total > 2*some {
		head, _ := untrusted.Cap(output, some)
		return neutralOutput{neutral(head), neutral(last(output, some)), total - 2*some}
	}
	return neutralOutput{head: neutral(output)}
}

// shortened returns the head and the tail of an output that is too long, with the number of characters between
// them.
func (e ending) shortened(c neutralOutput) string {
	if c.out == 0 {
		c.tail = c.head
	}
	// The number of omitted characters depends on the room for head and tail, which depends on the length of that
	// number. So reserve room for the number of all characters, which is at least as long.
	all := c.out + utf8.RuneCountInString(c.head)
	if c.out > 0 {
		all += utf8.RuneCountInString(c.tail)
	}
	room := MaxToolMessage - utf8.RuneCountInString(e.withOmission(all, "", ""))
	half := max(0, room/2)
	head, _ := untrusted.Cap(c.head, half)
	tail := last(c.tail, half)
	return e.withOmission(all-utf8.RuneCountInString(head)-utf8.RuneCountInString(tail), head, tail)
}

// withOmission joins head and tail with a note about the characters between them.
func (e ending) withOmission(out int, head, tail string) string {
	if e.trusted {
		return e.note + fmt.Sprintf("%s\n[... %d characters are omitted here: %s ...]\n%s", head, out, e.artifactHint(), tail)
	}
	note := fmt.Sprintf("It is too long: %d characters are omitted where it says so, and %s.", out, e.artifactHint())
	return e.note + untrusted.Tool(e.nonce, note, fmt.Sprintf("%s\n[... %d characters are omitted here ...]\n%s", head, out, tail))
}

// last returns the end of a text, at most this number of characters.
func last(text string, most int) string {
	at := len(text)
	for ; most > 0 && at > 0; most-- {
		_, size := utf8.DecodeLastRuneInString(text[:at])
		at -= size
	}
	return text[at:]
}
