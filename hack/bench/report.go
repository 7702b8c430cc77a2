package main

import (
	"encoding/json"
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

// Report is the outcome of a benchmark.
type Report struct {
	Setup   Setup       `json:"setup"`
	Manager Measurement `json:"manager"`
	// Floor is the same for a bare client-go program.
	Floor Measurement `json:"floor"`
}

// Setup is what was measured, and on what.
type Setup struct {
	Turns               int   `json:"turns"`
	LatencyMilliseconds int64 `json:"latencyMilliseconds"`
	ReplyChars          int   `json:"replyChars"`
	PayloadChars        int   `json:"payloadChars"`
	CPUs                int   `json:"cpus"`
}

// Measurement is what one program needed for the Turns.
type Measurement struct {
	TurnsPerSecond float64 `json:"turnsPerSecond"`
	// WallSeconds is from the first creation to the last completion.
	WallSeconds float64 `json:"wallSeconds"`
	// Overhead is status.durationMilliseconds less the model's latency.
	Overhead Percentiles `json:"overheadMilliseconds"`
	// Completion is from a Turn's creation to its completion, as a client sees them; creating many at once is part of it.
	Completion Percentiles `json:"creationToCompletionMilliseconds"`
	// WritesPerTurn are requests that write to the API server, but for the creation of the Turns and for Leases.
	WritesPerTurn        float64            `json:"apiWritesPerTurn"`
	WritesPerTurnByKind  map[string]float64 `json:"apiWritesPerTurnByKind"`
	LeaseWrites          float64            `json:"leaseWrites"`
	CPUPerTurn           float64            `json:"cpuMillisecondsPerTurn"`
	PeakMemoryMiB        float64            `json:"peakMemoryMiB"`
	ModelRequestsPerTurn float64            `json:"modelRequestsPerTurn"`
	FailedTurns          map[string]int     `json:"failedTurns,omitempty"`
}

// Percentiles of a sample, in milliseconds.
type Percentiles struct {
	P50 float64 `json:"p50"`
	P95 float64 `json:"p95"`
}

func setupOf(o options, cpus int) Setup {
	return Setup{Turns: o.turns, LatencyMilliseconds: o.latency.Milliseconds(), ReplyChars: o.replyChars, PayloadChars: o.payload, CPUs: cpus}
}

func newMeasurement(result *burstResult, before, after sample, latency time.Duration) Measurement {
	turns := float64(len(result.latencies))
	m := Measurement{
		TurnsPerSecond:       turns / result.wall.Seconds(),
		WallSeconds:          result.wall.Seconds(),
		Overhead:             percentiles(result.durations, latency),
		Completion:           percentiles(result.latencies, 0),
		WritesPerTurnByKind:  map[string]float64{},
		LeaseWrites:          after.leases - before.leases,
		CPUPerTurn:           float64((after.cpu - before.cpu).Milliseconds()) / turns,
		PeakMemoryMiB:        float64(after.peakMemory) / (1 << 20),
		ModelRequestsPerTurn: float64(after.modelRequests-before.modelRequests) / turns,
		FailedTurns:          result.failed,
	}
	written := after.writes.minus(before.writes)
	written["POST turns"] -= turns // the benchmark's own
	for kind, count := range written {
		if count != 0 {
			m.WritesPerTurnByKind[kind] = count / turns
			m.WritesPerTurn += count / turns
		}
	}
	return m
}

// percentiles returns those of a sample by the nearest rank, each value less some part of it.
func percentiles(values []time.Duration, less time.Duration) Percentiles {
	sorted := slices.Sorted(slices.Values(values))
	rank := func(percent int) float64 {
		if len(sorted) == 0 {
			return 0
		}
		index := (len(sorted)*percent+99)/100 - 1
		return float64((sorted[index] - less).Microseconds()) / 1000
	}
	return Percentiles{P50: rank(50), P95: rank(95)}
}

// failure is an error if not every Turn has succeeded.
func (r *Report) failure() error {
	if len(r.Manager.FailedTurns)+len(r.Floor.FailedTurns) == 0 {
		return nil
	}
	return fmt.Errorf("not all Turns succeeded: manager %v, floor %v", r.Manager.FailedTurns, r.Floor.FailedTurns)
}

func (r *Report) write(out io.Writer, format string) error {
	if format == outputJSON {
		encoder := json.NewEncoder(out)
		encoder.SetIndent("", "  ")
		return encoder.Encode(r)
	}
	var text strings.Builder
	fmt.Fprintf(&text, "%d Turns at once, model latency %s, answers of %d characters, facts of %d, %d CPUs\n\n", r.Setup.Turns,
		time.Duration(r.Setup.LatencyMilliseconds)*time.Millisecond, r.Setup.ReplyChars, r.Setup.PayloadChars, r.Setup.CPUs)
	const line = "%-34s%10s%10s%8s\n"
	fmt.Fprintf(&text, line, "", "manager", "floor", "ratio")
	for _, row := range r.rows() {
		fmt.Fprintf(&text, line, row.name, number(row.manager), number(row.floor), ratio(row.manager, row.floor))
	}
	fmt.Fprintf(&text, "\nThe floor is a bare client-go program: watch, one status write, one model request, one status write.\n"+
		"API writes leave out the benchmark's own creation of the Turns, and Leases (manager %.0f, floor %.0f in all).\n",
		r.Manager.LeaseWrites, r.Floor.LeaseWrites)
	_, err := io.WriteString(out, text.String())
	return err
}

type row struct {
	name           string
	manager, floor float64
}

func (r *Report) rows() []row {
	m, f := r.Manager, r.Floor
	rows := []row{
		{"Turns per second", m.TurnsPerSecond, f.TurnsPerSecond},
		{"wall time, s", m.WallSeconds, f.WallSeconds},
		{"duration less latency, p50, ms", m.Overhead.P50, f.Overhead.P50},
		{"duration less latency, p95, ms", m.Overhead.P95, f.Overhead.P95},
		{"creation to completion, p50, ms", m.Completion.P50, f.Completion.P50},
		{"creation to completion, p95, ms", m.Completion.P95, f.Completion.P95},
		{"CPU per Turn, ms", m.CPUPerTurn, f.CPUPerTurn},
		{"peak memory, MiB", m.PeakMemoryMiB, f.PeakMemoryMiB},
		{"model requests per Turn", m.ModelRequestsPerTurn, f.ModelRequestsPerTurn},
		{"API writes per Turn", m.WritesPerTurn, f.WritesPerTurn},
	}
	kinds := maps.Clone(m.WritesPerTurnByKind)
	if kinds == nil {
		kinds = map[string]float64{}
	}
	maps.Copy(kinds, f.WritesPerTurnByKind)
	for _, kind := range slices.Sorted(maps.Keys(kinds)) {
		rows = append(rows, row{"  " + kind, m.WritesPerTurnByKind[kind], f.WritesPerTurnByKind[kind]})
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

// ratio prints how many times the floor something is, and nothing where there is no floor.
func ratio(manager, floor float64) string {
	if floor <= 0 {
		return "-"
	}
	return fmt.Sprintf("%.2f", manager/floor)
}
