package tool

import (
	"cmp"
	"context"
	"maps"
	"slices"
	"strings"

	"github.com/capstan-dev/capstan/internal/fairgate"
	"github.com/capstan-dev/capstan/internal/runtime/prompt"
	"github.com/capstan-dev/capstan/internal/runtime/wildcard"
)

// Offer is one entry of an Agent's tools, with the tools that it provides now.
type Offer struct {
	// Server is the name of the ToolServer, as in Source. It is empty if the entry is a sub-agent.
	Server string
	// UID is the UID of the ToolServer, or empty if it has none. A sub-agent has its UID in Source.
	UID string
	// Tools have the names that their server gives them.
	Tools []Tool
	// Allow and RequireApproval are patterns for these names. '*' matches any characters, and '?' matches one. An
	// empty Allow matches all tools.
	Allow, RequireApproval []string
	// MaxCalls is the maximum number of calls for each of the tools. 0 means that the offer sets no limit.
	MaxCalls int
	// Missing is true for a server that was never reached, so its tools are unknown.
	Missing bool
}

// Exposure is the tool list of a Turn. It is frozen when the Turn starts.
type Exposure struct {
	// Nonce is part of the fences around the outputs of the Turn's tools.
	Nonce string `json:"nonce"`
	// Tools are the tools that are offered to the model, in order.
	Tools []Tool `json:"tools,omitempty"`
	// ContextTools are the context packs, at most MaxContextTools.
	ContextTools []Tool `json:"packs,omitempty"`
	// LeftOut is the number of tools that are not offered because there are too many.
	LeftOut int `json:"leftOut,omitempty"`
	// Unusable are the names, as given by the servers, of allowed tools that cannot be offered to a model. They are
	// sorted; there are at most 64, and each has at most 128 characters.
	Unusable []string `json:"unusable,omitempty"`
	// Missing are the ToolServers that were never reached, so their tools are unknown. Each is listed once, in
	// order, and there are at most MaxMissing.
	Missing []string `json:"missing,omitempty"`
	// EffectsDeclared is true if the effects of servers' tools are declared by their owners. It is false in
	// journals of older versions, which took some effects from a server's hints.
	EffectsDeclared bool `json:"effectsDeclared,omitempty"`
}

// Distrust makes all repeatable tools of servers Destructive, unless EffectsDeclared is true, and returns their
// names. A journal of an older version does not show whether an effect was declared or came from a hint.
func (x *Exposure) Distrust() []string {
	if x.EffectsDeclared {
		return nil
	}
	var names []string
	for _, list := range [][]Tool{x.Tools, x.ContextTools} {
		for i := range list {
			if t := &list[i]; t.Source.Server != "" && t.Effect.Repeatable() {
				t.Effect = Destructive
				names = append(names, t.Name)
			}
		}
	}
	return names
}

// MaxMissing is the maximum number of missing servers that are named. An Agent cannot have more.
const MaxMissing = 32

// MaxContextTools is the maximum number of context packs that a Turn calls, in their order.
const MaxContextTools = 4

// Reserved returns the names of Capstan's own tools. No other tool may have one of these names.
func Reserved() []string { return []string{prompt.LoadSkill().Name, prompt.ReadArtifact().Name} }

// Expose returns the tools of the offers, in order, under names that every provider accepts. Each name is unique.
// reserved are names that are already used, such as those of Capstan's own tools.
//
//   - If several tools have the same name, each tool of a server gets the name of its server and '_' as a prefix. So no
//     name depends on the order of the offers. The same applies to a tool of a server with a reserved name.
//   - If a name with its prefix is still not unique, or still reserved, it gets a hash of the tool's source as a
//     suffix. The name of a sub-agent gets this suffix without a prefix.
//   - A tool that several offers of its server allow is listed once, as in the first offer. It requires approval if
//     one of the offers says so, and it has the lowest of their MaxCalls.
//   - Tools that cannot be offered to a model are left out.
//
// Work on a large schema first waits until the namespace of ctx is next: see fairgate.AcquireProcessor.
func Expose(ctx context.Context, offers []Offer, reserved []string) []Tool {
	tools, _ := expose(ctx, offers, reserved)
	return tools
}

// NewExposure returns the tools of a Turn: a selection from the tools of the offers. The caller must set the Nonce.
func NewExposure(ctx context.Context, offers []Offer, reserved []string, s Selection) Exposure {
	tools, unusable := expose(ctx, offers, reserved)
	offered, packs := SplitContextTools(tools)
	x := Exposure{
		ContextTools: packs[:min(len(packs), MaxContextTools)], Unusable: unusable, Missing: missing(offers),
		EffectsDeclared: true,
	}
	x.Tools, x.LeftOut = Select(offered, s)
	return x
}

// missing returns the servers whose tools are unknown.
func missing(offers []Offer) []string {
	var names []string
	for _, o := range offers {
		if o.Missing && len(names) < MaxMissing && !slices.Contains(names, o.Server) {
			names = append(names, o.Server)
		}
	}
	return names
}

// SplitContextTools separates the context packs from the tools that are offered to the model.
func SplitContextTools(tools []Tool) (offered, packs []Tool) {
	for _, t := range tools {
		if t.Role == ContextPack {
			packs = append(packs, t)
		} else {
			offered = append(offered, t)
		}
	}
	return offered, packs
}

// DescribeForPrompt returns the descriptions of the offered tools for the prompt. If there are any tools, read_artifact
// is added as the last one, because an output may be too long for a message.
func DescribeForPrompt(tools []Tool) []prompt.Tool {
	if len(tools) == 0 {
		return nil
	}
	all := make([]prompt.Tool, 0, len(tools)+1)
	for _, t := range tools {
		all = append(all, t.Tool)
	}
	return append(all, prompt.ReadArtifact())
}

const (
	// maxUnusable is the maximum number of names in Exposure.Unusable, and maxUnusableName the maximum length of each,
	// in characters.
	maxUnusable     = 64
	maxUnusableName = 128
	// schemaPiece is the size of a piece of a schema for fairgate.Flow, in bytes. A processor decodes it in about 15
	// microseconds, the time that Flow expects for a piece.
	schemaPiece = 1 << 10
)

// expose is like Expose, and also returns the names for Exposure.Unusable.
func expose(ctx context.Context, offers []Offer, reserved []string) (tools []Tool, unusable []string) {
	omitted := map[string]bool{}
	leaveOut := func(name string) { omitted[strings.ToValidUTF8(name, "\uFFFD")] = true }
	var flow fairgate.Flow
	for _, t := range allowed(offers) {
		for range 1 + min(len(t.Schema), fairgate.Large)/schemaPiece { // many small schemas are as much work as a large one
			flow.Wait(ctx)
		}
		usable, err := presentable(ctx, t)
		if err != nil {
			leaveOut(t.Name)
			continue
		}
		tools = append(tools, usable)
	}
	tools = slices.DeleteFunc(withFinalNames(tools, reserved), func(t Tool) bool {
		if t.Name == "" {
			leaveOut(cmp.Or(t.Source.Name, t.Source.Agent))
		}
		return t.Name == ""
	})
	for _, name := range slices.Sorted(maps.Keys(omitted))[:min(len(omitted), maxUnusable)] {
		unusable = append(unusable, first(name, maxUnusableName))
	}
	return tools, unusable
}

// allowed returns the tools that the offers allow, each once, with the names that their servers give them.
func allowed(offers []Offer) []Tool {
	var all []Tool
	at := map[Source]int{}
	for _, o := range offers {
		for _, t := range o.Tools {
			if len(o.Allow) > 0 && !wildcard.MatchesOne(o.Allow, t.Name) {
				continue
			}
			if o.Server != "" {
				t.Source, t.Trusted = Source{Server: o.Server, Name: t.Name, UID: o.UID}, false
			}
			t.RequiresApproval = t.RequiresApproval || wildcard.MatchesOne(o.RequireApproval, t.Name)
			t.MaxCalls = lowest(t.MaxCalls, o.MaxCalls)
			key := t.Source
			if o.Server == "" {
				key.Name = t.Name // the same sub-agent may be offered under several names
			}
			before, known := at[key]
			if !known {
				at[key] = len(all)
				all = append(all, t)
				continue
			}
			all[before].RequiresApproval = all[before].RequiresApproval || t.RequiresApproval
			all[before].MaxCalls = lowest(all[before].MaxCalls, t.MaxCalls)
		}
	}
	return all
}

// lowest returns the lower of two limits. 0 means no limit.
func lowest(a, b int) int {
	if a == 0 || b == 0 {
		return max(a, b)
	}
	return min(a, b)
}
