package tool

import (
	"cmp"
	"maps"
	"slices"
	"strings"

	"github.com/capstan-dev/capstan/internal/runtime/prompt"
)

// Offer is one entry of an agent's tools, with what there is of it now.
type Offer struct {
	// Server is the name of the ToolServer; empty for tools of another kind, whose names stay as they are.
	Server string
	// UID of the ToolServer; empty where it has none. Tools of another kind say it themselves.
	UID string
	// Tools by the names that their server gives them.
	Tools []Tool
	// Allow and RequireApproval are patterns of these names: '*' stands for any characters, '?' for one. An empty Allow allows
	// all.
	Allow, RequireApproval []string
	// MaxCalls of each of the tools; 0 for no bound of its own.
	MaxCalls int
	// Missing is true for a server of whose tools nothing is known: it was never reached.
	Missing bool
}

// Exposure is what a Turn has of tools, for its whole life.
type Exposure struct {
	// Nonce marks the fences of the Turn's tool outputs.
	Nonce string `json:"nonce"`
	// Tools that the model is offered, in their order.
	Tools []Tool `json:"tools,omitempty"`
	// Packs are the tools of the role ContextPack, at most MaxPacks.
	Packs []Tool `json:"packs,omitempty"`
	// LeftOut is how many tools are not offered because there are too many.
	LeftOut int `json:"leftOut,omitempty"`
	// Unusable are the names, as their servers have them, of tools that are allowed and that no model can be told of: sorted, at
	// most 64, each of at most 128 characters.
	Unusable []string `json:"unusable,omitempty"`
	// Missing are the ToolServers of whose tools nothing was known, since nobody had ever reached them: each once, in their
	// order, at most MaxMissing.
	Missing []string `json:"missing,omitempty"`
	// EffectsDeclared is true if the effects of servers' tools are those that their owners declare. Journals of older versions lack
	// it: they have effects that a server's hints granted.
	EffectsDeclared bool `json:"effectsDeclared,omitempty"`
}

// Distrust makes all tools of servers Destructive, unless their effects are declared, and returns the names of those that it has
// made so. What an older version took for granted, nobody can tell from a declaration.
func (x *Exposure) Distrust() []string {
	if x.EffectsDeclared {
		return nil
	}
	var names []string
	for _, list := range [][]Tool{x.Tools, x.Packs} {
		for i := range list {
			if t := &list[i]; t.Source.Server != "" && t.Effect.Repeatable() {
				t.Effect = Destructive
				names = append(names, t.Name)
			}
		}
	}
	return names
}

// MaxMissing is how many servers of whose tools nothing is known are named: as many as an agent may have.
const MaxMissing = 32

// MaxPacks is how many tools of the role ContextPack a Turn calls; the first in their order.
const MaxPacks = 4

// Reserved are the names of Capstan's own tools, which no other tool gets.
func Reserved() []string { return []string{prompt.LoadSkill().Name, prompt.ReadArtifact().Name} }

// Expose returns the tools that offers come to, in their order, under names that a model can be told: fit for every provider,
// and each of them once. Reserved are names that are taken, as those of Capstan's own tools.
//
// Tools of one name get the name of their server and '_' before it, all of them, so that none of them depends on the order of
// the offers; what is the same even then, or beside a reserved name, ends in a hash of where the tool comes from. A tool that
// several offers of its server allow is one tool: that of the first, which awaits approval if one of them says so and has the
// lowest of their MaxCalls. Tools that no model can be told of are left out.
func Expose(offers []Offer, reserved []string) []Tool {
	tools, _ := expose(offers, reserved)
	return tools
}

// Choose returns what a Turn has of tools: those that offers come to, of which a selection has chosen. Its Nonce is still to be
// drawn.
func Choose(offers []Offer, reserved []string, s Selection) Exposure {
	tools, unusable := expose(offers, reserved)
	offered, packs := Packs(tools)
	x := Exposure{Packs: packs[:min(len(packs), MaxPacks)], Unusable: unusable, Missing: missing(offers), EffectsDeclared: true}
	x.Tools, x.LeftOut = Select(offered, s)
	return x
}

// missing are the servers of whose tools nothing is known.
func missing(offers []Offer) []string {
	var names []string
	for _, o := range offers {
		if o.Missing && len(names) < MaxMissing && !slices.Contains(names, o.Server) {
			names = append(names, o.Server)
		}
	}
	return names
}

// Packs parts the tools of the role ContextPack from those that a model is offered.
func Packs(tools []Tool) (offered, packs []Tool) {
	for _, t := range tools {
		if t.Role == ContextPack {
			packs = append(packs, t)
		} else {
			offered = append(offered, t)
		}
	}
	return offered, packs
}

// Prompted is what a model is told of the tools that it is offered. Where there are any, read_artifact is the last: what one of
// them gives may be too long for a message.
func Prompted(tools []Tool) []prompt.Tool {
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
	maxUnusable     = 64
	maxUnusableName = 128
)

func expose(offers []Offer, reserved []string) (tools []Tool, unusable []string) {
	out := map[string]bool{}
	leaveOut := func(name string) { out[strings.ToValidUTF8(name, "\uFFFD")] = true }
	for _, t := range allowed(offers) {
		usable, err := presentable(t)
		if err != nil {
			leaveOut(t.Name)
			continue
		}
		tools = append(tools, usable)
	}
	tools = slices.DeleteFunc(named(tools, reserved), func(t Tool) bool {
		if t.Name == "" {
			leaveOut(cmp.Or(t.Source.Name, t.Source.Agent))
		}
		return t.Name == ""
	})
	for _, name := range slices.Sorted(maps.Keys(out))[:min(len(out), maxUnusable)] {
		unusable = append(unusable, first(name, maxUnusableName))
	}
	return tools, unusable
}

// allowed are the tools that the offers allow, each once, as their servers name them.
func allowed(offers []Offer) []Tool {
	var all []Tool
	at := map[Source]int{}
	for _, o := range offers {
		for _, t := range o.Tools {
			if len(o.Allow) > 0 && !matchesOne(o.Allow, t.Name) {
				continue
			}
			if o.Server != "" {
				t.Source, t.Trusted = Source{Server: o.Server, Name: t.Name, UID: o.UID}, false
			}
			t.RequiresApproval = t.RequiresApproval || matchesOne(o.RequireApproval, t.Name)
			t.MaxCalls = lowest(t.MaxCalls, o.MaxCalls)
			key := t.Source
			if o.Server == "" {
				key.Name = t.Name // the same sub-agent may be offered under several names
			}
			before, again := at[key]
			if !again {
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

// lowest of two bounds, of which 0 is none.
func lowest(a, b int) int {
	if a == 0 || b == 0 {
		return max(a, b)
	}
	return min(a, b)
}
