package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/capstan-dev/capstan/internal/store/sqlite"
)

// The parts of the phase scale, in the order in which they run.
const (
	partNamespaces = "namespaces"
	partInFlight   = "in-flight"
	partLong       = "long"
)

var scaleParts = []string{partNamespaces, partInFlight, partLong}

// volumeReserveMiB is the size of the small manager's volume beyond the size of the program, for the file system.
const volumeReserveMiB = 32

// maxLongCalls is the maximum number of calls of the long Turn: a Turn has at most 100 steps, and the last step makes
// no call.
const maxLongCalls = 99 * callsPerStep

// scaleOptions holds the flags of the phase scale.
type scaleOptions struct {
	parts      []string
	namespaces int
	turns      int // in each namespace
	latency    time.Duration
	inFlight   int
	heldMiB    int // the memory limit of the manager with these Turns in flight
	calls      int
	memoryMiB  int
	cpus       float64
	slots      int // of the small manager; 0 means its default
}

func (o *scaleOptions) addFlags(f *flag.FlagSet) {
	o.parts = scaleParts
	f.Func("scale-parts", "scale: parts to run, separated by commas: "+strings.Join(scaleParts, ", ")+"; default: all",
		func(list string) error {
			o.parts = strings.Split(list, ",")
			return nil
		})
	f.IntVar(&o.namespaces, "scale-namespaces", 51, "scale: number of namespaces that share a small manager, from 1 to 1000")
	f.IntVar(&o.turns, "scale-turns", 100, "scale: number of Turns in each of these namespaces, from 1 to 10000")
	f.DurationVar(&o.latency, "scale-latency", 20*time.Second, "scale: time until the model of these Turns begins its answer")
	f.IntVar(&o.memoryMiB, "scale-memory-mib", 128, "scale: memory limit of the small manager, in MiB, from 64 to 65536")
	f.IntVar(&o.slots, "scale-slots", 0, "scale: slots of the small manager, at most 100000; by default the memory limit decides")
	f.Float64Var(&o.cpus, "scale-cpus", 0.5, "scale: CPU limit of the small manager, from 0.1 to 64")
	f.IntVar(&o.inFlight, "scale-in-flight", 10_000, "scale: number of Turns in flight at the same time, from 1 to 100000")
	f.IntVar(&o.heldMiB, "scale-in-flight-memory-mib", 2048, "scale: memory limit of the manager with these Turns in flight, in "+
		"MiB, from 64 to 65536; by default the smallest limit with which a manager runs 10,000 Turns unless a flag says so")
	f.IntVar(&o.calls, "scale-calls", 100,
		fmt.Sprintf("scale: number of tool calls of the long Turn, an even number from 4 to %d", maxLongCalls))
}

func (o *scaleOptions) check() error {
	for _, part := range o.parts {
		if !slices.Contains(scaleParts, part) {
			return fmt.Errorf("--scale-parts: %q must be one of %s", part, strings.Join(scaleParts, ", "))
		}
	}
	switch {
	case o.namespaces < 1 || o.namespaces > 1000:
		return errors.New("--scale-namespaces must be from 1 to 1000")
	case o.slots < 0 || o.slots > 100_000:
		return errors.New("--scale-slots must be from 0 to 100000")
	case o.turns < 1 || o.turns > 10_000:
		return errors.New("--scale-turns must be from 1 to 10000")
	case o.latency < 0 || o.latency > time.Hour:
		return errors.New("--scale-latency must be from 0 to 1h")
	case o.memoryMiB < 64 || o.memoryMiB > 65_536:
		return errors.New("--scale-memory-mib must be from 64 to 65536")
	case o.cpus < 0.1 || o.cpus > 64:
		return errors.New("--scale-cpus must be from 0.1 to 64")
	case o.inFlight < 1 || o.inFlight > 100_000:
		return errors.New("--scale-in-flight must be from 1 to 100000")
	case o.heldMiB < 64 || o.heldMiB > 65_536:
		return errors.New("--scale-in-flight-memory-mib must be from 64 to 65536")
	case o.calls < 4 || o.calls > maxLongCalls || o.calls%callsPerStep != 0:
		return fmt.Errorf("--scale-calls must be an even number from 4 to %d", maxLongCalls)
	}
	return nil
}

// measureScale measures the limits of one manager: many namespaces that share a small manager, many Turns in flight,
// and a long Turn whose manager is killed.
func (b *bench) measureScale(ctx context.Context) (*ScaleReport, error) {
	small, err := b.smallManager(ctx)
	if err != nil {
		return nil, err
	}
	r := &ScaleReport{MemoryMiB: b.scale.memoryMiB, LimitCPUs: b.scale.cpus, Bound: small.cgroup.String()}
	before := readCPUTime()
	for _, part := range b.scale.parts {
		switch part {
		case partNamespaces:
			r.Crowd, err = b.measureCrowd(ctx, small)
		case partInFlight:
			r.Held, err = b.holdInGroup(ctx)
		case partLong:
			r.Long, err = b.compareLong(ctx, small)
		}
		if err != nil {
			return nil, fmt.Errorf("%s: %w", part, err)
		}
	}
	r.StolenPercent = readCPUTime().stolenSince(before)
	return r, nil
}

// smallManager returns the small manager. Its cgroup runs a copy of the program, so that the program's pages are
// charged to the cgroup, as in a container. The copy is on a separate volume, because a disk with a read-ahead of
// megabytes would fill the memory of the cgroup with pages that no process needs.
func (b *bench) smallManager(ctx context.Context) (member, error) {
	group, err := b.newGroup(b.scale.memoryMiB, b.scale.cpus)
	if err != nil {
		return member{}, err
	}
	program, err := os.Stat(b.manager)
	if err != nil {
		return member{}, fmt.Errorf("failed to find the manager: %w", err)
	}
	volume, unmount, err := mountVolume(ctx, filepath.Join(b.dir, "scale"), int(program.Size()>>20)+volumeReserveMiB)
	if err != nil {
		return member{}, fmt.Errorf("the phase %s needs a volume for the small manager: %w", phaseScale, err)
	}
	b.harness.OnStop(unmount)
	copied := filepath.Join(volume, "manager")
	path, args := group.command("/bin/cp", []string{b.manager, copied})
	if err := runQuietly(ctx, append([]string{path}, args...)...); err != nil {
		return member{}, err
	}
	var flags []string
	if b.scale.slots > 0 {
		flags = []string{"--max-concurrent-turns", strconv.Itoa(b.scale.slots)}
	}
	return managerMember(copied, "manager", "bench", flags...).withLimits(group), nil
}

// newGroup creates a cgroup that is removed when the harness has stopped.
func (b *bench) newGroup(memoryMiB int, cpus float64) (*controlGroup, error) {
	g, err := newControlGroup(memoryMiB<<20, cpus)
	if err != nil {
		return nil, fmt.Errorf("the phase %s limits the memory and the CPU time of its managers: %w", phaseScale, err)
	}
	b.harness.OnStop(g.remove)
	return g, nil
}

// holdInGroup measures a manager with many Turns in flight. If the manager needs more memory than its cgroup allows,
// it is OOM-killed.
func (b *bench) holdInGroup(ctx context.Context) (*HeldReport, error) {
	group, err := b.newGroup(b.scale.heldMiB, 0)
	if err != nil {
		return nil, err
	}
	r := &HeldReport{InFlight: b.scale.inFlight, BoundMiB: b.scale.heldMiB}
	t, err := b.holdTurns(ctx, "scale-"+partInFlight, group, r)
	if err != nil {
		return nil, err
	}
	return r, errors.Join(t.stop(), b.removeTools(ctx))
}

// JournalUse is the size of the journals of a manager that has exited.
type JournalUse struct {
	// Bytes is the size of all entries and artifacts plus a fixed amount for each of them, as the quotas count it.
	Bytes int64 `json:"bytes"`
	// FileBytes is the size of the SQLite file.
	FileBytes int64 `json:"fileBytes"`
}

// journalUse reads the size of the journals in a manager's directory. The manager must have exited.
func journalUse(ctx context.Context, dir string) (u JournalUse, err error) {
	path := filepath.Join(dir, "journal.db")
	s, err := sqlite.Open(ctx, path)
	if err != nil {
		return u, err
	}
	use, err := s.Use(ctx)
	if err := errors.Join(err, s.Close()); err != nil {
		return u, err
	}
	for _, bytes := range use.Namespaces {
		u.Bytes += bytes
	}
	file, err := os.Stat(path)
	if err != nil {
		return u, err
	}
	u.FileBytes = file.Size()
	return u, nil
}
