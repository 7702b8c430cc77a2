package tracing

import (
	"context"
	"net"
	"testing"

	collector "go.opentelemetry.io/proto/otlp/collector/trace/v1"
	"golang.org/x/sys/unix"
	"google.golang.org/grpc"
)

// TestConnectionToADeadCollector checks that Linux gives up a connection to a collector whose machine is lost. Without
// the option, it retransmits data for about 15 minutes.
func TestConnectionToADeadCollector(t *testing.T) {
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	var found []int // the values of the client's sockets
	m := &testCollector{answer: func(context.Context, int) (*collector.ExportTraceServiceResponse, error) {
		for fd := range 4096 {
			peer, err := unix.Getpeername(fd)
			if address, ok := peer.(*unix.SockaddrInet4); err != nil || !ok || address.Port != listener.Addr().(*net.TCPAddr).Port {
				continue
			}
			ms, err := unix.GetsockoptInt(fd, unix.IPPROTO_TCP, unix.TCP_USER_TIMEOUT)
			if err != nil {
				t.Error(err)
			}
			found = append(found, ms)
		}
		return &collector.ExportTraceServiceResponse{}, nil
	}}
	server := grpc.NewServer()
	collector.RegisterTraceServiceServer(server, m)
	ended := make(chan error, 1)
	go func() { ended <- server.Serve(listener) }()
	p := recordTurn(t, map[string]string{
		endpointVariable: "http://" + listener.Addr().String(), protocolVariable: protocolGRPC,
	}, &lines{})
	if err := p.Close(t.Context()); err != nil {
		t.Error(err)
	}
	server.Stop()
	if err := <-ended; err != nil {
		t.Error(err)
	}
	if len(found) != 1 || found[0] != 15_000 {
		t.Errorf("the sockets of the client have the user timeouts %v ms, want one with 15000 ms", found)
	}
}
