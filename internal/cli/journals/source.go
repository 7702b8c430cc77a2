// Package journals reads and prints the journals of Turns, from a cluster or from a directory of capstan run.
package journals

import (
	"context"
	"errors"
	"fmt"
	"io"
	"iter"

	"github.com/capstan-dev/capstan/api/v1alpha1"
	"github.com/capstan-dev/capstan/internal/cli/cluster"
	"github.com/capstan-dev/capstan/internal/cli/exit"
	"github.com/capstan-dev/capstan/internal/cli/terminal"
	"github.com/capstan-dev/capstan/internal/readapi"
	"github.com/capstan-dev/capstan/internal/runtime/journal"
	"github.com/capstan-dev/capstan/internal/termsafe"
)

// Source holds the flags that specify where the journal of a Turn is.
type Source struct {
	Env terminal.Environment
	// Namespace is the namespace of the Turn. If it is empty, it is the namespace of the kubeconfig's context, or
	// default with DataDir, or with a server and a token.
	Namespace string
	// DataDir is a directory of capstan run, or empty to read from a cluster. UID selects one of several Turns of the
	// same name in that directory.
	DataDir, UID string
	Cluster      ClusterFlags
}

// reader reads the journal of one Turn.
type reader interface {
	// Entries returns the entries of the Turn's journal that a query selects. With Follow it continues until the Turn
	// has ended, and connects again after temporary failures.
	Entries(ctx context.Context, q readapi.Query) iter.Seq2[journal.Entry, error]
	// Artifact returns the content of an artifact. The caller must close it.
	Artifact(ctx context.Context, sha256 string) (io.ReadCloser, error)
	// Close releases the reader's resources.
	Close() error
}

// open returns a reader of the journal of a Turn, given as NAME or NAMESPACE/NAME. The caller must close the
// reader.
func (j *Source) open(ctx context.Context, turn string) (reader, error) {
	namespace, name, err := cluster.SplitName(turn, j.Namespace)
	if err != nil {
		return nil, err
	}
	if j.DataDir != "" {
		return openLocal(ctx, j.Env, j.DataDir, namespace, name, j.UID)
	}
	if j.UID != "" {
		return nil, errors.New("--uid requires --data-dir: in a cluster, the name identifies the Turn")
	}
	return j.Cluster.Open(ctx, j.Env, namespace, name)
}

// anyTurn returns true for each Turn.
func anyTurn(*v1alpha1.Turn) bool { return true }

// TurnNames returns the names of the Turns of the directory or of the cluster, for completion. In a cluster, it uses
// the credentials of the kubeconfig, as find does: --token is for the read API.
func (j *Source) TurnNames(ctx context.Context) ([]string, error) {
	if j.DataDir != "" {
		return turnNames(ctx, j.DataDir, j.Namespace)
	}
	kubeconfig := cluster.Flags{Kubeconfig: j.Cluster.Kubeconfig, Context: j.Cluster.Context}
	return kubeconfig.TurnNames(ctx, j.Namespace, anyTurn)
}

// read calls take for each entry that a query selects, and returns the number of entries. A signal stops it.
func (j *Source) read(ctx context.Context, turn string, q readapi.Query, take func(journal.Entry) error) (n int, err error) {
	watched, release := exit.Watch(ctx)
	defer release()
	r, err := j.open(watched, turn)
	if err != nil {
		return 0, exit.InterruptedOr(watched, err)
	}
	defer func() { err = errors.Join(err, r.Close()) }()
	n, err = forEach(r.Entries(watched, q), take)
	return n, exit.InterruptedOr(watched, err)
}

func forEach(entries iter.Seq2[journal.Entry, error], take func(journal.Entry) error) (n int, err error) {
	for e, err := range entries {
		if err != nil {
			return n, exit.WithCode(exit.Failed, Explain(err))
		}
		if err := take(e); err != nil {
			return n, exit.WithCode(exit.Failed, err)
		}
		n++
	}
	return n, nil
}

// jsonLine prints an entry as one line of JSON.
func (j *Source) jsonLine(entry journal.Entry) error {
	data, err := readapi.Marshal(entry)
	if err != nil {
		return err
	}
	text := string(data)
	if j.Env.OutIsTerminal { // the escaped text is JSON, too
		text = termsafe.Safe(text)
	}
	return j.Env.Print(text + "\n")
}

// Explain adds to an error that the journal could not be read, except to errNoToken, which explains itself.
func Explain(err error) error {
	if errors.Is(err, errNoToken) {
		return errNoToken
	}
	return fmt.Errorf("failed to read the journal: %w", err)
}

// ExplainRecords is like Explain, for requests about records.
func ExplainRecords(err error) error {
	if errors.Is(err, errNoToken) {
		return errNoToken
	}
	return fmt.Errorf("failed to access the records of Turns: %w", err)
}

// ExplainFeedback is like Explain, for requests that store feedback.
func ExplainFeedback(err error) error {
	if errors.Is(err, errNoToken) {
		return errNoOwnToken
	}
	return ExplainRecords(err)
}

// ExplainMemories is like Explain, for requests about memories.
func ExplainMemories(err error) error {
	if errors.Is(err, errNoToken) {
		return errNoToken
	}
	return fmt.Errorf("failed to access the memories of Turns: %w", err)
}

// stdout is a writer to Out whose errors name standard output.
type stdout struct{ env terminal.Environment }

// Write writes to Out.
func (s stdout) Write(p []byte) (int, error) { return len(p), s.env.Print(string(p)) }
