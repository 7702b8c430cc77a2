package endpoint

import (
	"context"
	"net"
)

// DialWith sets the function that opens the connections of the provider.
func (p *Provider) DialWith(dial func(ctx context.Context, network, address string) (net.Conn, error)) {
	p.transport.DialContext = dial
}
