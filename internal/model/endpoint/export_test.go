package endpoint

import (
	"context"
	"net"
)

// DialWith replaces the connections of a provider.
func (p *Provider) DialWith(dial func(ctx context.Context, network, address string) (net.Conn, error)) {
	p.transport.DialContext = dial
}
