package readapi_test

import (
	"context"
	"strings"
	"testing"
	"time"

	"github.com/go-logr/logr"

	"github.com/capstan-dev/capstan/internal/readapi"
	"github.com/capstan-dev/capstan/internal/webserver/webservertest"
)

// TestCertificateWithoutInotify checks that the read API uses a renewed certificate without inotify, because a node may
// have no inotify instances left.
func TestCertificateWithoutInotify(t *testing.T) {
	files := webservertest.WriteFiles(t, webservertest.NewPair(t, 1))
	var passed time.Duration
	ctx, stop := context.WithCancel(t.Context())
	s, err := readapi.Listen(ctx, readapi.Options{
		TLSAddress: "127.0.0.1:0", CertFile: files.Certificate, KeyFile: files.Key, Log: logr.Discard(),
		Now: func() time.Time { return serverTime().Add(passed) },
	})
	if err != nil {
		t.Fatal(err)
	}
	stopped := make(chan error, 1)
	go func() { stopped <- s.Start(ctx) }()
	defer func() {
		stop()
		if err := <-stopped; err != nil {
			t.Errorf("Start: %v", err)
		}
	}()
	address := strings.TrimPrefix(s.TLSURL(), "https://")
	if got := webservertest.Presented(t, address); got != 1 {
		t.Errorf("the server presents certificate %d, want 1", got)
	}
	renewed := webservertest.NewPair(t, 2)
	webservertest.Replace(t, files.Certificate, renewed.Certificate)
	webservertest.Replace(t, files.Key, renewed.Key)
	passed = time.Minute
	if got := webservertest.Presented(t, address); got != 2 {
		t.Errorf("after the renewal, the server presents certificate %d, want 2", got)
	}
	webservertest.NoInotify(t)
}
