package postgres

import (
	"context"
	"net"
	"time"
)

// silence is how long a connection stays in use without a sign of life from the server's machine, for example after
// a loss of power or network. Calls have timeouts of their own, but this limit ends the connection of a read before
// the read's timeout of a minute.
const silence = 15 * time.Second

// dial connects to a server.
func dial(ctx context.Context, network, address string) (net.Conn, error) {
	d := net.Dialer{
		KeepAliveConfig: net.KeepAliveConfig{Enable: true, Idle: silence / 3, Interval: silence / 3, Count: 2},
		Control:         limitUnacknowledged,
	}
	return d.DialContext(ctx, network, address)
}
