// Package serving serves HTTP for the programs fakemodel, toolserver and exampleservers.
package serving

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/http"
	"time"
)

const (
	// headerTimeout bounds the time in which a client must send its headers.
	headerTimeout = 10 * time.Second
	// gracePeriod bounds the wait for unfinished requests after ctx has ended.
	gracePeriod = 5 * time.Second
)

// Listen listens on an address, which is the value of --listen.
func Listen(ctx context.Context, address string) (net.Listener, error) {
	listener, err := new(net.ListenConfig).Listen(ctx, "tcp", address)
	if err != nil {
		return nil, fmt.Errorf("failed to listen on --listen %q: %w", address, err)
	}
	return listener, nil
}

// Serve answers requests until ctx ends. It then closes the listener, and waits up to 5 seconds for unfinished
// requests. If some of them have not ended by then, Serve cuts them off and returns an error.
func Serve(ctx context.Context, listener net.Listener, server *http.Server) error {
	server.ReadHeaderTimeout = headerTimeout
	served := make(chan error, 1)
	go func() { served <- server.Serve(listener) }()
	select {
	case err := <-served:
		return fmt.Errorf("failed to serve: %w", err)
	case <-ctx.Done():
	}
	// ctx has ended, so the grace period needs a context of its own.
	stopping, cancel := context.WithTimeout(context.WithoutCancel(ctx), gracePeriod)
	defer cancel()
	err := server.Shutdown(stopping)
	if errors.Is(err, context.DeadlineExceeded) {
		err = errors.Join(fmt.Errorf("requests have not ended within %s", gracePeriod), server.Close())
	}
	if end := <-served; !errors.Is(end, http.ErrServerClosed) {
		err = errors.Join(err, end)
	}
	if err != nil {
		return fmt.Errorf("failed to stop: %w", err)
	}
	return nil
}
