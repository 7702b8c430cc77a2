package cli

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

	"github.com/capstan-dev/capstan/internal/readapi"
	"github.com/capstan-dev/capstan/internal/runtime/journal"
)

// followPatience is how long a journal that is followed may be out of reach: an executor that is lost is replaced within
// less.
const followPatience = 2 * time.Minute

// connection is a way to a read API.
type connection struct {
	*readapi.Client
	close func()
}

// remote is the journal of a Turn of a cluster.
type remote struct {
	env             Environment
	namespace, name string
	// connect finds a server that has the journal. Where it is changes when the Turn moves.
	connect func(ctx context.Context) (*connection, error)
	// uid is that of the Turn whose journal has been begun, empty before and where no server says it.
	uid string
}

func (*remote) close() error { return nil }

// entries reads the journal. One that is followed is read on elsewhere when the connection breaks.
func (r *remote) entries(ctx context.Context, q readapi.Query) iter.Seq2[journal.Entry, error] {
	q.Namespace, q.Name = r.namespace, r.name
	return func(yield func(journal.Entry, error) bool) {
		wait := backoff.NewExponentialBackOff()
		wait.InitialInterval, wait.MaxInterval = 500*time.Millisecond, 5*time.Second
		begun, reached := false, r.env.Now()
		for {
			after, since := q.After, r.env.Now()
			progress, stopped, err := r.once(ctx, &q, yield)
			begun = begun || progress
			if progress {
				reached = r.env.Now()
			}
			if progress && (q.After > after || reached.Sub(since) > wait.MaxInterval) { // not of a server that breaks off at once
				wait.Reset()
			}
			switch {
			case stopped || err == nil:
				return
			case !q.Follow, !begun, !passes(err) && (!progress || !expired(err)), ctx.Err() != nil, r.env.Now().Sub(reached) > followPatience:
				yield(journal.Entry{}, err)
				return
			}
			again := wait.NextBackOff()
			r.env.tell("Reading on after entry %d in %s: %s", q.After, again.Round(100*time.Millisecond), err)
			select {
			case <-time.After(again):
			case <-ctx.Done():
			}
		}
	}
}

// once reads by one connection until that ends. progress is whether the server has begun to answer, be it that the Turn has said
// nothing since; stopped whether the consumer has had enough.
func (r *remote) once(ctx context.Context, q *readapi.Query, yield func(journal.Entry, error) bool) (progress, stopped bool, err error) {
	c, err := r.connect(ctx)
	if err != nil {
		return false, false, err
	}
	defer c.close()
	asked := *q
	asked.Opened = func(uid string) error {
		progress = true
		return r.pin(uid)
	}
	for e, err := range c.Journal(ctx, asked) {
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

// pin notes whose journal it is, and fails if it was that of another Turn before.
func (r *remote) pin(uid string) error {
	if r.uid != "" && uid != "" && uid != r.uid {
		return fmt.Errorf("the Turn was made anew while its journal was read: what was read is of the one with UID %s, which is gone, "+
			"and there is one with UID %s now; read that from its beginning", r.uid, uid)
	}
	r.uid = cmp.Or(r.uid, uid)
	return nil
}

// errNowhere is the error of a connection that could not be made just now.
var errNowhere = errors.New("no executor can be reached")

// passes reports whether an error may be gone when the journal is asked for again.
func passes(err error) bool {
	if e, ok := errors.AsType[*readapi.Error](err); ok {
		return e.Status == http.StatusServiceUnavailable
	}
	return (errors.Is(err, readapi.ErrBroken) && !errors.Is(err, errNoToken)) || errors.Is(err, errNowhere)
}

// expired reports whether a journal that was being followed ended with the token that was sent. The next connection makes a new one where it
// can, and is refused before it has begun where it cannot.
func expired(err error) bool {
	e, ok := errors.AsType[*readapi.Error](err)
	return ok && e.Status == http.StatusUnauthorized
}

func (r *remote) artifact(ctx context.Context, sha256 string) (io.ReadCloser, error) {
	c, err := r.connect(ctx)
	if err != nil {
		return nil, err
	}
	body, err := c.Artifact(ctx, r.namespace, r.name, sha256)
	if err != nil {
		c.close()
		return nil, err
	}
	return &closing{ReadCloser: body, then: c.close}, nil
}

// closing is a body whose connection goes with it.
type closing struct {
	io.ReadCloser
	then func()
}

// Close closes both.
func (c *closing) Close() error {
	defer c.then()
	return c.ReadCloser.Close()
}

// explained makes an error of a journal one that a person understands.
func explained(err error) error {
	if errors.Is(err, errNoToken) {
		return errNoToken
	}
	return fmt.Errorf("failed to read the journal: %w", err)
}
