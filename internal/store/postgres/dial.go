package postgres

import (
	"context"
	"net"
	"time"

	"github.com/capstan-dev/capstan/internal/netpolicy"
)

// maxSilence is how long a connection stays in use while the server's machine acknowledges nothing, for example after a
// loss of power or network. Calls have their own timeouts, but a read would wait for a minute without this limit.
const maxSilence = 15 * time.Second

// Both sides send up to keepAlives keep-alives, keepAlive apart, to a side that has sent nothing for so long. After
// maxSilence, they close the connection.
const (
	keepAlives = 2
	keepAlive  = maxSilence / (keepAlives + 1)
)

// dial connects to a server. The error is a *netpolicy.Shortage if this process or its machine has no resources for a
// connection.
func dial(ctx context.Context, network, address string) (net.Conn, error) {
	d := net.Dialer{
		KeepAliveConfig: net.KeepAliveConfig{Enable: true, Idle: keepAlive, Interval: keepAlive, Count: keepAlives},
		Control:         limitUnacknowledged,
	}
	conn, err := d.DialContext(ctx, network, address)
	return conn, netpolicy.WithShortage(err)
}
