package memory

import (
	"errors"
	"math"
	"os"
	"runtime/debug"
	"testing"

	"github.com/KimMachineGun/automemlimit/memlimit"
)

const gibibyte = 1 << 30

func noLimit() (uint64, error) { return 0, memlimit.ErrNoLimit }

func failingProvider() (uint64, error) { return 0, errors.New("no /proc here") }

func TestDetect(t *testing.T) {
	for name, c := range map[string]struct {
		given           int64
		cgroup, machine memlimit.Provider
		bytes           int64
		source          Source
	}{
		"given": {
			given: 300 * mebibyte, cgroup: memlimit.Limit(512 * mebibyte),
			machine: memlimit.Limit(8 * gibibyte), bytes: 300 * mebibyte, source: FromFlag,
		},
		"cgroup": {
			cgroup: memlimit.Limit(512 * mebibyte), machine: memlimit.Limit(8 * gibibyte),
			bytes: 512 * mebibyte, source: FromCgroup,
		},
		"no limit": {cgroup: noLimit, machine: memlimit.Limit(8 * gibibyte), bytes: 2 * gibibyte, source: FromMachine},
		"a limit of the largest number": {
			cgroup: memlimit.Limit(math.MaxInt64), machine: memlimit.Limit(8 * gibibyte),
			bytes: 2 * gibibyte, source: FromMachine,
		},
		"a cgroup that cannot be read": {
			cgroup: failingProvider, machine: memlimit.Limit(4 * gibibyte), bytes: gibibyte, source: FromMachine,
		},
	} {
		t.Run(name, func(t *testing.T) {
			l, err := detect(c.given, c.cgroup, c.machine)
			if err != nil || l.Bytes != c.bytes || l.Source != c.source {
				t.Errorf("detect = %+v, %v, want %d bytes of the %s", l, err, c.bytes, c.source)
			}
		})
	}
	if l, err := detect(0, failingProvider, failingProvider); err == nil {
		t.Errorf("detect = %+v if no limit can be read, want an error that names --memory-limit", l)
	}
}

// TestSharesOfALimit checks the values that follow from small and large limits.
func TestSharesOfALimit(t *testing.T) {
	for _, c := range []struct {
		limit, goLimit, turns, held, passing int64
	}{
		{limit: 64 * mebibyte, goLimit: 40 * mebibyte, turns: 16, held: 8 * mebibyte, passing: minPassing},
		{limit: 128 * mebibyte, goLimit: 104 * mebibyte, turns: 512, held: 32 * mebibyte / 3, passing: minPassing},
		{limit: 500 * mebibyte, goLimit: 450 * mebibyte, turns: 4202, held: 394 * mebibyte * 2 / 9, passing: 394 * mebibyte / 9},
		{limit: 5000 * mebibyte, goLimit: 4500 * mebibyte, turns: 10_000, held: 4444 * mebibyte * 2 / 9, passing: 4444 * mebibyte / 9},
	} {
		l := limitOf(c.limit, FromCgroup)
		held, passing := l.shares()
		if l.Go != c.goLimit || int64(l.Turns()) != c.turns || held != c.held || passing != c.passing {
			t.Errorf("limitOf(%d MiB): Go %d, %d Turns, held %d, passing %d, want %+v", c.limit/mebibyte, l.Go, l.Turns(), held, passing, c)
		}
		if taken := base + int64(l.Turns())*TurnBytes + held + passing; taken > l.Go && c.limit > 200*mebibyte {
			t.Errorf("limitOf(%d MiB): base, Turns and budget take %d bytes, want at most the soft limit %d", c.limit/mebibyte, taken, l.Go)
		}
	}
}

// TestApplyKeepsGOMEMLIMIT checks that GOMEMLIMIT takes precedence, because its author knows more about the machine
// than the manager.
func TestApplyKeepsGOMEMLIMIT(t *testing.T) {
	before := debug.SetMemoryLimit(-1)
	t.Cleanup(func() { debug.SetMemoryLimit(before) })

	t.Setenv("GOMEMLIMIT", "105MiB")
	debug.SetMemoryLimit(105 * mebibyte) // as the runtime does at the start of a process
	l, err := Detect(512 * mebibyte)
	if err != nil {
		t.Fatal(err)
	}
	l.Apply()
	if soft := debug.SetMemoryLimit(-1); soft != 105*mebibyte || l.Go != soft {
		t.Errorf("with GOMEMLIMIT=105MiB the soft limit is %d, and Limit.Go is %d; want both to be 105 MiB", soft, l.Go)
	}
	if turns := l.Turns(); turns != int((105*mebibyte-base)*2/3/TurnBytes) {
		t.Errorf("with GOMEMLIMIT=105MiB there are %d Turns, want as many as fit into 105 MiB", turns)
	}

	if err := os.Unsetenv("GOMEMLIMIT"); err != nil {
		t.Fatal(err)
	}
	if l, err = Detect(512 * mebibyte); err != nil {
		t.Fatal(err)
	}
	l.Apply()
	if soft := debug.SetMemoryLimit(-1); soft != 512*mebibyte-512*mebibyte/10 {
		t.Errorf("the soft limit is %d, want nine tenths of the limit", soft)
	}
}

func TestParse(t *testing.T) {
	for text, want := range map[string]int64{"": 0, "512Mi": 512 * mebibyte, "1G": 1_000_000_000, "67108864": 64 * mebibyte} {
		if got, err := Parse(text); err != nil || got != want {
			t.Errorf("Parse(%q) = %d, %v, want %d", text, got, err, want)
		}
	}
	for _, text := range []string{"much", "63Mi", "-1Gi", "0"} {
		if got, err := Parse(text); err == nil {
			t.Errorf("Parse(%q) = %d, want an error", text, got)
		}
	}
}
