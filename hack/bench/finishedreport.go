package main

import (
	"errors"
	"fmt"
	"math"
	"strconv"
	"strings"
)

// finishedBound is how many times the memory of an idle manager, and the cost of a Turn, may be beside many finished Turns
// what they are beside few.
const finishedBound = 1.3

// FinishedReport compares a manager beside few finished Turns with the same beside many.
type FinishedReport struct {
	// MakingSeconds is how long it took to make the finished Turns.
	MakingSeconds float64 `json:"makingSeconds"`
	Few           Load    `json:"few"`
	Many          Load    `json:"many"`
	// Ratios are the medians of the ratios between two bursts, one beside many and one beside few, at about the same time.
	Ratios Cost `json:"ratios"`
}

// Load is what a manager needs beside so many finished Turns.
type Load struct {
	Finished int `json:"finished"`
	// ReadySeconds is from the start of the process until it is ready.
	ReadySeconds float64 `json:"readySeconds"`
	// StartCPUSeconds is the CPU time until it was idle.
	StartCPUSeconds float64 `json:"startCPUSeconds"`
	// StartPeakMiB is the most memory that was resident until it was idle.
	StartPeakMiB float64 `json:"startPeakMiB"`
	// Idle is before the first Turn, After is when it is idle again.
	Idle  Memory `json:"idle"`
	After Memory `json:"after"`
	// Cost is the median of those of the bursts.
	Cost        Cost           `json:"cost"`
	Bursts      []Cost         `json:"bursts"`
	FailedTurns map[string]int `json:"failedTurns,omitempty"`
}

// Memory of a process right after a garbage collection.
type Memory struct {
	ResidentMiB float64 `json:"residentMiB"`
	// HeapMiB is what the collection has found alive.
	HeapMiB float64 `json:"heapMiB"`
	// StacksMiB is what the stacks of goroutines take.
	StacksMiB float64 `json:"stacksMiB"`
}

// Cost is what one Turn takes.
type Cost struct {
	// CPU of the manager, in milliseconds.
	CPU float64 `json:"cpuMilliseconds"`
	// Requests that the manager has sent to the API server, Leases included.
	Requests float64 `json:"apiRequests"`
	// Time of a burst less the model's latency, divided by its Turns, in milliseconds.
	Time float64 `json:"milliseconds"`
}

// exceeds reports whether one of the ratios is above a bound.
func (c Cost) exceeds(bound float64) bool { return max(c.CPU, c.Requests, c.Time) > bound }

// comparison is one value beside few finished Turns and beside many.
type comparison struct {
	name             string
	few, many, ratio float64
	bound            float64 // of the ratio; 0 for none
}

func (r *FinishedReport) comparisons() []comparison {
	f, m := &r.Few, &r.Many
	of := func(name string, few, many, bound float64) comparison {
		return comparison{name, few, many, quotient(many, few), bound}
	}
	return []comparison{
		of("memory when idle, MiB", f.Idle.ResidentMiB, m.Idle.ResidentMiB, finishedBound),
		of("  live heap, MiB", f.Idle.HeapMiB, m.Idle.HeapMiB, finishedBound),
		of("memory when idle again, MiB", f.After.ResidentMiB, m.After.ResidentMiB, finishedBound),
		of("  live heap, MiB", f.After.HeapMiB, m.After.HeapMiB, finishedBound),
		{"CPU per Turn, ms", f.Cost.CPU, m.Cost.CPU, r.Ratios.CPU, finishedBound},
		{"API requests per Turn", f.Cost.Requests, m.Cost.Requests, r.Ratios.Requests, finishedBound},
		{"time per Turn, ms", f.Cost.Time, m.Cost.Time, r.Ratios.Time, finishedBound},
		of("start: until ready, s", f.ReadySeconds, m.ReadySeconds, 0),
		of("start: CPU until idle, s", f.StartCPUSeconds, m.StartCPUSeconds, 0),
		of("start: peak memory, MiB", f.StartPeakMiB, m.StartPeakMiB, 0),
	}
}

// exceeded reports whether the ratio, as it is printed, is above its bound.
func (c comparison) exceeded() bool { return c.bound > 0 && math.Round(c.ratio*100)/100 > c.bound }

// failure is an error if not every Turn has succeeded, or a ratio is above its bound.
func (r *FinishedReport) failure() error {
	var errs []error
	for _, l := range []Load{r.Few, r.Many} {
		if len(l.FailedTurns) > 0 {
			errs = append(errs, fmt.Errorf("not all Turns succeeded: beside %d finished ones %v", l.Finished, l.FailedTurns))
		}
	}
	for _, c := range r.comparisons() {
		if c.exceeded() {
			errs = append(errs, fmt.Errorf("%s: %s beside %d finished Turns, %s beside %d, which is %.2f times as much and may be %.2f times",
				strings.TrimSpace(c.name), number(c.few), r.Few.Finished, number(c.many), r.Many.Finished, c.ratio, c.bound))
		}
	}
	return errors.Join(errs...)
}

func (r *FinishedReport) table(s Setup) string {
	var text strings.Builder
	fmt.Fprintf(&text, "A manager beside finished Turns: %d bursts of %s\n\n", len(r.Few.Bursts), s.head())
	const line = "%-34s%10s%10s%8s%10s%s\n"
	fmt.Fprintf(&text, line, "finished Turns", strconv.Itoa(r.Few.Finished), strconv.Itoa(r.Many.Finished), "ratio", "at most", "")
	for _, c := range r.comparisons() {
		bound, mark := "-", ""
		if c.bound > 0 {
			bound = fmt.Sprintf("%.2f", c.bound)
		}
		if c.exceeded() {
			mark = "  EXCEEDED"
		}
		fmt.Fprintf(&text, line, c.name, number(c.few), number(c.many), fmt.Sprintf("%.2f", c.ratio), bound, mark)
	}
	fmt.Fprintf(&text, "\nMemory is taken right after a garbage collection, when it stays as it is. Costs per Turn and their ratios are medians, of the\n"+
		"bursts and of pairs of bursts; the time is that of a burst less the model's latency, divided by its Turns. It took %.0f s to\n"+
		"make the finished Turns.\n", r.MakingSeconds)
	return text.String()
}
