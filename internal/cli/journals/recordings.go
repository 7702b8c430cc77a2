package journals

import (
	"bytes"
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"iter"
	"net/http"
	"slices"
	"strings"
	"time"

	"github.com/cenkalti/backoff/v5"
	"golang.org/x/sync/semaphore"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/capstan-dev/capstan/api/v1alpha1"
	"github.com/capstan-dev/capstan/internal/cli/cluster"
	"github.com/capstan-dev/capstan/internal/cli/exit"
	"github.com/capstan-dev/capstan/internal/readapi"
	"github.com/capstan-dev/capstan/internal/runtime/journal"
	"github.com/capstan-dev/capstan/internal/runtime/turn"
	"github.com/capstan-dev/capstan/internal/runtime/turnrecord"
	"github.com/capstan-dev/capstan/internal/store"
	"github.com/capstan-dev/capstan/internal/store/sqlite"
)

// TurnName identifies a recorded Turn.
type TurnName struct {
	Namespace, Name string
	// UID selects one of several Turns of the same name in a directory. It is empty in a cluster.
	UID string
}

// String returns NAMESPACE/NAME.
func (t TurnName) String() string { return t.Namespace + "/" + t.Name }

// Recordings reads recorded Turns, from a directory or from a cluster. It is safe for concurrent use.
type Recordings struct {
	source *Source
	// Namespace is the namespace of the Turns if a name does not include it.
	Namespace string
	// dirStore has the journals of --data-dir. It is nil for a cluster.
	dirStore *sqlite.Reader
	// reading limits the Turns that are read from a cluster at the same time.
	reading *semaphore.Weighted
}

// Recordings opens the journals. The caller must close them.
func (j *Source) Recordings(ctx context.Context) (*Recordings, error) {
	r := &Recordings{source: j, Namespace: j.Namespace, reading: semaphore.NewWeighted(parallelReads)}
	var err error
	switch {
	case j.DataDir != "":
		r.Namespace = cmp.Or(r.Namespace, "default")
		r.dirStore, err = openDir(ctx, j.DataDir)
		return r, err
	case j.UID != "":
		return nil, exit.WithCode(exit.Usage, errors.New("--uid requires --data-dir: in a cluster, the name identifies the Turn"))
	case j.Cluster.Server != "" && j.Cluster.Token != "": // this needs no kubeconfig
		r.Namespace = cmp.Or(r.Namespace, "default")
	default:
		if _, r.Namespace, err = j.Cluster.Config(r.Namespace); err != nil {
			err = exit.WithCode(exit.Usage, fmt.Errorf("%w; without a cluster, set --data-dir to the directory of capstan run", err))
		}
	}
	return r, err
}

// Close closes the journals.
func (r *Recordings) Close() error {
	if r.dirStore == nil {
		return nil
	}
	return r.dirStore.Close()
}

// Find returns the Turn with a name, given as NAME or NAMESPACE/NAME. With NAMESPACE/NAME, --namespace does not matter.
// If a directory has several Turns with this name, Find returns the Turn of --uid, or without --uid the newest one.
func (r *Recordings) Find(ctx context.Context, name string) (TurnName, error) {
	given := r.source.Namespace
	if strings.Contains(name, "/") {
		given = ""
	}
	namespace, name, err := cluster.SplitName(name, given)
	if err != nil {
		return TurnName{}, err
	}
	namespace = cmp.Or(namespace, r.Namespace)
	if r.dirStore == nil {
		return TurnName{Namespace: namespace, Name: name}, nil
	}
	t, err := choose(ctx, r.source.Env, r.dirStore, r.source.DataDir, namespace, name, r.source.UID)
	if err != nil {
		return TurnName{}, exit.WithCode(exit.Failed, err)
	}
	return TurnName{t.namespace, t.name, t.uid}, nil
}

// Newest returns the newest Turns of an Agent that have ended, newest first, and not more than limit. They are in the
// namespace of the recordings, even if the Agent is in another namespace. If wanted is not nil, Newest returns only
// Turns for which wanted returns true.
func (r *Recordings) Newest(ctx context.Context, agent types.NamespacedName, limit int, wanted func(TurnName) bool) ([]TurnName, error) {
	if wanted == nil {
		wanted = func(TurnName) bool { return true }
	}
	if r.dirStore != nil {
		return r.newestInDir(ctx, agent, limit, wanted)
	}
	return r.source.Cluster.newest(ctx, r.Namespace, agent, limit, wanted)
}

// Feedback returns the feedback to the Turns of an Agent. agent is NAME, or NAMESPACE/NAME for an Agent of another
// namespace. The result contains only Turns with feedback. In a cluster, the keys have no UID, and only the newest
// Turn of each name counts.
func (r *Recordings) Feedback(ctx context.Context, agent string) (map[TurnName][]turnrecord.Feedback, error) {
	found := map[TurnName][]turnrecord.Feedback{}
	seen := map[TurnName]bool{}
	add := func(from pagesOfRecords) error {
		q := store.RecordQuery{RecordSelector: store.RecordSelector{Namespace: r.Namespace, Agent: agent}}
		for one, err := range store.AllRecords(ctx, from, q) {
			if err != nil {
				return exit.WithCode(exit.Failed, ExplainRecords(err))
			}
			name := TurnName{Namespace: one.Namespace, Name: one.Turn}
			if r.dirStore != nil {
				name.UID = one.UID
			}
			if !seen[name] && len(one.Feedback) > 0 {
				found[name] = one.Feedback
			}
			seen[name] = true
		}
		return nil
	}
	if r.dirStore != nil {
		return found, add(r.dirStore.Records)
	}
	return found, r.source.Cluster.WithServer(ctx, r.source.Env, r.Namespace, func(c *readapi.Client, _ string) error {
		return add(func(ctx context.Context, q store.RecordQuery) ([]turnrecord.Record, bool, error) {
			page, err := c.Records(ctx, q)
			return page.Records, page.Next != "", err
		})
	})
}

// pagesOfRecords adapts a function that reads a page of records to the interface of a store.
type pagesOfRecords func(ctx context.Context, q store.RecordQuery) (page []turnrecord.Record, more bool, err error)

// Records returns a page of records.
func (p pagesOfRecords) Records(ctx context.Context, q store.RecordQuery) (page []turnrecord.Record, more bool, err error) {
	return p(ctx, q)
}

// newestInDir is Newest for a directory.
func (r *Recordings) newestInDir(
	ctx context.Context, agent types.NamespacedName, limit int, wanted func(TurnName) bool,
) ([]TurnName, error) {
	all, err := listLocal(ctx, r.dirStore)
	if err != nil {
		return nil, exit.WithCode(exit.Failed, err)
	}
	var found []TurnName
	for _, t := range all {
		if t.namespace != r.Namespace || len(found) == limit || !wanted(TurnName{t.namespace, t.name, t.uid}) {
			continue
		}
		agentName, ended, err := r.agentOf(ctx, t.uid)
		if err != nil {
			return nil, exit.WithCode(exit.Failed, err)
		}
		if ended && v1alpha1.ParseSharedReference(agentName).Key(t.namespace) == agent {
			found = append(found, TurnName{t.namespace, t.name, t.uid})
		}
	}
	return found, nil
}

// agentOf returns the name of the Agent in a journal, and whether its Turn has ended. For a damaged journal, the name
// is empty: one damaged journal must not hide the others.
func (r *Recordings) agentOf(ctx context.Context, uid string) (agent string, ended bool, err error) {
	last, err := r.dirStore.Last(ctx, uid)
	if err != nil {
		return "", false, fmt.Errorf("failed to read the journal of %q: %w", uid, err)
	}
	for e, err := range r.dirStore.Read(ctx, uid, max(0, last-1)) {
		if err != nil {
			return "", false, fmt.Errorf("failed to read the journal of %q: %w", uid, err)
		}
		// If another Turn has undone calls of this Turn, entries about that follow the end.
		ended = e.Kind == journal.Finalized || e.Kind == journal.UndoBegun || e.Kind == journal.UndoEnded
	}
	if !ended {
		return "", false, nil
	}
	for e, err := range r.dirStore.Read(ctx, uid, 0) {
		if err != nil {
			return "", false, fmt.Errorf("failed to read the journal of %q: %w", uid, err)
		}
		if agent = agentIn(ctx, r.dirStore, uid, e); agent != "" {
			break
		}
	}
	return agent, true, ctx.Err()
}

// agentIn returns the name of the Agent that an entry names, or an empty text.
func agentIn(ctx context.Context, j journal.Journal, uid string, e journal.Entry) string {
	var payload struct {
		Agent string `json:"agent"`
		Input struct{ Agent struct{ Name string } }
	}
	if e.Kind != journal.RunStarted && e.Kind != journal.PreparationInput || journal.LoadPayload(ctx, j, uid, &e) != nil ||
		json.Unmarshal(e.Payload, &payload) != nil {
		return ""
	}
	return cmp.Or(payload.Agent, payload.Input.Agent.Name)
}

// pageOfTurns is the number of Turns that one request lists.
const pageOfTurns = 500

// newest is Recordings.Newest for a cluster.
func (c *ClusterFlags) newest(
	ctx context.Context, namespace string, agent types.NamespacedName, limit int, wanted func(TurnName) bool,
) ([]TurnName, error) {
	config, namespace, err := c.Config(namespace)
	if err != nil {
		return nil, exit.WithCode(exit.Usage, fmt.Errorf("%w; without a cluster, set --data-dir to the directory of capstan run", err))
	}
	api, err := cluster.NewClient(ctx, c.Identity(config))
	if err != nil {
		return nil, exit.WithCode(exit.Failed, err)
	}
	type ended struct {
		name    string
		created time.Time
	}
	var all []ended
	for page := ""; ; {
		var list v1alpha1.TurnList
		if err := api.List(ctx, &list, client.InNamespace(namespace), client.Limit(pageOfTurns), client.Continue(page)); err != nil {
			return nil, exit.WithCode(exit.Failed, fmt.Errorf("failed to list the Turns of namespace %q: %w", namespace, err))
		}
		for i := range list.Items {
			t := &list.Items[i]
			if t.AgentKey() == agent && t.IsFinished() &&
				wanted(TurnName{Namespace: namespace, Name: t.Name}) {
				all = append(all, ended{t.Name, t.CreationTimestamp.Time})
			}
		}
		slices.SortFunc(all, func(a, b ended) int { return cmp.Or(b.created.Compare(a.created), cmp.Compare(a.name, b.name)) })
		all = all[:min(len(all), limit)]
		if page = list.Continue; page == "" {
			break
		}
	}
	var found []TurnName
	for _, t := range all {
		found = append(found, TurnName{Namespace: namespace, Name: t.name})
	}
	return found, nil
}

const (
	// parallelReads is the maximum number of recorded Turns that are read from a cluster at the same time. The read API
	// serves 16 requests of a user at the same time, and reading a Turn takes one for its entries and one for an
	// artifact.
	parallelReads = 4
	// readAttempts is the maximum number of attempts to read a recorded Turn, or later one of its artifacts, from a
	// cluster. The waits between them last about 16 s together: long enough for the requests of others to end, or for
	// an executor to be replaced.
	readAttempts = 8
)

// Read reads a recorded Turn. Its error is a *turn.NotReplayableError if the Turn cannot be replayed, for example
// because it was deleted. If a cluster cannot answer at the moment, Read tries again. The same applies to the artifacts
// that the recording reads later.
func (r *Recordings) Read(ctx context.Context, t TurnName) (*turn.Recording, error) {
	var from reader = &local{store: r.dirStore, uid: t.UID}
	if r.dirStore == nil {
		if err := r.reading.Acquire(ctx, 1); err != nil {
			return nil, exit.WithCode(exit.Failed, err)
		}
		defer r.reading.Release(1)
		remote, err := r.source.Cluster.Open(ctx, r.source.Env, t.Namespace, t.Name)
		if err != nil {
			return nil, err
		}
		from = remote
	}
	log := func(err error, wait time.Duration) {
		r.source.Env.Logf("Turn %s is read again in %s: %s", t, wait.Round(100*time.Millisecond), err)
	}
	isRead := false
	artifact := func(ctx context.Context, sha256 string, maxBytes int64) ([]byte, error) {
		read := func() ([]byte, error) { return readAll(ctx, from, sha256, maxBytes) }
		if !isRead { // a wait must not keep the stream of the entries open, so the whole Turn is read again
			return read()
		}
		data, err := persistently(ctx, log, read)
		return data, explainTurn(err)
	}
	recording, err := persistently(ctx, log, func() (*turn.Recording, error) {
		return turn.ReadRecording(ctx, existing(from.Entries(ctx, readapi.Query{})), artifact)
	})
	isRead = true
	return recording, explainTurn(err)
}

// persistently reads something from a cluster. It reads again, a limited number of times, if the cluster cannot answer
// at the moment. log receives each error after which it reads again.
func persistently[T any](ctx context.Context, log backoff.Notify, read func() (T, error)) (T, error) {
	return backoff.Retry(ctx, func() (T, error) {
		result, err := read()
		if err != nil && !isTemporary(err) {
			err = backoff.Permanent(err)
		}
		return result, err
	}, backoff.WithMaxTries(readAttempts), backoff.WithNotify(log))
}

// explainTurn returns the error of reading a recorded Turn for users. It is a *turn.NotReplayableError if the Turn
// cannot be replayed.
func explainTurn(err error) error {
	if err == nil {
		return nil
	}
	if refused, ok := errors.AsType[*turn.NotReplayableError](err); ok {
		return refused
	}
	if errors.Is(err, errNoTurn) { // it was deleted, maybe since its entries were read
		return &turn.NotReplayableError{Message: err.Error()}
	}
	return exit.WithCode(exit.Failed, Explain(err))
}

// existing returns the entries of a journal. If the cluster has no such Turn, the error is a *turn.NotReplayableError.
// Errors of artifacts are not replaced: if a journal lacks an artifact, the journal is damaged.
func existing(entries iter.Seq2[journal.Entry, error]) iter.Seq2[journal.Entry, error] {
	return func(yield func(journal.Entry, error) bool) {
		for e, err := range entries {
			if gone, ok := errors.AsType[*readapi.Error](err); ok && gone.Status == http.StatusNotFound {
				err = &turn.NotReplayableError{Message: err.Error()}
			}
			if !yield(e, err) {
				return
			}
		}
	}
}

// readAll reads an artifact. It returns an error if the artifact has more than maxBytes bytes.
func readAll(ctx context.Context, from reader, sha256 string, maxBytes int64) (data []byte, err error) {
	body, err := from.Artifact(ctx, sha256)
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, body.Close()) }()
	var all bytes.Buffer
	n, err := io.Copy(&all, io.LimitReader(body, maxBytes+1))
	if err == nil && n > maxBytes {
		err = fmt.Errorf("the artifact has more than %d bytes", maxBytes)
	}
	return all.Bytes(), err
}
