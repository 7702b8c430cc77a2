package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"math"
	"net/http"
	"path/filepath"
	"slices"
	"sync/atomic"
	"time"

	"golang.org/x/sync/errgroup"
	"k8s.io/apimachinery/pkg/util/wait"

	"github.com/capstan-dev/capstan/test/harness"
)

const (
	// fewFinished is the number of finished Turns of the side with few finished Turns.
	fewFinished = 100

	// progressEvery is the number of finished Turns that are created between two lines of progress.
	progressEvery = 2000

	// moreBursts is the factor by which the number of bursts grows if a ratio exceeds its limit after the first bursts.
	moreBursts = 3

	// silentIntervals is the number of consecutive intervals of settleInterval that must pass without requests. One
	// interval is not enough, because the manager still looks up a deleted Turn two seconds after the deletion.
	silentIntervals = 4

	// quietTimeout is the maximum time to wait until the memory of a process is stable.
	quietTimeout = 5 * time.Minute
	// scrapeInterval is the time between two scrapes while the benchmark waits for the next garbage collection. The
	// scrapes themselves produce the garbage that triggers the collection.
	scrapeInterval = 50 * time.Millisecond
	// quietChange is the fraction by which the memory of a process may change between two samples and still count as
	// stable.
	quietChange = 0.02
)

// Metrics of the manager.
const (
	metricCollections = "go_gc_cycles_total_gc_cycles_total"
	metricLiveHeap    = "go_gc_heap_live_bytes" // the live heap that the last collection found
	metricStacks      = "go_memory_classes_heap_stacks_bytes"
	metricRequests    = "rest_client_requests_total"
)

// side is one of the two compared API servers, with its manager.
type side struct {
	*bench
	load Load
	team team
}

// compareFinished measures one manager with few finished Turns in its API server, and one manager with many. Each
// manager has its own API server, so that the bursts can alternate between the two. Other load on the machine then
// slows down both.
func (b *bench) compareFinished(ctx context.Context) (*FinishedReport, error) {
	manyBench, err := b.withOwnControlPlane(ctx, "many")
	if err != nil {
		return nil, err
	}
	few := &side{bench: b, load: Load{Finished: fewFinished, FailedTurns: map[string]int{}}}
	many := &side{bench: manyBench, load: Load{Finished: b.finished, FailedTurns: map[string]int{}}}
	r := &FinishedReport{}
	start := time.Now()
	for _, s := range []*side{few, many} {
		// No manager may run yet: it would bind a Turn between its creation and the write of its finished status.
		if err := s.makeFinished(ctx, s.load.Finished); err != nil {
			return nil, err
		}
	}
	r.MakingSeconds = time.Since(start).Seconds()
	for _, s := range []*side{few, many} {
		if err := s.start(ctx); err != nil {
			return nil, err
		}
	}
	if err := b.runBursts(ctx, few, many); err != nil {
		return nil, err
	}
	if err := errors.Join(few.team.stop(), many.team.stop()); err != nil {
		return nil, err
	}
	r.Few, r.Many = few.load, many.load
	r.Ratios = medianRatios(r.Few.Bursts, r.Many.Bursts)
	return r, nil
}

// withOwnControlPlane returns a copy of the benchmark with another control plane, which stops together with the control
// plane of b.
func (b *bench) withOwnControlPlane(ctx context.Context, name string) (*bench, error) {
	other := *b
	other.dir = filepath.Join(b.dir, name)
	other.harness = harness.New(other.dir, b.fail)
	b.harness.OnStop(other.harness.Stop)
	b.logf("starting another etcd and kube-apiserver")
	return &other, other.startCluster(ctx)
}

// makeFinished creates this many finished Turns.
func (b *bench) makeFinished(ctx context.Context, count int) error {
	start := time.Now()
	var made atomic.Int64
	group, ctx := errgroup.WithContext(ctx)
	group.SetLimit(creators)
	for i := range count {
		group.Go(func() error {
			turn := finishedTurn(i, time.Now())
			status := turn.Status
			if err := b.api.Create(ctx, turn); err != nil {
				return fmt.Errorf("failed to create Turn %q: %w", turn.Name, err)
			}
			turn.Status = status
			if err := b.api.Status().Update(ctx, turn); err != nil {
				return fmt.Errorf("failed to finish Turn %q: %w", turn.Name, err)
			}
			if n := made.Add(1); n%progressEvery == 0 || int(n) == count {
				b.logf("finished Turns: %d of %d, %.0f s", n, count, time.Since(start).Seconds())
			}
			return nil
		})
	}
	return group.Wait()
}

// start starts the manager and waits until it is idle.
func (s *side) start(ctx context.Context) error {
	start := time.Now()
	var err error
	if s.team, err = s.bench.start(ctx, contender{
		name:    "finished",
		members: []member{managerMember(s.manager, "manager", "bench")},
	}); err != nil {
		return err
	}
	s.load.ReadySeconds = time.Since(start).Seconds()
	if s.load.Idle, err = s.whenQuiet(ctx); err != nil {
		return err
	}
	u, err := useOf(s.team[0].PID())
	s.load.StartPeakMiB, s.load.StartCPUSeconds = mebibytes(u.peakMemory), u.cpu.Seconds()
	return err
}

// runBursts runs bursts on both sides alternately, each when the manager is idle again. If a ratio then exceeds its
// limit, runBursts runs more bursts once, because the reason may be other load on the machine.
func (b *bench) runBursts(ctx context.Context, few, many *side) error {
	for _, s := range []*side{few, many} {
		if err := s.warmUp(ctx, s.team, "finished"); err != nil {
			return err
		}
	}
	count := b.bursts
	for i := 0; i < count; i++ {
		order := []*side{few, many}
		if i%2 == 1 {
			slices.Reverse(order) // work after a burst of one side must not always slow down the other side
		}
		for _, s := range order {
			if err := s.measureBurst(ctx, i); err != nil {
				return fmt.Errorf("with %d finished Turns: %w", s.load.Finished, err)
			}
		}
		if i == b.bursts-1 && medianRatios(few.load.Bursts, many.load.Bursts).exceeds(finishedBound) {
			count = moreBursts * b.bursts
			b.logf("a ratio exceeds %.2f: running %d more bursts to confirm it", finishedBound, count-b.bursts)
		}
	}
	for _, s := range []*side{few, many} {
		s.load.Cost = medianCost(s.load.Bursts)
		if err := s.deleteTurns(ctx); err != nil {
			return err
		}
		var err error
		if s.load.After, err = s.whenQuiet(ctx); err != nil {
			return err
		}
	}
	return nil
}

// measureBurst deletes the Turns of the previous burst, so that the number of finished Turns stays the same, and runs
// one burst.
func (s *side) measureBurst(ctx context.Context, i int) error {
	if err := s.deleteTurns(ctx); err != nil {
		return err
	}
	before, err := s.whenSilent(ctx)
	if err != nil {
		return err
	}
	result, err := s.burst(ctx, fmt.Sprintf("finished-%d", i), s.options.turns)
	if err != nil {
		return err
	}
	after, err := s.whenSilent(ctx)
	if err != nil {
		return err
	}
	for reason, n := range result.failed {
		s.load.FailedTurns[reason] += n
	}
	turns := float64(s.options.turns)
	cost := Cost{
		CPU:      milliseconds(after.cpu-before.cpu) / turns,
		Requests: (after.requests - before.requests) / turns,
		Time:     milliseconds(result.wall-s.latency) / turns,
	}
	s.logf("%d finished Turns, burst %d: per Turn %s ms of CPU, %s API requests, %s ms", s.load.Finished, i+1,
		number(cost.CPU), number(cost.Requests), number(cost.Time))
	s.load.Bursts = append(s.load.Bursts, cost)
	return nil
}

// expense is the total cost of a manager so far.
type expense struct {
	cpu      time.Duration
	requests float64 // requests to the API server
}

// whenSilent waits until the manager sends no requests to the API server except for a few, such as writes of a Lease.
// It then returns the manager's expense. The wait is needed because the manager does some work only seconds after the
// end or the deletion of a Turn.
func (s *side) whenSilent(ctx context.Context) (expense, error) {
	total := expense{}
	silent := 0
	err := wait.PollUntilContextTimeout(ctx, s.settle, settleTimeout, true, func(ctx context.Context) (bool, error) {
		m, err := scrape(ctx, s.team[0].metricsURL)
		if silent++; m.requests > total.requests+2 {
			silent = 0
		}
		total.requests = m.requests
		return silent == silentIntervals, err
	})
	if err != nil {
		return expense{}, fmt.Errorf("gave up waiting for the end of all requests of the manager: %w", err)
	}
	u, err := useOf(s.team[0].PID())
	total.cpu = u.cpu
	return total, err
}

// whenQuiet waits until the memory of the manager is about the same after two garbage collections, and returns it.
func (s *side) whenQuiet(ctx context.Context) (Memory, error) {
	start := time.Now()
	var previous, current Memory
	err := wait.PollUntilContextTimeout(ctx, s.quiet, quietTimeout, true, func(ctx context.Context) (bool, error) {
		var err error
		previous = current
		current, err = memoryAfterCollection(ctx, s.team[0])
		return err == nil && current.isNear(previous), err
	})
	if err != nil {
		return Memory{}, fmt.Errorf("gave up waiting until the manager's memory is stable (last %+v, before %+v): %w", current, previous,
			err)
	}
	s.logf("%d finished Turns, idle after %.0f s: %s MiB resident, live heap of %s MiB", s.load.Finished,
		time.Since(start).Seconds(), number(current.ResidentMiB), number(current.HeapMiB))
	return current, nil
}

// memoryAfterCollection waits for the next garbage collection and returns the memory after it.
func memoryAfterCollection(ctx context.Context, p *running) (Memory, error) {
	var first, latest scraped
	err := wait.PollUntilContextCancel(ctx, scrapeInterval, true, func(ctx context.Context) (bool, error) {
		var err error
		latest, err = scrape(ctx, p.metricsURL)
		if first.collections == 0 {
			first = latest
		}
		return latest.collections > first.collections, err
	})
	if err != nil {
		return Memory{}, fmt.Errorf("gave up waiting for a garbage collection: %w", err)
	}
	u, err := useOf(p.PID())
	return Memory{ResidentMiB: mebibytes(u.memory), HeapMiB: latest.liveHeap / (1 << 20), StacksMiB: latest.stacks / (1 << 20)}, err
}

// isNear reports whether the memory has hardly changed since an earlier sample.
func (m Memory) isNear(earlier Memory) bool {
	same := func(a, b float64) bool { return math.Abs(a-b) <= quietChange*max(a, b) }
	return same(m.ResidentMiB, earlier.ResidentMiB) && same(m.HeapMiB, earlier.HeapMiB)
}

// scraped holds values from the manager's metrics.
type scraped struct{ collections, liveHeap, stacks, requests float64 }

// scrape reads the metrics of a manager.
func scrape(ctx context.Context, url string) (s scraped, err error) {
	request, err := http.NewRequestWithContext(ctx, http.MethodGet, url, http.NoBody)
	if err != nil {
		return s, err
	}
	response, err := http.DefaultClient.Do(request)
	if err != nil {
		return s, fmt.Errorf("failed to read the manager's metrics: %w", err)
	}
	defer func() { _ = response.Body.Close() }() // an error of the read is more useful than an error of Close
	return parseScraped(response.Body)
}

func parseScraped(text io.Reader) (scraped, error) {
	families, err := parseMetrics(text, metricCollections, metricLiveHeap, metricRequests)
	if err != nil {
		return scraped{}, fmt.Errorf("the manager's metrics: %w", err)
	}
	s := scraped{
		collections: families[metricCollections].GetMetric()[0].GetCounter().GetValue(),
		liveHeap:    families[metricLiveHeap].GetMetric()[0].GetGauge().GetValue(),
	}
	for _, metric := range families[metricStacks].GetMetric() {
		s.stacks += metric.GetGauge().GetValue()
	}
	for _, metric := range families[metricRequests].GetMetric() {
		s.requests += metric.GetCounter().GetValue()
	}
	return s, nil
}

// medianCost returns the medians of the costs of bursts. It takes the median of each kind of cost separately.
func medianCost(bursts []Cost) Cost {
	of := func(value func(Cost) float64) float64 {
		values := make([]float64, 0, len(bursts))
		for _, c := range bursts {
			values = append(values, value(c))
		}
		return median(values)
	}
	return Cost{
		CPU:      of(func(c Cost) float64 { return c.CPU }),
		Requests: of(func(c Cost) float64 { return c.Requests }),
		Time:     of(func(c Cost) float64 { return c.Time }),
	}
}

// medianRatios divides the cost of each burst with many finished Turns by the cost of the burst with few finished
// Turns that ran next to it, and returns the median of each kind of ratio. If the machine is slow for a while, it
// slows down both bursts of a pair, so these medians are more exact than the ratios of the medians. Both slices must
// have the same length.
func medianRatios(few, many []Cost) Cost {
	var ratios []Cost
	for i, f := range few {
		m := many[i]
		ratios = append(ratios, Cost{
			CPU: quotient(m.CPU, f.CPU), Requests: quotient(m.Requests, f.Requests),
			Time: quotient(m.Time, f.Time),
		})
	}
	return medianCost(ratios)
}

// median returns the middle value, the mean of the two middle values if their number is even, or 0 for no values.
func median(values []float64) float64 {
	sorted := slices.Sorted(slices.Values(values))
	n := len(sorted)
	if n == 0 {
		return 0
	}
	return (sorted[(n-1)/2] + sorted[n/2]) / 2
}
