//go:build unix

package mcp_test

import (
	"errors"
	"strings"
	"testing"
	"time"

	"github.com/capstan-dev/capstan/internal/mcp"
	"github.com/capstan-dev/capstan/internal/netpolicy/shortagetest"
	"github.com/capstan-dev/capstan/internal/runtime/tool"
)

// TestShortageIsNoFailureOfTheServer checks the errors of calls and lists while this process has no free file
// descriptor, with and without a session, and that the server is used again immediately afterwards.
func TestShortageIsNoFailureOfTheServer(t *testing.T) {
	for name, connected := range map[string]bool{"without a session": false, "with a session": true} {
		t.Run(name, func(t *testing.T) {
			s := serve(t, nil, says("say", "done"))
			s.web.Config.SetKeepAlivesEnabled(false) // so that each request needs a new connection
			now := time.Now()
			c := client(t, s.URL, func(cfg *mcp.Config) { cfg.Now = func() time.Time { return now } }) // no pause would end
			if connected {
				if _, err := call(patient(t), c, "say", `{}`); err != nil {
					t.Fatal(err)
				}
			}
			restore := shortagetest.NoFiles(t)
			_, err := call(patient(t), c, "say", `{}`)
			_, listErr := c.Discover(patient(t))
			restore()
			failure := tool.AsError(err)
			if failure.Class != tool.Unavailable || tool.IsUncertain(err) || !errors.Is(err, tool.ErrOwnShortage) {
				t.Errorf("the call failed with %+v, want an own shortage of the class Unavailable", failure)
			}
			for what, err := range map[string]error{"call": err, "list": listErr} {
				if err == nil || !errors.Is(err, tool.ErrOwnShortage) || !strings.Contains(err.Error(), "ulimit -n") {
					t.Errorf("the error of the %s is %v, want an own shortage with the remedy", what, err)
				}
			}
			if got, err := call(patient(t), c, "say", `{}`); err != nil || got != "done" {
				t.Errorf("after the shortage: %q, %v; want the result", got, err)
			}
		})
	}
}
