package main

import (
	"context"
	"fmt"
	"math"
	"slices"
	"strconv"
	"strings"
)

// ExecutorsReport compares one process that has both roles with a controller and two executors, on one PostgreSQL
// server.
type ExecutorsReport struct {
	// Capacity is the number of slots of the one process.
	Capacity int `json:"capacity"`
	// One is a process with both roles.
	One *Measurement `json:"one"`
	// HalfCapacity is a controller and two executors, each with half of Capacity. It shows the cost of three processes
	// instead of one.
	HalfCapacity *Measurement `json:"halfCapacity"`
	// FullCapacity is a controller and two executors, each with the full Capacity. It shows the gain of a second
	// executor.
	FullCapacity *Measurement `json:"fullCapacity"`
}

// compareExecutors measures the three setups on one PostgreSQL server, each with an empty database.
func (b *bench) compareExecutors(ctx context.Context) (*ExecutorsReport, error) {
	if b.skipsExecutors() {
		b.logf("skipping the phase with two executors: %v", errNoPostgres)
		return nil, nil //nolint:nilnil // because a skipped phase has no report, and that is not an error
	}
	server, err := b.startPostgres(ctx)
	if err != nil {
		return nil, err
	}
	r := &ExecutorsReport{Capacity: b.capacity}
	for _, c := range []struct {
		contender contender
		to        **Measurement
	}{
		{oneProcess(b.manager, b.capacity), &r.One},
		{twoExecutors("half-capacity", b.manager, b.capacity/2), &r.HalfCapacity},
		{twoExecutors("full-capacity", b.manager, b.capacity), &r.FullCapacity},
	} {
		database, err := b.newDatabase(ctx, server)
		if err != nil {
			return nil, err
		}
		if *c.to, err = b.contend(ctx, c.contender.withStore(database)); err != nil {
			return nil, fmt.Errorf("%s: %w", c.contender.name, err)
		}
	}
	return r, nil
}

func oneProcess(path string, capacity int) contender {
	return contender{name: "one", members: []member{
		managerMember(path, "one", "one", "--roles", "controller,executor", "--max-concurrent-turns", strconv.Itoa(capacity)),
	}}
}

func twoExecutors(name, path string, capacity int) contender {
	c := contender{name: name, members: []member{managerMember(path, "controller", "", "--roles", "controller")}}
	for i := range 2 {
		executor := fmt.Sprintf("executor-%d", i+1)
		c.members = append(c.members, managerMember(path, executor, executor, "--roles", "executor",
			"--max-concurrent-turns", strconv.Itoa(capacity)))
	}
	return c
}

// withStore returns the contender with its journal in a database. The URL is passed in the environment, because it
// contains a password.
func (c contender) withStore(database string) contender {
	for i := range c.members {
		c.members[i].env = append(c.members[i].env, "CAPSTAN_STORE="+database)
	}
	return c
}

// spread returns the number of Turns of the busiest executor divided by the number of Turns of the least busy
// executor. The result is NaN for a single executor, and infinite if an executor has run no Turns.
func (m *Measurement) spread() float64 {
	var turns []int
	for _, p := range m.Processes {
		if p.Turns != nil {
			turns = append(turns, *p.Turns)
		}
	}
	if len(turns) < 2 {
		return math.NaN()
	}
	return float64(slices.Max(turns)) / float64(slices.Min(turns))
}

// table shows the values of the one process, the values of both setups with two executors, and their ratios to the
// values of the one process.
func (r *ExecutorsReport) table(s Setup) string {
	var text strings.Builder
	fmt.Fprintf(&text, "Two executors on PostgreSQL: %s\n\n", s.head())
	const line = "%-40s%10s%10s%8s%10s%8s\n"
	half, full := "2 x "+strconv.Itoa(r.Capacity/2), "2 x "+strconv.Itoa(r.Capacity)
	fmt.Fprintf(&text, line, "", "1 x "+strconv.Itoa(r.Capacity), half, "ratio", full, "ratio")
	for _, row := range r.rows() {
		one, half, full := row.of(r.One), row.of(r.HalfCapacity), row.of(r.FullCapacity)
		fmt.Fprintf(&text, line, row.name, orNone(one, row.print),
			orNone(half, row.print), orNone(quotient(half, one), number), orNone(full, row.print), orNone(quotient(full, one), number))
	}
	fmt.Fprintf(&text, "\n1 x %d is one process with both roles and %d slots. %s is a controller and two executors with %d slots each;\n"+
		"%s is the same with %d slots each. If CPUs were not the limit, the ratio of Turns per second would be 1 for %s,\n"+
		"and at most 2 for %s.\n", r.Capacity, r.Capacity, half, r.Capacity/2, full, r.Capacity, half, full)
	return text.String()
}

// executorsRow is one line of the table. of returns the value of a contender, or NaN if the contender has none.
type executorsRow struct {
	name  string
	of    func(*Measurement) float64
	print func(float64) string
}

func (r *ExecutorsReport) rows() []executorsRow {
	rows := []executorsRow{
		{"Turns per second", func(m *Measurement) float64 { return m.TurnsPerSecond }, number},
		{"wall time, s", func(m *Measurement) float64 { return m.WallSeconds }, number},
		{"creation to completion, p50, ms", func(m *Measurement) float64 { return m.Completion.P50 }, number},
		{"creation to completion, p95, ms", func(m *Measurement) float64 { return m.Completion.P95 }, number},
		{"API writes per Turn", func(m *Measurement) float64 { return m.WritesPerTurn }, number},
	}
	// parts adds one line for each process of the setup with two executors. In the column of the one
	// process, these lines have a dash.
	parts := func(of func(Process) float64, print func(float64) string) {
		for i, p := range r.FullCapacity.Processes {
			if math.IsNaN(of(p)) {
				continue
			}
			rows = append(rows, executorsRow{"  " + p.Name, func(m *Measurement) float64 {
				if len(m.Processes) <= i || m.Processes[i].Name != p.Name {
					return math.NaN()
				}
				return of(m.Processes[i])
			}, print})
		}
	}
	rows = append(rows, executorsRow{"CPU per Turn, ms", func(m *Measurement) float64 { return m.CPUPerTurn }, number})
	parts(func(p Process) float64 { return p.CPUPerTurn }, number)
	rows = append(rows, executorsRow{"peak memory, MiB", func(m *Measurement) float64 { return m.PeakMemoryMiB }, number})
	parts(func(p Process) float64 { return p.PeakMemoryMiB }, number)
	rows = append(rows, executorsRow{"Turns of busiest / least busy executor", (*Measurement).spread, number})
	parts(func(p Process) float64 {
		if p.Turns == nil {
			return math.NaN()
		}
		return float64(*p.Turns)
	}, whole)
	return rows
}

// orNone prints a value, or a dash if the value is NaN.
func orNone(v float64, print func(float64) string) string {
	if math.IsNaN(v) {
		return "-"
	}
	return print(v)
}

func whole(v float64) string { return strconv.FormatFloat(v, 'f', 0, 64) }
