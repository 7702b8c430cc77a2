package mcp_test

import (
	"fmt"
	"net/http"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	sdk "github.com/modelcontextprotocol/go-sdk/mcp"

	"github.com/capstan-dev/capstan/internal/mcp"
)

const listen = "subscriptions/listen"

// TestServerNeedsNotListen checks that calls succeed with the newer protocol even if the server never responds to the
// request for notifications, or refuses it.
func TestServerNeedsNotListen(t *testing.T) {
	for name, handle := range map[string]func(http.ResponseWriter, *http.Request){
		"silent":  func(_ http.ResponseWriter, r *http.Request) { <-r.Context().Done() },
		"hung up": hangUp, "404": answer(404, "text/plain", "no such page"), "202": answer(202, "", ""), "503": answer(503, "", ""),
		"error": answer(200, jsonType, `{"jsonrpc":"2.0","id":2,"error":{"code":-32601,"message":"unknown method"}}`),
	} {
		t.Run(name, func(t *testing.T) {
			s := serve(t, &sdk.StreamableHTTPOptions{Stateless: true}, says("a", "1"))
			asked := make(chan struct{}, 10)
			s.tamper(newerOnly(func(w http.ResponseWriter, r *http.Request, m message) bool {
				if m.Method != listen {
					return false
				}
				asked <- struct{}{}
				handle(w, r)
				return true
			}))
			c := client(t, s.URL, func(cfg *mcp.Config) { cfg.ConnectTimeout = 5 * time.Second })
			if l, err := c.Discover(patient(t)); err != nil || l.ProtocolVersion != "2026-07-28" {
				t.Fatalf("Discover = %+v, %v; want the list, with the newer protocol", l, err)
			}
			<-asked
			if got, err := call(patient(t), c, "a", `{}`); err != nil || got != "1" {
				t.Errorf("Call = %q, %v; want success: the server need not send notifications", got, err)
			}
		})
	}
}

// TestChangesWithNewerProtocol checks that the client notices a change of the tools whatever else the server sends in
// its stream of notifications, which takes no memory: large events, and events that are too large to be read, after
// which the stream is opened again.
func TestChangesWithNewerProtocol(t *testing.T) {
	event := func(message string) string { return "data: " + message + "\n\n" }
	log := func(length int) string {
		return event(`{"jsonrpc":"2.0","method":"notifications/message","params":{"data":"` + strings.Repeat("n", length) + `"}}`)
	}
	acknowledged := event(`{"jsonrpc":"2.0","method":"notifications/subscriptions/acknowledged","params":{"notifications":{}}}`)
	change := event(`{"jsonrpc":"2.0","method":"notifications/tools/list_changed"}`)
	for name, stream := range map[string]string{
		"a change":        change,
		"large event":     log(60<<10) + change,
		"many events":     strings.Repeat(log(10<<10), 1000) + change,
		"too large event": log(mcp.MaxResponseBytes),
		"end":             event(`{"jsonrpc":"2.0","id":2,"result":{}}`),
		"broken":          "data: {",
	} {
		t.Run(name, func(t *testing.T) {
			s := serve(t, &sdk.StreamableHTTPOptions{Stateless: true}, says("a", "1"))
			var begun atomic.Bool
			listed, changes := make(chan struct{}), make(chan struct{}, 10)
			s.tamper(newerOnly(func(w http.ResponseWriter, r *http.Request, m message) bool {
				if m.Method != listen || !begun.CompareAndSwap(false, true) {
					return false
				}
				select {
				case <-listed:
				case <-r.Context().Done():
				}
				says("b", "2")(s.Server)
				answer(200, events, acknowledged+stream)(w, r)
				return true
			}))
			c := client(t, s.URL, func(cfg *mcp.Config) { cfg.OnChange = func() { changes <- struct{}{} } })
			if got := fmt.Sprint(namesOf(t, c)); got != "[a]" {
				t.Fatalf("the server has the tools %s, want a", got)
			}
			close(listed)
			select {
			case <-changes:
			case <-patient(t).Done():
				t.Fatal("OnChange was not called")
			}
			if l := c.Known(); len(l.Tools) != 2 {
				t.Errorf("%d tools are known, want both", len(l.Tools))
			}
		})
	}
}
