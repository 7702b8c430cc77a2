// Package memory decides how much memory the process uses, and who uses it: it derives the limits of the process from its cgroup, and
// shares a budget of bytes among namespaces.
package memory

import (
	"fmt"
	"math"
	"os"
	"runtime/debug"

	"github.com/KimMachineGun/automemlimit/memlimit"
	"k8s.io/apimachinery/pkg/api/resource"

	"github.com/capstan-dev/capstan/internal/bytebudget"
)

const (
	mebibyte = 1 << 20
	// MinLimit is the smallest memory limit that a manager works within, in bytes.
	MinLimit = 64 * mebibyte
	// machineShare is the part of the machine's memory that counts as the limit where no cgroup sets one: a quarter.
	machineShare = 4
	// minHeadroom is the least memory that is left to what Go's runtime does not count, in bytes: the page cache of SQLite's file, and
	// the binary itself.
	minHeadroom = 24 * mebibyte
	// base is what a manager takes without a Turn, in bytes, as make bench measures it, with room for a cluster's objects.
	base = 56 * mebibyte
	// TurnBytes is what a Turn of the usual size takes while it waits for a model, with the garbage that it leaves, in bytes, as make
	// bench measures it. What a Turn has beyond that counts in the Budget.
	TurnBytes = 64 << 10
	// minTurns and maxTurns bound the default of the concurrent Turns.
	minTurns, maxTurns = 16, 10_000
)

// Source says where a limit comes from.
type Source string

// The sources of a limit.
const (
	FromFlag    Source = "flag"
	FromCgroup  Source = "cgroup"
	FromMachine Source = "machine"
)

// Limit is the memory that the process may use.
type Limit struct {
	// Bytes of the limit.
	Bytes int64
	// Source of the limit.
	Source Source
	// Go is the soft limit of Go's runtime, in bytes: GOMEMLIMIT where the environment sets it.
	Go int64
}

// Parse returns the bytes of a limit such as 512Mi; 0 for an empty text. The limit is at least MinLimit.
func Parse(text string) (int64, error) {
	if text == "" {
		return 0, nil
	}
	q, err := resource.ParseQuantity(text)
	if err != nil {
		return 0, fmt.Errorf("%q must be a quantity of bytes such as 512Mi: %w", text, err)
	}
	if q.Value() < MinLimit {
		return 0, fmt.Errorf("%q must be at least %dMi", text, MinLimit/mebibyte)
	}
	return q.Value(), nil
}

// Detect returns the limit of this process: the one that was given in bytes, else that of the cgroup (v1 or v2), else a quarter of the
// machine's memory. given is 0 if none was given.
func Detect(given int64) (Limit, error) {
	l, err := detect(given, memlimit.FromCgroup, memlimit.FromSystem)
	if userSet() {
		l.Go = debug.SetMemoryLimit(-1)
	}
	return l, err
}

// userSet reports whether the environment sets the soft limit of Go's runtime.
func userSet() bool { return os.Getenv("GOMEMLIMIT") != "" }

func detect(given int64, cgroup, machine memlimit.Provider) (Limit, error) {
	if given > 0 {
		return limitOf(given, FromFlag), nil
	}
	if bytes, err := cgroup(); err == nil && bytes > 0 && bytes < math.MaxInt64 {
		return limitOf(int64(bytes), FromCgroup), nil
	}
	bytes, err := machine()
	if err != nil {
		return Limit{}, fmt.Errorf("failed to find out how much memory there is, give --memory-limit: %w", err)
	}
	return limitOf(int64(min(bytes/machineShare, math.MaxInt64)), FromMachine), nil
}

// limitOf is a limit with the soft limit of Go's runtime: a tenth less, and at least minHeadroom less.
func limitOf(bytes int64, source Source) Limit {
	return Limit{Bytes: bytes, Source: source, Go: max(bytes-max(bytes/10, minHeadroom), bytes/2)}
}

// Apply sets the soft limit of Go's runtime, unless the environment has set it.
func (l Limit) Apply() {
	if !userSet() {
		debug.SetMemoryLimit(l.Go)
	}
}

// usable is the memory beyond base, in bytes.
func (l Limit) usable() int64 { return max(0, min(l.Go, l.Bytes)-base) }

// Turns returns how many Turns the process runs at once by default: as many as two thirds of the memory beyond 56 MiB hold, at 64 KiB
// each, from 16 to 10,000.
func (l Limit) Turns() int {
	return int(min(max(l.usable()*2/3/TurnBytes, minTurns), maxTurns))
}

// minPassing is the least that replies and results share, in bytes: one namespace gets room for the longest result.
const minPassing = 10 * mebibyte

// NewBudget returns what namespaces share: a third of the memory beyond 56 MiB, which is what the Turns leave. Two thirds of that are for
// listings of tools and for conversations, at least 8 MiB, and one third for replies and results that pass through, at least 10 MiB.
func (l Limit) NewBudget() *bytebudget.Budget {
	return bytebudget.New(l.shares())
}

func (l Limit) shares() (held, passing int64) {
	budget := l.usable() / 3
	return max(budget*2/3, 8*mebibyte), max(budget/3, minPassing)
}
