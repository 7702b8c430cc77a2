package mcp_test

import (
	"strings"
	"testing"
	"time"

	"github.com/capstan-dev/capstan/internal/fairgate"
	"github.com/capstan-dev/capstan/internal/mcp"
)

// TestLargeResponsesTakeTurns checks that a long response waits while other namespaces use the processors, and that a
// short response does not.
func TestLargeResponsesTakeTurns(t *testing.T) {
	long := strings.Repeat("x", 1<<20)
	s := serve(t, nil, says("long", long), says("short", "hello"))
	processors := fairgate.NewProcessors(1)
	c := client(t, s.URL, func(cfg *mcp.Config) { cfg.Processors, cfg.Namespace = processors, "team" })
	others := processors.With(t.Context(), "others")
	done := fairgate.AcquireProcessor(others, 1<<20)
	if got, err := call(patient(t), c, "short", `{}`); err != nil || got != "hello" {
		t.Errorf("Call = %q, %v; want the short response immediately", got, err)
	}
	ended := make(chan string, 1)
	go func() {
		got, err := call(patient(t), c, "long", `{}`)
		if err != nil {
			t.Errorf("Call: %v", err)
		}
		ended <- got
	}()
	select {
	case got := <-ended:
		t.Errorf("the call returned %d bytes, want it to wait for its turn", len(got))
	case <-time.After(300 * time.Millisecond):
	}
	done()
	if got := <-ended; got != long {
		t.Errorf("the call returned %d bytes, want %d", len(got), len(long))
	}
	fairgate.AcquireProcessor(others, 1<<20)() // it waits forever if the client has not released the processor
}
