package main

import (
	"context"
	"fmt"
	"path/filepath"

	"github.com/capstan-dev/capstan/api/v1alpha1"
	"github.com/capstan-dev/capstan/hack/stack"
)

// contender is a program that runs Turns, or several that do so together.
type contender struct {
	name    string
	members []member
}

// member is one program of a contender.
type member struct {
	// name of the program, and of its log.
	name string
	// path of the executable file.
	path string
	// args are what the program is told, given where it runs.
	args func(site) []string
	// env holds KEY=VALUE beside what it inherits.
	env []string
	// ready is the path of the readiness probe.
	ready string
	// executor is the name that Turns are bound to; empty for a program that runs none.
	executor string
}

// site is what a program is to work with.
type site struct {
	kubeconfig string
	modelURL   string // the model's base URL
	probes     string // address for the readiness probe
	metrics    string // address for metrics
	dir        string // folder for data
}

// managerMember is a manager, with more arguments than it needs to run here.
func managerMember(path, name, executor string, args ...string) member {
	told := func(s site) []string {
		return append([]string{
			"--kubeconfig", s.kubeconfig, "--data-dir", s.dir, "--namespace", systemNamespace, "--executor-name", withDefault(executor, name),
			"--metrics-bind-address", s.metrics, "--read-bind-address", "0", "--health-probe-bind-address", s.probes, "--log-format", "json",
			"--tool-allow-cidrs", "127.0.0.0/8,::1/128",
		}, args...)
	}
	return member{name: name, path: path, ready: "/readyz", executor: executor, args: told}
}

func managerContender(path string) contender {
	return contender{name: "manager", members: []member{managerMember(path, "manager", "bench")}}
}

// contenders are those of the phase floor.
type contenders struct {
	manager, floor, minimal contender
}

// contendersOf takes the manager's executable file and that of this program.
func contendersOf(manager, self string) contenders {
	return contenders{
		manager: managerContender(manager),
		floor:   floorContender(self, floorCommand, v1alpha1.GroupVersion.Group),
		minimal: floorContender(self, "minimal", minimalVersion.Group),
	}
}

// floorContender is the floor, which works with the Turns of an API group.
func floorContender(self, name, group string) contender {
	return contender{name: name, members: []member{{name: name, path: self, ready: "/", executor: floorCommand, args: func(s site) []string {
		return []string{floorCommand, "--kubeconfig", s.kubeconfig, "--model-url", s.modelURL, "--listen", s.probes, "--group", group}
	}}}}
}

func withDefault(s, otherwise string) string {
	if s == "" {
		return otherwise
	}
	return s
}

// team is a contender that runs.
type team []*running

// running is one program of it.
type running struct {
	member
	*stack.Process
	metricsURL string
}

// start starts the programs of a contender, one after another, each when the one before is ready.
func (b *bench) start(ctx context.Context, c contender) (team, error) {
	var all team
	for _, m := range c.members {
		p, err := b.startMember(ctx, m, filepath.Join(b.dir, c.name))
		if err != nil {
			return nil, err
		}
		all = append(all, p)
	}
	return all, nil
}

func (b *bench) startMember(ctx context.Context, m member, dir string) (*running, error) {
	s := site{kubeconfig: b.cluster.Kubeconfig, modelURL: b.modelURL, dir: dir}
	for _, address := range []*string{&s.probes, &s.metrics} {
		var err error
		if *address, err = stack.FreeAddress(ctx); err != nil {
			return nil, err
		}
	}
	process, err := b.stack.StartProgram(ctx, stack.Program{
		Name: m.name, Path: m.path, Args: m.args(s), Env: m.env, Listen: []string{s.probes, s.metrics}, ReadyURL: "http://" + s.probes + m.ready,
	})
	if err != nil {
		return nil, err
	}
	return &running{member: m, Process: process, metricsURL: "http://" + s.metrics + "/metrics"}, nil
}

// warmUpTries bounds the bursts until all executors are at work: a new one gets Turns only once it has renewed its Lease.
const warmUpTries = 20

// warmUp runs Turns, unmeasured, until each executor has had some.
func (b *bench) warmUp(ctx context.Context, t team, prefix string) error {
	idle := map[string]bool{}
	for _, p := range t {
		if p.executor != "" {
			idle[p.executor] = true
		}
	}
	if b.warmup == 0 && len(idle) < 2 {
		return nil
	}
	for try := range warmUpTries {
		result, err := b.burst(ctx, fmt.Sprintf("%s-warmup-%d", prefix, try), max(b.warmup, 2*len(idle)))
		if err != nil {
			return fmt.Errorf("failed to warm up: %w", err)
		}
		for name := range result.byExecutor {
			delete(idle, name)
		}
		if len(idle) == 0 {
			return nil
		}
	}
	return fmt.Errorf("failed to warm up: in %d bursts no Turn was bound to %v", warmUpTries, idle)
}

// stop stops the programs, the youngest first.
func (t team) stop() error {
	for i := range t {
		if err := t[len(t)-1-i].Stop(); err != nil {
			return err
		}
	}
	return nil
}
