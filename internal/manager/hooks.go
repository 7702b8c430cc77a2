package manager

import (
	"context"
	"time"

	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/capstan-dev/capstan/api/v1alpha1"
	"github.com/capstan-dev/capstan/internal/providers"
	"github.com/capstan-dev/capstan/internal/runtime/journal"
	"github.com/capstan-dev/capstan/internal/runtime/model"
	"github.com/capstan-dev/capstan/internal/runtime/tool"
	"github.com/capstan-dev/capstan/internal/toolbox"
)

// Hooks stand between the parts of a process, so that a program of one's own can offer tools to Agents, and watch or cut off
// each effect: what is appended to a journal, asked of a model or of a tool, written to a status. Each may be nil, for nothing.
type Hooks struct {
	// Tools returns the tools that Turns of an Agent are offered.
	Tools func(ctx context.Context, a *v1alpha1.Agent) []tool.Tool
	// Journal returns what stands before the journal of the runs.
	Journal func(journal.Journal) journal.Journal
	// Provider returns what stands before a ModelProvider of this name, whenever a run is to ask it.
	Provider func(name string, p model.Provider) model.Provider
	// Servers returns what stands before the connections to ToolServers by which runs call tools.
	Servers func(toolbox.Servers) toolbox.Servers
	// Status returns what stands before the client by which runs and the Turn reconciler write the status of Turns.
	Status func(client.Client) client.Client
	// Clock is the clock of this machine; nil for time.Now.
	Clock func() time.Time
}

func (h Hooks) clock() func() time.Time {
	if h.Clock == nil {
		return time.Now
	}
	return h.Clock
}

func (h Hooks) journal(j journal.Journal) journal.Journal {
	if h.Journal == nil {
		return j
	}
	return h.Journal(j)
}

func (h Hooks) servers(s toolbox.Servers) toolbox.Servers {
	if h.Servers == nil {
		return s
	}
	return h.Servers(s)
}

func (h Hooks) status(c client.Client) client.Client {
	if h.Status == nil {
		return c
	}
	return h.Status(c)
}

// provider returns what a run asks of a ModelProvider.
func (h Hooks) provider(known *providers.Cache) func(*v1alpha1.ModelProvider) model.Provider {
	if h.Provider == nil {
		return known.Lazy
	}
	return func(o *v1alpha1.ModelProvider) model.Provider { return h.Provider(o.Name, known.Lazy(o)) }
}
