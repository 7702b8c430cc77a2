package mcp_test

import (
	"strings"
	"testing"
	"time"

	"github.com/capstan-dev/capstan/internal/fairgate"
	"github.com/capstan-dev/capstan/internal/mcp"
)

// TestLargeAnswersTakeTurns: what takes a processor long waits while others are busy with such work, and what is short does not.
func TestLargeAnswersTakeTurns(t *testing.T) {
	long := strings.Repeat("x", 1<<20)
	s := serve(t, nil, says("long", long), says("short", "hello"))
	gate := fairgate.New(1, 1)
	c := client(t, s.URL, func(cfg *mcp.Config) { cfg.Processors, cfg.Namespace = gate, "team" })
	if err := gate.Enter(t.Context(), "others"); err != nil {
		t.Fatal(err)
	}
	if got, err := call(patient(t), c, "short", `{}`); err != nil || got != "hello" {
		t.Errorf("Call = %q, %v; want what is short at once", got, err)
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
		t.Errorf("the call has given %d bytes, want it to wait for its turn", len(got))
	case <-time.After(300 * time.Millisecond):
	}
	gate.Leave("others")
	if got := <-ended; got != long {
		t.Errorf("the call has given %d bytes, want %d", len(got), len(long))
	}
	if err := gate.Enter(t.Context(), "others"); err != nil {
		t.Error("the gate must be free again")
	}
}
