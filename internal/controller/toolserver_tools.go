package controller

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	ctrl "sigs.k8s.io/controller-runtime"

	"github.com/capstan-dev/capstan/api/v1alpha1"
	"github.com/capstan-dev/capstan/internal/runtime/cut"
	"github.com/capstan-dev/capstan/internal/runtime/schema"
	"github.com/capstan-dev/capstan/internal/runtime/tool"
	"github.com/capstan-dev/capstan/internal/runtime/untrusted"
	"github.com/capstan-dev/capstan/internal/toolservers"
)

const (
	// maxDiscovered is the maximum number of tools in the status of a server. maxDescription is the maximum length of
	// their descriptions, in characters.
	maxDiscovered  = 256
	maxDescription = 256
	// maxDetails is the maximum length of the details of a fault in the log, in characters.
	maxDetails = 2048
	// maxNamed is the maximum number of names in a message.
	maxNamed = 8
)

// writeListing writes a server's name, versions and tools into its status. It returns the message of the Ready
// condition.
func writeListing(ctx context.Context, s *v1alpha1.ToolServer, listing toolservers.Listing, now time.Time) string {
	s.Status.ServerName, s.Status.ServerVersion, s.Status.ProtocolVersion = listing.ServerName, listing.ServerVersion,
		listing.ProtocolVersion
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
		found.Unusable = unusableReason(ctx, t, found.SchemaHash, before[t.Name])
		tools = append(tools, found)
	}
	count := int32(len(listing.Tools)) //nolint:gosec // because a list has at most 1000 tools
	if s.Status.LastDiscoveryTime == nil || count != s.Status.ToolCount || !slices.Equal(tools, s.Status.Tools) {
		s.Status.ToolCount, s.Status.Tools = count, tools
		found := metav1.NewTime(now)
		s.Status.LastDiscoveryTime = &found
	}
	return strings.Join(append([]string{"the server answers"}, remarks(ctx, s, listing)...), "; ")
}

// unusableReason returns why a tool cannot be offered to models, or an empty string if it can. If a schema has several
// faults, the validator may report any of them. So the earlier message for the same schema is kept: each change would
// be written to this object and to the Agents that use the tool. The schema is text of a foreign server, so only the
// log has the details of the fault, and only once for each schema.
func unusableReason(ctx context.Context, t tool.Tool, hash string, before v1alpha1.DiscoveredTool) string {
	err := tool.Unusable(ctx, t)
	switch {
	case err == nil:
		return ""
	case before.SchemaHash == hash && before.Unusable != "":
		return before.Unusable
	}
	reason := err.Error()
	if fault, ok := errors.AsType[*schema.Fault](err); ok {
		reason = fault.Summary()
	}
	details, _ := untrusted.Cap(untrusted.Line(err.Error()), maxDetails)
	ctrl.LoggerFrom(ctx).Info("A tool cannot be offered to models", "tool", oneLine(t.Name), "reason", details)
	return oneLine(reason)
}

// remarks returns remarks for people about the tools of a server that answers.
func remarks(ctx context.Context, s *v1alpha1.ToolServer, listing toolservers.Listing) []string {
	tools := listing.Tools
	var unknown, all []string
	for _, d := range s.Spec.Tools {
		if !slices.ContainsFunc(tools, func(t tool.Tool) bool { return t.Name == d.Name }) {
			unknown = append(unknown, d.Name)
		}
	}
	if len(unknown) > 0 {
		all = append(all, "spec.tools declares "+quotedNames(unknown)+", which the server does not have: check the spelling")
	}
	offered := tool.NewExposure(ctx, []tool.Offer{{Server: s.Name, Tools: tools}}, nil, tool.Selection{Most: len(tools)})
	if len(offered.Unusable) > 0 {
		all = append(all, "models cannot be offered "+quotedNames(offered.Unusable)+": see status.tools[].unusable")
	}
	all = append(all, effectRemarks(s, listing)...)
	if len(tools) > maxDiscovered {
		all = append(all, fmt.Sprintf("status.tools lists the first %d of its tools", maxDiscovered))
	}
	return all
}

// effectRemarks returns remarks about the tools for whose effects the server and the spec disagree, and how to resolve
// this.
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
			all = append(all, fmt.Sprintf("the server claims that %s is %s, but spec.tools declares no effect, "+
				"so it counts as Destructive: if the claim is true, add {name: %q, effect: %s} to spec.tools, for each of these tools",
				quotedNames(names), effect, names[0], effect))
		}
	}
	if len(contradicted) > 0 {
		all = append(all, "the server's hints contradict the effect that spec.tools declares for "+quotedNames(contradicted)+
			", so it counts as Destructive: declare effect: Destructive, or correct the server's annotations")
	}
	if len(packs) > 0 {
		all = append(all, "the context pack "+quotedNames(packs)+" is not called, because its effect is not ReadOnly: "+
			"declare effect: ReadOnly in spec.tools if it only reads")
	}
	return all
}

// quotedNames returns a list of quoted names, up to maxNamed.
func quotedNames(names []string) string {
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

// oneLine returns the beginning of a server's text, on one line, for a status.
func oneLine(text string) string {
	return cut.Chars(untrusted.Line(text), maxDescription, "")
}
