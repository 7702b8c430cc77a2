package netpolicy

import (
	"errors"
	"net"
	"syscall"
	"testing"
	"testing/synctest"
	"time"
)

// TestWatchedConn checks when a connection ends because of a silent peer. Time is virtual.
func TestWatchedConn(t *testing.T) {
	for name, tc := range map[string]struct {
		reason string
		silent []bool // the results of the checks; after the last check the peer answers
		ends   int    // the number of the check that ends the connection, or 0 if no check does
	}{
		"gone":             {"two checks in a row find the peer silent", []bool{false, true, true}, 3},
		"a late answer":    {"an acknowledgement was still on its way", []bool{true, false, true, false}, 0},
		"it reads nothing": {"the peer acknowledges all data", make([]bool, 100), 0},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				client, server := net.Pipe()
				defer client.Close() //nolint:errcheck // because the test is over
				defer server.Close() //nolint:errcheck // likewise
				checks, answers := 0, make(chan struct{})
				c := &watchedConn{Conn: client, watch: usualWatch, closed: func() {}, isSilent: func() bool {
					checks++
					if checks == len(tc.silent) {
						close(answers)
					}
					return tc.silent[checks-1]
				}}
				go func() {
					<-answers
					_, _ = server.Write([]byte("x")) // the pipe may be closed
				}()
				begin := time.Now()
				n, err := c.Read(make([]byte, 9))
				took := time.Since(begin)
				if tc.ends == 0 && (err != nil || n != 1) {
					t.Errorf("Read = %d, %v after %s; want the answer: %s", n, err, took, tc.reason)
				}
				if tc.ends > 0 && (!errors.Is(err, syscall.ETIMEDOUT) || took != time.Duration(tc.ends)*usualWatch.every) {
					t.Errorf("Read = %v after %s, want a timeout at check %d: %s", err, took, tc.ends, tc.reason)
				}
			})
		})
	}
}
