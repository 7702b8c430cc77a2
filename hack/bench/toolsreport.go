package main

import (
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
)

// The limits of the peak of the manager's resident memory until all Turns have ended: 300 MiB with up to 1,000 Turns in
// flight, and 600 MiB with 10,000. Above 1,000, the limit grows linearly.
const (
	fewTurns, fewTurnsMiB   = 1_000, 300
	manyTurns, manyTurnsMiB = 10_000, 600
)

// peakBoundMiB returns the limit for a number of Turns in flight, rounded down.
func peakBoundMiB(inFlight int) int {
	return fewTurnsMiB + max(inFlight-fewTurns, 0)*(manyTurnsMiB-fewTurnsMiB)/(manyTurns-fewTurns)
}

// HeldReport is the cost of many Turns in flight, each of which has called a tool.
type HeldReport struct {
	// InFlight is the number of Turns that have called a tool and wait for the model, all at the same time.
	InFlight int `json:"inFlight"`
	// UntilInFlightSeconds is the time from the creation of the first Turn until all Turns waited for the model.
	UntilInFlightSeconds float64 `json:"untilInFlightSeconds"`
	// IdleMiB is the manager's resident memory before the first Turn.
	IdleMiB float64 `json:"idleMiB"`
	// Held is the manager's memory while the Turns waited.
	Held Memory `json:"held"`
	// PeakMiB is the peak of the resident memory until all Turns had ended, and BoundMiB the maximum that it may reach.
	PeakMiB     float64        `json:"peakMiB"`
	BoundMiB    int            `json:"boundMiB"`
	FailedTurns map[string]int `json:"failedTurns,omitempty"`
	// CPU is the manager's CPU time per Turn, from the creation to the end, in milliseconds.
	CPU float64 `json:"cpuMilliseconds"`
}

// ToolsReport is the cost of Turns that call tools.
type ToolsReport struct {
	HeldReport
	// One and Many are Turns of one step and of many steps. Each step except the last one calls a tool.
	One  StepsCost `json:"one"`
	Many StepsCost `json:"many"`
}

// StepsCost is the cost of Turns with a number of steps.
type StepsCost struct {
	// Steps is the expected number of steps per Turn. CountedSteps and ToolCalls are the means of the numbers in the
	// statuses of the Turns.
	Steps        int     `json:"steps"`
	CountedSteps float64 `json:"countedSteps"`
	ToolCalls    float64 `json:"toolCalls"`
	// LongestSeconds is the highest status.durationMilliseconds, in seconds. After 5 s, the manager writes the progress
	// of a Turn.
	LongestSeconds float64 `json:"longestSeconds"`
	// WritesPerTurn counts the writes to the API server, except for the creation of the Turns and for Leases.
	WritesPerTurn       float64            `json:"apiWritesPerTurn"`
	WritesPerTurnByKind map[string]float64 `json:"apiWritesPerTurnByKind"`
	FailedTurns         map[string]int     `json:"failedTurns,omitempty"`
}

func newStepsCost(result *burstResult, before, after sample) StepsCost {
	turns := float64(len(result.latencies))
	c := StepsCost{
		CountedSteps: float64(result.steps) / turns, ToolCalls: float64(result.toolCalls) / turns,
		FailedTurns: result.failed, LongestSeconds: slices.Max(result.durations).Seconds(),
	}
	c.WritesPerTurnByKind, c.WritesPerTurn = writesPerTurn(before, after, turns)
	return c
}

// failure returns an error if a Turn has failed or the peak of the memory exceeds its limit.
func (r *HeldReport) failure() error {
	var errs []error
	if len(r.FailedTurns) > 0 {
		errs = append(errs, fmt.Errorf("not all Turns succeeded: in flight %v", r.FailedTurns))
	}
	if r.PeakMiB > float64(r.BoundMiB) {
		errs = append(errs, fmt.Errorf("peak memory: %s MiB until all of the %d Turns in flight had ended, more than %d MiB",
			number(r.PeakMiB), r.InFlight, r.BoundMiB))
	}
	return errors.Join(errs...)
}

// failure returns an error if a Turn has failed or has not made all its steps, or if a limit is exceeded.
func (r *ToolsReport) failure() error {
	errs := []error{r.HeldReport.failure()}
	for name, failed := range map[string]map[string]int{"of one step": r.One.FailedTurns, "of many steps": r.Many.FailedTurns} {
		if len(failed) > 0 {
			errs = append(errs, fmt.Errorf("not all Turns succeeded: %s %v", name, failed))
		}
	}
	for _, c := range []StepsCost{r.One, r.Many} {
		if c.CountedSteps != float64(c.Steps) || c.ToolCalls != float64(c.Steps-1) {
			errs = append(errs, fmt.Errorf("the Turns of %d steps made %s steps and %s tool calls, want %d and %d",
				c.Steps, number(c.CountedSteps), number(c.ToolCalls), c.Steps, c.Steps-1))
		}
	}
	if r.Many.WritesPerTurn > r.One.WritesPerTurn {
		errs = append(errs, fmt.Errorf("API writes per Turn: %s with %d steps, %s with %d; want no more with more steps",
			number(r.Many.WritesPerTurn), r.Many.Steps, number(r.One.WritesPerTurn), r.One.Steps))
	}
	return errors.Join(errs...)
}

func (r *ToolsReport) table(s Setup) string {
	var text strings.Builder
	r.memoryTable(&text, s)
	text.WriteString("\n")
	r.stepsTable(&text)
	fmt.Fprintf(&text, "\nAPI writes do not include the creation of the Turns and the writes of Leases. No Turn took so long "+
		"that its progress\nwas written (longest: %.2f s).\n", max(r.One.LongestSeconds, r.Many.LongestSeconds))
	return text.String()
}

func (r *HeldReport) memoryTable(text *strings.Builder, s Setup) {
	fmt.Fprintf(text, "A manager with %d Turns in flight, each of which has called a tool: answers of %d "+
		"characters, %s, %d CPUs\n\n",
		r.InFlight, s.ReplyChars, s.facts(), s.CPUs)
	const line = "%-34s%10s%11s%15s%10s%s\n"
	fmt.Fprintf(text, line, "", "idle", "in flight", "until the end", "limit", "")
	mark, bound := "", float64(r.BoundMiB)
	if r.PeakMiB > bound {
		mark = "  EXCEEDED"
	}
	fmt.Fprintf(text, line, "memory, peak, MiB", "-", "-", number(r.PeakMiB), number(bound), mark)
	fmt.Fprintf(text, line, "memory, resident, MiB", number(r.IdleMiB), number(r.Held.ResidentMiB), "-", "-", "")
	fmt.Fprintf(text, line, "  live heap, MiB", "-", number(r.Held.HeapMiB), "-", "-", "")
	fmt.Fprintf(text, line, "  stacks, MiB", "-", number(r.Held.StacksMiB), "-", "-", "")
	fmt.Fprintf(text, line, "  more than idle, per Turn, KiB", "-",
		number((r.Held.ResidentMiB-r.IdleMiB)*1024/float64(r.InFlight)), "-", "-", "")
	fmt.Fprintf(text, line, "CPU per Turn, ms", "-", "-", number(r.CPU), "-", "")
	fmt.Fprintf(text, "\nMemory in flight is measured after a garbage collection, while all Turns wait for the model. "+
		"The peak is the highest\nmemory of the whole run, until all Turns have ended. After %.1f s, all Turns were waiting "+
		"for the model.\n",
		r.UntilInFlightSeconds)
}

func (r *ToolsReport) stepsTable(text *strings.Builder) {
	const line = "%-34s%10s%10s%8s%10s%s\n"
	fmt.Fprintf(text, line, "steps of a Turn", number(float64(r.One.Steps)), number(float64(r.Many.Steps)), "ratio", "limit", "")
	show := func(name string, one, many float64, bound, mark string) {
		fmt.Fprintf(text, line, name, number(one), number(many), ratio(many, one), bound, mark)
	}
	mark := ""
	if r.Many.WritesPerTurn > r.One.WritesPerTurn {
		mark = "  EXCEEDED"
	}
	show("tool calls per Turn", r.One.ToolCalls, r.Many.ToolCalls, "-", "")
	show("API writes per Turn", r.One.WritesPerTurn, r.Many.WritesPerTurn, "1.00", mark)
	kinds := maps.Clone(r.One.WritesPerTurnByKind)
	maps.Copy(kinds, r.Many.WritesPerTurnByKind)
	for _, kind := range slices.Sorted(maps.Keys(kinds)) {
		show("  "+kind, r.One.WritesPerTurnByKind[kind], r.Many.WritesPerTurnByKind[kind], "-", "")
	}
}
