package manager

import (
	"errors"
	"os"
)

// pingConnections makes clients of this process notice a dead connection to an API server within 5 seconds: they ping
// a connection from which nothing has arrived for 2 seconds, and wait 3 seconds for the answer. All clients of a
// process share one connection, which stays open without a word if the API server's machine dies. By default, client-go
// takes up to 45 seconds to notice it. Until then, no Lease can be renewed, although the other API servers are well.
// The Lease of an executor expires after 10 seconds, and a leader without its Lease stops even earlier.
//
// Variables that are already set keep their values. client-go reads them when it makes its first connection.
func pingConnections() error {
	var errs []error
	for name, seconds := range map[string]string{"HTTP2_READ_IDLE_TIMEOUT_SECONDS": "2", "HTTP2_PING_TIMEOUT_SECONDS": "3"} {
		if _, given := os.LookupEnv(name); !given {
			errs = append(errs, os.Setenv(name, seconds))
		}
	}
	return errors.Join(errs...)
}
