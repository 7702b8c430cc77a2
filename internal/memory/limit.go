// Package memory decides how much memory the process uses, and for what: it derives the limits of the process from its
// cgroup, and the size of the budget that namespaces share.
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
	// MinLimit is the smallest memory limit that a manager accepts, in bytes.
	MinLimit = 64 * mebibyte
	// machineShare is the part of the machine's memory that is the limit if no cgroup sets one: a quarter.
	machineShare = 4
	// minHeadroom is the minimum memory, in bytes, that is left for uses that Go's runtime does not count: the page
	// cache of SQLite's file, and the binary itself.
	minHeadroom = 24 * mebibyte
	// base is the memory, in bytes, that a manager needs without Turns, including space for a cluster's objects. The
	// command `make bench` measures it.
	base = 56 * mebibyte
	// TurnBytes is the memory, in bytes, of a Turn of usual size that waits for a model, including its garbage. The
	// command `make bench` measures it. The budget of NewBudget counts the memory that a Turn needs beyond TurnBytes.
	TurnBytes = 64 << 10
	// minTurns and maxTurns bound the default number of concurrent Turns.
	minTurns, maxTurns = 16, 10_000
)

// Source is the origin of a limit.
type Source string

// The sources of a limit.
const (
	FromFlag    Source = "flag"
	FromCgroup  Source = "cgroup"
	FromMachine Source = "machine"
)

// Limit is the memory that the process may use.
type Limit struct {
	// Bytes is the limit.
	Bytes int64
	// Source is the origin of the limit.
	Source Source
	// Go is the soft limit of Go's runtime, in bytes. It is GOMEMLIMIT if the environment sets it.
	Go int64
}

// Parse returns the bytes of a limit such as 512Mi, or 0 for an empty text. The limit must be at least MinLimit.
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

// Detect returns the limit of this process: given, in bytes, if it is not 0; otherwise the limit of the cgroup (v1
// or v2); otherwise a quarter of the machine's memory.
func Detect(given int64) (Limit, error) {
	l, err := detect(given, memlimit.FromCgroup, memlimit.FromSystem)
	if hasGoLimit() {
		l.Go = debug.SetMemoryLimit(-1)
	}
	return l, err
}

// hasGoLimit reports whether the environment sets the soft limit of Go's runtime.
func hasGoLimit() bool { return os.Getenv("GOMEMLIMIT") != "" }

func detect(given int64, cgroup, machine memlimit.Provider) (Limit, error) {
	if given > 0 {
		return limitOf(given, FromFlag), nil
	}
	if bytes, err := cgroup(); err == nil && bytes > 0 && bytes < math.MaxInt64 {
		return limitOf(int64(bytes), FromCgroup), nil
	}
	bytes, err := machine()
	if err != nil {
		return Limit{}, fmt.Errorf("failed to detect the available memory, set --memory-limit: %w", err)
	}
	return limitOf(int64(min(bytes/machineShare, math.MaxInt64)), FromMachine), nil
}

// limitOf returns a limit with the soft limit of Go's runtime. The soft limit is smaller by a tenth, or by minHeadroom
// if that is more. It is at least half of the limit.
func limitOf(bytes int64, source Source) Limit {
	return Limit{Bytes: bytes, Source: source, Go: max(bytes-max(bytes/10, minHeadroom), bytes/2)}
}

// Apply sets the soft limit of Go's runtime, unless the environment has set it.
func (l Limit) Apply() {
	if !hasGoLimit() {
		debug.SetMemoryLimit(l.Go)
	}
}

// usable returns the memory beyond base, in bytes.
func (l Limit) usable() int64 { return max(0, min(l.Go, l.Bytes)-base) }

// Turns returns the default number of Turns that the process runs at the same time: as many as fit into two thirds of
// the memory beyond 56 MiB, at 64 KiB each, but at least 16 and at most 10,000.
func (l Limit) Turns() int {
	return int(min(max(l.usable()*2/3/TurnBytes, minTurns), maxTurns))
}

// minPassing is the smallest budget for replies and results, in bytes. It lets one namespace hold the longest result.
const minPassing = 10 * mebibyte

// NewBudget returns the budget that namespaces share: the third of the memory beyond 56 MiB that Turns does not use.
// Two thirds of that budget, and at least 8 MiB, are for the kinds of memory that are held for long: listings, objects,
// conversations and contents. One third, and at least 10 MiB, is for replies and results.
func (l Limit) NewBudget() *bytebudget.Budget {
	return bytebudget.New(l.shares())
}

func (l Limit) shares() (held, passing int64) {
	budget := l.usable() / 3
	return max(budget*2/3, 8*mebibyte), max(budget/3, minPassing)
}
