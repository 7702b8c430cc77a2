package mcp

import (
	"context"
	"time"
)

// lastWord is how much longer than it may take a connection is waited for that is being made: it knows why it took too long.
const lastWord = 250 * time.Millisecond

// Tools returns what the server offers, asked within maxAge, connecting if need be. Where that fails it returns an *Error, and beside it what was known before, nil for nothing.
func (c *Client) Tools(ctx context.Context, maxAge time.Duration) (*Listing, error) {
	known, enough, err := c.enough(maxAge)
	if enough {
		return known, err
	}
	defer c.asked()
	l, err := c.ask(ctx, true)
	if err != nil {
		return known, err
	}
	return l, nil
}

// enough says whether what is known is not to be asked for again: it is fresh, somebody asks just now, or the server could not be
// asked a moment ago. If it is not enough, the caller asks, and tells asked when that is over.
func (c *Client) enough(maxAge time.Duration) (known *Listing, enough bool, err error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	now := c.cfg.Now()
	connected := c.session != nil && !c.session.lost.Load()
	switch {
	case c.listing == nil:
	case connected && !c.listed.IsZero() && now.Sub(c.listed) < maxAge, c.asking > 0:
		return c.listing, true, nil
	case now.Before(c.retryAt):
		return c.listing, true, c.failed
	}
	c.asking++
	return c.listing, false, nil
}

func (c *Client) asked() {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.asking--
}

// Discover asks the server now, connecting if need be, also when it could not be reached a moment ago. The error is an *Error.
func (c *Client) Discover(ctx context.Context) (*Listing, error) { return c.ask(ctx, false) }

// ask asks the server for its tools. A session that the server has ended is made anew, once.
func (c *Client) ask(ctx context.Context, patience bool) (*Listing, error) {
	done, err := c.use()
	if err != nil {
		return nil, c.discovery(ctx, err)
	}
	defer done()
	ctx = c.inTurn(ctx)
	caller := ctx
	ctx, cancel := context.WithTimeout(caller, c.cfg.ConnectTimeout)
	defer cancel()
	connecting, cancel := context.WithTimeout(caller, c.cfg.ConnectTimeout+lastWord)
	defer cancel()
	for again := true; ; again = false {
		s, made, err := c.connected(connecting, patience)
		if err != nil {
			return nil, c.discovery(ctx, err)
		}
		if made {
			return c.Known(), nil
		}
		l, err := c.list(ctx, s)
		switch {
		case err == nil:
			return c.keep(l), nil
		case s.lost.Load() && again:
			c.drop(s)
		default:
			failed := c.discovery(ctx, err)
			if caller.Err() == nil {
				c.putOff(failed)
			}
			return nil, failed
		}
	}
}

// keep takes note of a list, and tells of it if it is another than before. It returns the one to use: of two that are alike, the
// first, so that what is made of it can be used again.
func (c *Client) keep(l *Listing) *Listing {
	c.mu.Lock()
	known := c.listing
	c.failed, c.retryAt = nil, time.Time{}
	c.pause.Reset()
	if c.listed = c.cfg.Now(); known != nil && known.hash == l.hash {
		c.mu.Unlock()
		return known
	}
	c.listing = l
	c.mu.Unlock()
	if known != nil && c.cfg.OnChange != nil {
		c.cfg.OnChange()
	}
	return l
}

// Known is what the server was last known to offer; nil for nothing.
func (c *Client) Known() *Listing {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.listing
}

// noteChange is told that the tools may have changed.
func (c *Client) noteChange() {
	select {
	case c.changed <- struct{}{}:
	default: // it is known already
	}
}

// watch asks for the tools when the server has said that they have changed, until the client ends. It is not a use: a client
// that nobody uses rests all the same.
func (c *Client) watch() {
	var pace settling
	for {
		select {
		case <-c.changed:
		case <-c.life.Done():
			return
		}
		timer := time.NewTimer(pace.next(c.cfg.Now()))
		select {
		case <-timer.C:
		case <-c.life.Done():
			timer.Stop()
			return
		}
		select {
		case <-c.changed: // more of the same
		default:
		}
		c.refresh()
		pace.asked = c.cfg.Now()
	}
}

// settling is how long a server is left alone after it said that its tools have changed: the longer, the more often it says so
// just after it was asked.
type settling struct {
	asked time.Time // when it was last asked
	wait  time.Duration
}

// next returns how long to wait after a change that became known at a time: from settle to maxSettle.
func (s *settling) next(now time.Time) time.Duration {
	if s.wait == 0 || now.Sub(s.asked) > 2*s.wait {
		s.wait = settle
	} else {
		s.wait = min(2*s.wait, maxSettle)
	}
	return s.wait
}

// refresh asks for the tools in the session that there is. If it cannot have them, the next who wants them asks.
func (c *Client) refresh() {
	c.mu.Lock()
	s := c.session
	c.listed = time.Time{}
	c.mu.Unlock()
	if s == nil || s.lost.Load() {
		return
	}
	ctx, cancel := context.WithTimeout(c.life, c.cfg.ConnectTimeout)
	defer cancel()
	l, err := c.list(ctx, s)
	if err != nil {
		c.cfg.Log.V(1).Info("Failed to list the tools that have changed", "reason", c.discovery(ctx, err).Error())
		return
	}
	c.keep(l)
}
