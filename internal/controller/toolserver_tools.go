package controller

import (
	"cmp"
	"fmt"
	"slices"
	"strings"
	"time"
	"unicode/utf8"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/capstan-dev/capstan/api/v1alpha1"
	"github.com/capstan-dev/capstan/internal/runtime/fence"
	"github.com/capstan-dev/capstan/internal/runtime/tool"
	"github.com/capstan-dev/capstan/internal/toolservers"
)

const (
	// maxDiscovered is how many tools the status of a server lists, and maxDescription how long their descriptions are, in
	// characters.
	maxDiscovered  = 256
	maxDescription = 256
	// maxNamed is how many names a message lists.
	maxNamed = 8
)

// discover writes into the status of a server what it has said of itself and its tools, and returns what to tell people.
func discover(s *v1alpha1.ToolServer, listing toolservers.Listing, now time.Time) string {
	s.Status.ServerName, s.Status.ServerVersion, s.Status.ProtocolVersion = listing.ServerName, listing.ServerVersion, listing.ProtocolVersion
	before := map[string]v1alpha1.DiscoveredTool{}
	for _, t := range s.Status.Tools {
		before[t.Name] = t
	}
	var tools []v1alpha1.DiscoveredTool
	for _, t := range listing.Tools[:min(len(listing.Tools), maxDiscovered)] {
		found := v1alpha1.DiscoveredTool{
			Name: t.Name, Description: oneLine(t.Description), Effect: v1alpha1.ToolEffect(t.Effect), Role: v1alpha1.ToolRole(t.Role),
			SchemaHash: toolservers.SchemaHash(t.Schema),
		}
		found.Unusable = unusable(t, found.SchemaHash, before[t.Name])
		tools = append(tools, found)
	}
	if count := int32(len(listing.Tools)); s.Status.LastDiscoveryTime == nil || count != s.Status.ToolCount || !slices.Equal(tools, s.Status.Tools) { //nolint:gosec // because a list has at most 1000 tools
		s.Status.ToolCount, s.Status.Tools = count, tools
		found := metav1.NewTime(now)
		s.Status.LastDiscoveryTime = &found
	}
	return strings.Join(append([]string{"the server answers"}, remarks(s, listing)...), "; ")
}

// unusable says why no model can be offered a tool; nothing if one can. Of several things that are wrong with a schema any may be
// told, so what was said before of the same schema stays: each change would be written, here and to the Agents that use it.
func unusable(t tool.Tool, hash string, before v1alpha1.DiscoveredTool) string {
	err := tool.Unusable(t)
	switch {
	case err == nil:
		return ""
	case before.SchemaHash == hash && before.Unusable != "":
		return before.Unusable
	}
	return cmp.Or(oneLine(err.Error()), "the schema of its arguments cannot be used")
}

// remarks are what people should know of the tools of a server that answers.
func remarks(s *v1alpha1.ToolServer, listing toolservers.Listing) []string {
	tools := listing.Tools
	var unknown, all []string
	for _, d := range s.Spec.Tools {
		if !slices.ContainsFunc(tools, func(t tool.Tool) bool { return t.Name == d.Name }) {
			unknown = append(unknown, d.Name)
		}
	}
	if len(unknown) > 0 {
		all = append(all, "it has no tool "+quoted(unknown)+", which spec.tools names: check the spelling")
	}
	offered := tool.Choose([]tool.Offer{{Server: s.Name, Tools: tools}}, nil, tool.Selection{Most: len(tools)})
	if len(offered.Unusable) > 0 {
		all = append(all, "no model can be offered "+quoted(offered.Unusable)+": status.tools[].unusable says why")
	}
	all = append(all, effectRemarks(s, listing)...)
	if len(tools) > maxDiscovered {
		all = append(all, fmt.Sprintf("status.tools lists the first %d of its tools", maxDiscovered))
	}
	return all
}

// effectRemarks say where the server and the spec differ about the effects of tools, and what to write.
func effectRemarks(s *v1alpha1.ToolServer, listing toolservers.Listing) []string {
	declared := map[string]v1alpha1.ToolDeclaration{}
	for _, d := range s.Spec.Tools {
		declared[d.Name] = d
	}
	claimed, contradicted := map[tool.Effect][]string{}, []string{}
	var packs []string
	for _, t := range listing.Tools {
		d := declared[t.Name]
		claim := listing.Hints[t.Name].Claims()
		switch {
		case d.Effect == "" && claim != tool.Destructive:
			claimed[claim] = append(claimed[claim], t.Name)
		case d.Effect != "" && tool.Effect(d.Effect) != t.Effect:
			contradicted = append(contradicted, t.Name)
		}
		if t.Role == tool.ContextPack && t.Effect != tool.ReadOnly {
			packs = append(packs, t.Name)
		}
	}
	var all []string
	for _, effect := range []tool.Effect{tool.ReadOnly, tool.Idempotent} {
		if names := claimed[effect]; len(names) > 0 {
			all = append(all, fmt.Sprintf("the server claims that %s is %s, and spec.tools does not declare it, so it counts as Destructive: "+
				"if the claim is true, write {name: %s, effect: %s} to spec.tools, and so for each", quoted(names), effect, names[0], effect))
		}
	}
	if len(contradicted) > 0 {
		all = append(all, "the server's hints contradict the effect that spec.tools declares of "+quoted(contradicted)+
			", which counts as Destructive: declare it so, or correct the server's annotations")
	}
	if len(packs) > 0 {
		all = append(all, "the context pack "+quoted(packs)+" is not called, because its effect is not ReadOnly: declare effect: ReadOnly in spec.tools if it only reads")
	}
	return all
}

// quoted lists names, as many as a message may have.
func quoted(names []string) string {
	var all []string
	for _, name := range names[:min(len(names), maxNamed)] {
		all = append(all, fmt.Sprintf("%q", name))
	}
	text := strings.Join(all, ", ")
	if len(names) > maxNamed {
		text += " and more"
	}
	return text
}

// oneLine is what a status says of a tool: the beginning of its server's words, on one line.
func oneLine(text string) string {
	line := fence.Line(text)
	if utf8.RuneCountInString(line) > maxDescription {
		return string([]rune(line)[:maxDescription])
	}
	return line
}
