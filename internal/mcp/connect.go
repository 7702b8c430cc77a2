package mcp

import (
	"context"
	"encoding/json"
	"errors"
	"net/http"
	"slices"
	"strings"
	"sync/atomic"

	"github.com/modelcontextprotocol/go-sdk/jsonrpc"
	sdk "github.com/modelcontextprotocol/go-sdk/mcp"

	"github.com/capstan-dev/capstan/internal/runtime/tool"
)

// protocol is the newest version of the protocol with sessions and with a single stream for change notifications.
// A server that refuses it gets a second request with another version: see otherVersion.
const protocol = "2025-11-25"

// session is a session of the protocol, from the initialize request to its end.
type session struct {
	*sdk.ClientSession
	// lost is true if the server has ended the session.
	lost atomic.Bool
}

// close waits for requests in progress, and tells the server that the session ends.
func (s *session) close() {
	_ = s.Close() // if this request fails, the server ends the session by itself some time later
}

// connectAttempt is an attempt to connect. Its results are set before done is closed.
type connectAttempt struct {
	done    chan struct{}
	session *session
	err     error
}

// connectedSession returns the session, and connects first if there is none. made reports that the call waited for a
// new connection. Concurrent callers share one attempt. With respectPause, a server that failed is not tried again
// before its pause is over.
//
// If refused is not nil, connectedSession does not return this session, but replaces it. If that fails, the session is
// kept, because the server may know it nevertheless.
func (c *Client) connectedSession(ctx context.Context, respectPause bool, refused *session) (s *session, made bool, err error) {
	c.mu.Lock()
	switch {
	case c.session != nil && c.session != refused && !c.session.lost.Load():
		defer c.mu.Unlock()
		return c.session, false, nil
	case c.closed:
		defer c.mu.Unlock()
		return nil, false, ErrClosed
	case c.connecting != nil:
	case respectPause && c.cfg.Now().Before(c.retryAt):
		defer c.mu.Unlock()
		return nil, false, c.failed
	default:
		if c.session != refused {
			c.dropLocked(c.session)
		}
		c.connecting = &connectAttempt{done: make(chan struct{})}
		c.running.Go(c.connect)
	}
	a := c.connecting
	c.mu.Unlock()
	select {
	case <-a.done:
		return a.session, true, a.err
	case <-ctx.Done():
		return nil, false, context.Cause(ctx)
	}
}

// connect makes the connection for which callers wait.
func (c *Client) connect() {
	ctx, cancel := context.WithTimeout(c.life, c.cfg.ConnectTimeout)
	defer cancel()
	s, listing, err := c.dial(ctx)
	if err != nil {
		err = c.discoveryError(ctx, err)
	}
	c.mu.Lock()
	a := c.connecting
	c.connecting = nil
	a.session, a.err = s, err
	if err != nil {
		c.backOffLocked(err)
	} else {
		if old := c.session; old != nil { // a caller replaces it
			c.running.Go(old.close)
		}
		c.session = s
	}
	ended := c.closed && c.life.Err() != nil
	c.mu.Unlock()
	if err == nil {
		c.keep(listing)
		c.watching.Do(func() { c.running.Go(c.watch) })
		c.running.Go(func() {
			_ = s.Wait() // only the end matters, not its error
			s.lost.Store(true)
		})
		if ended {
			s.close()
		}
	}
	close(a.done)
}

// backOff starts the pause after a failure of the server.
func (c *Client) backOff(cause error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.backOffLocked(cause)
}

func (c *Client) backOffLocked(cause error) {
	if errors.Is(cause, tool.ErrOwnShortage) { // the server may answer as soon as the shortage has passed
		return
	}
	c.failed, c.retryAt = cause, c.cfg.Now().Add(nextPause(c.pause))
}

// dial connects, initializes a session and lists the tools.
func (c *Client) dial(ctx context.Context) (*session, *Listing, error) {
	s := &session{}
	w := &wire{
		client: c.http, url: c.cfg.URL, life: c.life, serverBudget: c.budget, memory: c.cfg.Memory,
		onChange: c.recordChange, onLost: func() { s.lost.Store(true) },
	}
	// The SDK must not retry, because the stream does its own retries. If the SDK's retries failed, the SDK would end
	// the whole connection.
	transport := &sdk.StreamableClientTransport{
		Endpoint: c.cfg.URL, HTTPClient: &http.Client{Transport: w},
		MaxRetries: -1, MaxEventSize: MaxResponseBytes + 1024,
	}
	client := sdk.NewClient(&sdk.Implementation{Name: "capstan", Version: "1"}, &sdk.ClientOptions{
		Capabilities: &sdk.ClientCapabilities{}, MultiRoundTrip: &sdk.MultiRoundTripOptions{Disabled: true},
		// The stream handles this notification. The empty handler makes the SDK subscribe to the notification if the
		// protocol version requires a subscription.
		ToolListChangedHandler: func(context.Context, *sdk.ToolListChangedRequest) {},
	})
	client.AddSendingMiddleware(sendCursor)
	ex, other := &exchange{whole: true}, &exchange{whole: true}
	defer ex.end()
	defer other.end()
	var err error
	s.ClientSession, err = client.Connect(withExchange(ctx, ex), transport, &sdk.ClientSessionOptions{ProtocolVersion: protocol})
	if err != nil && ctx.Err() == nil {
		if options := otherVersion(ex); options != nil {
			s.ClientSession, err = client.Connect(withExchange(ctx, other), transport, options)
		}
	}
	if err != nil {
		return nil, nil, err
	}
	shorten(s.InitializeResult())
	ex.free() // the list may need the memory
	other.free()
	listing, err := c.list(ctx, s)
	if err != nil {
		c.running.Go(s.close) // in the background: the caller must get the error now
		return nil, nil, err
	}
	return s, listing, nil
}

// maxServerInfo is the maximum length of a server's name and of its version, in bytes.
const maxServerInfo = 1 << 10

// shorten removes the unused parts of the response to initialize. The response may have up to MaxResponseBytes, and the
// SDK keeps it until the session ends, long after its memory reservation was released.
func shorten(r *sdk.InitializeResult) {
	if r == nil {
		return
	}
	r.Instructions, r.Meta = "", nil
	if c := r.Capabilities; c != nil {
		c.Experimental, c.Extensions = nil, nil
	}
	if info := r.ServerInfo; info != nil {
		r.ServerInfo = &sdk.Implementation{Name: shortLabel(info.Name), Version: shortLabel(info.Version)}
	}
}

// shortLabel returns a copy of a label, or an empty text if the label is longer than any real one. Cutting the label
// would be wrong: a credential at its end could be cut in two, and its first part would not be recognized.
func shortLabel(label string) string {
	if len(label) > maxServerInfo {
		return ""
	}
	return strings.Clone(label)
}

// otherVersion returns the options for a second attempt, with another version of the protocol, if the server has
// replied that it does not support the first initialize request. If it names the versions that it supports, the newest
// known one of them is used, otherwise a newer version than the first. otherVersion returns nil for any other reply.
func otherVersion(ex *exchange) *sdk.ClientSessionOptions {
	answer, err := ex.decode(nil)
	if err != nil || answer == nil {
		return nil
	}
	var named struct {
		Supported []string `json:"supported"`
	}
	if json.Unmarshal(answer.Data, &named) == nil {
		for _, version := range sdk.SupportedProtocolVersions() { // newest first
			if version != protocol && slices.Contains(named.Supported, version) {
				return &sdk.ClientSessionOptions{ProtocolVersion: version}
			}
		}
	}
	if answer.Code == jsonrpc.CodeMethodNotFound || answer.Code == sdk.CodeUnsupportedProtocolVersion {
		return &sdk.ClientSessionOptions{}
	}
	return nil
}

// drop removes the current session, so that the next caller connects again. Requests in progress continue.
func (c *Client) drop(s *session) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.dropLocked(s)
}

func (c *Client) dropLocked(s *session) {
	if s == nil || c.session != s || c.closed {
		return
	}
	c.session = nil
	c.running.Go(s.close)
}

// isLost reports whether an error means that the session is over, or that the connection was closed before the request
// was sent. If the server has reported the end of the session in its response, it may still have processed the request.
func isLost(err error, ex *exchange) bool {
	return errors.Is(err, errSession) || errors.Is(err, sdk.ErrSessionMissing) || !ex.sent.Load() && errors.Is(err, sdk.ErrConnectionClosed)
}
