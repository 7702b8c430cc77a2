// Package mcp calls the tools of MCP servers over streamable HTTP, on top of github.com/modelcontextprotocol/go-sdk.
//
// The SDK speaks the protocol; what goes over the network passes through package code of its own (wire and stream), which
// bounds what is read, knows whether a call may have reached its server, keeps one failed request from ending the others, and answers what servers
// ask for.
package mcp

import (
	"context"
	"crypto/x509"
	"net/http"
	"strings"
	"sync"
	"time"

	"github.com/cenkalti/backoff/v5"
	"github.com/go-logr/logr"

	"github.com/capstan-dev/capstan/internal/bytebudget"
	"github.com/capstan-dev/capstan/internal/fairgate"
	"github.com/capstan-dev/capstan/internal/netpolicy"
	"github.com/capstan-dev/capstan/internal/redact"
)

const (
	// DefaultIdle is how long a connection is kept without use.
	DefaultIdle = 10 * time.Minute
	// firstBackoff and maxBackoff bound the time in which a server that could not be reached is not tried again.
	firstBackoff = 500 * time.Millisecond
	maxBackoff   = 30 * time.Second
	// settle is how long a server is left alone after it said that its tools have changed: it may say so of each.
	// While changes keep coming, the time doubles up to maxSettle.
	settle    = 300 * time.Millisecond
	maxSettle = 30 * time.Second
	// idleConnection is how long a TCP connection is kept for another request: less than the 5 s of many servers, which
	// otherwise may close it just when a call is written, and then nobody knows what became of the call.
	idleConnection = 4 * time.Second
)

// Config of a connection.
type Config struct {
	// Name of the server, for messages.
	Name string
	// URL of its endpoint.
	URL string
	// Token is sent as a bearer token if it is not empty.
	Token string
	// CredentialsFrom says where the token comes from, for messages, such as `key "token" of Secret "tickets"`.
	CredentialsFrom string
	// Headers are sent with each request.
	Headers []Header
	// Earlier are secrets that requests to the server have carried before. They are kept out of texts like those of now.
	Earlier []string
	// ConnectTimeout bounds a connection from its first packet to the list of tools.
	ConnectTimeout time.Duration
	// Policy says which addresses are connected to; nil for the built-in table.
	Policy *netpolicy.Policy
	// Roots are the certificate authorities that are trusted; nil for the system's.
	Roots *x509.CertPool
	// Memory is what large answers are read into; the zero value is 32 MiB that such clients share.
	Memory bytebudget.Account
	// Listings is what the list of tools is held in; the zero value has no bound.
	Listings bytebudget.Account
	// Processors is passed by the work that large answers are, as work of Namespace; if it is nil, all work at once.
	Processors *fairgate.Gate
	Namespace  string
	// Idle is how long the connection is kept without use; DefaultIdle if 0.
	Idle time.Duration
	// Now is the clock.
	Now func() time.Time
	// Log is told what goes wrong where nobody waits for it.
	Log logr.Logger
	// OnChange is called when the tools of the server are found to differ from what they were; nil tells nobody. It returns
	// soon.
	OnChange func()
	// OnIdle is called when the session has ended because nobody has used the client for the time of Idle; nil tells nobody. It
	// returns soon.
	OnIdle func()
}

// Header is sent with each request.
type Header struct {
	Name, Value string
	// Secret values are kept out of messages and results.
	Secret bool
}

// Secrets returns the credentials among a token, empty for none, and headers.
func Secrets(token string, headers []Header) []string {
	var secrets []string
	if token != "" {
		secrets = append(secrets, token)
	}
	for _, h := range headers {
		if h.Secret {
			secrets = append(secrets, h.Value)
		}
	}
	return secrets
}

// Client is a connection to one server, which all calls share. It connects when it is needed, and again when the connection was
// lost; a server that cannot be reached is tried again after a while that grows to 30 s, and calls in between fail at once. It
// is safe for concurrent use.
type Client struct {
	cfg       Config
	transport *http.Transport
	http      *http.Client
	redactor  *redact.Redactor
	share     *room
	// life ends all requests but the last one of each session, which takes leave.
	life context.Context //nolint:containedctx // because it is the life of the connection, not of a call
	end  context.CancelFunc
	// changed holds a token when the server says that its tools have changed.
	changed  chan struct{}
	watching sync.Once
	// running are the goroutines of the client.
	running sync.WaitGroup

	mu         sync.Mutex
	session    *session
	connecting *attempt
	failed     error
	retryAt    time.Time
	pause      *backoff.ExponentialBackOff
	listing    *Listing
	listed     time.Time
	asking     int // how many ask for the list just now
	uses       int
	idle       *time.Timer
	retired    bool
	closed     bool
	ended      bool
}

// New returns a client. Nothing is sent until it is used. Close or Retire ends it.
func New(cfg Config) *Client {
	if cfg.Idle == 0 {
		cfg.Idle = DefaultIdle
	}
	if cfg.Memory.Most() == 0 {
		cfg.Memory = process
	}
	c := &Client{cfg: cfg, transport: netpolicy.Transport(cfg.Policy, cfg.ConnectTimeout, cfg.Roots), changed: make(chan struct{}, 1), pause: newPause(), share: newRoom()}
	c.transport.IdleConnTimeout = idleConnection
	c.http = &http.Client{Transport: &headers{base: c.transport, cfg: &c.cfg}, CheckRedirect: netpolicy.CheckRedirect}
	c.redactor = redact.New(append(Secrets(cfg.Token, cfg.Headers), cfg.Earlier...)...)
	c.life, c.end = context.WithCancel(c.inTurn(context.Background()))
	return c
}

// inTurn returns a context under which the work on large answers passes Config.Processors.
func (c *Client) inTurn(ctx context.Context) context.Context {
	return fairgate.With(ctx, c.cfg.Processors, c.cfg.Namespace)
}

func newPause() *backoff.ExponentialBackOff {
	b := backoff.NewExponentialBackOff()
	b.InitialInterval, b.MaxInterval = firstBackoff, maxBackoff
	b.Reset()
	return b
}

// nextPause is how long to wait after one more failure.
func nextPause(b *backoff.ExponentialBackOff) time.Duration { return min(b.NextBackOff(), maxBackoff) }

// use says that the client is in use, until the function that it returns is called. It fails once the client was ended.
func (c *Client) use() (done func(), err error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.closed {
		return nil, ErrClosed
	}
	if c.idle != nil {
		c.idle.Stop()
	}
	c.uses++
	return c.unuse, nil
}

func (c *Client) unuse() {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.uses--; c.uses > 0 || c.closed {
		return
	}
	if c.retired {
		c.running.Go(c.finish)
		c.closed = true
		return
	}
	c.idle = time.AfterFunc(c.cfg.Idle, c.rest)
}

// rest ends the session of a client that nobody has used for a while. What is known of the tools stays.
func (c *Client) rest() {
	c.mu.Lock()
	resting := c.uses == 0 && !c.closed
	if resting {
		c.dropLocked(c.session)
	}
	c.mu.Unlock()
	if resting && c.cfg.OnIdle != nil {
		c.cfg.OnIdle()
	}
}

// Retire ends the client when all that it does now is done, and returns at once.
func (c *Client) Retire() {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.retired = true; c.uses == 0 && !c.closed {
		c.closed = true
		c.running.Go(c.finish)
	}
}

// Close ends the client and all that it does, and returns when that has ended.
func (c *Client) Close() {
	c.mu.Lock()
	c.closed = true
	c.mu.Unlock()
	c.finish()
	c.running.Wait()
}

// Ended says whether nothing is left of a client that was retired or closed.
func (c *Client) Ended() bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.ended
}

// finish ends what a closed client has.
func (c *Client) finish() {
	c.end()
	c.mu.Lock()
	if c.idle != nil {
		c.idle.Stop()
	}
	s := c.session
	c.session = nil
	c.mu.Unlock()
	if s != nil {
		s.close()
	}
	c.transport.CloseIdleConnections()
	c.mu.Lock()
	c.ended, c.listing = true, nil // who holds an ended client must not hold its list
	c.mu.Unlock()
}

// isProtocol says whether a header is the protocol's: what it says, only the client knows.
func isProtocol(name string) bool {
	switch name = http.CanonicalHeaderKey(name); name {
	case "Accept", "Accept-Encoding", "Content-Type", "Content-Length", "Transfer-Encoding", http.CanonicalHeaderKey(lastEventIDHeader):
		return true
	}
	return strings.HasPrefix(name, "Mcp-")
}

// headers adds the configured headers to each request.
type headers struct {
	base http.RoundTripper
	cfg  *Config
}

// RoundTrip sends one request.
func (h *headers) RoundTrip(req *http.Request) (*http.Response, error) {
	out := req.Clone(req.Context())
	for _, header := range h.cfg.Headers {
		if isProtocol(header.Name) {
			continue
		}
		out.Header.Set(header.Name, header.Value)
		switch http.CanonicalHeaderKey(header.Name) {
		case "Idempotency-Key", "X-Idempotency-Key":
			out.GetBody = nil // with it, net/http would take any such header for leave to send a call again of its own accord
		}
	}
	if h.cfg.Token != "" {
		out.Header.Set("Authorization", "Bearer "+h.cfg.Token)
	}
	netpolicy.AskPlain(out)
	return h.base.RoundTrip(out)
}
