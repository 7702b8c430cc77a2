package mcp_test

import (
	"errors"
	"runtime"
	"strings"
	"testing"

	"github.com/capstan-dev/capstan/internal/bytebudget"
	"github.com/capstan-dev/capstan/internal/mcp"
)

// TestPagesThatHaveArrivedAreCounted checks that the memory for the pages of a list is reserved while another page is
// awaited, and released if the list fails.
func TestPagesThatHaveArrivedAreCounted(t *testing.T) {
	const page = 1 << 20
	for name, tc := range map[string]struct {
		reason string
		budget int64
		last   string // the second page
		kind   mcp.Kind
		asked  bool // the second page is requested
	}{
		"whole":     {"the list is kept", 8 * page, `{"tools":[{"name":"b"}]}`, "", true},
		"broken":    {"the list is not kept", 8 * page, `{"tools":1}`, mcp.Protocol, true},
		"no memory": {"there is no memory for the first page", page, `{"tools":[]}`, mcp.NoMemory, false},
	} {
		t.Run(name, func(t *testing.T) {
			memory := bytebudget.New(tc.budget, 0)
			used := func() int64 { return memory.Use(bytebudget.Listings).Bytes }
			s, meanwhile := serve(t, nil), make(chan int64, 1)
			s.tamper(lists(func(cursor string) string {
				if cursor != "" {
					meanwhile <- used()
					return tc.last
				}
				return `{"tools":[{"name":"a","inputSchema":{"default":"` + strings.Repeat("x", page) + `"}}],"nextCursor":"x"}`
			}))
			c := client(t, s.URL, func(cfg *mcp.Config) { cfg.Listings = memory.Account("demo", bytebudget.Listings) })
			l, err := c.Discover(patient(t))
			if e, ok := errors.AsType[*mcp.Error](err); ok != (tc.kind != "") || ok && e.Kind != tc.kind {
				t.Fatalf("Discover = %v, want an error of kind %q: %s", err, tc.kind, tc.reason)
			}
			if asked := len(meanwhile) == 1; asked != tc.asked || asked && <-meanwhile < page {
				t.Errorf("the second page was requested: %t, want %t, with memory for the first page", asked, tc.asked)
			}
			if got := used(); err == nil && got < page || err != nil && got != 0 {
				t.Errorf("%d bytes are reserved at the end: %s", got, tc.reason)
			}
			runtime.KeepAlive(l)
		})
	}
}
