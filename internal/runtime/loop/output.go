package loop

import (
	"context"
	"fmt"
	"strings"
	"unicode/utf8"

	"github.com/capstan-dev/capstan/internal/fairgate"
	"github.com/capstan-dev/capstan/internal/runtime/citation"
	"github.com/capstan-dev/capstan/internal/runtime/journal"
	"github.com/capstan-dev/capstan/internal/runtime/tool"
	"github.com/capstan-dev/capstan/internal/runtime/untrusted"
)

const (
	// MaxToolMessage bounds the text of an output that the model receives, in characters, including the fence. An
	// artifact holds the whole output.
	MaxToolMessage = 12_000
	// maxErrorChars bounds each part of an error that the model receives, in characters. If the error includes the
	// other side's description, maxPrefaceChars bounds Capstan's own part.
	maxErrorChars, maxPrefaceChars = 4000, 1000
	// maxChangesChars bounds the note about repaired arguments, in characters.
	maxChangesChars = 1000
	// maxOutput bounds the part of an output that is kept, in bytes. The rest is lost.
	maxOutput = 32 << 20
	// maxText bounds an answer that a tool gave, in bytes.
	maxText = 1 << 20
)

// resultBuilder builds the CallResult of one call, and the journal record with it.
type resultBuilder struct {
	CallResult
	// position is the position of the call in its reply, from 1.
	position int
	// nonce is the nonce of the Turn. It marks the fence of an output that is not trusted.
	nonce   string
	trusted bool
	// artifactPrefix is the start of the name of an artifact.
	artifactPrefix string
	// role is the role of the tool.
	role tool.Role
	// ends is true for a call whose success ends the Turn.
	ends bool
	// wantsJSON is true if the answer of the Turn must be JSON.
	wantsJSON bool
	// note is Capstan's own line about the call. It comes before the output and outside its fence. It may be empty.
	note string
	// redact removes the credentials that the Turn must not have from a text of a tool. It may be nil if the result
	// contains no such text.
	redact func(text string) string
	// convert converts the output to the content that the journal keeps. If it is nil, the content is text for a model.
	convert func(output tool.Result) string
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

// failed returns the record of an error or a refusal: one line by Capstan, after the note if the call was made. The
// line may quote names and the model's arguments.
func (b resultBuilder) failed(o Outcome, class tool.Class, message string) journal.Record {
	return b.failedAs(o, class, message, "")
}

// failedAs is like failed, and adds the other side's description of the error (remote) below that line, in a fence.
func (b resultBuilder) failedAs(o Outcome, class tool.Class, message, remote string) journal.Record {
	if b.redact != nil {
		message, remote = b.redact(message), b.redact(remote)
	}
	b.Outcome, b.Class = o, class
	whole, most := fmt.Sprintf("error (%s): %s", class, message), maxErrorChars
	if remote != "" {
		whole, most = whole+"\n"+remote, maxPrefaceChars
	}
	message, out := untrusted.Cap(message, most)
	remote, outOfRemote := untrusted.Cap(remote, maxErrorChars)
	record := journal.Record{Kind: journal.ToolFinished}
	if out > 0 || outOfRemote > 0 {
		record.Artifacts = []journal.Artifact{b.keepArtifact(whole)}
	}
	b.Content = fmt.Sprintf("error (%s): %s", class, untrusted.NeutralLine(message, b.nonce))
	if o != Refused {
		b.Content = b.note + b.Content
	}
	if out > 0 {
		b.Content += fmt.Sprintf(" [... %d characters are omitted here: %s]", out, b.artifactHint())
	}
	if remote != "" {
		b.Content += "\n" + b.quoted(remote, outOfRemote)
	}
	record.Payload = b.CallResult
	return record
}

// quoted returns the other side's description of an error in a fence. out is the number of omitted characters.
func (b resultBuilder) quoted(remote string, out int) string {
	note := ""
	if out > 0 {
		note = fmt.Sprintf("It is too long: %d characters are omitted at its end, and %s.", out, b.artifactHint())
	}
	return untrusted.Tool(b.nonce, note, untrusted.Neutral(remote, b.nonce))
}

// findSources sets the sources in an output of a search. The output must be redacted. Before the work on a large one,
// it waits until the namespace of ctx is next.
func (b *resultBuilder) findSources(ctx context.Context, r tool.Result) {
	if b.convert != nil || b.role != tool.WebSearch && b.role != tool.LocalSearch {
		return
	}
	defer fairgate.AcquireProcessor(ctx, len(r.Content)+len(r.Structured))()
	if b.role == tool.WebSearch {
		b.Pages = citation.Merge(citation.Pages(r.Content), citation.Pages(r.Structured))
		return
	}
	b.Documents = citation.MergeDocuments(citation.Documents(r.Content), citation.Documents(r.Structured))
}

// succeeded returns the record of an output. The output is in a fence unless the tool is trusted.
func (b resultBuilder) succeeded(r tool.Result) journal.Record {
	if b.redact != nil {
		r = r.Map(b.redact)
	}
	whole := r.Whole()
	b.Outcome, b.Bytes, b.Spent, b.UndoneBy = Succeeded, int64(len(whole)), r.Spent, r.UndoneBy
	b.trusted = b.trusted || r.UndoneBy != ""
	if b.convert != nil {
		b.Content = b.convert(r)
		return journal.Record{Kind: journal.ToolFinished, Payload: b.CallResult}
	}
	if b.ends {
		answer := r.Content
		if b.wantsJSON || answer == "" {
			answer = r.Data()
		}
		b.EndsTurn, b.Text = true, strings.ToValidUTF8(answer[:min(len(answer), maxText)], "\uFFFD")
	}
	neutral := b.neutralize(whole[:min(len(whole), maxOutput)])
	if content := b.fenced("", neutral.text()); neutral.out == 0 && utf8.RuneCountInString(content) <= MaxToolMessage {
		b.Content = content
		return journal.Record{Kind: journal.ToolFinished, Payload: b.CallResult}
	}
	a := b.keepArtifact(whole)
	b.Content = b.shortened(neutral)
	return journal.Record{Kind: journal.ToolFinished, Payload: b.CallResult, Artifacts: []journal.Artifact{a}}
}

// keepArtifact makes an artifact of an output and sets its name.
func (b *resultBuilder) keepArtifact(output string) journal.Artifact {
	a := journal.NewArtifact([]byte(output[:min(len(output), maxOutput)]))
	b.Artifact, b.Bytes = a.SHA256, int64(len(output))
	b.ArtifactName = fmt.Sprintf("%scall-%d-%d", b.artifactPrefix, b.Step, b.position)
	return a
}

func (b resultBuilder) artifactHint() string {
	return fmt.Sprintf("read_artifact(%q, offset, limit) returns any part of it", b.ArtifactName)
}

func (b resultBuilder) fenced(note, body string) string {
	if b.trusted {
		return b.note + body
	}
	return b.note + untrusted.Tool(b.nonce, note, body)
}

// neutralOutput is an output that is safe to show: its head, its tail, and the number of characters between them
// that are left out. A short output has only a head.
type neutralOutput struct {
	head, tail string
	out        int
}

// text returns an output from which nothing is left out.
func (c neutralOutput) text() string { return c.head }

// neutralize neutralizes an output. If the output is long, it reads only the parts that may be shown.
func (b resultBuilder) neutralize(output string) neutralOutput {
	const some = 2 * MaxToolMessage
	neutral := func(text string) string {
		if b.trusted {
			return strings.Map(func(r rune) rune { return r }, text) // replaces each invalid byte by U+FFFD
		}
		return untrusted.Neutral(text, b.nonce)
	}
	if total := utf8.RuneCountInString(output); total > 2*some {
		head, _ := untrusted.Cap(output, some)
		return neutralOutput{neutral(head), neutral(last(output, some)), total - 2*some}
	}
	return neutralOutput{head: neutral(output)}
}

// shortened returns the head and the tail of an output that is too long, with the number of characters between
// them.
func (b resultBuilder) shortened(c neutralOutput) string {
	if c.out == 0 {
		c.tail = c.head
	}
	// The number of omitted characters depends on the space for head and tail, and that space depends on how many
	// digits the number has. So reserve space for the total number of characters, which has at least as many digits.
	all := c.out + utf8.RuneCountInString(c.head)
	if c.out > 0 {
		all += utf8.RuneCountInString(c.tail)
	}
	room := MaxToolMessage - utf8.RuneCountInString(b.withOmission(all, "", ""))
	half := max(0, room/2)
	head, _ := untrusted.Cap(c.head, half)
	tail := last(c.tail, half)
	if b.trusted { // its own fences must not lose a tag, because no fence surrounds it
		head, tail = untrusted.WholeHead(head), untrusted.WholeTail(tail)
	}
	return b.withOmission(all-utf8.RuneCountInString(head)-utf8.RuneCountInString(tail), head, tail)
}

// withOmission joins head and tail with a note about the characters between them.
func (b resultBuilder) withOmission(out int, head, tail string) string {
	if b.trusted {
		return b.note + fmt.Sprintf("%s\n[... %d characters are omitted here: %s ...]\n%s", head, out, b.artifactHint(), tail)
	}
	note := fmt.Sprintf("It is too long: %d characters are omitted where it says so, and %s.", out, b.artifactHint())
	return b.note + untrusted.Tool(b.nonce, note, fmt.Sprintf("%s\n[... %d characters are omitted here ...]\n%s", head, out, tail))
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
