package mcp_test

import (
	"context"
	"strings"
	"testing"

	"github.com/capstan-dev/capstan/internal/bytebudget"
	"github.com/capstan-dev/capstan/internal/mcp"
)

// TestTheCallerPaysForAResult checks that the memory for a large result is reserved for the namespace that calls, and
// not for that of a shared ToolServer.
func TestTheCallerPaysForAResult(t *testing.T) {
	s := serve(t, nil, says("look", strings.Repeat("x", 2*bytebudget.MaxContent)))
	b := bytebudget.New(1<<20, 16*mcp.MaxResponseBytes)
	owner := b.Account("owner", bytebudget.Results)
	held, err := owner.Reserve(t.Context(), owner.MaxReservation())
	if err != nil {
		t.Fatal(err)
	}
	defer held.Release()
	c := client(t, s.URL, func(cfg *mcp.Config) { cfg.Memory = owner })
	if _, err := call(bytebudget.WithPayer(patient(t), "team"), c, "look", "{}"); err != nil {
		t.Errorf("a call of another namespace waits for the memory of the owner: %v", err)
	}
	ctx, cancel := context.WithCancel(patient(t))
	ended := make(chan error, 1)
	go func() {
		_, err := call(ctx, c, "look", "{}")
		ended <- err
	}()
	eventually(t, "the call of the owner to wait for memory", func() bool { return b.Use(bytebudget.Results).Waiting == 1 })
	cancel()
	if err := <-ended; err == nil {
		t.Error("the call of the owner has succeeded, though it was cancelled while it waited for memory")
	}
}
