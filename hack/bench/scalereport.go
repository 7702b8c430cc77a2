package main

import (
	"errors"
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"
)

// ScaleReport shows the limits of one manager. Parts that did not run are nil.
type ScaleReport struct {
	// MemoryMiB and LimitCPUs are the limits of the small manager, and Bound names the mechanism that set them.
	MemoryMiB int          `json:"memoryMiB"`
	LimitCPUs float64      `json:"limitCPUs"`
	Bound     string       `json:"bound"`
	Crowd     *CrowdReport `json:"namespaces,omitempty"`
	Held      *HeldReport  `json:"inFlight,omitempty"`
	Long      *LongReport  `json:"long,omitempty"`
	// StolenPercent is the steal time during the phase, in percent of the CPU time.
	StolenPercent float64 `json:"stolenPercent"`
}

// CrowdReport is the cost of many namespaces that share a small manager and create all their Turns at the same time.
type CrowdReport struct {
	Namespaces          int     `json:"namespaces"`
	Turns               int     `json:"turns"`
	LatencyMilliseconds int64   `json:"latencyMilliseconds"`
	WallSeconds         float64 `json:"wallSeconds"`
	TurnsPerSecond      float64 `json:"turnsPerSecond"`
	// PeakInFlight is the largest number of model requests at the same time.
	PeakInFlight  int   `json:"peakInFlight"`
	ModelRequests int64 `json:"modelRequests"`
	// Restarts counts the unexpected exits of the manager, and OutOfMemoryKills counts the OOM kills among them.
	Restarts         int            `json:"restarts"`
	OutOfMemoryKills int            `json:"outOfMemoryKills"`
	FailedTurns      map[string]int `json:"failedTurns,omitempty"`
	// IdleMiB is the manager's resident memory before the first Turn, and PeakMiB its peak. PeakAnonymousMiB is the
	// peak of the anonymous memory: without file-backed pages, which the kernel can evict.
	IdleMiB          float64 `json:"idleMiB"`
	PeakMiB          float64 `json:"peakMiB"`
	PeakAnonymousMiB float64 `json:"peakAnonymousMiB"`
	CPUPerTurn       float64 `json:"cpuMillisecondsPerTurn"`
	ServerCPUPerTurn float64 `json:"apiServerCPUMillisecondsPerTurn"`
	// ThrottledPercent is the percentage of the CPU periods in which the CPU limit throttled the manager.
	ThrottledPercent    float64            `json:"throttledPercent"`
	WritesPerTurn       float64            `json:"apiWritesPerTurn"`
	WritesPerTurnByKind map[string]float64 `json:"apiWritesPerTurnByKind"`
	Journal             JournalUse         `json:"journal"`
}

// LongReport compares a long Turn on a manager without limits with the same Turn on the small manager.
type LongReport struct {
	Calls     int      `json:"calls"`
	Unlimited LongCost `json:"unlimited"`
	Limited   LongCost `json:"limited"`
}

// LongCost is the cost of a long Turn whose manager was killed once.
type LongCost struct {
	// ResumeSeconds is the time from the start of the next manager's process to its first model request.
	ResumeSeconds float64 `json:"resumeSeconds"`
	Restarts      int     `json:"restarts"`
	ModelRequests int     `json:"modelRequests"`
	ToolCalls     int     `json:"toolCalls"`
	// RepeatedCalls counts the calls that the tool server received more than once.
	RepeatedCalls int `json:"repeatedCalls"`
	// InputTokens is the number of input tokens of all requests, and LastTokens the number of those in the last
	// request.
	InputTokens int64          `json:"inputTokens"`
	LastTokens  int64          `json:"lastTokens"`
	PeakMiB     float64        `json:"peakMiB"`
	Journal     JournalUse     `json:"journal"`
	FailedTurns map[string]int `json:"failedTurns,omitempty"`
}

func newCrowdReport(result *burstResult, before, after sample, b *bench) *CrowdReport {
	turns := len(result.latencies)
	r := &CrowdReport{
		Turns: turns, LatencyMilliseconds: b.latency.Milliseconds(), WallSeconds: result.wall.Seconds(),
		TurnsPerSecond: float64(turns) / result.wall.Seconds(), ModelRequests: after.modelRequests - before.modelRequests,
		FailedTurns: result.failed, ServerCPUPerTurn: milliseconds(after.serverCPU-before.serverCPU) / float64(turns),
	}
	r.WritesPerTurnByKind, r.WritesPerTurn = writesPerTurn(before, after, float64(turns))
	return r
}

// failure returns an error if a result of a part is not as required.
func (r *ScaleReport) failure() error {
	var errs []error
	if r.Crowd != nil {
		errs = append(errs, r.Crowd.failure())
	}
	if r.Held != nil {
		errs = append(errs, r.Held.failure())
	}
	if r.Long != nil {
		errs = append(errs, r.Long.Unlimited.failure("without limits", r.Long.Calls),
			r.Long.Limited.failure("of the small manager", r.Long.Calls))
	}
	return errors.Join(errs...)
}

// failure returns an error if the manager has exited, a Turn has failed, or the number of model requests is not the
// number of Turns.
func (r *CrowdReport) failure() error {
	var errs []error
	add := func(format string, args ...any) {
		errs = append(errs, fmt.Errorf("%d namespaces: "+format, append([]any{r.Namespaces}, args...)...))
	}
	if r.Restarts > 0 || r.OutOfMemoryKills > 0 {
		add("the manager restarted %d times, %d of them after an OOM kill, want none", r.Restarts, r.OutOfMemoryKills)
	}
	if r.ModelRequests != int64(r.Turns) {
		add("%d model requests for %d Turns, want one each", r.ModelRequests, r.Turns)
	}
	if len(r.FailedTurns) > 0 {
		add("not all Turns succeeded: %v", r.FailedTurns)
	}
	return errors.Join(errs...)
}

// wantRequests returns the expected number of model requests of a long Turn: one for each step with calls, one for the
// answer, and one that the kill interrupted.
func wantRequests(calls int) int { return calls/callsPerStep + 2 }

// failure returns an error if the Turn did not succeed, or a call or a recorded reply was repeated.
func (c *LongCost) failure(of string, calls int) error {
	var errs []error
	add := func(format string, args ...any) {
		errs = append(errs, fmt.Errorf("the long Turn "+of+": "+format, args...))
	}
	if c.Restarts != 1 {
		add("the manager restarted %d times, want 1, after the kill", c.Restarts)
	}
	if want := wantRequests(calls); c.ModelRequests != want {
		add("%d model requests, want %d", c.ModelRequests, want)
	}
	if c.ToolCalls != calls || c.RepeatedCalls != 0 {
		add("%d tool calls, %d of them repeated, want %d and none", c.ToolCalls, c.RepeatedCalls, calls)
	}
	if len(c.FailedTurns) > 0 {
		add("it did not succeed: %v", c.FailedTurns)
	}
	return errors.Join(errs...)
}

func (r *ScaleReport) table(s Setup) string {
	var tables []string
	if r.Crowd != nil {
		tables = append(tables, r.crowdTable(s))
	}
	if r.Held != nil {
		var text strings.Builder
		r.Held.memoryTable(&text, s)
		tables = append(tables, text.String())
	}
	if r.Long != nil {
		tables = append(tables, r.longTable(s))
	}
	return strings.Join(tables, "\n") + fmt.Sprintf("\nThe steal time was %.0f %% of the CPU time during the phase %s.\n",
		r.StolenPercent, phaseScale)
}

// limits returns the limits of the small manager.
func (r *ScaleReport) limits() string {
	return fmt.Sprintf("%d MiB, %s CPU", r.MemoryMiB, strconv.FormatFloat(r.LimitCPUs, 'f', -1, 64))
}

func (r *ScaleReport) crowdTable(s Setup) string {
	var text strings.Builder
	c := r.Crowd
	fmt.Fprintf(&text, "A manager with %s (%s) for %d namespaces, %d Turns at the same time: model latency %g s,\n"+
		"answers of %d characters, %s, %d CPUs\n\n", r.limits(), r.Bound, c.Namespaces, c.Turns, float64(c.LatencyMilliseconds)/1000,
		s.ReplyChars, s.facts(), s.CPUs)
	const line = "%-42s%10s%10s%s\n"
	fmt.Fprintf(&text, line, "", "measured", "must be", "")
	exactly := func(name string, value, want int) {
		mark := ""
		if value != want {
			mark = "  VIOLATED"
		}
		fmt.Fprintf(&text, line, name, strconv.Itoa(value), strconv.Itoa(want), mark)
	}
	show := func(name string, value float64) { fmt.Fprintf(&text, line, name, number(value), "-", "") }
	exactly("restarts", c.Restarts, 0)
	exactly("  OOM kills", c.OutOfMemoryKills, 0)
	exactly("model requests", int(c.ModelRequests), c.Turns)
	exactly("failed Turns", sumOf(c.FailedTurns), 0)
	show("most model requests at the same time", float64(c.PeakInFlight))
	show("time until all have ended, s", c.WallSeconds)
	show("Turns per second", c.TurnsPerSecond)
	show("memory when idle, MiB", c.IdleMiB)
	show("memory, peak, MiB", c.PeakMiB)
	show("  without page cache", c.PeakAnonymousMiB)
	show("CPU per Turn, ms", c.CPUPerTurn)
	show("throttled CPU periods, %", c.ThrottledPercent)
	show("CPU of the API server per Turn, ms", c.ServerCPUPerTurn)
	show("journal bytes per Turn", float64(c.Journal.Bytes)/float64(c.Turns))
	show("SQLite file, bytes per Turn", float64(c.Journal.FileBytes)/float64(c.Turns))
	show("API writes per Turn", c.WritesPerTurn)
	for _, kind := range slices.Sorted(maps.Keys(c.WritesPerTurnByKind)) {
		show("  "+kind, c.WritesPerTurnByKind[kind])
	}
	return text.String()
}

func (r *ScaleReport) longTable(s Setup) string {
	var text strings.Builder
	l := r.Long
	fmt.Fprintf(&text, "A Turn of %d tool calls, whose manager is killed when most calls have been made: %d calls in a step, results\n"+
		"of %d characters, %d CPUs\n\n", l.Calls, callsPerStep, pageChars, s.CPUs)
	const line = "%-42s%12s%20s%10s%s\n"
	fmt.Fprintf(&text, line, "limits of the manager", "none", r.limits(), "must be", "")
	exactly := func(name string, unlimited, limited, want int) {
		mark := ""
		if unlimited != want || limited != want {
			mark = "  VIOLATED"
		}
		fmt.Fprintf(&text, line, name, strconv.Itoa(unlimited), strconv.Itoa(limited), strconv.Itoa(want), mark)
	}
	show := func(name string, of func(*LongCost) float64, print func(float64) string) {
		fmt.Fprintf(&text, line, name, print(of(&l.Unlimited)), print(of(&l.Limited)), "-", "")
	}
	exactly("restarts", l.Unlimited.Restarts, l.Limited.Restarts, 1)
	exactly("tool calls", l.Unlimited.ToolCalls, l.Limited.ToolCalls, l.Calls)
	exactly("  repeated", l.Unlimited.RepeatedCalls, l.Limited.RepeatedCalls, 0)
	exactly("model requests", l.Unlimited.ModelRequests, l.Limited.ModelRequests, wantRequests(l.Calls))
	exactly("failed Turns", sumOf(l.Unlimited.FailedTurns), sumOf(l.Limited.FailedTurns), 0)
	show("input tokens of the last request", func(c *LongCost) float64 { return float64(c.LastTokens) }, whole)
	show("input tokens of all requests", func(c *LongCost) float64 { return float64(c.InputTokens) }, whole)
	show("journal, bytes", func(c *LongCost) float64 { return float64(c.Journal.Bytes) }, whole)
	show("  per call", func(c *LongCost) float64 { return float64(c.Journal.Bytes) / float64(l.Calls) }, whole)
	show("SQLite file, bytes", func(c *LongCost) float64 { return float64(c.Journal.FileBytes) }, whole)
	show("memory, peak, MiB", func(c *LongCost) float64 { return c.PeakMiB }, number)
	show("time to resume, s", func(c *LongCost) float64 { return c.ResumeSeconds }, number)
	text.WriteString("\nThe time to resume is the time from the start of the next manager's process to its first model request.\n")
	return text.String()
}
