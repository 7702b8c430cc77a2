package journaltest_test

import (
	"testing"

	"github.com/capstan-dev/capstan/internal/runtime/journal"
	"github.com/capstan-dev/capstan/internal/runtime/journal/journaltest"
)

func TestMemoryKeepsTheContract(t *testing.T) {
	journaltest.Run(t,
		func(*testing.T) journal.Journal { return &journaltest.Memory{} },
		func(_ *testing.T, j journal.Journal) journal.Journal { return j })
}
