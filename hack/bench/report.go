package main

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"slices"
	"strings"
	"time"
)

const (
	outputTable = "table"
	outputJSON  = "json"
)

// Report is the outcome of a benchmark: of those of its phases that were run.
type Report struct {
	Setup   Setup        `json:"setup"`
	Manager *Measurement `json:"manager,omitempty"`
	// Floor is the same for a bare client-go program, and Minimal for one that works with minimal objects in the place of Turns.
	Floor     *Measurement     `json:"floor,omitempty"`
	Minimal   *Measurement     `json:"minimal,omitempty"`
	Executors *ExecutorsReport `json:"executors,omitempty"`
	Tools     *ToolsReport     `json:"tools,omitempty"`
	Finished  *FinishedReport  `json:"finished,omitempty"`
	// Neighbours is absent unless it was asked for.
	Neighbours *NeighboursReport `json:"neighbours,omitempty"`
}

// Setup is what was measured, and on what.
type Setup struct {
	Turns               int   `json:"turns"`
	LatencyMilliseconds int64 `json:"latencyMilliseconds"`
	ReplyChars          int   `json:"replyChars"`
	PayloadChars        int   `json:"payloadChars"`
	CPUs                int   `json:"cpus"`
}

// Measurement is what a contender needed for the Turns: one program, or several together.
type Measurement struct {
	TurnsPerSecond float64 `json:"turnsPerSecond"`
	// WallSeconds is from the first creation to the last completion.
	WallSeconds float64 `json:"wallSeconds"`
	// Overhead is status.durationMilliseconds less the model's latency.
	Overhead Percentiles `json:"overheadMilliseconds"`
	// Completion is from a Turn's creation to its completion, as a client sees them; creating many at once is part of it.
	Completion Percentiles `json:"creationToCompletionMilliseconds"`
	// Single is from creation to completion, less the model's latency, of Turns that run one after another.
	Single Percentiles `json:"singleMilliseconds"`
	// WritesPerTurn are requests that write to the API server, but for the creation of the Turns and for Leases.
	WritesPerTurn       float64            `json:"apiWritesPerTurn"`
	WritesPerTurnByKind map[string]float64 `json:"apiWritesPerTurnByKind"`
	LeaseWrites         float64            `json:"leaseWrites"`
	CPUPerTurn          float64            `json:"cpuMillisecondsPerTurn"`
	// ServerCPUPerTurn is that of kube-apiserver, the creation of the Turns and the benchmark's own watch included.
	ServerCPUPerTurn     float64        `json:"apiServerCPUMillisecondsPerTurn"`
	PeakMemoryMiB        float64        `json:"peakMemoryMiB"`
	ModelRequestsPerTurn float64        `json:"modelRequestsPerTurn"`
	FailedTurns          map[string]int `json:"failedTurns,omitempty"`
	// Processes are the programs that CPU and memory are the sums of.
	Processes []Process `json:"processes,omitempty"`
}

// Process is one program's part in a Measurement.
type Process struct {
	Name string `json:"name"`
	// Turns is how many of the Turns it has run; nil for a process that is no executor.
	Turns *int `json:"turns,omitempty"`
	// CPUPerTurn is per Turn of all, whoever ran it.
	CPUPerTurn    float64 `json:"cpuMillisecondsPerTurn"`
	PeakMemoryMiB float64 `json:"peakMemoryMiB"`
}

// Percentiles of a sample, in milliseconds.
type Percentiles struct {
	P50 float64 `json:"p50"`
	P95 float64 `json:"p95"`
}

func setupOf(o options, cpus int) Setup {
	return Setup{Turns: o.turns, LatencyMilliseconds: o.latency.Milliseconds(), ReplyChars: o.replyChars, PayloadChars: o.payload, CPUs: cpus}
}

func newMeasurement(result *burstResult, t team, before, after sample, latency time.Duration) *Measurement {
	turns := float64(len(result.latencies))
	m := &Measurement{
		TurnsPerSecond:       turns / result.wall.Seconds(),
		WallSeconds:          result.wall.Seconds(),
		Overhead:             percentiles(result.durations, latency),
		Completion:           percentiles(result.latencies, 0),
		LeaseWrites:          after.leases - before.leases,
		ModelRequestsPerTurn: float64(after.modelRequests-before.modelRequests) / turns,
		ServerCPUPerTurn:     milliseconds(after.serverCPU-before.serverCPU) / turns,
		FailedTurns:          result.failed,
	}
	for i, p := range t {
		part := Process{
			Name: p.name, CPUPerTurn: milliseconds(after.uses[i].cpu-before.uses[i].cpu) / turns,
			PeakMemoryMiB: mebibytes(after.uses[i].peakMemory),
		}
		if p.executor != "" {
			part.Turns = new(result.byExecutor[p.executor])
		}
		m.Processes = append(m.Processes, part)
		m.CPUPerTurn += part.CPUPerTurn
		m.PeakMemoryMiB += part.PeakMemoryMiB
	}
	m.WritesPerTurnByKind, m.WritesPerTurn = writesPerTurn(before, after, turns)
	return m
}

// writesPerTurn returns what was written between two samples but for the creation of so many Turns: by kind, and in all.
func writesPerTurn(before, after sample, turns float64) (byKind map[string]float64, all float64) {
	byKind = map[string]float64{}
	written := after.writes.minus(before.writes)
	written["POST turns"] -= turns // the benchmark's own
	sum := 0.0
	for kind, count := range written {
		if count != 0 {
			byKind[kind] = count / turns
			sum += count // whole numbers, whose sum is exact in any order
		}
	}
	return byKind, sum / turns
}

func milliseconds(d time.Duration) float64 { return float64(d.Microseconds()) / 1000 }
func mebibytes(bytes uint64) float64       { return float64(bytes) / (1 << 20) }

// percentiles returns those of a sample by the nearest rank, each value less some part of it.
func percentiles(values []time.Duration, less time.Duration) Percentiles {
	sorted := slices.Sorted(slices.Values(values))
	rank := func(percent int) float64 {
		if len(sorted) == 0 {
			return 0
		}
		index := (len(sorted)*percent+99)/100 - 1
		return milliseconds(sorted[index] - less)
	}
	return Percentiles{P50: rank(50), P95: rank(95)}
}

// failure is an error if not every Turn has succeeded, or something has grown beyond its bound.
func (r *Report) failure() error {
	var errs []error
	check := func(name string, m *Measurement) {
		if m != nil && len(m.FailedTurns) > 0 {
			errs = append(errs, fmt.Errorf("not all Turns succeeded: %s %v", name, m.FailedTurns))
		}
	}
	check("manager", r.Manager)
	check("floor", r.Floor)
	check("minimal", r.Minimal)
	if e := r.Executors; e != nil {
		check("one process", e.One)
		check("two executors of half its capacity", e.Half)
		check("two executors of its capacity", e.Same)
	}
	if r.Tools != nil {
		errs = append(errs, r.Tools.failure())
	}
	if r.Finished != nil {
		errs = append(errs, r.Finished.failure())
	}
	if r.Neighbours != nil {
		errs = append(errs, r.Neighbours.failure())
	}
	return errors.Join(errs...)
}

func (r *Report) write(out io.Writer, format string) error {
	if format == outputJSON {
		encoder := json.NewEncoder(out)
		encoder.SetIndent("", "  ")
		return encoder.Encode(r)
	}
	var tables []string
	if r.Manager != nil && r.Floor != nil && r.Minimal != nil {
		tables = append(tables, r.floorTable())
	}
	if r.Executors != nil {
		tables = append(tables, r.Executors.table(r.Setup))
	}
	if r.Tools != nil {
		tables = append(tables, r.Tools.table(r.Setup))
	}
	if r.Finished != nil {
		tables = append(tables, r.Finished.table(r.Setup))
	}
	if r.Neighbours != nil {
		tables = append(tables, r.Neighbours.table(r.Setup))
	}
	_, err := io.WriteString(out, strings.Join(tables, "\n"))
	return err
}

// head says what was measured, as the first line of a table.
func (s Setup) head() string {
	return fmt.Sprintf("%d Turns at once, model latency %s, answers of %d characters, facts of %d, %d CPUs",
		s.Turns, time.Duration(s.LatencyMilliseconds)*time.Millisecond, s.ReplyChars, s.PayloadChars, s.CPUs)
}

func (r *Report) floorTable() string {
	var text strings.Builder
	fmt.Fprintf(&text, "%s\n\n", r.Setup.head())
	const line = "%-36s%10s%10s%8s%10s%8s\n"
	fmt.Fprintf(&text, line, "", "manager", "floor", "ratio", "minimal", "ratio")
	for _, row := range r.rows() {
		fmt.Fprintf(&text, line, row.name, number(row.manager), number(row.floor), ratio(row.manager, row.floor), number(row.minimal), ratio(row.manager, row.minimal))
	}
	fmt.Fprintf(&text, "\nThe floor is a bare client-go program: watch, one status write, one model request, one status write. Minimal is the same with\n"+
		"an object that has only the fields which this takes.\n"+
		"API writes leave out the benchmark's own creation of the Turns, and Leases (manager %.0f, floor %.0f in all).\n",
		r.Manager.LeaseWrites, r.Floor.LeaseWrites)
	return text.String()
}

type row struct {
	name                    string
	manager, floor, minimal float64
}

func (r *Report) rows() []row {
	m, f, o := r.Manager, r.Floor, r.Minimal
	rows := []row{
		{"Turns per second", m.TurnsPerSecond, f.TurnsPerSecond, o.TurnsPerSecond},
		{"wall time, s", m.WallSeconds, f.WallSeconds, o.WallSeconds},
		{"duration less latency, p50, ms", m.Overhead.P50, f.Overhead.P50, o.Overhead.P50},
		{"duration less latency, p95, ms", m.Overhead.P95, f.Overhead.P95, o.Overhead.P95},
		{"creation to completion, p50, ms", m.Completion.P50, f.Completion.P50, o.Completion.P50},
		{"creation to completion, p95, ms", m.Completion.P95, f.Completion.P95, o.Completion.P95},
		{"one at a time less latency, p50, ms", m.Single.P50, f.Single.P50, o.Single.P50},
		{"CPU per Turn, ms", m.CPUPerTurn, f.CPUPerTurn, o.CPUPerTurn},
		{"CPU of the API server per Turn, ms", m.ServerCPUPerTurn, f.ServerCPUPerTurn, o.ServerCPUPerTurn},
		{"peak memory, MiB", m.PeakMemoryMiB, f.PeakMemoryMiB, o.PeakMemoryMiB},
		{"model requests per Turn", m.ModelRequestsPerTurn, f.ModelRequestsPerTurn, o.ModelRequestsPerTurn},
		{"API writes per Turn", m.WritesPerTurn, f.WritesPerTurn, o.WritesPerTurn},
	}
	kinds := maps.Clone(m.WritesPerTurnByKind)
	if kinds == nil {
		kinds = map[string]float64{}
	}
	maps.Copy(kinds, f.WritesPerTurnByKind)
	maps.Copy(kinds, o.WritesPerTurnByKind)
	for _, kind := range slices.Sorted(maps.Keys(kinds)) {
		rows = append(rows, row{"  " + kind, m.WritesPerTurnByKind[kind], f.WritesPerTurnByKind[kind], o.WritesPerTurnByKind[kind]})
	}
	return rows
}

// number prints with as many decimals as say something.
func number(v float64) string {
	switch {
	case v == 0:
		return "0"
	case v >= 100 || v <= -100:
		return fmt.Sprintf("%.0f", v)
	case v >= 10 || v <= -10:
		return fmt.Sprintf("%.1f", v)
	default:
		return fmt.Sprintf("%.2f", v)
	}
}

// ratio prints how many times another value something is, and nothing where there is no other.
func ratio(value, other float64) string {
	if other <= 0 {
		return "-"
	}
	return fmt.Sprintf("%.2f", value/other)
}

// quotient is how many times another value something is, 0 where there is no other.
func quotient(value, other float64) float64 {
	if other <= 0 {
		return 0
	}
	return value / other
}
