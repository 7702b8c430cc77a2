package bundle

import (
	"fmt"

	"k8s.io/apimachinery/pkg/types"

	"github.com/capstan-dev/capstan/api/v1alpha1"
	"github.com/capstan-dev/capstan/internal/cli/exit"
	"github.com/capstan-dev/capstan/internal/translate"
)

// findTeam finds the ToolServers, the sub-agents and the PromptProfiles that the Agent uses directly or indirectly.
// As in a cluster, all must exist before the Turn starts.
func (p *Bundle) findTeam() error {
	p.Team = map[string]*Bundle{}
	return p.addTo(p.Team)
}

// addTo adds the Agent, its sub-agents and their sub-agents to team.
func (p *Bundle) addTo(team map[string]*Bundle) error {
	team[p.AgentName()] = p
	for i, entry := range p.Agent.Spec.Tools {
		field := func(ref string) string { return fmt.Sprintf("spec.tools[%d].%s.name", i, ref) }
		if ref := entry.ServerRef; ref != nil {
			if _, err := p.toolServer(*ref); err != nil {
				return exit.WithCode(exit.Failed, p.problem(kindAgent, p.Agent.Name, field("serverRef"), err.Error()))
			}
		}
		ref := entry.AgentRef
		if ref == nil {
			continue
		}
		member := *p
		err := member.findAgent(ref.Key(p.Agent.Namespace), p.Agent.Namespace, p.Turn.Namespace)
		if err != nil {
			return exit.WithCode(exit.Failed, p.problem(kindAgent, p.Agent.Name, field("agentRef"), err.Error()))
		}
		member.Session = nil
		if team[member.AgentName()] != nil {
			continue
		}
		if err := member.findProfile(); err != nil {
			return err
		}
		if err := member.addTo(team); err != nil {
			return err
		}
	}
	return nil
}

// Member returns the Agent of the team with a name, which is NAME for an Agent in the namespace of the Turn, and
// NAMESPACE/NAME otherwise. It returns nil if the team has no such Agent.
func (p *Bundle) Member(name string) *Bundle {
	return p.Team[p.relative(v1alpha1.ParseSharedReference(name).Key(p.Turn.Namespace))]
}

// AgentName returns the name of the Agent, or NAMESPACE/NAME if it is not in the namespace of the Turn.
func (p *Bundle) AgentName() string { return p.nameOf(p.Agent) }

// relative returns the name of an object, or NAMESPACE/NAME if it is not in the namespace of the Turn.
func (p *Bundle) relative(key types.NamespacedName) string {
	if key.Namespace == p.Turn.Namespace {
		return key.Name
	}
	return key.String()
}

// findAgent finds an Agent, and sets it in the bundle. The Agent must allow each namespace in users.
func (p *Bundle) findAgent(key types.NamespacedName, users ...string) error {
	agent, ok := p.Set.Agent(key.Namespace, key.Name)
	for _, user := range users {
		err := p.checkShared(kindAgent, key, user, ok, func() *v1alpha1.AllowedNamespaces { return agent.Spec.AllowedNamespaces })
		if err != nil {
			return err
		}
	}
	var err error
	if p.Agent = agent; key.Namespace != p.Turn.Namespace {
		p.Agent, err = translate.Foreign(agent)
	}
	return err
}

// findProfile finds the PromptProfile of the Agent.
func (p *Bundle) findProfile() error {
	key := p.Agent.Spec.PromptProfileRef.Key(p.Agent.Namespace)
	profile, ok := p.Set.PromptProfile(key.Namespace, key.Name)
	err := p.checkShared(kindPromptProfile, key, p.Agent.Namespace, ok,
		func() *v1alpha1.AllowedNamespaces { return profile.Spec.AllowedNamespaces })
	if err != nil {
		return exit.WithCode(exit.Failed, p.problem(kindAgent, p.Agent.Name, "spec.promptProfileRef.name", err.Error()))
	}
	p.Profile = profile
	return nil
}

// toolServer returns a ToolServer as provider returns a ModelProvider.
func (p *Bundle) toolServer(ref v1alpha1.SharedReference) (*v1alpha1.ToolServer, error) {
	key := ref.Key(p.Agent.Namespace)
	object, ok := p.Set.ToolServer(key.Namespace, key.Name)
	return object, p.checkShared(kindToolServer, key, p.Agent.Namespace, ok,
		func() *v1alpha1.AllowedNamespaces { return object.Spec.AllowedNamespaces })
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
