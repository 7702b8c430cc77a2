package journaltest

import (
	"context"
	"slices"
	"sync"

	"github.com/capstan-dev/capstan/internal/runtime/journal"
)

// Memory is a journal that lives as long as the test. It starts no goroutine and never blocks, so that it can be used
// within a synctest bubble. The zero value is empty and ready to use.
type Memory struct {
	mu    sync.Mutex
	turns map[string][]journal.Entry
}

// Load returns a copy of the entries of a Turn.
func (m *Memory) Load(_ context.Context, turnUID string) ([]journal.Entry, error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	return slices.Clone(m.turns[turnUID]), nil
}

// Append adds entries, all or none.
func (m *Memory) Append(ctx context.Context, turnUID string, entries ...journal.Entry) error {
	if err := ctx.Err(); err != nil {
		return err
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	all := slices.Clone(m.turns[turnUID])
	var last journal.Entry
	if n := len(all); n > 0 {
		last = all[n-1]
	}
	if err := journal.Follows(last.Seq, last.Epoch, entries); err != nil {
		return err
	}
	all = append(all, entries...)
	if m.turns == nil {
		m.turns = map[string][]journal.Entry{}
	}
	m.turns[turnUID] = all
	return nil
}
