package main

import (
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
)

// heldBoundMiB is how much memory a manager may ever have had resident, with its Turns in flight.
const heldBoundMiB = 300

// ToolsReport is what Turns that call tools need.
type ToolsReport struct {
	// InFlight is how many Turns have called a tool and waited for the model, all at the same time.
	InFlight int `json:"inFlight"`
	// UntilInFlightSeconds is from the first creation until all of them did so.
	UntilInFlightSeconds float64 `json:"untilInFlightSeconds"`
	// IdleMiB is what the manager had resident before.
	IdleMiB float64 `json:"idleMiB"`
	// Held is the manager's memory while they waited.
	Held Memory `json:"held"`
	// PeakMiB is the most it ever had resident, until they had all ended.
	PeakMiB     float64        `json:"peakMiB"`
	FailedTurns map[string]int `json:"failedTurns,omitempty"`
	// CPU of the manager for each of them, from its creation to its end, in milliseconds.
	CPU float64 `json:"cpuMilliseconds"`
	// One and Many are Turns of one step and of many, which call a tool in each but the last.
	One  StepsCost `json:"one"`
	Many StepsCost `json:"many"`
}

// StepsCost is what Turns of a number of steps need.
type StepsCost struct {
	// Steps of each Turn that were asked for; CountedSteps and ToolCalls are the means of what the Turns say themselves.
	Steps        int     `json:"steps"`
	CountedSteps float64 `json:"countedSteps"`
	ToolCalls    float64 `json:"toolCalls"`
	// LongestSeconds is the longest status.durationMilliseconds: from 5 s on, a Turn's progress is written.
	LongestSeconds float64 `json:"longestSeconds"`
	// WritesPerTurn are requests that write to the API server, but for the creation of the Turns and for Leases.
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

// failure is an error if not every Turn has succeeded and done what it should, or a bound does not hold.
func (r *ToolsReport) failure() error {
	var errs []error
	for what, failed := range map[string]map[string]int{"in flight": r.FailedTurns, "of one step": r.One.FailedTurns, "of many steps": r.Many.FailedTurns} {
		if len(failed) > 0 {
			errs = append(errs, fmt.Errorf("not all Turns succeeded: %s %v", what, failed))
		}
	}
	for _, c := range []StepsCost{r.One, r.Many} {
		if c.CountedSteps != float64(c.Steps) || c.ToolCalls != float64(c.Steps-1) {
			errs = append(errs, fmt.Errorf("the Turns of %d steps have made %s steps and %s calls of tools, and should have made %d and %d",
				c.Steps, number(c.CountedSteps), number(c.ToolCalls), c.Steps, c.Steps-1))
		}
	}
	if r.PeakMiB > heldBoundMiB {
		errs = append(errs, fmt.Errorf("peak memory: %s MiB with %d Turns in flight, and may be %d MiB", number(r.PeakMiB), r.InFlight, heldBoundMiB))
	}
	if r.Many.WritesPerTurn > r.One.WritesPerTurn {
		errs = append(errs, fmt.Errorf("API writes per Turn: %s for one of %d steps, %s for one of %d, which may be no more",
			number(r.Many.WritesPerTurn), r.Many.Steps, number(r.One.WritesPerTurn), r.One.Steps))
	}
	return errors.Join(errs...)
}

func (r *ToolsReport) table(s Setup) string {
	var text strings.Builder
	fmt.Fprintf(&text, "A manager with %d Turns in flight, each of which has called a tool: answers of %d characters, facts of %d, %d CPUs\n\n",
		r.InFlight, s.ReplyChars, s.PayloadChars, s.CPUs)
	r.memoryTable(&text)
	text.WriteString("\n")
	r.stepsTable(&text)
	fmt.Fprintf(&text, "\nMemory is taken when all Turns wait for the model at the same time, its peak when they have ended; the live heap is what a\n"+
		"garbage collection has found then. All came to wait within %.1f s. API writes leave out the benchmark's own creation of the\n"+
		"Turns, and Leases; no Turn lasted long enough for its progress to be written (longest: %.2f s).\n",
		r.UntilInFlightSeconds, max(r.One.LongestSeconds, r.Many.LongestSeconds))
	return text.String()
}

func (r *ToolsReport) memoryTable(text *strings.Builder) {
	const line = "%-34s%10s%10s%10s%s\n"
	fmt.Fprintf(text, line, "", "idle", "in flight", "at most", "")
	mark := ""
	if r.PeakMiB > heldBoundMiB {
		mark = "  EXCEEDED"
	}
	fmt.Fprintf(text, line, "memory, peak, MiB", "-", number(r.PeakMiB), number(heldBoundMiB), mark)
	fmt.Fprintf(text, line, "memory, resident, MiB", number(r.IdleMiB), number(r.Held.ResidentMiB), "-", "")
	fmt.Fprintf(text, line, "  live heap, MiB", "-", number(r.Held.HeapMiB), "-", "")
	fmt.Fprintf(text, line, "  stacks, MiB", "-", number(r.Held.StacksMiB), "-", "")
	fmt.Fprintf(text, line, "  beyond idle, per Turn, KiB", "-", number((r.Held.ResidentMiB-r.IdleMiB)*1024/float64(r.InFlight)), "-", "")
	fmt.Fprintf(text, line, "CPU per Turn, ms", "-", number(r.CPU), "-", "")
}

func (r *ToolsReport) stepsTable(text *strings.Builder) {
	const line = "%-34s%10s%10s%8s%10s%s\n"
	fmt.Fprintf(text, line, "steps of a Turn", number(float64(r.One.Steps)), number(float64(r.Many.Steps)), "ratio", "at most", "")
	show := func(name string, one, many float64, bound, mark string) {
		fmt.Fprintf(text, line, name, number(one), number(many), ratio(many, one), bound, mark)
	}
	mark := ""
	if r.Many.WritesPerTurn > r.One.WritesPerTurn {
		mark = "  EXCEEDED"
	}
	show("calls of tools per Turn", r.One.ToolCalls, r.Many.ToolCalls, "-", "")
	show("API writes per Turn", r.One.WritesPerTurn, r.Many.WritesPerTurn, "1.00", mark)
	kinds := maps.Clone(r.One.WritesPerTurnByKind)
	maps.Copy(kinds, r.Many.WritesPerTurnByKind)
	for _, kind := range slices.Sorted(maps.Keys(kinds)) {
		show("  "+kind, r.One.WritesPerTurnByKind[kind], r.Many.WritesPerTurnByKind[kind], "-", "")
	}
}
