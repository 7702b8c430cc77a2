package manager

import (
	"context"
	"time"

	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/capstan-dev/capstan/api/v1alpha1"
	"github.com/capstan-dev/capstan/internal/executor"
	"github.com/capstan-dev/capstan/internal/providers"
	"github.com/capstan-dev/capstan/internal/runtime/journal"
	"github.com/capstan-dev/capstan/internal/runtime/model"
	"github.com/capstan-dev/capstan/internal/runtime/tool"
	"github.com/capstan-dev/capstan/internal/toolbox"
)

// Hooks are placed between the parts of a process. With them, a program that embeds the manager can offer tools to
// Agents, and observe or block each effect: appends to journals, requests to models and tools, and status writes. A
// hook that is nil changes nothing.
type Hooks struct {
	// Tools returns further tools for the Turns of an Agent.
	Tools func(ctx context.Context, a *v1alpha1.Agent) []tool.Tool
	// Journal wraps the journal of the runs, and of the cleanup that ends journals.
	Journal func(journal.Journal) journal.Journal
	// Tasks wraps the store of the tasks that follow Turns, and of memories.
	Tasks func(executor.TaskStore) executor.TaskStore
	// Provider wraps the client of the ModelProvider with this name. It is called each time a run needs that client.
	Provider func(name string, p model.Provider) model.Provider
	// Servers wraps the connections to ToolServers by which runs call tools.
	Servers func(toolbox.Servers) toolbox.Servers
	// Status wraps the client by which runs and the Turn reconciler write the status of Turns, and by which the cleanup
	// writes the totals of Sessions.
	Status func(client.Client) client.Client
	// Finalizing is called before each step that finalizes a Turn, with the name of the step. If it returns an error or
	// panics, the step has failed.
	Finalizing func(step string) error
	// Clock is the clock of this machine. If Clock is nil, time.Now is used.
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

func (h Hooks) tasks(s executor.TaskStore) executor.TaskStore {
	if h.Tasks == nil {
		return s
	}
	return h.Tasks(s)
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

// provider returns the function that returns the client of a ModelProvider for a run.
func (h Hooks) provider(known *providers.Cache) func(*v1alpha1.ModelProvider) model.Provider {
	if h.Provider == nil {
		return known.Lazy
	}
	return func(o *v1alpha1.ModelProvider) model.Provider { return h.Provider(o.Name, known.Lazy(o)) }
}
