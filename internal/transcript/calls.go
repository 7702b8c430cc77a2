package transcript

import (
	"bytes"
	"cmp"
	"encoding/json"
	"fmt"
	"strings"
	"time"

	"github.com/capstan-dev/capstan/internal/runtime/journal"
	"github.com/capstan-dev/capstan/internal/runtime/loop"
	"github.com/capstan-dev/capstan/internal/runtime/tool"
	"github.com/capstan-dev/capstan/internal/screen"
)

// longestNames is how many characters of a list of tools are shown.
const longestNames = 1024

// ofTools is the headline of an entry about tools and their calls.
func ofTools(e journal.Entry) (string, error) {
	switch e.Kind { //nolint:exhaustive // because the others are not about tools
	case journal.ToolsExposed:
		return of(e, exposed)
	case journal.ToolRepaired:
		return of(e, repaired)
	case journal.ApprovalRequested:
		return of(e, approvalRequested)
	case journal.ApprovalDecided:
		return of(e, approvalDecided)
	case journal.ToolIntended:
		return of(e, intended)
	}
	return of(e, finished)
}

// exposed is empty for a Turn that has no tools, as most.
func exposed(x tool.Exposure) string {
	if len(x.Tools)+len(x.Packs)+len(x.Unusable)+len(x.Missing)+x.LeftOut == 0 {
		return ""
	}
	packs, leftOut, unusable, missing := "", "", "", ""
	if n := len(x.Missing); n > 0 {
		missing = "NO TOOLS of " + number(n, "server") + ", never reached"
	}
	if n := len(x.Unusable); n > 0 {
		unusable = fmt.Sprintf("%d unusable", n)
	}
	if n := len(x.Packs); n > 0 {
		packs = number(n, "tool") + " for the context"
	}
	if x.LeftOut > 0 {
		leftOut = fmt.Sprintf("%d left out, as there are too many", x.LeftOut)
	}
	return "the model is offered " + join(number(len(x.Tools), "tool"), packs, leftOut, unusable, missing)
}

func repaired(r loop.Repair) string {
	text := "repaired the arguments of " + call(r.Name, r.CallID)
	if r.Attempt > 1 {
		text += fmt.Sprintf(" (repair %d)", r.Attempt)
	}
	return text
}

func approvalRequested(a loop.Approval) string {
	return fmt.Sprintf("%s awaits approval, until %s", call(a.Name, a.CallID), a.Expires.UTC().Format(time.RFC3339))
}

func approvalDecided(d loop.Decision) string {
	what := fmt.Sprintf("the call %s of step %d", screen.Line(d.CallID, longestName), d.Step)
	by := ""
	if d.By != "" {
		by = " by " + screen.Line(d.By, longestName)
	}
	switch {
	case d.Expired:
		return "nobody has decided in time about " + what + ": it counts as denied"
	case d.Approved:
		return what + " was approved" + by
	}
	return what + " was denied" + by
}

func intended(i loop.Intent) string {
	text := "calling " + call(i.Name, i.CallID)
	switch {
	case i.Retry:
		text += " once more, as it gave no result in time"
	case i.Attempt > 1:
		text += fmt.Sprintf(" (attempt %d)", i.Attempt)
	}
	return text
}

func finished(f loop.Finish) string {
	what, class := call(f.Name, f.CallID), screen.Line(string(f.Class), longestName)
	child := ""
	if s := f.Spent; s != nil {
		child = join(prefixed("Turn ", screen.Line(s.Turn, longestName)), spent(s.Usage, s.Cost))
	}
	switch f.Outcome {
	case loop.Succeeded:
		return join(what+" succeeded", screen.Thousands(f.Bytes)+" bytes", took(f.DurationMS), child)
	case loop.Failed:
		return join(fmt.Sprintf("%s failed (%s)", what, class), took(f.DurationMS), child)
	case loop.Refused:
		return fmt.Sprintf("%s was not called (%s)", what, class)
	case loop.Reused:
		return what + " was not called: the same call has succeeded before, and its result is given again"
	case loop.Unknown:
		return join(what+": OUTCOME UNKNOWN, nobody knows whether it was done", took(f.DurationMS), child)
	}
	return what + ": " + screen.Line(string(f.Outcome), longestName)
}

// call names one call of a tool.
func call(name, id string) string {
	return fmt.Sprintf("%s (%s)", cmp.Or(screen.Line(name, longestName), "a tool without a name"), screen.Line(id, longestName))
}

// prefixed puts a word before a text; nothing stays nothing.
func prefixed(word, text string) string {
	if text == "" {
		return ""
	}
	return word + text
}

// offered is the row of the head that names the tools.
func offered(x tool.Exposure) string {
	if exposed(x) == "" {
		return ""
	}
	list := func(tools []tool.Tool) string {
		names := make([]string, 0, len(tools))
		for _, t := range tools {
			name := screen.Line(t.Name, longestName)
			if t.RequiresApproval {
				name += " (with approval)"
			}
			names = append(names, name)
		}
		return screen.Line(strings.Join(names, ", "), longestNames)
	}
	text := row("tools", cmp.Or(list(x.Tools), "none"))
	if len(x.Packs) > 0 {
		text += row("context", list(x.Packs))
	}
	if len(x.Unusable) > 0 {
		text += row("unusable", screen.Line(strings.Join(x.Unusable, ", "), longestNames))
	}
	if len(x.Missing) > 0 {
		text += row("missing", screen.Line("tools of ToolServer "+strings.Join(x.Missing, ", "), longestNames)+": never reached")
	}
	if x.LeftOut > 0 {
		text += row("left out", number(x.LeftOut, "tool")+", as there are too many")
	}
	return text
}

// repair shows what was done to arguments, and what they are since.
func repair(r loop.Repair) string {
	var b strings.Builder
	for _, c := range r.Changes {
		b.WriteString(quoted(c))
	}
	return b.String() + "  became\n" + Arguments(r.After)
}

// outcome shows what the model was told of a call, without the fence around it.
func outcome(f loop.Finish) string {
	text := quoted(unfenced(f.Content))
	if f.Artifact != "" {
		text += row("whole", "artifact "+join(screen.Line(f.ArtifactName, longestName), screen.Line(f.Artifact, longestName)))
	}
	return text + quoted(f.Stack)
}

// unfenced is the output of a tool without the lines that keep it apart for the model. Bars do that for people. What Capstan
// says before it stays.
func unfenced(content string) string {
	const opening, closing = "<tool-output ", "</tool-output "
	before, output := "", content
	if at := strings.Index(content, "\n"+opening); at >= 0 && !strings.HasPrefix(content, opening) {
		before, output = content[:at+1], content[at+1:]
	}
	first, body, ok := strings.Cut(output, "\n")
	nonce, _, named := strings.Cut(strings.TrimPrefix(first, opening), ">")
	inner, closed := strings.CutSuffix(body, "\n"+closing+nonce+">")
	if !ok || !named || !closed || !strings.HasPrefix(first, opening) {
		return content
	}
	return before + inner
}

// Arguments returns a call's arguments as people read them before they decide: JSON with line feeds, each line behind a bar.
// Of it a terminal acts on nothing, and nothing in it is hidden. What is no JSON is shown as it is. Line feeds within texts stay
// escaped, as JSON has them.
func Arguments(arguments json.RawMessage) string {
	var b bytes.Buffer
	if json.Indent(&b, arguments, "", "  ") != nil {
		return screen.Exact(quoted(string(arguments)))
	}
	return screen.Exact(quoted(b.String()))
}
