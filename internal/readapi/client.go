package readapi

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"iter"
	"mime"
	"net/http"
	"net/url"
	"strconv"
	"time"

	"github.com/capstan-dev/capstan/internal/onclose"
	"github.com/capstan-dev/capstan/internal/runtime/journal"
)

// ErrBroken means that the connection broke before the journal ended. A new query that starts after the last entry
// returns the rest, from this server or another one.
var ErrBroken = errors.New("the connection broke")

// silence is the time without data after which a stream counts as broken. A server sends something more often. It is
// also the maximum time to the head of the answer to a request for a journal or an artifact: another server may have
// them if this one hangs.
const silence = time.Minute

// errSilent is the error for a server that has not begun its answer in time.
var errSilent = fmt.Errorf("no answer within %s", silence)

// maxRefusal is the maximum number of bytes that are read from the body of a response with an error status.
const maxRefusal = 64 << 10

// Client sends requests to a Server.
type Client struct {
	base *url.URL
	http *http.Client
}

// NewClient returns a client of the server with the given URL, which CheckServer must allow. transport adds the
// bearer token.
func NewClient(server string, transport http.RoundTripper) (*Client, error) {
	if err := CheckServer(server); err != nil {
		return nil, err
	}
	base, err := url.Parse(server)
	if err != nil {
		return nil, err
	}
	return &Client{base: base, http: &http.Client{
		Transport: transport,
		// The token is for this server only, so redirects are not followed.
		CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse },
	}}, nil
}

// Query selects a journal and the part of it to return.
type Query struct {
	// Namespace and Name identify the Turn.
	Namespace, Name string
	// After is the sequence number of the last known entry, or 0 if no entry is known.
	After int64
	// Follow makes the stream wait for new entries until the Turn has ended and its journal gets no more entries.
	Follow bool
	// Redact leaves out the words of the conversation.
	Redact bool
	// Opened is called when the server has begun to answer, before the first entry. turnUID is empty if the server does
	// not send it. If Opened returns an error, the journal ends with that error. Opened may be nil.
	Opened func(turnUID string) error
}

// Journal returns the entries of a Turn's journal in order, with their payloads. It stops after the first error. The
// error is an *Error from the server, wraps ErrBroken, comes from Opened, or says that the URL is not that of a read
// API.
func (c *Client) Journal(ctx context.Context, q Query) iter.Seq2[journal.Entry, error] {
	return func(yield func(journal.Entry, error) bool) {
		ctx, cancel := context.WithCancel(ctx)
		defer cancel()
		response, err := c.get(ctx, q.Namespace, q.Name, "journal", url.Values{
			"after": {strconv.FormatInt(q.After, 10)}, "follow": {strconv.FormatBool(q.Follow)}, "redact": {strconv.FormatBool(q.Redact)},
		}, "application/jsonl")
		if err != nil {
			yield(journal.Entry{}, err)
			return
		}
		defer response.Body.Close() //nolint:errcheck // because the rest of the body does not matter
		if q.Opened != nil {
			if err := q.Opened(response.Header.Get(turnUIDHeader)); err != nil {
				yield(journal.Entry{}, err)
				return
			}
		}
		lines := json.NewDecoder(withSilenceTimeout(response.Body, cancel))
		for {
			var next struct {
				line
				Error
			}
			err := lines.Decode(&next)
			switch {
			case errors.Is(err, io.EOF):
				return
			case err != nil:
				yield(journal.Entry{}, fmt.Errorf("%w: %w", ErrBroken, err))
				return
			case next.Status != 0:
				yield(journal.Entry{}, &next.Error)
				return
			}
			if !yield(next.entry(), nil) {
				return
			}
		}
	}
}

// Artifact returns the content of an artifact of a Turn's journal. The caller must close it. If the connection breaks
// while the content is read, the error wraps ErrBroken.
func (c *Client) Artifact(ctx context.Context, namespace, name, sha256 string) (io.ReadCloser, error) {
	response, err := c.get(ctx, namespace, name, "artifacts/"+url.PathEscape(sha256), nil, "application/octet-stream")
	if err != nil {
		return nil, err
	}
	response.Body = breakable{response.Body}
	return response.Body, nil
}

// breakable is the body of a response. Its errors wrap ErrBroken, except for the end of the body.
type breakable struct{ io.ReadCloser }

func (b breakable) Read(p []byte) (int, error) {
	n, err := b.ReadCloser.Read(p)
	if err != nil && !errors.Is(err, io.EOF) {
		err = fmt.Errorf("%w: %w", ErrBroken, err)
	}
	return n, err
}

// get requests a journal or an artifact. The caller must close the body of the response.
func (c *Client) get(ctx context.Context, namespace, name, path string, q url.Values, mediaType string) (*http.Response, error) {
	u := c.base.JoinPath("v1", "namespaces", url.PathEscape(namespace), "turns", url.PathEscape(name), path)
	u.RawQuery = q.Encode()
	ctx, cancel := context.WithCancelCause(ctx)
	r, err := http.NewRequestWithContext(ctx, http.MethodGet, u.String(), http.NoBody)
	if err != nil {
		cancel(nil)
		return nil, fmt.Errorf("failed to create the request: %w", err)
	}
	limit := time.AfterFunc(silence, func() { cancel(errSilent) })
	response, err := c.http.Do(r)
	limit.Stop()
	if err != nil {
		if errors.Is(context.Cause(ctx), errSilent) {
			err = errSilent
		}
		cancel(nil)
		return nil, fmt.Errorf("%w: %w", ErrBroken, err)
	}
	response.Body = onclose.Body(response.Body, func() { cancel(nil) })
	kind, _, _ := mime.ParseMediaType(response.Header.Get("Content-Type"))
	if response.StatusCode == http.StatusOK && kind == mediaType {
		return response, nil
	}
	return nil, c.refusal(response)
}

// refusal returns the error that a server sent instead of the requested data, and closes the response.
func (c *Client) refusal(response *http.Response) error {
	defer response.Body.Close() //nolint:errcheck // because only the refusal matters
	var e Error
	data, err := io.ReadAll(io.LimitReader(response.Body, maxRefusal))
	if err != nil || json.Unmarshal(data, &e) != nil || e.Message == "" {
		switch response.StatusCode {
		case http.StatusBadGateway, http.StatusServiceUnavailable, http.StatusGatewayTimeout: // proxies send these for a while
			return fmt.Errorf("%w: %s answered %q instead of a journal: a proxy in front of it may not reach it", ErrBroken, c.base.Host,
				response.Status)
		}
		return fmt.Errorf("%s answered %q instead of a journal: it is not a read API of Capstan, or a proxy in between has answered",
			c.base.Host, response.Status)
	}
	e.Status = response.StatusCode
	return &e
}

// withSilenceTimeout returns a reader that calls giveUp when a read gets no data for the time silence.
func withSilenceTimeout(r io.Reader, giveUp func()) io.Reader {
	return &guarded{r: r, timer: time.AfterFunc(silence, giveUp)}
}

type guarded struct {
	r     io.Reader
	timer *time.Timer
}

// Read reads, and restarts the timer.
func (g *guarded) Read(p []byte) (int, error) {
	g.timer.Reset(silence)
	n, err := g.r.Read(p)
	g.timer.Stop()
	return n, err
}
