//go:build unix

package netpolicy_test

import (
	"crypto/x509"
	"encoding/pem"
	"net/http/httptest"
	"os"
	"os/exec"
	"path/filepath"
	"testing"

	"github.com/capstan-dev/capstan/internal/netpolicy"
	"github.com/capstan-dev/capstan/internal/netpolicy/shortagetest"
)

// childOfAuthorities is set in the child processes of TestAuthoritiesSurviveAShortage.
const childOfAuthorities = "CAPSTAN_TEST_AUTHORITIES"

// TestAuthoritiesSurviveAShortage uses child processes, because a process reads the authorities only once.
func TestAuthoritiesSurviveAShortage(t *testing.T) {
	switch os.Getenv(childOfAuthorities) {
	case "loaded":
		if err := netpolicy.LoadAuthorities(); err != nil {
			t.Fatalf("LoadAuthorities: %v, want no error", err)
		}
		shortagetest.NoFiles(t)
		if _, err := x509.SystemCertPool(); err != nil {
			t.Errorf("SystemCertPool during a shortage: %v, want the authorities that were loaded", err)
		}
		return
	case "short":
		restore := shortagetest.NoFiles(t)
		err := netpolicy.LoadAuthorities()
		restore()
		if err == nil {
			t.Error("LoadAuthorities without a free file descriptor: no error, want one")
		}
		return
	}
	server := httptest.NewTLSServer(nil)
	server.Close()
	file := filepath.Join(t.TempDir(), "authorities.pem")
	content := pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: server.Certificate().Raw})
	if err := os.WriteFile(file, content, 0o600); err != nil {
		t.Fatal(err)
	}
	for _, child := range []string{"loaded", "short"} {
		const self = "-test.run=^TestAuthoritiesSurviveAShortage$"
		cmd := exec.CommandContext(t.Context(), os.Args[0], self)
		cmd.Env = append(os.Environ(), childOfAuthorities+"="+child, "SSL_CERT_FILE="+file, "SSL_CERT_DIR="+t.TempDir())
		if out, err := cmd.CombinedOutput(); err != nil {
			t.Errorf("%s: %v\n%s", child, err, out)
		}
	}
}
