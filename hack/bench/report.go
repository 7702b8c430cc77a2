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

// Report is the result of a benchmark. It contains the phases that were run.
type Report struct {
	Setup   Setup        `json:"setup"`
	Manager *Measurement `json:"manager,omitempty"`
	// Floor is the same measurement for a bare client-go program. Minimal is the measurement for that program with
	// minimal objects instead of Turns.
	Floor     *Measurement     `json:"floor,omitempty"`
	Minimal   *Measurement     `json:"minimal,omitempty"`
	Executors *ExecutorsReport `json:"executors,omitempty"`
	Tools     *ToolsReport     `json:"tools,omitempty"`
	// Evaluations is nil unless the phase was requested.
	Evaluations *EvaluationsReport `json:"evaluations,omitempty"`
	// Scale is nil unless the phase was requested.
	Scale    *ScaleReport    `json:"scale,omitempty"`
	Finished *FinishedReport `json:"finished,omitempty"`
	// Neighbours is nil unless the phase was requested.
	Neighbours *NeighboursReport `json:"neighbours,omitempty"`
}

// Setup describes the measured load and the machine.
type Setup struct {
	Turns               int   `json:"turns"`
	LatencyMilliseconds int64 `json:"latencyMilliseconds"`
	ReplyChars          int   `json:"replyChars"`
	PayloadChars        int   `json:"payloadChars"`
	CPUs                int   `json:"cpus"`
}

// Measurement is the cost of the Turns for a contender, which is one program or several together.
type Measurement struct {
	TurnsPerSecond float64 `json:"turnsPerSecond"`
	// WallSeconds is the time from the first creation to the last completion.
	WallSeconds float64 `json:"wallSeconds"`
	// Overhead is status.durationMilliseconds minus the model's latency.
	Overhead Percentiles `json:"overheadMilliseconds"`
	// Completion is the time from a Turn's creation to its completion, as a client sees them. It includes the time for
	// the creation of many Turns at the same time.
	Completion Percentiles `json:"creationToCompletionMilliseconds"`
	// Single is the time from creation to completion, minus the model's latency, of Turns that run one after another.
	Single Percentiles `json:"singleMilliseconds"`
	// WritesPerTurn counts the writes to the API server, except for the creation of the Turns and for Leases.
	WritesPerTurn       float64            `json:"apiWritesPerTurn"`
	WritesPerTurnByKind map[string]float64 `json:"apiWritesPerTurnByKind"`
	LeaseWrites         float64            `json:"leaseWrites"`
	CPUPerTurn          float64            `json:"cpuMillisecondsPerTurn"`
	// ServerCPUPerTurn is the CPU time of kube-apiserver, including the creation of the Turns and the benchmark's
	// watch.
	ServerCPUPerTurn     float64        `json:"apiServerCPUMillisecondsPerTurn"`
	PeakMemoryMiB        float64        `json:"peakMemoryMiB"`
	ModelRequestsPerTurn float64        `json:"modelRequestsPerTurn"`
	FailedTurns          map[string]int `json:"failedTurns,omitempty"`
	// Processes are the programs whose CPU time and memory are summed up.
	Processes []Process `json:"processes,omitempty"`
}

// Process is the share of one program in a Measurement.
type Process struct {
	Name string `json:"name"`
	// Turns is the number of Turns that the process has run; it is nil for a process that is not an executor.
	Turns *int `json:"turns,omitempty"`
	// CPUPerTurn is the process's CPU time divided by the number of all Turns, including the Turns of other executors.
	CPUPerTurn    float64 `json:"cpuMillisecondsPerTurn"`
	PeakMemoryMiB float64 `json:"peakMemoryMiB"`
}

// Percentiles holds percentiles of a sample, in milliseconds.
type Percentiles struct {
	P50 float64 `json:"p50"`
	P95 float64 `json:"p95"`
}

func setupOf(o options, cpus int) Setup {
	return Setup{
		Turns: o.turns, LatencyMilliseconds: o.latency.Milliseconds(), ReplyChars: o.replyChars,
		PayloadChars: o.payload, CPUs: cpus,
	}
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

// writesPerTurn returns the writes per Turn between two samples, by kind and in total. It leaves out the creation of
// the Turns.
func writesPerTurn(before, after sample, turns float64) (byKind map[string]float64, all float64) {
	byKind = map[string]float64{}
	written := after.writes.minus(before.writes)
	written["POST turns"] -= turns // created by the benchmark itself
	sum := 0.0
	for kind, count := range written {
		if count != 0 {
			byKind[kind] = count / turns
			sum += count // whole numbers, so their sum is exact in any order
		}
	}
	return byKind, sum / turns
}

func milliseconds(d time.Duration) float64 { return float64(d.Microseconds()) / 1000 }
func mebibytes(bytes uint64) float64       { return float64(bytes) / (1 << 20) }

// sumOf returns the sum of all counts.
func sumOf(counts map[string]int) int {
	sum := 0
	for _, n := range counts {
		sum += n
	}
	return sum
}

// percentiles returns the percentiles of a sample by the nearest rank, minus a duration.
func percentiles(values []time.Duration, subtracted time.Duration) Percentiles {
	sorted := slices.Sorted(slices.Values(values))
	rank := func(percent int) float64 {
		if len(sorted) == 0 {
			return 0
		}
		index := (len(sorted)*percent+99)/100 - 1
		return milliseconds(sorted[index] - subtracted)
	}
	return Percentiles{P50: rank(50), P95: rank(95)}
}

// failure returns an error if a Turn has failed or a value exceeds its limit.
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
		check("two executors with half of the slots each:", e.HalfCapacity)
		check("two executors with all slots each:", e.FullCapacity)
	}
	if r.Tools != nil {
		errs = append(errs, r.Tools.failure())
	}
	if r.Evaluations != nil {
		errs = append(errs, r.Evaluations.failure())
	}
	if r.Scale != nil {
		errs = append(errs, r.Scale.failure())
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
	if r.Evaluations != nil {
		tables = append(tables, r.Evaluations.table(r.Setup))
	}
	if r.Scale != nil {
		tables = append(tables, r.Scale.table(r.Setup))
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

// head describes the setup in the first line of a table.
func (s Setup) head() string {
	return fmt.Sprintf("%d Turns at the same time, model latency %s, answers of %d characters, %s, %d CPUs",
		s.Turns, time.Duration(s.LatencyMilliseconds)*time.Millisecond, s.ReplyChars, s.facts(), s.CPUs)
}

func (s Setup) facts() string {
	if s.PayloadChars == 0 {
		return "no facts in the Turns' context"
	}
	return fmt.Sprintf("facts of %d characters in total", s.PayloadChars)
}

func (r *Report) floorTable() string {
	var text strings.Builder
	fmt.Fprintf(&text, "%s\n\n", r.Setup.head())
	const line = "%-44s%10s%10s%8s%10s%8s\n"
	fmt.Fprintf(&text, line, "", "manager", "floor", "ratio", "minimal", "ratio")
	for _, row := range r.rows() {
		fmt.Fprintf(&text, line, row.name, number(row.manager), number(row.floor), ratio(row.manager, row.floor),
			number(row.minimal), ratio(row.manager, row.minimal))
	}
	fmt.Fprintf(&text, "\nThe floor is a bare client-go program: watch, one status write, one model request, "+
		"one status write. Minimal is the\n"+
		"same program with objects that have only the fields it needs.\n"+
		"API writes do not include the creation of the Turns and the writes of Leases (in total: manager %.0f, floor %.0f).\n",
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
		{"duration minus model latency, p50, ms", m.Overhead.P50, f.Overhead.P50, o.Overhead.P50},
		{"duration minus model latency, p95, ms", m.Overhead.P95, f.Overhead.P95, o.Overhead.P95},
		{"creation to completion, p50, ms", m.Completion.P50, f.Completion.P50, o.Completion.P50},
		{"creation to completion, p95, ms", m.Completion.P95, f.Completion.P95, o.Completion.P95},
		{"single Turn minus model latency, p50, ms", m.Single.P50, f.Single.P50, o.Single.P50},
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

// number prints a value with about three significant digits.
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

// ratio prints value divided by other, or a dash if other is not positive.
func ratio(value, other float64) string {
	if other <= 0 {
		return "-"
	}
	return fmt.Sprintf("%.2f", value/other)
}

// quotient returns value divided by other, or 0 if other is not positive.
func quotient(value, other float64) float64 {
	if other <= 0 {
		return 0
	}
	return value / other
}
