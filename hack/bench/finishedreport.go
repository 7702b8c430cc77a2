package main

import (
	"errors"
	"fmt"
	"math"
	"strconv"
	"strings"
)

// finishedBound is the maximum ratio of a value with many finished Turns to the value with few. It applies to the
// memory of an idle manager and to the cost of a Turn.
const finishedBound = 1.3

// FinishedReport compares a manager with few finished Turns in its API server to a manager with many.
type FinishedReport struct {
	// MakingSeconds is the duration of the creation of the finished Turns.
	MakingSeconds float64 `json:"makingSeconds"`
	Few           Load    `json:"few"`
	Many          Load    `json:"many"`
	// Ratios are the medians of the ratios of paired bursts: a burst with many finished Turns in the API server, and a
	// burst with few that ran next to it.
	Ratios Cost `json:"ratios"`
}

// Load is the cost of a manager with a number of finished Turns in its API server.
type Load struct {
	Finished int `json:"finished"`
	// ReadySeconds is the time from the start of the process until it was ready.
	ReadySeconds float64 `json:"readySeconds"`
	// StartCPUSeconds is the CPU time that the process used until it was idle.
	StartCPUSeconds float64 `json:"startCPUSeconds"`
	// StartPeakMiB is the peak of the resident memory until the process was idle.
	StartPeakMiB float64 `json:"startPeakMiB"`
	// Idle is the memory before the first Turn, and After the memory when the manager is idle again.
	Idle  Memory `json:"idle"`
	After Memory `json:"after"`
	// Cost is the median cost of the bursts.
	Cost        Cost           `json:"cost"`
	Bursts      []Cost         `json:"bursts"`
	FailedTurns map[string]int `json:"failedTurns,omitempty"`
}

// Memory is the memory of a process right after a garbage collection.
type Memory struct {
	ResidentMiB float64 `json:"residentMiB"`
	// HeapMiB is the live heap that the collection found.
	HeapMiB float64 `json:"heapMiB"`
	// StacksMiB is the memory of the stacks of goroutines.
	StacksMiB float64 `json:"stacksMiB"`
}

// Cost is the cost of one Turn.
type Cost struct {
	// CPU is the CPU time of the manager, in milliseconds.
	CPU float64 `json:"cpuMilliseconds"`
	// Requests counts the manager's requests to the API server, including Leases.
	Requests float64 `json:"apiRequests"`
	// Time is the time of a burst without the model's latency, divided by the number of Turns, in milliseconds.
	Time float64 `json:"milliseconds"`
}

// exceeds reports whether one of the ratios exceeds a limit.
func (c Cost) exceeds(bound float64) bool { return max(c.CPU, c.Requests, c.Time) > bound }

// comparison is one value with few finished Turns and with many.
type comparison struct {
	name             string
	few, many, ratio float64
	bound            float64 // the maximum ratio; 0 means that there is none
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

// isExceeded reports whether the ratio, as it is printed, exceeds its limit.
func (c comparison) isExceeded() bool { return c.bound > 0 && math.Round(c.ratio*100)/100 > c.bound }

// failure returns an error if a Turn has failed or a ratio exceeds its limit.
func (r *FinishedReport) failure() error {
	var errs []error
	for _, l := range []Load{r.Few, r.Many} {
		if len(l.FailedTurns) > 0 {
			errs = append(errs, fmt.Errorf("not all Turns succeeded: with %d finished Turns %v", l.Finished, l.FailedTurns))
		}
	}
	for _, c := range r.comparisons() {
		if c.isExceeded() {
			errs = append(errs, fmt.Errorf("%s: %s with %d finished Turns, %s with %d, %.2f times as much, more than %.2f times",
				strings.TrimSpace(c.name), number(c.few), r.Few.Finished, number(c.many), r.Many.Finished, c.ratio, c.bound))
		}
	}
	return errors.Join(errs...)
}

func (r *FinishedReport) table(s Setup) string {
	var text strings.Builder
	fmt.Fprintf(&text, "A manager with finished Turns: %d bursts of %s\n\n", len(r.Few.Bursts), s.head())
	const line = "%-34s%10s%10s%8s%10s%s\n"
	fmt.Fprintf(&text, line, "finished Turns", strconv.Itoa(r.Few.Finished), strconv.Itoa(r.Many.Finished), "ratio", "limit", "")
	for _, c := range r.comparisons() {
		bound, mark := "-", ""
		if c.bound > 0 {
			bound = fmt.Sprintf("%.2f", c.bound)
		}
		if c.isExceeded() {
			mark = "  EXCEEDED"
		}
		fmt.Fprintf(&text, line, c.name, number(c.few), number(c.many), fmt.Sprintf("%.2f", c.ratio), bound, mark)
	}
	fmt.Fprintf(&text, "\nMemory is measured right after a garbage collection, once it is stable. Costs per Turn are medians of "+
		"the bursts; the ratios\n"+
		"are the medians of the ratios of paired bursts. The time per Turn is the duration of a burst minus the model's latency,\n"+
		"divided by the number of Turns. The creation of the finished Turns took %.0f s.\n", r.MakingSeconds)
	return text.String()
}
