package webserver_test

import (
	"crypto/tls"
	"net"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/go-logr/logr"
	"github.com/go-logr/logr/funcr"

	"github.com/capstan-dev/capstan/internal/webserver"
	"github.com/capstan-dev/capstan/internal/webserver/webservertest"
)

// TestCertificate checks which certificate a real server presents while its files are replaced, and what is logged.
func TestCertificate(t *testing.T) {
	first, second, third := webservertest.NewPair(t, 1), webservertest.NewPair(t, 2), webservertest.NewPair(t, 3)
	files := webservertest.WriteFiles(t, first)
	now := time.Now()
	var lines []string
	log := funcr.New(func(_, args string) { lines = append(lines, args) }, funcr.Options{})
	certificate, err := webserver.NewCertificate(files.Certificate, files.Key, func() time.Time { return now }, log)
	if err != nil {
		t.Fatal(err)
	}
	l, err := (&net.ListenConfig{}).Listen(t.Context(), "tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	server := webserver.New(nil)
	go func() { _ = server.Serve(tls.NewListener(l, &tls.Config{GetCertificate: certificate.Get})) }()
	t.Cleanup(func() { _ = server.Close() })

	failed := `"msg"="Failed to read the certificate again: new connections get the previous one"`
	loaded := `"msg"="Using a new certificate"`
	for _, step := range []struct {
		reason            string
		certificate, key  []byte // the new content of the files; nil leaves a file unchanged
		pass              time.Duration
		want              int64
		wantLog, wantFile string // parts of the only new line of the log, which are empty if there must be none
	}{
		{reason: "the files have not changed", pass: 10 * time.Second, want: 1},
		{reason: "the files are not read again so soon", certificate: second.Certificate, key: second.Key, pass: 9 * time.Second, want: 1},
		{reason: "the new pair is used", pass: time.Second, want: 2, wantLog: loaded, wantFile: files.Certificate},
		{
			reason: "the key is still the old one", certificate: third.Certificate, pass: 10 * time.Second, want: 2,
			wantLog: failed, wantFile: files.Certificate,
		},
		{reason: "the same failure is logged once", pass: 10 * time.Second, want: 2},
		{reason: "the key is half-written", key: third.Key[:40], pass: 10 * time.Second, want: 2, wantLog: failed, wantFile: files.Key},
		{reason: "both are complete", key: third.Key, pass: 10 * time.Second, want: 3, wantLog: loaded},
		{reason: "a later failure is logged again", key: third.Key[:40], pass: 10 * time.Second, want: 3, wantLog: failed},
		{
			reason: "the old pair works again", certificate: first.Certificate, key: first.Key, pass: 10 * time.Second, want: 1,
			wantLog: loaded,
		},
		{
			reason: "the clock was set back", certificate: second.Certificate, key: second.Key, pass: -time.Hour, want: 2,
			wantLog: loaded,
		},
	} {
		for file, data := range map[string][]byte{files.Certificate: step.certificate, files.Key: step.key} {
			if data != nil {
				webservertest.Replace(t, file, data)
			}
		}
		now = now.Add(step.pass)
		lines = nil
		for range 2 { // the second handshake must not read or log again
			if got := webservertest.Presented(t, l.Addr().String()); got != step.want {
				t.Fatalf("%s: the server presents certificate %d, want %d", step.reason, got, step.want)
			}
		}
		isWanted := func(line string) bool {
			return strings.Contains(line, step.wantLog) && strings.Contains(line, step.wantFile)
		}
		if step.wantLog == "" && len(lines) > 0 || step.wantLog != "" && (len(lines) != 1 || !slices.ContainsFunc(lines, isWanted)) {
			t.Errorf("%s: the log has %q, want %q", step.reason, lines, step.wantLog)
		}
	}
}

// TestCertificateIsMissing checks that a server does not start without its certificate.
func TestCertificateIsMissing(t *testing.T) {
	file := t.TempDir() + "/none.pem"
	_, err := webserver.NewCertificate(file, file, time.Now, logr.Discard())
	if err == nil || !strings.Contains(err.Error(), file) {
		t.Errorf("got %v, want an error that names the missing file", err)
	}
}
