package main

import (
	"context"
	"fmt"
	"path/filepath"

	"github.com/capstan-dev/capstan/api/v1alpha1"
	"github.com/capstan-dev/capstan/test/harness"
)

// contender is one program that runs Turns, or several programs that run Turns together.
type contender struct {
	name    string
	members []member
}

// member is one program of a contender.
type member struct {
	// name is the name of the program and of its log.
	name string
	// path is the path of the executable file.
	path string
	// args returns the arguments of the program for its environment.
	args func(site) []string
	// env holds KEY=VALUE pairs in addition to the inherited environment.
	env []string
	// ready is the path of the readiness probe.
	ready string
	// executor is the name that Turns are bound to. It is empty for a program that runs no Turns.
	executor string
	// cgroup limits the memory and CPU of the program; nil means no limit.
	cgroup *controlGroup
}

// site holds the addresses and directories that a program works with.
type site struct {
	kubeconfig string
	modelURL   string // the base URL of the model server
	probes     string // address for the readiness probe
	metrics    string // address for metrics
	dir        string // directory for data
}

// managerMember returns a manager. args are added to the arguments that every manager of the benchmark has.
func managerMember(path, name, executor string, args ...string) member {
	arguments := func(s site) []string {
		return append([]string{
			"--kubeconfig", s.kubeconfig, "--data-dir", s.dir, "--namespace", systemNamespace, "--executor-name",
			withDefault(executor, name),
			"--metrics-bind-address", s.metrics, "--read-bind-address", "0", "--health-probe-bind-address", s.probes,
			"--log-format", "json",
			"--tool-allow-cidrs", "127.0.0.0/8,::1/128",
		}, args...)
	}
	return member{name: name, path: path, ready: "/readyz", executor: executor, args: arguments}
}

// withLimits returns the program with the limits of a cgroup.
func (m member) withLimits(cgroup *controlGroup) member {
	m.cgroup = cgroup
	return m
}

func managerContender(path string) contender {
	return contender{name: "manager", members: []member{managerMember(path, "manager", "bench")}}
}

// contenders are the programs that the phase "floor" compares.
type contenders struct {
	manager, floor, minimal contender
}

// contendersOf returns the contenders. manager is the path of the manager's executable file, and self the path of the
// executable file of this program.
func contendersOf(manager, self string) contenders {
	return contenders{
		manager: managerContender(manager),
		floor:   floorContender(self, floorCommand, v1alpha1.GroupVersion.Group),
		minimal: floorContender(self, "minimal", minimalVersion.Group),
	}
}

// floorContender returns the floor for the Turns of an API group.
func floorContender(self, name, group string) contender {
	return contender{name: name, members: []member{
		{name: name, path: self, ready: "/", executor: floorCommand, args: func(s site) []string {
			return []string{floorCommand, "--kubeconfig", s.kubeconfig, "--model-url", s.modelURL, "--listen", s.probes, "--group", group}
		}},
	}}
}

func withDefault(s, otherwise string) string {
	if s == "" {
		return otherwise
	}
	return s
}

// team is a contender that is running.
type team []*running

// running is one running program of a team.
type running struct {
	member
	*harness.Process
	metricsURL string
}

// start starts the programs of a contender one after another. Each starts when the previous one is ready.
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
		if *address, err = harness.FreeAddress(ctx); err != nil {
			return nil, err
		}
	}
	path, args := m.cgroup.command(m.path, m.args(s))
	process, err := b.harness.StartProgram(ctx, harness.Program{
		Name: m.name, Path: path, Args: args, Env: m.env, Listen: []string{s.probes, s.metrics},
		ReadyURL: "http://" + s.probes + m.ready,
	})
	if err != nil {
		return nil, err
	}
	return &running{member: m, Process: process, metricsURL: "http://" + s.metrics + "/metrics"}, nil
}

// warmUpTries is the maximum number of warm-up bursts. A new executor gets Turns only after it has renewed its Lease.
const warmUpTries = 20

// warmUp runs Turns without measuring them, until each executor has run at least one of them.
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
	return fmt.Errorf("failed to warm up: no Turn was bound to %v in %d bursts", idle, warmUpTries)
}

// stop stops the programs in the reverse order of their start.
func (t team) stop() error {
	for i := range t {
		if err := t[len(t)-1-i].Stop(); err != nil {
			return err
		}
	}
	return nil
}
