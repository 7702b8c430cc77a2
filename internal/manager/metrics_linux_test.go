package manager

import (
	"testing"
	"time"

	"github.com/go-logr/logr"

	"github.com/capstan-dev/capstan/internal/access"
	"github.com/capstan-dev/capstan/internal/webserver"
	"github.com/capstan-dev/capstan/internal/webserver/webservertest"
)

// TestMetricsWithoutInotify checks that /metrics is served with a renewed certificate without inotify, because a node
// may have no inotify instances left.
func TestMetricsWithoutInotify(t *testing.T) {
	files := webservertest.WriteFiles(t, webservertest.NewPair(t, 1))
	now := time.Now()
	o := Options{
		MetricsBindAddress: "127.0.0.1:0", MetricsTLSCertFile: files.Certificate, MetricsTLSKeyFile: files.Key,
	}
	handler, secure, err := o.metricsHandler(access.New(nil, nil, time.Now), func() time.Time { return now }, logr.Discard())
	if err != nil {
		t.Fatal(err)
	}
	listener, err := o.listenForMetrics(t.Context(), secure)
	if err != nil {
		t.Fatal(err)
	}
	server := webserver.New(handler)
	go func() { _ = server.Serve(listener) }()
	defer server.Close() //nolint:errcheck // because the test is over
	if got := webservertest.Presented(t, listener.Addr().String()); got != 1 {
		t.Errorf("the server presents certificate %d, want 1", got)
	}
	renewed := webservertest.NewPair(t, 2)
	webservertest.Replace(t, files.Certificate, renewed.Certificate)
	webservertest.Replace(t, files.Key, renewed.Key)
	now = now.Add(time.Minute)
	if got := webservertest.Presented(t, listener.Addr().String()); got != 2 {
		t.Errorf("after the renewal, the server presents certificate %d, want 2", got)
	}
	webservertest.NoInotify(t)
}
