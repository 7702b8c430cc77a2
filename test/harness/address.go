package harness

import (
	"context"
	"errors"
	"fmt"
	"net"
	"syscall"
)

// FreeAddress returns an address of 127.0.0.1 with a port that is free now. It does not reserve the port.
func FreeAddress(ctx context.Context) (string, error) {
	listener, err := (&net.ListenConfig{}).Listen(ctx, "tcp", "127.0.0.1:0")
	if err != nil {
		return "", fmt.Errorf("failed to find a free port: %w", err)
	}
	address := listener.Addr().String()
	return address, listener.Close()
}

// checkFree returns an error with advice if another process listens on the address.
func checkFree(ctx context.Context, address string) error {
	listener, err := (&net.ListenConfig{}).Listen(ctx, "tcp", address)
	if errors.Is(err, syscall.EADDRINUSE) {
		_, port, splitErr := net.SplitHostPort(address)
		if splitErr != nil {
			return errors.Join(err, splitErr)
		}
		return fmt.Errorf("%s is taken by another process: see which with \"lsof -i :%s\" and stop it, then try again", address, port)
	}
	if err != nil {
		return fmt.Errorf("cannot listen on %s: %w", address, err)
	}
	return listener.Close()
}
