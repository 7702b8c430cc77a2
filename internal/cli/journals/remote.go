package journals

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"iter"
	"net/http"
	"time"

	"github.com/cenkalti/backoff/v5"

	"github.com/capstan-dev/capstan/api/v1alpha1"
	"github.com/capstan-dev/capstan/internal/cli/terminal"
	"github.com/capstan-dev/capstan/internal/onclose"
	"github.com/capstan-dev/capstan/internal/readapi"
	"github.com/capstan-dev/capstan/internal/runtime/journal"
)

// followPatience is how long a followed journal may be unreachable. A lost executor is replaced in less time.
const followPatience = 2 * time.Minute

// connection is a connection to a read API.
type connection struct {
	*readapi.Client
	close func()
}

// Remote reads the journal of one Turn from a cluster.
type Remote struct {
	env             terminal.Environment
	namespace, name string
	// connect connects to a server that has the journal. The server changes when the Turn moves to another
	// executor.
	connect func(ctx context.Context) (*connection, error)
	// turn gets a Turn of the namespace from the API server. It is nil if there is no kubeconfig.
	turn func(ctx context.Context, name string) (*v1alpha1.Turn, error)
	// UID is the UID of the Turn whose journal is being read. It is empty before the first reply, and if the server
	// does not send it.
	UID string
}

// Close does nothing: each request closes its connection.
func (*Remote) Close() error { return nil }

// Entries returns the entries of the journal. With Follow it connects again when the connection breaks, and
// continues after the last entry. It also prints why the Turn waits.
func (r *Remote) Entries(ctx context.Context, q readapi.Query) iter.Seq2[journal.Entry, error] {
	q.Namespace, q.Name = r.namespace, r.name
	return func(yield func(journal.Entry, error) bool) {
		if q.Follow && r.turn != nil {
			defer r.logWaits(ctx)()
		}
		wait := backoff.NewExponentialBackOff()
		wait.InitialInterval, wait.MaxInterval = 500*time.Millisecond, 5*time.Second
		begun, reached := false, r.env.Now()
		for {
			after, since := q.After, r.env.Now()
			progress, stopped, err := r.attempt(ctx, &q, yield)
			begun = begun || progress
			if progress {
				reached = r.env.Now()
			}
			// A server that closes each connection immediately does not reset the wait.
			if progress && (q.After > after || reached.Sub(since) > wait.MaxInterval) {
				wait.Reset()
			}
			switch {
			case stopped || err == nil:
				return
			case !q.Follow, !begun, !isTemporary(err) && (!progress || !isExpired(err)), ctx.Err() != nil,
				r.env.Now().Sub(reached) > followPatience:
				yield(journal.Entry{}, err)
				return
			}
			again := wait.NextBackOff()
			r.env.Logf("Reading continues in %s, after entry %d: %s", again.Round(100*time.Millisecond), q.After, err)
			select {
			case <-time.After(again):
			case <-ctx.Done():
			}
		}
	}
}

// attempt reads through one connection until it ends. progress reports whether the server has begun its reply, even
// if there were no new entries. stopped reports whether the consumer wants no more entries.
func (r *Remote) attempt(ctx context.Context, q *readapi.Query, yield func(journal.Entry, error) bool) (progress, stopped bool, err error) {
	c, err := r.connect(ctx)
	if err != nil {
		return false, false, err
	}
	defer c.close()
	query := *q
	query.Opened = func(uid string) error {
		progress = true
		return r.pin(uid)
	}
	for e, err := range c.Journal(ctx, query) {
		if err != nil {
			return progress, false, err
		}
		q.After = e.Seq
		if !yield(e, nil) {
			return progress, true, nil
		}
	}
	return progress, false, nil
}

// pin stores the UID of the Turn. It returns an error if an earlier reply came from the journal of another Turn.
func (r *Remote) pin(uid string) error {
	if r.UID != "" && uid != "" && uid != r.UID {
		return fmt.Errorf("the Turn was deleted and created again while its journal was read: the output so far "+
			"is from the Turn with UID %s, and the new Turn has UID %s; read the new journal from the start", r.UID, uid)
	}
	r.UID = cmp.Or(r.UID, uid)
	return nil
}

// errNoExecutor is the error if no executor can be reached. A later attempt may succeed.
var errNoExecutor = errors.New("no executor can be reached")

// isTemporary reports whether another attempt to read the journal may succeed.
func isTemporary(err error) bool {
	if e, ok := errors.AsType[*readapi.Error](err); ok {
		return e.Status == http.StatusServiceUnavailable
	}
	return (errors.Is(err, readapi.ErrBroken) && !errors.Is(err, errNoToken)) || errors.Is(err, errNoExecutor)
}

// isExpired reports whether the server has refused the token: while a journal is followed, the token may expire. The
// next connection creates a new token if it can. If it cannot, the server refuses the connection before any progress.
func isExpired(err error) bool {
	e, ok := errors.AsType[*readapi.Error](err)
	return ok && e.Status == http.StatusUnauthorized
}

// Artifact returns the content of an artifact. The caller must close it.
func (r *Remote) Artifact(ctx context.Context, sha256 string) (io.ReadCloser, error) {
	c, err := r.connect(ctx)
	if err != nil {
		return nil, err
	}
	body, err := c.Artifact(ctx, r.namespace, r.name, sha256)
	if err != nil {
		c.close()
		return nil, err
	}
	return onclose.Body(body, c.close), nil
}
