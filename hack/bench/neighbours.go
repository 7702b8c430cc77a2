package main

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"os"
	"path/filepath"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/capstan-dev/capstan/hack/bench/hostile"
	"github.com/capstan-dev/capstan/test/fakemodel/server"
	"github.com/capstan-dev/capstan/test/toolserver/tickets"
)

const (
	// victimLatency is the time until the victim's model begins to answer. A Turn of the victim makes two model
	// requests and calls a tool between them.
	victimLatency = 250 * time.Millisecond

	// readyPatience is the maximum time to wait until a manager that the benchmark has started is ready. The benchmark
	// does not wait for a manager that exits during an attack.
	readyPatience = time.Minute
	// managerStop is the time between SIGTERM and SIGKILL.
	managerStop = 15 * time.Second
	// scrapeTimeout is the timeout of one scrape of the manager's metrics.
	scrapeTimeout = 10 * time.Second
	// warmUpTime is the time for which the victim runs before it is measured.
	warmUpTime = 3 * time.Second

	// beginPatience is the maximum time to wait until an attack has begun, and beginInterval the time between two
	// checks.
	beginPatience = 2 * time.Minute
	beginInterval = 100 * time.Millisecond

	// maxStolen is the maximum steal time while the victim is measured, in percent of the CPU time. If the steal time
	// is higher, the attack is repeated. Each attack runs at most maxTries times.
	maxStolen = 5
	maxTries  = 3
)

// neighbourOptions holds the flags of the phase neighbours.
type neighbourOptions struct {
	attacks   []attack
	window    time.Duration // how long to measure the victim before an attack; times attack.windows, the minimum during one
	interval  time.Duration // the time between two Turns of the victim
	wait      time.Duration // how long to wait for the victim's last Turns
	memoryMiB int
}

// neighbourhood is the environment of the victim and the attackers.
type neighbourhood struct {
	*bench
	group  *controlGroup
	victim *victim
}

// compareNeighbours measures the victim during one attack after another. Each attack gets a new manager with the same
// memory limit.
func (b *bench) compareNeighbours(ctx context.Context) (*NeighboursReport, error) {
	n := &neighbourhood{bench: b}
	var err error
	if n.group, err = newControlGroup(b.neighbours.memoryMiB<<20, 0); err != nil {
		b.logf("neighbours: %v", err)
	}
	b.harness.OnStop(n.group.remove)
	if n.victim, err = b.startVictim(ctx); err != nil {
		return nil, err
	}
	r := &NeighboursReport{
		MemoryMiB: b.neighbours.memoryMiB, Bound: n.group.String(),
		IntervalMilliseconds: b.neighbours.interval.Milliseconds(), WindowSeconds: b.neighbours.window.Seconds(),
	}
	ctx, cancel := context.WithCancel(ctx)
	group, ctx := errgroup.WithContext(ctx)
	group.Go(func() error { return n.victim.watch(ctx) })
	group.Go(func() error {
		defer cancel()
		for _, a := range b.neighbours.attacks {
			result, err := quietest(func(try int) (*AttackReport, error) { return n.measureAttack(ctx, a, try) })
			if err != nil {
				return fmt.Errorf("%s: %w", a.name, err)
			}
			r.Attacks = append(r.Attacks, *result)
		}
		return nil
	})
	return r, group.Wait()
}

// startVictim serves the victim's model and tools and creates its objects.
func (b *bench) startVictim(ctx context.Context) (*victim, error) {
	text := "x"
	fault := server.Fault{LatencyMilliseconds: int(victimLatency.Milliseconds())}
	v := &victim{api: b.api, turns: b.turns, interval: b.neighbours.interval, wait: b.neighbours.wait, waiting: map[string]*awaited{}}
	var err error
	if _, v.modelURL, err = b.harness.ServeModel(ctx, server.Config{Rules: []server.Rule{
		{When: server.When{ToolMessages: new(0)}, Fault: fault, Reply: server.Reply{ToolCalls: []server.ToolCall{{
			Name: tickets.ToolSearch, Arguments: new(`{"query": "printer", "limit": 5}`),
		}}}},
		{Fault: fault, Reply: server.Reply{Text: &text, Repeat: b.replyChars, IgnoreMaxTokens: true}},
	}}, server.WithKeptRequests(0)); err != nil {
		return nil, err
	}
	if _, v.toolsURL, err = b.harness.ServeTickets(ctx); err != nil {
		return nil, err
	}
	return v, v.createVictim(ctx)
}

// quietest repeats an attack if the steal time is above maxStolen, because the ratios would then measure the load of
// other virtual machines. It returns the report of the attempt with the least steal time.
func quietest(measure func(try int) (*AttackReport, error)) (*AttackReport, error) {
	var best *AttackReport
	for try := 1; try <= maxTries; try++ {
		result, err := measure(try)
		if err != nil {
			return nil, err
		}
		if best == nil || result.stolen() < best.stolen() {
			best = result
		}
		if best.stolen() <= maxStolen {
			break
		}
	}
	return best, nil
}

// measureAttack measures the victim before and during an attack, and cleans up.
func (n *neighbourhood) measureAttack(ctx context.Context, a attack, try int) (result *AttackReport, err error) {
	name := a.name
	if try > 1 {
		name = fmt.Sprintf("%s-%d", a.name, try)
	}
	dir := filepath.Join(n.dir, "neighbours", name)
	self, err := os.Executable()
	if err != nil {
		return nil, fmt.Errorf("failed to find this program's own file: %w", err)
	}
	hostileServer, err := hostile.Start(ctx, self, hostileCommand)
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, hostileServer.Close()) }()
	data := filepath.Join(dir, "data")
	if a.volumeMiB > 0 {
		volume, unmount, mountErr := mountVolume(ctx, dir, a.volumeMiB)
		if mountErr != nil {
			return nil, fmt.Errorf("the attack needs a volume, which cannot be mounted; select other attacks with --attacks: %w", mountErr)
		}
		defer func() { err = errors.Join(err, unmount()) }()
		data = volume
	}
	tenant := &attacker{api: n.api, namespace: "attacker-" + name, size: a.size, server: hostileServer}
	k, metricsURL, err := n.keepMember(ctx,
		managerMember(n.manager, "manager", "bench", "--shutdown-grace-seconds", "2").withLimits(n.group), dir, data)
	if err != nil {
		return nil, err
	}
	result, err = n.measure(ctx, a, tenant, k, metricsURL)
	k.close()
	if err != nil {
		return nil, err
	}
	return result, errors.Join(tenant.clean(ctx), n.victim.clean(ctx), os.RemoveAll(filepath.Join(dir, "data")))
}

// measure runs the attack and returns its report.
func (n *neighbourhood) measure(ctx context.Context, a attack, tenant *attacker, k *keeper, metricsURL string) (*AttackReport, error) {
	result := &AttackReport{
		Name: a.name, Size: a.size, What: fmt.Sprintf(a.what, a.size), needsServer: a.needsServer,
		grouped: n.group != nil,
	}
	killsBefore, err := n.group.kills()
	if err != nil {
		return nil, err
	}
	if _, err := n.victim.load(ctx, a.name+"-warm", warmUpTime, nil); err != nil {
		return nil, err
	}
	if result.Without, err = n.victim.load(ctx, a.name+"-without", n.neighbours.window, nil); err != nil {
		return nil, err
	}
	n.logf("neighbours: %s: %s", a.name, result.What)
	if err := tenant.createAll(ctx, newNamespace(tenant.namespace), newProfile(tenant.namespace)); err != nil {
		return nil, err
	}
	if a.prepare != nil {
		if err := a.prepare(ctx, tenant); err != nil {
			return nil, fmt.Errorf("failed to prepare the attack: %w", err)
		}
	}
	started := &VictimLoad{}
	if a.restarts {
		if started, err = n.restart(ctx, a, k); err != nil {
			return nil, err
		}
	}
	if result.With, err = n.measureDuring(ctx, a, tenant); err != nil {
		return nil, err
	}
	for reason, count := range started.Failed {
		result.With.Failed[reason] += count
	}
	var peak peaks
	result.Restarts, peak = k.counts()
	result.PeakMiB = mebibytes(peak.resident)
	result.Scrape = scrapeOnce(ctx, metricsURL)
	requests, sent, err := tenant.server.Stats(ctx)
	if err != nil {
		return nil, err
	}
	result.Requests, result.SentMiB = requests, mebibytes(uint64(sent)) //nolint:gosec // because a count of bytes is not negative
	kills, err := n.group.kills()
	result.OutOfMemoryKills = kills - killsBefore
	n.logf("neighbours: %s: %s", a.name, result.summary())
	return result, err
}

// restart restarts the manager and returns the load of the victim's first Turns. These Turns are always slow,
// because an executor gets Turns only after it has renewed its Lease.
func (n *neighbourhood) restart(ctx context.Context, a attack, k *keeper) (*VictimLoad, error) {
	if err := k.restart(ctx); err != nil {
		return nil, err
	}
	if err := k.waitReady(ctx, readyPatience); err != nil {
		n.logf("%v", err) // not an error of the benchmark: the load of the victim shows the effect
	}
	return n.victim.load(ctx, a.name+"-again", warmUpTime, nil)
}

// measureDuring measures the victim while the attack runs: at least for the measured time, and until run has returned
// and awaitBegin no longer waits for the attack to begin. The attack may continue after that.
func (n *neighbourhood) measureDuring(ctx context.Context, a attack, tenant *attacker) (*VictimLoad, error) {
	attackLaunched := make(chan struct{})
	var load *VictimLoad
	group, ctx := errgroup.WithContext(ctx)
	group.Go(func() error {
		defer close(attackLaunched)
		if a.run == nil {
			return nil
		}
		if err := a.run(ctx, tenant); err != nil {
			return fmt.Errorf("failed to attack: %w", err)
		}
		begun, err := awaitBegin(ctx, a, tenant)
		if !begun && err == nil {
			n.logf("neighbours: %s: the attack did not begin within %s; %s", a.name, beginPatience, tenant.describeFirst(ctx))
		}
		return err
	})
	group.Go(func() error {
		var err error
		load, err = n.victim.load(ctx, a.name+"-with", time.Duration(max(a.windows, 1))*n.neighbours.window, attackLaunched)
		return err
	})
	return load, group.Wait()
}

// awaitBegin waits until the attack has begun, for at most beginPatience, and reports whether it has. A timeout is not
// an error, because a manager may prevent the attack.
func awaitBegin(ctx context.Context, a attack, tenant *attacker) (begun bool, err error) {
	if a.beginBytes == 0 {
		return true, nil
	}
	patience := time.NewTimer(beginPatience)
	defer patience.Stop()
	again := time.NewTicker(beginInterval)
	defer again.Stop()
	for {
		if _, sent, err := tenant.server.Stats(ctx); err != nil || sent >= a.beginBytes {
			return err == nil, err
		}
		select {
		case <-again.C:
		case <-patience.C:
			return false, nil
		case <-ctx.Done():
			return false, context.Cause(ctx)
		}
	}
}

// scrapeOnce reads the manager's metrics once. It returns the zero value if the manager does not answer.
func scrapeOnce(ctx context.Context, url string) Scrape {
	ctx, cancel := context.WithTimeout(ctx, scrapeTimeout)
	defer cancel()
	start := time.Now()
	request, err := http.NewRequestWithContext(ctx, http.MethodGet, url, http.NoBody)
	if err != nil {
		return Scrape{}
	}
	response, err := http.DefaultClient.Do(request)
	if err != nil {
		return Scrape{}
	}
	defer func() { _ = response.Body.Close() }() // the body was read to its end
	text, err := io.ReadAll(response.Body)
	if err != nil {
		return Scrape{}
	}
	s := Scrape{Bytes: len(text), Milliseconds: milliseconds(time.Since(start))}
	if families, err := parseMetrics(bytes.NewReader(text), metricReconciles); err == nil {
		for _, m := range families[metricReconciles].GetMetric() {
			s.Reconciles += int64(m.GetCounter().GetValue())
		}
	}
	return s
}

// metricReconciles is controller-runtime's counter of reconciles.
const metricReconciles = "controller_runtime_reconcile_total"
