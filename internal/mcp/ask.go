package mcp

import (
	"context"
	"time"
)

// connectGrace is how much longer than ConnectTimeout a caller waits for a connection attempt, so that the attempt can
// report why it took too long.
const connectGrace = 250 * time.Millisecond

// Tools returns the tools of the server. It returns the known list if the list is at most maxAge old, or if another
// caller is listing the tools now. Otherwise it lists the tools, and connects if necessary. On failure it returns an
// *Error together with the known list, which is nil if there is none.
func (c *Client) Tools(ctx context.Context, maxAge time.Duration) (*Listing, error) {
	known, ok, err := c.reusable(maxAge)
	if ok {
		return known, err
	}
	defer c.endAsk()
	l, err := c.ask(ctx, true)
	if err != nil {
		return known, err
	}
	return l, nil
}

// reusable returns the known list. ok reports whether the caller must use this list, and err, without a request: the
// list is fresh, another caller is listing the tools now, or the server failed a moment ago. If ok is false, the caller
// must send the request and then call endAsk.
func (c *Client) reusable(maxAge time.Duration) (known *Listing, ok bool, err error) {
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

func (c *Client) endAsk() {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.asking--
}

// Discover lists the tools now, even if the server failed a moment ago. It connects if necessary. The error is an
// *Error.
func (c *Client) Discover(ctx context.Context) (*Listing, error) { return c.ask(ctx, false) }

// ask lists the tools of the server. If the server has ended the session, ask starts a new one, but only once. It also
// does so if the server refuses the request, because servers report an unknown session in many ways, and the request
// has no effect. respectPause has the same meaning as for connectedSession.
func (c *Client) ask(ctx context.Context, respectPause bool) (*Listing, error) {
	done, err := c.use()
	if err != nil {
		return nil, c.discoveryError(ctx, err)
	}
	defer done()
	ctx = c.withProcessors(ctx)
	caller := ctx
	ctx, cancel := context.WithTimeout(caller, c.cfg.ConnectTimeout)
	defer cancel()
	connecting, cancel := context.WithTimeout(caller, c.cfg.ConnectTimeout+connectGrace)
	defer cancel()
	var refused *session
	for firstTry := true; ; firstTry = false {
		s, made, err := c.connectedSession(connecting, respectPause, refused)
		if err != nil {
			return nil, c.discoveryError(ctx, err)
		}
		if made {
			return c.Known(), nil
		}
		l, err := c.list(ctx, s)
		switch {
		case err == nil:
			return c.keep(l), nil
		case s.lost.Load() && firstTry:
			c.drop(s)
		case isRefusal(err) && firstTry:
			refused = s
		default:
			failed := c.discoveryError(ctx, err)
			if caller.Err() == nil {
				c.backOff(failed)
			}
			return nil, failed
		}
	}
}

// keep stores a list, and calls OnChange if it differs from the known list. It returns the list to use: the known one
// if both are equal, so that values derived from it can be reused.
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

// Known returns the last known list of tools, or nil if there is none.
func (c *Client) Known() *Listing {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.listing
}

// recordChange records that the tools may have changed.
func (c *Client) recordChange() {
	select {
	case c.changed <- struct{}{}:
	default: // a change is already recorded
	}
}

// watch lists the tools again each time the server reports a change, until the client ends. These requests do not count
// as use, so the client may become idle.
func (c *Client) watch() {
	var pace changePause
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
		case <-c.changed: // several reports need only one request
		default:
		}
		c.refresh()
		pace.asked = c.cfg.Now()
	}
}

// changePause computes how long to wait after a server has reported a change. The wait grows if the reports keep
// arriving shortly after a request.
type changePause struct {
	asked time.Time // time of the last request
	wait  time.Duration
}

// next returns how long to wait after a change that is reported now. The wait is between settle and maxSettle.
func (p *changePause) next(now time.Time) time.Duration {
	if p.wait == 0 || now.Sub(p.asked) > 2*p.wait {
		p.wait = settle
	} else {
		p.wait = min(2*p.wait, maxSettle)
	}
	return p.wait
}

// refresh lists the tools in the current session. If that fails, the next caller of Tools sends the request again.
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
		c.cfg.Log.V(1).Info("Failed to list the tools that have changed", "reason", c.discoveryError(ctx, err).Error())
		return
	}
	c.keep(l)
}
