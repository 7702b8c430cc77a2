package bundle

import (
	"fmt"

	"github.com/capstan-dev/capstan/api/v1alpha1"
	"github.com/capstan-dev/capstan/internal/cli/exit"
)

// findTeam finds the ToolServers, the sub-agents and the PromptProfiles that the Agent uses directly or indirectly.
// As in a cluster, all must exist before the Turn starts.
func (p *Bundle) findTeam() error {
	p.Team = map[string]*Bundle{}
	return p.addTo(p.Team)
}

// addTo adds the Agent, its sub-agents and their sub-agents to team.
func (p *Bundle) addTo(team map[string]*Bundle) error {
	team[p.Agent.Name] = p
	for i, entry := range p.Agent.Spec.Tools {
		field := func(ref string) string { return fmt.Sprintf("spec.tools[%d].%s.name", i, ref) }
		if ref := entry.ServerRef; ref != nil {
			if _, err := p.toolServer(*ref); err != nil {
				return exit.WithCode(exit.Failed, p.problem(kindAgent, p.Agent.Name, field("serverRef"), err.Error()))
			}
		}
		ref := entry.AgentRef
		if ref == nil || team[ref.Name] != nil {
			continue
		}
		agent, ok := p.Set.Agent(p.Turn.Namespace, ref.Name)
		if !ok {
			return exit.WithCode(exit.Failed, p.missing(kindAgent, p.Agent.Name, field("agentRef"), kindAgent, ref.Name))
		}
		member := *p
		member.Agent, member.Session = agent, nil
		if err := member.findProfile(); err != nil {
			return err
		}
		if err := member.addTo(team); err != nil {
			return err
		}
	}
	return nil
}

// findProfile finds the PromptProfile of the Agent.
func (p *Bundle) findProfile() error {
	key := p.Agent.Spec.PromptProfileRef.Key(p.Turn.Namespace)
	profile, ok := p.Set.PromptProfile(key.Namespace, key.Name)
	err := p.consent(kindPromptProfile, key, ok, func() *v1alpha1.AllowedNamespaces { return profile.Spec.AllowedNamespaces })
	if err != nil {
		return exit.WithCode(exit.Failed, p.problem(kindAgent, p.Agent.Name, "spec.promptProfileRef.name", err.Error()))
	}
	p.Profile = profile
	return nil
}

// toolServer returns a ToolServer as provider returns a ModelProvider.
func (p *Bundle) toolServer(ref v1alpha1.SharedReference) (*v1alpha1.ToolServer, error) {
	key := ref.Key(p.Turn.Namespace)
	object, ok := p.Set.ToolServer(key.Namespace, key.Name)
	return object, p.consent(kindToolServer, key, ok, func() *v1alpha1.AllowedNamespaces { return object.Spec.AllowedNamespaces })
}

// ToolServers returns the ToolServers of the Agent, in the order of its tools.
func (p *Bundle) ToolServers() []*v1alpha1.ToolServer {
	var all []*v1alpha1.ToolServer
	for _, entry := range p.Agent.Spec.Tools {
		if entry.ServerRef == nil {
			continue
		}
		if s, err := p.toolServer(*entry.ServerRef); err == nil {
			all = append(all, s)
		}
	}
	return all
}
