//go:build unix

package journals

import (
	"encoding/pem"
	"fmt"
	"net/http"
	"net/http/httptest"
	"os"
	"testing"

	"github.com/capstan-dev/capstan/internal/cli/terminal"
)

// TestServerCAFromPipe checks that the certificate authorities are read only once for several Turns, as in a backtest:
// the file may be a pipe.
func TestServerCAFromPipe(t *testing.T) {
	web := httptest.NewTLSServer(http.NotFoundHandler())
	defer web.Close()
	r, w, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	defer r.Close() //nolint:errcheck // because it was only read
	if err := pem.Encode(w, &pem.Block{Type: "CERTIFICATE", Bytes: web.Certificate().Raw}); err != nil {
		t.Fatal(err)
	}
	if err := w.Close(); err != nil {
		t.Fatal(err)
	}
	c := &ClusterFlags{Server: web.URL, ServerCA: fmt.Sprintf("/dev/fd/%d", r.Fd())}
	c.Token = "mine"
	for _, name := range []string{"first", "second"} {
		if _, err := c.Open(t.Context(), terminal.Environment{}, "helpdesk", name); err != nil {
			t.Errorf("%s: %v", name, err)
		}
	}
}
