package postgres

import (
	"context"
	"net"
	"time"
)

// silence bounds how long a connection stays in use while the server's machine gives no sign of life, as after the loss of its
// power or its network. Calls have time-outs of their own; this one ends the connection of a read before its minute is over.
const silence = 15 * time.Second

// dial connects to a server.
func dial(ctx context.Context, network, address string) (net.Conn, error) {
	d := net.Dialer{
		KeepAliveConfig: net.KeepAliveConfig{Enable: true, Idle: silence / 3, Interval: silence / 3, Count: 2},
		Control:         acknowledge,
	}
	return d.DialContext(ctx, network, address)
}
