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
	"github.com/capstan-dev/capstan/internal/termsafe"
)

// longestNames is the maximum number of characters of a list of tools that are shown.
const longestNames = 1024

// toolHeadline returns the headline of an entry about tools and their calls.
func toolHeadline(e journal.Entry) (string, error) {
	switch e.Kind { //nolint:exhaustive // because only these kinds are about tools
	case journal.ToolsExposed:
		return describe(e, exposedLine)
	case journal.ToolRepaired:
		return describe(e, repairedLine)
	case journal.ApprovalRequested:
		return describe(e, approvalRequestedLine)
	case journal.ApprovalDecided:
		return describe(e, approvalDecidedLine)
	case journal.ToolIntended:
		return describe(e, intendedLine)
	}
	return describe(e, finishedLine)
}

// exposedLine returns the numbers of the tools of a Turn, or an empty string if the Turn has no tools.
func exposedLine(x tool.Exposure) string {
	if len(x.Tools)+len(x.ContextTools)+len(x.Unusable)+len(x.Missing)+x.LeftOut == 0 {
		return ""
	}
	contextTools, leftOut, unusable, missing := "", "", "", ""
	if n := len(x.Missing); n > 0 {
		missing = "NO TOOLS of " + number(n, "server") + " that could not be reached"
	}
	if n := len(x.Unusable); n > 0 {
		unusable = fmt.Sprintf("%d unusable", n)
	}
	if n := len(x.ContextTools); n > 0 {
		contextTools = number(n, "tool") + " for the context"
	}
	if x.LeftOut > 0 {
		leftOut = fmt.Sprintf("%d left out because there are too many", x.LeftOut)
	}
	return "the model is offered " + join(number(len(x.Tools), "tool"), contextTools, leftOut, unusable, missing)
}

func repairedLine(r loop.Repair) string {
	text := "repaired the arguments of " + call(r.Name, r.CallID)
	if r.Attempt > 1 {
		text += fmt.Sprintf(" (repair %d)", r.Attempt)
	}
	return text
}

func approvalRequestedLine(a loop.Approval) string {
	return fmt.Sprintf("%s requires approval until %s", call(a.Name, a.CallID), a.Expires.UTC().Format(time.RFC3339))
}

func approvalDecidedLine(d loop.Decision) string {
	what := fmt.Sprintf("the call %s of step %d", termsafe.Line(d.CallID, longestName), d.Step)
	by := ""
	if d.By != "" {
		by = " by " + termsafe.Line(d.By, longestName)
	}
	switch {
	case d.Expired:
		return "the request for approval of " + what + " has expired: the call is denied"
	case d.Approved:
		return what + " was approved" + by
	}
	return what + " was denied" + by
}

func intendedLine(i loop.Intent) string {
	text := "calling " + call(i.Name, i.CallID)
	switch {
	case i.Retry:
		text += " again, because it timed out"
	case i.Attempt > 1:
		text += fmt.Sprintf(" (attempt %d)", i.Attempt)
	}
	return text
}

func finishedLine(f loop.CallResult) string {
	what, class := call(f.Name, f.CallID), termsafe.Line(string(f.Class), longestName)
	child := ""
	if s := f.Spent; s != nil {
		child = join(prefixed("Turn ", termsafe.Line(s.Turn, longestName)), usageText(s.Usage, s.Cost))
	}
	switch f.Outcome {
	case loop.Succeeded:
		if f.UndoneBy != "" {
			return fmt.Sprintf("%s was not called: Turn %s has undone the call", what, termsafe.Line(f.UndoneBy, longestName))
		}
		return join(what+" succeeded", termsafe.Thousands(f.Bytes)+" bytes", durationText(f.DurationMS), child)
	case loop.Failed:
		return join(fmt.Sprintf("%s failed (%s)", what, class), durationText(f.DurationMS), child)
	case loop.Refused:
		return fmt.Sprintf("%s was not called (%s)", what, class)
	case loop.Reused:
		return what + " was not called: the same call succeeded before, and its result is reused"
	case loop.Unknown:
		return join(what+": OUTCOME UNKNOWN, the call may or may not have been made", durationText(f.DurationMS), child)
	}
	return what + ": " + termsafe.Line(string(f.Outcome), longestName)
}

// call returns the name and the ID of a tool call.
func call(name, id string) string {
	return fmt.Sprintf("%s (%s)", cmp.Or(termsafe.Line(name, longestName), "a tool without a name"), termsafe.Line(id, longestName))
}

// prefixed returns a text with a word before it. An empty text stays empty.
func prefixed(word, text string) string {
	if text == "" {
		return ""
	}
	return word + text
}

// toolRows returns the rows of the head that name the tools.
func toolRows(x tool.Exposure) string {
	if exposedLine(x) == "" {
		return ""
	}
	list := func(tools []tool.Tool) string {
		names := make([]string, 0, len(tools))
		for _, t := range tools {
			name := termsafe.Line(t.Name, longestName)
			if t.RequiresApproval {
				name += " (with approval)"
			}
			names = append(names, name)
		}
		return termsafe.Line(strings.Join(names, ", "), longestNames)
	}
	text := row("tools", cmp.Or(list(x.Tools), "none"))
	if len(x.ContextTools) > 0 {
		text += row("context", list(x.ContextTools))
	}
	if len(x.Unusable) > 0 {
		text += row("unusable", termsafe.Line(strings.Join(x.Unusable, ", "), longestNames))
	}
	if len(x.Missing) > 0 {
		text += row("missing", "tools of ToolServers that could not be reached: "+
			termsafe.Line(strings.Join(x.Missing, ", "), longestNames))
	}
	if x.LeftOut > 0 {
		text += row("left out", number(x.LeftOut, "tool")+" because there are too many")
	}
	return text
}

// repairBody returns the changes to arguments, and the arguments after the repair.
func repairBody(r loop.Repair) string {
	var b strings.Builder
	for _, c := range r.Changes {
		b.WriteString(quoted(c))
	}
	return b.String() + "  became\n" + Arguments(r.After)
}

// outcomeBody returns the result of a call as the model received it, without the fence around it.
func outcomeBody(f loop.CallResult) string {
	text := quoted(unfenced(f.Content))
	if f.Artifact != "" {
		text += row("whole", "artifact "+join(termsafe.Line(f.ArtifactName, longestName), termsafe.Line(f.Artifact, longestName)))
	}
	return text + quoted(f.Stack)
}

// unfenced removes the fence from the output of a tool, because bars already mark the output for people. Text that
// Capstan adds before the output stays.
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

// Arguments returns the arguments of a call for a person who decides about it: indented JSON, with a bar before
// each line. It contains no control characters and no hidden characters. Text that is not JSON is not indented.
// Line feeds within JSON strings stay escaped.
func Arguments(arguments json.RawMessage) string {
	var b bytes.Buffer
	if json.Indent(&b, arguments, "", "  ") != nil {
		return termsafe.Exact(quoted(string(arguments)))
	}
	return termsafe.Exact(quoted(b.String()))
}
