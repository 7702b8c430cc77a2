package cli

import (
	"context"
	"fmt"

	"github.com/capstan-dev/capstan/api/v1alpha1"
	"github.com/capstan-dev/capstan/internal/secrets"
)

// findTeam finds the ToolServers, the sub-agents and the PromptProfiles that the Agent uses directly or indirectly.
// As in a cluster, all must exist before the Turn starts.
func (p *bundle) findTeam() error {
	p.team = map[string]*bundle{}
	return p.addTo(p.team)
}

// addTo adds the Agent, its sub-agents and their sub-agents to team.
func (p *bundle) addTo(team map[string]*bundle) error {
	team[p.agent.Name] = p
	for i, entry := range p.agent.Spec.Tools {
		field := func(ref string) string { return fmt.Sprintf("spec.tools[%d].%s.name", i, ref) }
		if ref := entry.ServerRef; ref != nil {
			if _, ok := p.set.ToolServer(p.turn.Namespace, ref.Name); !ok {
				return fail(ExitFailed, p.missing(kindAgent, p.agent.Name, field("serverRef"), kindToolServer, ref.Name))
			}
		}
		ref := entry.AgentRef
		if ref == nil || team[ref.Name] != nil {
			continue
		}
		agent, ok := p.set.Agent(p.turn.Namespace, ref.Name)
		if !ok {
			return fail(ExitFailed, p.missing(kindAgent, p.agent.Name, field("agentRef"), kindAgent, ref.Name))
		}
		member := *p
		member.agent, member.session = agent, nil
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
func (p *bundle) findProfile() error {
	var ok bool
	ref := p.agent.Spec.PromptProfileRef.Name
	if p.profile, ok = p.set.PromptProfile(p.turn.Namespace, ref); !ok {
		return fail(ExitFailed, p.missing(kindAgent, p.agent.Name, "spec.promptProfileRef.name", kindPromptProfile, ref))
	}
	return nil
}

// servers returns the ToolServers of the Agent, in the order of its tools.
func (p *bundle) servers() []*v1alpha1.ToolServer {
	var all []*v1alpha1.ToolServer
	for _, entry := range p.agent.Spec.Tools {
		if entry.ServerRef == nil {
			continue
		}
		if s, ok := p.set.ToolServer(p.turn.Namespace, entry.ServerRef.Name); ok {
			all = append(all, s)
		}
	}
	return all
}

// checkSecrets returns an error if a ToolServer of the Agent lacks a Secret. In a cluster only the calls would
// fail; here the user can add the Secret first.
func (p *bundle) checkSecrets(ctx context.Context) error {
	read := secrets.Reader(p.readSecret)
	for _, s := range p.servers() {
		to := "" // a server without an address receives no request
		if s.Spec.MCP != nil {
			to = s.Spec.MCP.URL
		}
		_, err := read.Headers(ctx, s.Namespace, s.Spec.Headers, to)
		if ref := s.Spec.CredentialsRef; ref != nil && err == nil {
			_, err = read.Header(ctx, s.Namespace, *ref, to)
		}
		if s.Spec.TLS != nil && err == nil {
			_, err = read.CABundle(ctx, s.Namespace, s.Spec.TLS.CABundleRef)
		}
		if err != nil {
			return fail(ExitFailed, p.noSecret(kindToolServer, s.Name, err))
		}
	}
	return nil
}
