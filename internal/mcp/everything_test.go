package mcp_test

import (
	"context"
	"strings"
	"testing"
	"time"

	"github.com/capstan-dev/capstan/internal/mcp"
	"github.com/capstan-dev/capstan/internal/mcp/everythingtest"
	"github.com/capstan-dev/capstan/internal/runtime/tool"
)

// TestEverything checks lists and calls with the reference server, an independent implementation.
func TestEverything(t *testing.T) {
	server := everythingtest.Start(t)
	changes := make(chan struct{}, 10)
	c := client(t, server.URL, func(cfg *mcp.Config) { cfg.OnChange = func() { changes <- struct{}{} } })
	l, err := c.Discover(patient(t))
	if err != nil {
		t.Fatal(err)
	}
	if l.ServerName != "mcp-servers/everything" || l.ServerVersion == "" || l.ProtocolVersion != "2025-11-25" {
		t.Errorf("server %q %q, protocol %q", l.ServerName, l.ServerVersion, l.ProtocolVersion)
	}
	known := map[string]mcp.Tool{}
	for _, found := range l.Tools {
		known[found.Name] = found
	}
	if sum := known["get-sum"]; sum.Description == "" || !strings.Contains(string(sum.Schema), `"a"`) ||
		tool.ResolveEffect("", sum.Hints) != tool.Destructive {
		t.Errorf("get-sum = %+v", sum)
	}
	for name := range known {
		for _, asks := range []string{"sampling", "elicitation", "roots"} {
			if strings.Contains(name, asks) {
				t.Errorf("the server offers %q, which is only for clients that serve such requests", name)
			}
		}
	}
	for name, tc := range map[string]struct {
		tool, arguments string
		want            []string
	}{
		"echo":  {"echo", `{"message":"hello"}`, []string{"Echo: hello"}},
		"sum":   {"get-sum", `{"a":40,"b":2}`, []string{"The sum of 40 and 2 is 42."}},
		"image": {"get-tiny-image", `{}`, []string{"[image/png, ", " bytes]"}},
		"annotated": {
			"get-annotated-message", `{"messageType":"error","includeImage":true}`,
			[]string{"Error: Operation failed\n[image/png, "},
		},
		"structured": {"get-structured-content", `{"location":"Chicago"}`, []string{`"temperature":`}},
		"links": {
			"get-resource-links", `{"count":2}`,
			[]string{"Here are 2 resource links", "Blob Resource 1 <demo://resource/", "Text Resource 2 <demo://resource/"},
		},
		"resource": {"get-resource-reference", `{"resourceType":"Text","resourceId":1}`, []string{"demo://resource/"}},
		"long": {
			"trigger-long-running-operation", `{"duration":1,"steps":4}`,
			[]string{"Long running operation completed. Duration: 1 seconds, Steps: 4."},
		},
		"logs in between": {"toggle-simulated-logging", `{}`, []string{"Started simulated"}},
	} {
		t.Run(name, func(t *testing.T) {
			got, err := call(patient(t), c, tc.tool, tc.arguments)
			if err != nil {
				t.Fatal(err)
			}
			for _, want := range tc.want {
				if !strings.Contains(got, want) {
					t.Errorf("%s = %q, want %q in it", tc.tool, got, want)
				}
			}
		})
	}
	for name, tc := range map[string]struct {
		tool, arguments string
		class           tool.Class
	}{
		"unknown tool":  {"no-such-tool", `{}`, tool.Unavailable},
		"bad arguments": {"get-sum", `{"a":"x"}`, tool.InvalidArguments},
	} {
		t.Run(name, func(t *testing.T) {
			_, err := call(patient(t), c, tc.tool, tc.arguments)
			if e := tool.AsError(err); err == nil || e.Class != tc.class {
				t.Errorf("%s = %v, want %s", tc.tool, err, tc.class)
			}
		})
	}
	t.Run("time-out", func(t *testing.T) {
		ctx, cancel := context.WithTimeout(patient(t), 3*time.Second) // enough for the call on a busy machine
		defer cancel()
		_, err := call(ctx, c, "trigger-long-running-operation", `{"duration":60}`)
		if e := tool.AsError(err); err == nil || e.Class != tool.Timeout {
			t.Errorf("a call of 60 s within 3 s = %v, want a timeout", err)
		}
	})
	t.Run("cancel", func(t *testing.T) {
		proxy := server.Proxy(t)
		c := client(t, proxy.URL)
		if _, err := c.Discover(patient(t)); err != nil {
			t.Fatal(err)
		}
		ctx, cancel := context.WithCancel(patient(t))
		defer cancel()
		ended := make(chan error, 1)
		go func() {
			_, err := call(ctx, c, "trigger-long-running-operation", `{"duration":60}`)
			ended <- err
		}()
		proxy.AwaitCall(patient(t), "trigger-long-running-operation")
		cancel()
		err := <-ended
		if e := tool.AsError(err); err == nil || e.Class != tool.OutcomeUnknown {
			t.Errorf("a cancelled call = %v, want an unknown outcome", err)
		}
	})
}

func TestEverythingIsKilledAndRestarted(t *testing.T) {
	server := everythingtest.Start(t)
	fakeClock := &clock{now: time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC)}
	withClock := func(cfg *mcp.Config) { cfg.Now = fakeClock.read }
	// The first client knows when its server is dead, because its connections are refused. The second client uses a
	// proxy, which knows when its call has reached the server.
	proxy := server.Proxy(t)
	c, caller := client(t, server.URL, withClock), client(t, proxy.URL, withClock)
	for _, each := range []*mcp.Client{c, caller} {
		if _, err := each.Discover(patient(t)); err != nil {
			t.Fatal(err)
		}
	}
	broken := make(chan error, 1)
	go func() {
		_, err := call(patient(t), caller, "trigger-long-running-operation", `{"duration":600}`)
		broken <- err
	}()
	proxy.AwaitCall(patient(t), "trigger-long-running-operation")
	if got, err := call(patient(t), c, "echo", `{"message":"before"}`); err != nil || got != "Echo: before" {
		t.Fatalf("Call = %q, %v; want success", got, err)
	}
	server.Kill()
	if e := tool.AsError(<-broken); e.Class != tool.OutcomeUnknown {
		t.Errorf("the call that was in progress = %s %q, want an unknown outcome", e.Class, e.Error())
	}
	if e := failure(t, c, "echo"); e.Class != tool.Unavailable {
		t.Errorf("a call of a dead server = %s %q, want Unavailable: it was not made", e.Class, e.Error())
	}
	server.Resume()
	fakeClock.advance(time.Minute)
	for name, each := range map[string]*mcp.Client{"without a call": c, "with a broken call": caller} {
		if got, err := call(patient(t), each, "echo", `{"message":"again"}`); err != nil || got != "Echo: again" {
			t.Errorf("Call of the client %s = %q, %v; want success in a new session", name, got, err)
		}
	}
}
