package readapi

import (
	"context"
	"encoding/json"
	"net/http"
	"strconv"
	"time"

	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/capstan-dev/capstan/api/v1alpha1"
	"github.com/capstan-dev/capstan/internal/redact"
	"github.com/capstan-dev/capstan/internal/runtime/journal"
	"github.com/capstan-dev/capstan/internal/runtime/turn"
	"github.com/capstan-dev/capstan/internal/transcript"
)

// stream sends one journal to one client.
type stream struct {
	server  *Server
	request *http.Request
	out     *writer
	key     types.NamespacedName
	// namespaces are the namespaces whose credentials are removed.
	namespaces []string
	uid        string
	user       string
	// after is the sequence number of the last entry that was sent. Before the first one was sent, it is the number
	// from the request.
	after int64
	// follow is true if the client waits for new entries.
	follow bool
	// redactor removes the words of the conversation. If it is nil, they are sent.
	redactor *transcript.Redactor
	// recheck ticks when the stream must check its Turn and the permission of its user again. run sets it.
	recheck *time.Ticker
	// last is true once the last entry was sent. closed is true once the Turn was deleted, or isClosed has returned
	// true.
	last, closed bool
}

// lastEntryWait is how long after the end of a Turn a stream waits for the last entry of the journal. The leader waits
// as long for the Turns of sub-agents before it gives up that entry.
const lastEntryWait = time.Hour

func (s *Server) serveJournal(w http.ResponseWriter, r *http.Request, v visit) *Error {
	st := &stream{
		server: s, request: r, key: client.ObjectKeyFromObject(v.turn), uid: string(v.turn.UID), user: v.user,
		out: s.writer(w), namespaces: v.turn.CredentialNamespaces(),
	}
	var refused *Error
	if st.follow, refused = flag(r, "follow"); refused != nil {
		return refused
	}
	if st.follow {
		if st.closed, refused = st.isClosed(r.Context(), v.turn); refused != nil {
			return refused
		}
	}
	hideWords, refused := flag(r, "redact")
	if refused != nil {
		return refused
	}
	if hideWords {
		st.redactor = transcript.NewRedactor()
	}
	if after := r.URL.Query().Get("after"); after != "" {
		var err error
		if st.after, err = strconv.ParseInt(after, 10, 64); err != nil || st.after < 0 {
			return refuse(http.StatusBadRequest, "the parameter after must be the seq of an entry, or 0 for all entries")
		}
	}
	h := w.Header()
	h.Set("Content-Type", "application/jsonl")
	h.Set("X-Content-Type-Options", "nosniff")
	h.Set("Cache-Control", "no-store")
	h.Set(turnUIDHeader, st.uid)
	return st.run(r.Context())
}

// run sends the existing entries. If the client follows the journal, run then sends new entries until the last one, or
// until the journal is closed without it. If a failure ends the stream, run interrupts the connection, so that the
// client notices it. If nothing was sent yet, run returns an error instead.
func (st *stream) run(ctx context.Context) *Error {
	beat, poll := time.NewTicker(st.server.o.Beat), time.NewTicker(st.server.o.Poll)
	defer beat.Stop()
	defer poll.Stop()
	st.recheck = time.NewTicker(st.server.o.Recheck)
	defer st.recheck.Stop()
	if failure := st.resume(ctx); failure != nil {
		return failure
	}
	for {
		closed := st.closed // before the journal is read: only then does the read return all entries of a closed journal
		if failure := st.send(ctx); failure != nil {
			if !st.out.begun {
				return failure
			}
			st.fail(ctx, failure)
		}
		if closed || st.last || !st.follow {
			return nil
		}
		if !st.out.begun { // the client must learn that there are no entries yet
			st.must(st.out.Write([]byte("\n")))
		}
		select {
		case <-ctx.Done():
			panic(http.ErrAbortHandler)
		case <-beat.C:
			st.must(st.out.Write([]byte("\n")))
		case <-st.recheck.C:
			if refused := st.checkAgain(ctx); refused != nil {
				st.fail(ctx, refused)
			}
		case <-poll.C:
		}
	}
}

// fail sends the reason why the stream ends early, and interrupts the connection.
func (st *stream) fail(ctx context.Context, failure *Error) {
	if ctx.Err() == nil {
		st.server.logInternal(st.request, failure)
		st.server.o.Log.V(1).Info("Interrupting a stream", "turn", st.key, "cause", failure.Message)
		if data, err := json.Marshal(failure); err == nil {
			_, _ = st.out.Write(append(data, '\n')) // the connection is interrupted in any case
		}
	}
	panic(http.ErrAbortHandler)
}

// must interrupts the connection if a write to the client has failed.
func (st *stream) must(_ int, err error) {
	if err != nil {
		panic(http.ErrAbortHandler)
	}
}

// checkAgain checks again that the client may read the Turn, and whether the journal is closed.
func (st *stream) checkAgain(ctx context.Context) *Error {
	if _, refused := st.server.check(ctx, st.request, st.key); refused != nil {
		return refused
	}
	t, refused := st.server.turn(ctx, st.key)
	switch {
	case refused != nil && refused.Status == http.StatusNotFound:
		st.closed = true
		return nil
	case refused != nil:
		return refused
	case string(t.UID) != st.uid: // the Turn was deleted, and another one has its name
		st.closed = true
		return nil
	}
	st.closed, refused = st.isClosed(ctx, t)
	return refused
}

// isClosed reports whether a stream must not wait for more entries of a Turn's journal, even if the last entry is
// missing.
//
//  1. A Turn that has not finished may get entries. A Turn that was never bound gets none.
//  2. An executor writes the last entry before the status shows the end. For a Turn that ended without an executor, the
//     leader adds that entry later, at the latest together with the record of the Turn. If the journal cannot be used,
//     the leader adds only the record. So a Turn that has a record gets no more entries.
//  3. A record may never appear, for example because its retention is 0. So the wait ends after lastEntryWait.
func (st *stream) isClosed(ctx context.Context, t *v1alpha1.Turn) (bool, *Error) {
	o, ended := &st.server.o, t.Status.CompletionTime
	switch {
	case !t.IsFinished():
		return false, nil
	case t.Status.Executor == nil || ended == nil || o.Now().Sub(ended.Time) > lastEntryWait:
		return true, nil
	case o.Records == nil:
		return false, nil
	}
	ctx, cancel := context.WithTimeout(ctx, getTimeout)
	defer cancel()
	unrecorded, err := o.Records.Unrecorded(ctx, []string{st.uid})
	if err != nil {
		return false, failureOf(err)
	}
	return len(unrecorded) == 0, nil
}

// resume sets last if the client already has the last entry of the journal.
func (st *stream) resume(ctx context.Context) *Error {
	if st.after == 0 {
		return nil
	}
	for e, err := range st.server.o.Journal.Read(ctx, st.uid, st.after-1) {
		if err != nil {
			return failureOf(err)
		}
		st.last = e.Seq == st.after && isLast(e.Kind)
		break
	}
	return nil
}

// send sends the new entries. While it sends a long journal, it checks at intervals that the client may still read
// it.
func (st *stream) send(ctx context.Context) *Error {
	for e, err := range st.server.o.Journal.Read(ctx, st.uid, st.after) {
		if err != nil {
			return failureOf(err)
		}
		select {
		case <-st.recheck.C:
			if refused := st.checkAgain(ctx); refused != nil {
				return refused
			}
		default:
		}
		if failure := st.sendOne(ctx, e); failure != nil {
			return failure
		}
		st.after = e.Seq
		st.last = isLast(e.Kind)
	}
	return nil
}

// isLast reports whether a journal with an entry of this kind has its last entry. The last entry about the Turn itself
// is finalized. Only entries about calls of the Turn that other Turns undo may follow.
func isLast(k journal.Kind) bool {
	return k == journal.Finalized || k == journal.UndoBegun || k == journal.UndoEnded
}

// sendOne sends one entry. Entries with an artifact may be large, so only a few of them are sent at the same time, and
// the client must read each within a time limit.
func (st *stream) sendOne(ctx context.Context, e journal.Entry) *Error {
	large := e.Artifact != "" || turn.NeedsExpand(e)
	if large {
		release, refused := st.server.hold(ctx, st.key.Namespace, st.user)
		if refused != nil {
			return refused
		}
		defer release()
	}
	data, failure := st.line(ctx, e)
	if failure != nil {
		return failure
	}
	if large {
		st.out.limit = deadlineIn(largeTime(len(data)))
		defer func() { st.out.limit = time.Time{} }()
	}
	st.must(st.out.Write(data))
	return nil
}

// line returns the line for an entry.
func (st *stream) line(ctx context.Context, e journal.Entry) ([]byte, *Error) {
	if err := journal.LoadPayload(ctx, st.server.o.Journal, st.uid, &e); err != nil {
		return nil, failureOf(err)
	}
	var err error
	if e, err = turn.Expand(ctx, st.server.o.Journal, e); err != nil {
		return nil, failureOf(err)
	}
	e.Payload = redact.JSON(e.Payload, st.server.o.Credentials.RedactFunc(st.namespaces...))
	if st.redactor != nil {
		if e, err = st.redactor.Redact(e); err != nil {
			return nil, refuse(http.StatusInternalServerError, "%s", err)
		}
	}
	data, err := Marshal(e)
	if err != nil {
		return nil, refuse(http.StatusInternalServerError, "%s", err)
	}
	return append(data, '\n'), nil
}

// writer sends each write immediately, in pieces. The client must accept each piece within a time limit.
type writer struct {
	to      http.ResponseWriter
	control *http.ResponseController
	// deadline returns the time by which the next piece must be sent. limit is the time by which all pieces must be
	// sent; zero means no limit.
	deadline func() time.Time
	limit    time.Time
	// begun reports whether anything was written.
	begun bool
}

// deadlineIn returns a deadline of a connection. Connections compare their deadlines with the clock of the machine,
// from which the time of Options.Now may differ: in a manager it is the time of the API server.
func deadlineIn(d time.Duration) time.Time {
	return time.Now().Add(d) //nolint:forbidigo // the clock of the connections
}

func (s *Server) writer(w http.ResponseWriter) *writer {
	return &writer{
		to: w, control: http.NewResponseController(w),
		deadline: func() time.Time { return deadlineIn(s.o.WriteTimeout) },
	}
}

// pieceBytes is the maximum size of a piece.
const pieceBytes = 256 << 10

// Write sends data.
func (w *writer) Write(data []byte) (int, error) {
	sent := 0
	w.begun = true
	for len(data) > 0 {
		piece := data[:min(len(data), pieceBytes)]
		deadline := w.deadline()
		if !w.limit.IsZero() && w.limit.Before(deadline) {
			deadline = w.limit
		}
		if err := w.control.SetWriteDeadline(deadline); err != nil {
			return sent, err
		}
		n, err := w.to.Write(piece)
		sent += n
		if err != nil {
			return sent, err
		}
		if err := w.control.Flush(); err != nil {
			return sent, err
		}
		data = data[len(piece):]
	}
	return sent, nil
}
