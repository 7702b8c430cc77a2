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

	"github.com/capstan-dev/capstan/internal/runtime/journal"
)

// ErrBroken is returned where the connection broke before the journal ended: whoever asks again from the last entry gets the
// rest, there or elsewhere.
var ErrBroken = errors.New("the connection broke")

// silence is how long a stream may be silent before it counts as broken. A server beats more often.
const silence = time.Minute

// maxRefusal bounds what is read of a refusal, in bytes.
const maxRefusal = 64 << 10

// Client reads what a Server serves.
type Client struct {
	base *url.URL
	http *http.Client
}

// NewClient returns a client of a server, whose URL CheckServer must allow. transport adds the bearer token.
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
		// A token is for this server and no other.
		CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse },
	}}, nil
}

// Query says what of which journal is wanted.
type Query struct {
	// Namespace and Name of the Turn.
	Namespace, Name string
	// After is the last entry that is known; 0 for none.
	After int64
	// Follow waits for what is added, until the Turn has ended.
	Follow bool
	// Redact leaves out what was said.
	Redact bool
	// Opened is called once the server has begun to answer, before the first entry, with the UID of the Turn; empty if it does
	// not say. Its error ends the journal. It may be nil.
	Opened func(turnUID string) error
}

// Journal returns the entries of a Turn's journal in order, with their payloads. It stops after an error: an *Error that the
// server gave, or one that is ErrBroken.
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
		defer response.Body.Close() //nolint:errcheck // because nothing that matters is left
		if q.Opened != nil {
			if err := q.Opened(response.Header.Get(turnUIDHeader)); err != nil {
				yield(journal.Entry{}, err)
				return
			}
		}
		lines := json.NewDecoder(wakeful(response.Body, cancel))
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

// Artifact returns the content of an artifact of a Turn's journal. It must be closed.
func (c *Client) Artifact(ctx context.Context, namespace, name, sha256 string) (io.ReadCloser, error) {
	response, err := c.get(ctx, namespace, name, "artifacts/"+url.PathEscape(sha256), nil, "application/octet-stream")
	if err != nil {
		return nil, err
	}
	return response.Body, nil
}

func (c *Client) get(ctx context.Context, namespace, name, what string, q url.Values, wanted string) (*http.Response, error) {
	u := c.base.JoinPath("v1", "namespaces", url.PathEscape(namespace), "turns", url.PathEscape(name), what)
	u.RawQuery = q.Encode()
	r, err := http.NewRequestWithContext(ctx, http.MethodGet, u.String(), http.NoBody)
	if err != nil {
		return nil, fmt.Errorf("failed to make the request: %w", err)
	}
	response, err := c.http.Do(r)
	if err != nil {
		return nil, fmt.Errorf("%w: %w", ErrBroken, err)
	}
	kind, _, _ := mime.ParseMediaType(response.Header.Get("Content-Type"))
	if response.StatusCode == http.StatusOK && kind == wanted {
		return response, nil
	}
	return nil, c.refusal(response)
}

// refusal reads why a server gave no journal, and closes the response.
func (c *Client) refusal(response *http.Response) error {
	defer response.Body.Close() //nolint:errcheck // because the refusal is what matters
	var e Error
	data, err := io.ReadAll(io.LimitReader(response.Body, maxRefusal))
	if err != nil || json.Unmarshal(data, &e) != nil || e.Message == "" {
		return fmt.Errorf("%s answered %q and no journal: it is no read API of Capstan, or there is something between", c.base.Host, response.Status)
	}
	e.Status = response.StatusCode
	return &e
}

// wakeful returns a reader that gives up when there is nothing to read for too long.
func wakeful(r io.Reader, giveUp func()) io.Reader {
	return &guarded{r: r, timer: time.AfterFunc(silence, giveUp)}
}

type guarded struct {
	r     io.Reader
	timer *time.Timer
}

// Read reads, and notes that something came.
func (g *guarded) Read(p []byte) (int, error) {
	g.timer.Reset(silence)
	n, err := g.r.Read(p)
	g.timer.Stop()
	return n, err
}
