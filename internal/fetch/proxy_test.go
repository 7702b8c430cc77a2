package fetch_test

import (
	"fmt"
	"net/http"
	"net/http/httptest"
	"os"
	"os/exec"
	"strings"
	"sync/atomic"
	"testing"

	"github.com/capstan-dev/capstan/internal/fetch"
	"github.com/capstan-dev/capstan/internal/netpolicy"
)

// proxied is the environment variable that makes a process of TestProxy fetch through a proxy.
const proxied = "CAPSTAN_TEST_PROXIED_FETCH"

// fetchProxied fetches for TestProxy. It runs in a process of its own, because net/http reads the environment variables
// for proxies only once.
func fetchProxied(t *testing.T) {
	t.Helper()
	f := &fetch.Fetcher{Policy: netpolicy.NewLocalPolicy()}
	_, err := f.Fetch(t.Context(), "https://files.test/a.png", "image/png", 100)
	fmt.Printf("error: %v\n", err) //nolint:forbidigo // because TestProxy reads it
}

// TestProxy checks that an error of a proxy names the proxy and does not contain its password.
func TestProxy(t *testing.T) {
	if os.Getenv(proxied) != "" {
		fetchProxied(t)
		return
	}
	const password = "proxy-password-0123"
	for name, tc := range map[string]struct {
		status int
		isDown bool
		asked  int32
		want   string // {proxy} stands for the address of the proxy
	}{
		"an invalid password": {
			status: 407, asked: 1,
			want: "the proxy {proxy} requires valid credentials (HTTP 407): check the user and the password in " +
				"HTTPS_PROXY or HTTP_PROXY",
		},
		"a forbidden host": {
			status: 403, asked: 1,
			want: "the proxy {proxy} refused the connection to files.test:443 (HTTP 403): allow it there, or add the host to " +
				"NO_PROXY",
		},
		"a host that the proxy cannot reach": {
			status: 502, asked: 3, want: "the proxy {proxy} could not connect to files.test:443 (HTTP 502)",
		},
		"a proxy that is down": {isDown: true, want: "the proxy {proxy} cannot be reached: connection refused"},
	} {
		t.Run(name, func(t *testing.T) {
			var asked atomic.Int32
			web := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
				asked.Add(1)
				w.WriteHeader(tc.status)
				_, _ = fmt.Fprintf(w, "you sent %s", r.Header.Get("Proxy-Authorization")) // the client does not read it
			}))
			t.Cleanup(web.Close)
			address := web.Listener.Addr().String()
			if tc.isDown {
				address = "127.0.0.1:1"
			}
			cmd := exec.CommandContext(t.Context(), os.Args[0], "-test.run=^TestProxy$")
			cmd.Env = append(os.Environ(), proxied+"=1", "HTTPS_PROXY=http://ada:"+password+"@"+address, "NO_PROXY=")
			out, err := cmd.CombinedOutput()
			if err != nil || strings.Contains(string(out), password) {
				t.Fatalf("the process failed (%v), or its output has the password: %s", err, out)
			}
			if want := "error: " + strings.ReplaceAll(tc.want, "{proxy}", address) + "\n"; !strings.HasPrefix(string(out), want) {
				t.Errorf("got %s, want %s", out, want)
			}
			if asked.Load() != tc.asked {
				t.Errorf("the proxy received %d requests, want %d", asked.Load(), tc.asked)
			}
		})
	}
}
