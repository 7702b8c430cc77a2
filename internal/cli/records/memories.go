package records

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"strconv"
	"strings"
	"time"

	"github.com/capstan-dev/capstan/internal/cli/exit"
	"github.com/capstan-dev/capstan/internal/cli/journals"
	"github.com/capstan-dev/capstan/internal/cli/output"
	"github.com/capstan-dev/capstan/internal/readapi"
	"github.com/capstan-dev/capstan/internal/runtime/memories"
	"github.com/capstan-dev/capstan/internal/store"
	"github.com/capstan-dev/capstan/internal/termsafe"
)

// Memories lists, prints and deletes memories that were learned from Turns.
type Memories struct {
	Options
	// Turn, Scope and ID select memories by their fields. An empty field selects any value. Turn is NAME or
	// NAMESPACE/NAME.
	Turn, Scope, ID string
}

// memoryStore has the memories of a cluster or of a directory.
type memoryStore interface {
	list(ctx context.Context, q store.MemoryQuery) ([]memories.Memory, error)
	remove(ctx context.Context, s store.MemorySelector) (int, error)
}

// inCluster has the memories of a cluster.
type inCluster struct{ *readapi.Client }

func (c inCluster) list(ctx context.Context, q store.MemoryQuery) ([]memories.Memory, error) {
	page, err := c.Memories(ctx, q)
	return page.Memories, err
}

func (c inCluster) remove(ctx context.Context, s store.MemorySelector) (all int, err error) {
	for {
		out, err := c.DeleteMemories(ctx, s)
		all += out.Deleted
		if err != nil {
			return all, fmt.Errorf("failed after %d memories were deleted: %w", all, err)
		}
		if !out.More {
			return all, nil
		}
	}
}

// inDir has the memories of a directory of capstan run.
type inDir struct {
	dir string
	now time.Time
}

func (f inDir) list(ctx context.Context, q store.MemoryQuery) (all []memories.Memory, err error) {
	dirStore, err := journals.OpenDir(ctx, f.dir)
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, dirStore.Close()) }()
	return dirStore.ListMemories(ctx, q)
}

func (f inDir) remove(ctx context.Context, s store.MemorySelector) (all int, err error) {
	w, err := journals.OpenDirForWriting(ctx, f.dir)
	if err != nil {
		return 0, err
	}
	defer func() { err = errors.Join(err, w.Close()) }()
	for {
		n, err := w.DeleteMemories(ctx, s, f.now, store.MaxMemories)
		if all += n; err != nil || n < store.MaxMemories {
			return all, err
		}
	}
}

// withMemories calls do with the store and the selector that the options specify.
func (m *Memories) withMemories(ctx context.Context, do func(k memoryStore, s store.MemorySelector) error) error {
	if s := memories.Scope(m.Scope); s != "" && s != memories.Session && s != memories.User {
		return exit.WithCode(exit.Usage, fmt.Errorf("--scope %q must be %s or %s", m.Scope, memories.Session, memories.User))
	}
	given, turn, err := splitTurn(m.Turn, m.Namespace)
	if err != nil {
		return err
	}
	selector := func(namespace string) store.MemorySelector {
		if m.AllNamespaces && given == "" {
			namespace = ""
		}
		return store.MemorySelector{
			Namespace: namespace, Turn: turn, Agent: m.Agent, Session: m.Session, Requester: m.Requester,
			Scope: memories.Scope(m.Scope), ID: m.ID,
		}
	}
	if m.DataDir != "" {
		return do(inDir{m.DataDir, m.Env.Now()}, selector(cmp.Or(given, "default")))
	}
	return m.Cluster.WithServer(ctx, m.Env, given, func(client *readapi.Client, namespace string) error {
		return do(inCluster{client}, selector(namespace))
	})
}

// each calls do for each selected memory, newest first.
func (m *Memories) each(ctx context.Context, do func(*memories.Memory) error) error {
	return m.withMemories(ctx, func(k memoryStore, s store.MemorySelector) error {
		for one, err := range store.AllMemories(ctx, lister{k}, store.MemoryQuery{MemorySelector: s}) {
			if err != nil {
				return failedMemories(err)
			}
			if err := do(one); err != nil {
				return err
			}
		}
		return nil
	})
}

// lister adapts a memoryStore to the interface of a store.
type lister struct{ memoryStore }

// ListMemories returns a page of memories.
func (l lister) ListMemories(ctx context.Context, q store.MemoryQuery) ([]memories.Memory, error) {
	return l.list(ctx, q)
}

// List prints the memories, newest first.
func (m *Memories) List(ctx context.Context) error {
	t := newTable("LEARNED", "ID", "SCOPE", "OWNER", "AGENT", "TURN", "EXPIRES", "MEMORY")
	if m.AllNamespaces {
		t = newTable("LEARNED", "NAMESPACE", "ID", "SCOPE", "OWNER", "AGENT", "TURN", "EXPIRES", "MEMORY")
	}
	err := m.each(ctx, func(one *memories.Memory) error {
		if m.Output == JSON {
			return m.printMemory(one)
		}
		row := []string{one.Learned.UTC().Format(time.RFC3339)}
		if m.AllNamespaces {
			row = append(row, one.Namespace)
		}
		t.row(append(row, one.ID, string(one.Scope), ownerOf(one), one.Agent, one.Turn, m.expiry(one, time.DateOnly), one.Text))
		return nil
	})
	if err != nil || m.Output == JSON {
		return err
	}
	return m.Env.Print(t.text())
}

// expiry returns the time at which a memory expires, and says so if it has expired: it is not used any more, and is
// deleted soon.
func (m *Memories) expiry(one *memories.Memory, layout string) string {
	text := one.Expires.UTC().Format(layout)
	if m.Env.Now().Before(one.Expires) {
		return text
	}
	return text + " (expired)"
}

// ownerOf returns the name of the Session or the user to whom a memory belongs.
func ownerOf(m *memories.Memory) string {
	if m.Scope == memories.User {
		return m.Requester
	}
	return m.Session
}

// printMemory prints a memory as one line of JSON.
func (m *Memories) printMemory(one *memories.Memory) error {
	line, err := output.Line(one)
	if err != nil {
		return exit.WithCode(exit.Failed, err)
	}
	return m.Env.Print(line)
}

// Show prints one memory with its source.
func (m *Memories) Show(ctx context.Context) error {
	found := false
	err := m.each(ctx, func(one *memories.Memory) error {
		found = true
		if m.Output == JSON {
			return m.printMemory(one)
		}
		line := func(text string) string { return termsafe.Line(text, 2*memories.MaxText) }
		return m.Env.Print(line(one.Text) + "\n\n" + output.Table([]output.Row{
			{Name: "id", Value: one.ID},
			{Name: "scope", Value: string(one.Scope)},
			{Name: "namespace", Value: one.Namespace},
			{Name: "agent", Value: line(one.Agent)},
			{Name: "requester", Value: line(one.Requester)},
			{Name: "session", Value: strings.TrimSpace(line(one.Session) + " " + one.SessionUID)},
			{Name: "turn", Value: line(one.Turn) + " " + one.TurnUID},
			{Name: "model", Value: line(one.Model)},
			{Name: "confidence", Value: strconv.Itoa(one.Confidence) + " %"},
			{Name: "learned", Value: one.Learned.UTC().Format(time.RFC3339)},
			{Name: "expires", Value: m.expiry(one, time.RFC3339)},
		}))
	})
	if err == nil && !found {
		err = exit.WithCode(exit.Failed, fmt.Errorf(
			"there is no memory %q in this namespace: the ID may be wrong, or the memory was deleted or has expired", m.ID))
	}
	return err
}

// Delete deletes the selected memories, and prints their number.
func (m *Memories) Delete(ctx context.Context) error {
	if m.Turn == "" && m.Session == "" && m.Requester == "" && m.ID == "" {
		return exit.WithCode(exit.Usage, errors.New("specify the ID of a memory, or set --turn, --session or --requester"))
	}
	return m.withMemories(ctx, func(k memoryStore, s store.MemorySelector) error {
		n, err := k.remove(ctx, s)
		if err != nil {
			return failedMemories(err)
		}
		if n == 0 && m.ID != "" {
			return exit.WithCode(exit.Failed, fmt.Errorf("there is no memory %q in this namespace", m.ID))
		}
		return m.printDone(fmt.Sprintf("deleted memories: %d\n", n), deleted{n})
	})
}

// failedMemories explains why memories could not be read or deleted.
func failedMemories(err error) error {
	return exit.WithCode(exit.Failed, journals.ExplainMemories(err))
}
