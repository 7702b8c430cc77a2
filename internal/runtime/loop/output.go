package loop

import (
	"fmt"
	"strings"
	"unicode/utf8"

	"github.com/capstan-dev/capstan/internal/runtime/fence"
	"github.com/capstan-dev/capstan/internal/runtime/journal"
	"github.com/capstan-dev/capstan/internal/runtime/tool"
)

const (
	// MaxToolMessage bounds what the model is told of an output, in characters, the fence included; an artifact has the whole.
	MaxToolMessage = 12_000
	// maxErrorChars bounds what it is told of an error in one voice, in characters, and maxPrefaceChars what Capstan says of it
	// before the other side does.
	maxErrorChars, maxPrefaceChars = 4000, 1000
	// maxChangesChars bounds what it is told of changes of its arguments, in characters.
	maxChangesChars = 1000
	// maxOutput bounds what is kept of an output, in bytes; the rest of a longer one is lost.
	maxOutput = 32 << 20
	// maxText bounds what is kept of an answer that a tool gave, in bytes.
	maxText = 1 << 20
)

// ending makes the end of a call.
type ending struct {
	Finish
	// place of the call in its reply, from 1.
	place int
	// nonce of the Turn, for the fence of an output that is not trusted.
	nonce   string
	trusted bool
	// ends is true for a call whose success ends the Turn.
	ends bool
	// note is Capstan's own word of the call, a line that stands before what is told of its result and outside of its fence; empty
	// for none.
	note string
	// redact returns a text from outside without the credentials that the Turn must not have; nil for an end without such a text.
	redact func(text string) string
}

// changed is the line that says how the arguments of a call were repaired; empty if they were not. The names in it are the
// model's own.
func changed(repairs []Repair, nonce string) string {
	var all []string
	for _, r := range repairs {
		all = append(all, r.Changes...)
	}
	if len(all) == 0 {
		return ""
	}
	kept, out := fence.Cap(strings.Join(all, "; "), maxChangesChars)
	if kept = fence.NeutralLine(kept, nonce); out > 0 {
		kept += "..."
	}
	return "The arguments were changed before the call: " + kept + ".\n"
}

// failed tells the model of an error or of a refusal, on one line of Capstan's own (after that of the note, where there was a
// call). It may quote arguments of the model and names.
func (e ending) failed(o Outcome, class tool.Class, message string) journal.Record {
	return e.failedAs(o, class, message, "")
}

// failedAs tells the model of an error as failed does, and then of what the other side has said, in its fence.
func (e ending) failedAs(o Outcome, class tool.Class, message, said string) journal.Record {
	if e.redact != nil {
		message, said = e.redact(message), e.redact(said)
	}
	e.Outcome, e.Class = o, class
	whole, most := fmt.Sprintf("error (%s): %s", class, message), maxErrorChars
	if said != "" {
		whole, most = whole+"\n"+said, maxPrefaceChars
	}
	message, out := fence.Cap(message, most)
	said, outOfSaid := fence.Cap(said, maxErrorChars)
	record := journal.Record{Kind: journal.ToolFinished}
	if out > 0 || outOfSaid > 0 {
		record.Artifacts = []journal.Artifact{e.keep(whole)}
	}
	e.Content = fmt.Sprintf("error (%s): %s", class, fence.NeutralLine(message, e.nonce))
	if o != Refused {
		e.Content = e.note + e.Content
	}
	if out > 0 {
		e.Content += fmt.Sprintf(" [... %d characters are left out here: %s]", out, e.whole())
	}
	if said != "" {
		e.Content += "\n" + e.quoted(said, outOfSaid)
	}
	record.Payload = e.Finish
	return record
}

// quoted sets what the other side has said of an error into its fence.
func (e ending) quoted(said string, out int) string {
	note := ""
	if out > 0 {
		note = fmt.Sprintf("It is too long: %d characters are left out at its end, and %s.", out, e.whole())
	}
	return fence.Tool(e.nonce, note, fence.Neutral(said, e.nonce))
}

// succeeded tells the model of a result, within a fence if it came from outside.
func (e ending) succeeded(r tool.Result) journal.Record {
	if e.redact != nil {
		r.Content = e.redact(r.Content)
	}
	e.Outcome, e.Bytes, e.Spent = Succeeded, int64(len(r.Content)), r.Spent
	if e.ends {
		e.EndsTurn, e.Text = true, strings.ToValidUTF8(r.Content[:min(len(r.Content), maxText)], "\uFFFD")
	}
	told := e.clean(r.Content[:min(len(r.Content), maxOutput)])
	if content := e.fenced("", told.text()); told.out == 0 && utf8.RuneCountInString(content) <= MaxToolMessage {
		e.Content = content
		return journal.Record{Kind: journal.ToolFinished, Payload: e.Finish}
	}
	a := e.keep(r.Content)
	e.Content = e.shortened(told)
	return journal.Record{Kind: journal.ToolFinished, Payload: e.Finish, Artifacts: []journal.Artifact{a}}
}

// keep makes an artifact of an output, and names it.
func (e *ending) keep(output string) journal.Artifact {
	a := journal.NewArtifact([]byte(output[:min(len(output), maxOutput)]))
	e.Artifact, e.Bytes = a.SHA256, int64(len(output))
	e.ArtifactName = fmt.Sprintf("call-%d-%d", e.Step, e.place)
	return a
}

func (e ending) whole() string {
	return fmt.Sprintf("read_artifact(%q, offset, limit) has all of it", e.ArtifactName)
}

func (e ending) fenced(note, body string) string {
	if e.trusted {
		return e.note + body
	}
	return e.note + fence.Tool(e.nonce, note, body)
}

// cleaned is an output that can be told: its head, how many characters are left out, and its tail. A short one is all head.
type cleaned struct {
	head, tail string
	out        int
}

// text is the whole of an output of which nothing is left out.
func (c cleaned) text() string { return c.head }

// clean makes an output harmless. Of a long one only so much is looked at as may be told.
func (e ending) clean(output string) cleaned {
	const some = 2 * MaxToolMessage
	neutral := func(text string) string {
		if e.trusted {
			return strings.Map(func(r rune) rune { return r }, text) // which makes U+FFFD of each bad byte
		}
		return fence.Neutral(text, e.nonce)
	}
	if total := utf8.RuneCountInString(output); total > 2*some {
		head, _ := fence.Cap(output, some)
		return cleaned{neutral(head), neutral(last(output, some)), total - 2*some}
	}
	return cleaned{head: neutral(output)}
}

// shortened keeps the head and the tail of an output that is too long, and says how much is missing.
func (e ending) shortened(c cleaned) string {
	if c.out == 0 {
		c.tail = c.head
	}
	// What is missing is known when it is known how much room its number takes: that of all characters is as long or longer.
	all := c.out + utf8.RuneCountInString(c.head)
	if c.out > 0 {
		all += utf8.RuneCountInString(c.tail)
	}
	room := MaxToolMessage - utf8.RuneCountInString(e.around(all, "", ""))
	half := max(0, room/2)
	head, _ := fence.Cap(c.head, half)
	tail := last(c.tail, half)
	return e.around(all-utf8.RuneCountInString(head)-utf8.RuneCountInString(tail), head, tail)
}

// around sets head and tail with what is said of the characters between them.
func (e ending) around(out int, head, tail string) string {
	if e.trusted {
		return e.note + fmt.Sprintf("%s\n[... %d characters are left out here: %s ...]\n%s", head, out, e.whole(), tail)
	}
	note := fmt.Sprintf("It is too long: %d characters are left out where it says so, and %s.", out, e.whole())
	return e.note + fence.Tool(e.nonce, note, fmt.Sprintf("%s\n[... %d characters are left out here ...]\n%s", head, out, tail))
}

// last is the last characters of a text, at most so many.
func last(text string, most int) string {
	at := len(text)
	for ; most > 0 && at > 0; most-- {
		_, size := utf8.DecodeLastRuneInString(text[:at])
		at -= size
	}
	return text[at:]
}
