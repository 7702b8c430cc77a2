package mcp_test

import (
	"fmt"
	"net/http"
	"runtime"
	"strings"
	"sync/atomic"
	"testing"

	sdk "github.com/modelcontextprotocol/go-sdk/mcp"
)

// newerOnly returns a function for tamper that refuses the initialize request of older versions of the protocol, and
// lets before handle all other requests.
func newerOnly(before func(http.ResponseWriter, *http.Request, message) bool) func(http.ResponseWriter, *http.Request, message) bool {
	return func(w http.ResponseWriter, r *http.Request, m message) bool {
		if m.Method != "initialize" {
			return before(w, r, m)
		}
		answer(404, jsonType, fmt.Sprintf(`{"jsonrpc":"2.0","id":%s,"error":{"code":-32601,"message":"unknown method"}}`, m.ID))(w, r)
		return true
	}
}

// TestCursorsAreNotKept checks that a session with the newer protocol keeps no cursors after a list was read, whose
// server sends long cursors, and new ones each time.
func TestCursorsAreNotKept(t *testing.T) {
	const pages, length, times = 100, 16 << 10, 5
	s := serve(t, &sdk.StreamableHTTPOptions{Stateless: true})
	var page, wrong atomic.Int32
	var want atomic.Value // the cursor of the next page
	want.Store("")
	filler := strings.Repeat("x", length-10)
	s.tamper(newerOnly(lists(func(cursor string) string {
		if cursor != want.Load() {
			wrong.Add(1)
		}
		n, next := page.Add(1), ""
		if n%pages != 0 {
			next = fmt.Sprintf("%010d", n) + filler
		}
		want.Store(next)
		return `{"tools":[{"name":"a"}],"nextCursor":"` + next + `"}`
	})))
	c := client(t, s.URL)
	list := func() (heap int64) {
		t.Helper()
		if l, err := c.Discover(patient(t)); err != nil || l.ProtocolVersion != "2026-07-28" || len(l.Tools) != 1 {
			t.Fatalf("Discover = %+v, %v; want the list, with the newer protocol", l, err)
		}
		s.mu.Lock()
		s.seen = nil // the requests take memory, too
		s.mu.Unlock()
		runtime.GC()
		var m runtime.MemStats
		runtime.ReadMemStats(&m)
		return int64(m.HeapAlloc)
	}
	before := list()
	after := before
	for range times {
		after = list()
	}
	if grown := after - before; grown > pages*length {
		t.Errorf("the heap has grown by %d KiB with %d lists, want no more than for the cursors of one list", grown>>10, times)
	}
	if wrong.Load() > 0 || page.Load() != (times+1)*pages {
		t.Errorf("%d pages were requested, %d of them with a wrong cursor; want %d, in order", page.Load(), wrong.Load(), (times+1)*pages)
	}
}
