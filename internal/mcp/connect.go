package mcp

import (
	"context"
	"errors"
	"net/http"
	"sync/atomic"

	"github.com/modelcontextprotocol/go-sdk/jsonrpc"
	sdk "github.com/modelcontextprotocol/go-sdk/mcp"
)

// protocol is the newest version that has sessions and change notifications in one stream. Servers that know only newer ones
// are asked for those.
const protocol = "2025-11-25"

// session is what the protocol calls so: from initialize to its end.
type session struct {
	*sdk.ClientSession
	// lost is true when the server has ended it.
	lost atomic.Bool
}

// close takes leave of the server. What is under way ends before.
func (s *session) close() {
	_ = s.Close() // a server that does not hear it will end the session itself
}

// attempt is a connection that is being made. What it came to is set before done is closed.
type attempt struct {
	done    chan struct{}
	session *session
	err     error
}

// connected returns the session, after connecting if there is none; made says that this call has waited for that. Of all who want one at the same time only one connects. With patience, a server that could not be reached is not tried again before its pause is over.
func (c *Client) connected(ctx context.Context, patience bool) (s *session, made bool, err error) {
	c.mu.Lock()
	switch {
	case c.session != nil && !c.session.lost.Load():
		defer c.mu.Unlock()
		return c.session, false, nil
	case c.closed:
		defer c.mu.Unlock()
		return nil, false, ErrClosed
	case c.connecting != nil:
	case patience && c.cfg.Now().Before(c.retryAt):
		defer c.mu.Unlock()
		return nil, false, c.failed
	default:
		c.dropLocked(c.session)
		c.connecting = &attempt{done: make(chan struct{})}
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

// connect makes the connection that is waited for.
func (c *Client) connect() {
	ctx, cancel := context.WithTimeout(c.life, c.cfg.ConnectTimeout)
	defer cancel()
	s, listing, err := c.dial(ctx)
	if err != nil {
		err = c.discovery(ctx, err)
	}
	c.mu.Lock()
	a := c.connecting
	c.connecting = nil
	a.session, a.err = s, err
	if err != nil {
		c.putOffLocked(err)
	} else {
		c.session = s
	}
	ended := c.closed && c.life.Err() != nil
	c.mu.Unlock()
	if err == nil {
		c.keep(listing)
		c.watching.Do(func() { c.running.Go(c.watch) })
		c.running.Go(func() {
			_ = s.Wait() // that it is over is all that counts
			s.lost.Store(true)
		})
		if ended {
			s.close()
		}
	}
	close(a.done)
}

// putOff has a server left alone for a while, because it could not be used.
func (c *Client) putOff(cause error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.putOffLocked(cause)
}

func (c *Client) putOffLocked(cause error) {
	c.failed, c.retryAt = cause, c.cfg.Now().Add(nextPause(c.pause))
}

// dial connects, greets and lists the tools.
func (c *Client) dial(ctx context.Context) (*session, *Listing, error) {
	s := &session{}
	w := &wire{client: c.http, url: c.cfg.URL, life: c.life, share: c.share, memory: c.cfg.Memory, onChange: c.noteChange, onLost: func() { s.lost.Store(true) }}
	transport := &sdk.StreamableClientTransport{Endpoint: c.cfg.URL, HTTPClient: &http.Client{Transport: w}, MaxRetries: -1, MaxEventSize: MaxResponseBytes + 1024}
	// Retries are those of the stream; the SDK would give the whole connection up after its own.
	client := sdk.NewClient(&sdk.Implementation{Name: "capstan", Version: "1"}, &sdk.ClientOptions{
		Capabilities: &sdk.ClientCapabilities{}, MultiRoundTrip: &sdk.MultiRoundTripOptions{Disabled: true},
		// The stream deals with the notification; the handler makes the SDK subscribe to it where the protocol wants that.
		ToolListChangedHandler: func(context.Context, *sdk.ToolListChangedRequest) {},
	})
	ex, newer := &exchange{whole: true}, &exchange{whole: true}
	defer ex.end()
	defer newer.end()
	var err error
	s.ClientSession, err = client.Connect(withExchange(ctx, ex), transport, &sdk.ClientSessionOptions{ProtocolVersion: protocol})
	if err != nil && ctx.Err() == nil && wantsNewer(ex) {
		s.ClientSession, err = client.Connect(withExchange(ctx, newer), transport, nil)
	}
	if err != nil {
		return nil, nil, err
	}
	ex.free() // the list may need the room
	newer.free()
	listing, err := c.list(ctx, s)
	if err != nil {
		c.running.Go(s.close) // whoever waits is to hear the reason now
		return nil, nil, err
	}
	return s, listing, nil
}

// wantsNewer says whether a server has answered that it does not know the greeting of older versions.
func wantsNewer(ex *exchange) bool {
	answer, err := ex.decode(nil)
	return err == nil && answer != nil && (answer.Code == jsonrpc.CodeMethodNotFound || answer.Code == sdk.CodeUnsupportedProtocolVersion)
}

// drop gives a session up. What is under way in it goes on.
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

// isLost says whether an error means that the session is over, and the request was not taken.
func isLost(err error, ex *exchange) bool {
	return errors.Is(err, errSession) || errors.Is(err, sdk.ErrSessionMissing) || !ex.sent.Load() && errors.Is(err, sdk.ErrConnectionClosed)
}
