package main

import (
	"errors"
	"fmt"
	"math"
	"strconv"
	"strings"
	"time"
)

const (
	// neighbourBound is the maximum factor by which an attacker may slow down the victim.
	neighbourBound = 2
	// scrapeBound is the maximum size of the response to a scrape of the manager's metrics, in bytes.
	scrapeBound = 1 << 20
)

// NeighboursReport compares the victim's load with and without each attacker.
type NeighboursReport struct {
	MemoryMiB int `json:"memoryMiB"`
	// Bound names the mechanism that limited the manager's memory.
	Bound string `json:"bound"`
	// IntervalMilliseconds is the time between two Turns of the victim.
	IntervalMilliseconds int64          `json:"intervalMilliseconds"`
	WindowSeconds        float64        `json:"windowSeconds"`
	Attacks              []AttackReport `json:"attacks"`
}

// AttackReport is the result of one attack.
type AttackReport struct {
	Name    string      `json:"name"`
	Size    int         `json:"size"`
	What    string      `json:"what"`
	Without *VictimLoad `json:"without"`
	With    *VictimLoad `json:"with"`
	// Restarts counts the unexpected exits of the manager, and OutOfMemoryKills counts the OOM kills among them.
	Restarts         int     `json:"restarts"`
	OutOfMemoryKills int     `json:"outOfMemoryKills"`
	PeakMiB          float64 `json:"peakMiB"`
	// Requests and SentMiB count the requests to the attacker's servers and the data in their responses.
	Requests int64   `json:"requests"`
	SentMiB  float64 `json:"sentMiB"`
	Scrape   Scrape  `json:"scrape"`

	needsServer bool
	grouped     bool // whether a cgroup limits the memory
}

// Scrape describes one scrape of the manager's metrics after an attack.
type Scrape struct {
	Bytes        int     `json:"bytes"`
	Milliseconds float64 `json:"milliseconds"`
	// Reconciles counts the reconciles since the start of the process.
	Reconciles int64 `json:"reconciles"`
}

// victimRow is one measure of the victim.
type victimRow struct {
	name          string
	without, with float64
	ratio         float64 // the slowdown, or infinite if no Turn succeeded
}

// rows returns the measures that have a limit.
func (r *AttackReport) rows() []victimRow {
	slower := func(name string, without, with float64) victimRow {
		return victimRow{name, without, with, times(with, without)}
	}
	return []victimRow{
		slower("latency p50", r.Without.Latency.P50, r.With.Latency.P50),
		slower("latency p95", r.Without.Latency.P95, r.With.Latency.P95),
		slower("newcomer latency p95", r.Without.Newcomer.P95, r.With.Newcomer.P95),
		{"Turns per second", r.Without.TurnsPerSecond, r.With.TurnsPerSecond, times(r.Without.TurnsPerSecond, r.With.TurnsPerSecond)},
	}
}

// times returns value divided by other, rounded to the printed digits, or infinity if other is not positive.
func times(value, other float64) float64 {
	if other <= 0 {
		return math.Inf(1)
	}
	return math.Round(value/other*100) / 100
}

// stolen returns the steal time in percent of the CPU time, in the worse of the two windows.
func (r *AttackReport) stolen() float64 { return max(r.Without.StolenPercent, r.With.StolenPercent) }

// worst returns the largest ratio.
func (r *AttackReport) worst() float64 {
	worst := 0.0
	for _, row := range r.rows() {
		worst = max(worst, row.ratio)
	}
	return worst
}

// failure returns an error if the attack has harmed the victim or the manager, or has not taken place.
func (r *AttackReport) failure(memoryMiB int) error {
	var errs []error
	add := func(format string, args ...any) { errs = append(errs, fmt.Errorf(r.Name+": "+format, args...)) }
	for _, row := range r.rows() {
		if row.ratio > neighbourBound {
			add("%s: %s without the attacker, %s with it, %.2f times as slow, more than %d times", row.name,
				number(row.without), number(row.with), row.ratio, neighbourBound)
		}
	}
	if n := r.Without.failures(); n > 0 {
		add("%d Turns of the victim failed without an attacker: %v", n, r.Without.Failed)
	}
	if n := r.With.failures(); n > 0 {
		add("%d of %d Turns of the victim failed: %v", n, r.With.Turns, r.With.Failed)
	}
	if r.Restarts > 0 {
		add("the manager restarted %d times, %d of them after an OOM kill", r.Restarts, r.OutOfMemoryKills)
	}
	// With a cgroup, the peak may exceed the limit: the resident memory includes pages of the executable file, which
	// the kernel may have charged to another cgroup, such as the one of an earlier manager.
	if !r.grouped && r.PeakMiB > float64(memoryMiB) {
		add("the manager had %s MiB resident, more than %d MiB", number(r.PeakMiB), memoryMiB)
	}
	if r.Scrape.Bytes == 0 {
		add("the manager's metrics could not be read within %s", scrapeTimeout)
	}
	if r.Scrape.Bytes > scrapeBound {
		add("a scrape of the manager's metrics has %d bytes, more than %d", r.Scrape.Bytes, scrapeBound)
	}
	if r.needsServer && r.Requests == 0 {
		add("the attacker's server received no request: nothing was measured")
	}
	return errors.Join(errs...)
}

// failure returns an error if one of the attacks did harm.
func (r *NeighboursReport) failure() error {
	var errs []error
	for i := range r.Attacks {
		errs = append(errs, r.Attacks[i].failure(r.MemoryMiB))
	}
	return errors.Join(errs...)
}

// summary describes the victim's load in one line.
func (r *AttackReport) summary() string {
	return fmt.Sprintf("p95 %s ms without the attacker (bound after %s), %s ms with it (bound after %s); at most %s times "+
		"as slow; %d of %d Turns failed; %d restarts; peak %s MiB; %.0f %% steal time",
		number(r.Without.Latency.P95), number(r.Without.Bound.P95), number(r.With.Latency.P95), number(r.With.Bound.P95),
		number(r.worst()), r.With.failures(), r.With.Turns, r.Restarts, number(r.PeakMiB), r.stolen())
}

func (r *NeighboursReport) table(s Setup) string {
	var text strings.Builder
	fmt.Fprintf(&text, "A victim and attackers in other namespaces: a Turn of 2 requests and a call of a "+
		"tool each %s (open loop), a manager in\n"+
		"%d MiB (%s), %d CPUs\n\n", time.Duration(r.IntervalMilliseconds)*time.Millisecond, r.MemoryMiB, r.Bound, s.CPUs)
	const line = "%-10s%14s%14s%16s%14s%8s%8s%10s%8s%8s%s\n"
	fmt.Fprintf(&text, line, "attack", "p50, ms", "p95, ms", "newcomer, ms", "Turns/s", "ratio", "failed", "restarts", "MiB", "stolen", "")
	for i := range r.Attacks {
		a := &r.Attacks[i]
		rows := a.rows()
		mark := ""
		if a.failure(r.MemoryMiB) != nil {
			mark = "  EXCEEDED"
		}
		cells := make([]string, 0, len(rows))
		for _, row := range rows {
			cells = append(cells, number(row.without)+" > "+number(row.with))
		}
		fmt.Fprintf(&text, line, a.Name, cells[0], cells[1], cells[2], cells[3], number(a.worst()),
			strconv.Itoa(a.With.failures()), strconv.Itoa(a.Restarts), number(a.PeakMiB), fmt.Sprintf("%.0f %%", a.stolen()), mark)
	}
	text.WriteString("\n")
	for i := range r.Attacks {
		a := &r.Attacks[i]
		fmt.Fprintf(&text, "%-10s%s (%d requests, %s MiB sent; %d reconciles; a scrape of %d KiB)\n%-10sCPU: %s\n",
			a.Name, a.What, a.Requests, number(a.SentMiB), a.Scrape.Reconciles, a.Scrape.Bytes>>10,
			"", cpuLine(a.Without.CPUPercent, a.With.CPUPercent))
	}
	fmt.Fprintf(&text, "\nEach cell has the victim's value without the attacker, then the value with it, measured for at "+
		"least %s each. The ratio is the\n"+
		"worst of the four. A newcomer is a Turn with a new Agent, ModelProvider and ToolServer. The victim creates one each "+
		"second; the\n"+
		"cell has their p95. A ratio above %d, a failed Turn, a restart, more than %d MiB and a scrape above %d KiB are not "+
		"allowed. Stolen\n"+
		"is the steal time: the CPU time that the host gave to other virtual machines. Above %d %%, the ratio is not reliable, "+
		"and the attack\n"+
		"is repeated, up to %d tries in total. CPU is the CPU time of each program, in percent of one CPU.\n",
		time.Duration(r.WindowSeconds*float64(time.Second)), neighbourBound, r.MemoryMiB, scrapeBound>>10, maxStolen, maxTries)
	return text.String()
}
