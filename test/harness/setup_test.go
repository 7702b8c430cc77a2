package harness

import (
	"context"
	"fmt"
	"net/http"
	"os"
	"os/signal"
	"syscall"
	"testing"
	"time"

	"k8s.io/apimachinery/pkg/runtime"
)

var clientScheme = runtime.NewScheme()

// served returns a program that runs this test's executable in another role.
func served(t *testing.T, role string) Program {
	t.Helper()
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	address, err := FreeAddress(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	return Program{Name: role, Path: self, Args: []string{role, address}, Listen: []string{address}, ReadyURL: "http://" + address}
}

func stopped(t *testing.T, s *Harness) {
	t.Helper()
	if err := s.Stop(); err != nil {
		t.Errorf("Stop: %v", err)
	}
}

func failOnExit(t *testing.T) func(error) {
	t.Helper()
	return func(err error) { t.Errorf("reported as ended although it was stopped: %v", err) }
}

func serve(stubborn bool, address string) {
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGTERM)
	defer stop()
	if stubborn {
		ctx = context.WithoutCancel(ctx)
	}
	server := &http.Server{Addr: address, ReadHeaderTimeout: time.Second}
	server.Handler = http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(http.StatusOK) })
	go func() {
		if err := server.ListenAndServe(); err != nil {
			fmt.Println(err)
			os.Exit(1)
		}
	}()
	<-ctx.Done()
	fmt.Println("stopping")
	os.Exit(0) //nolint:gocritic // the process ends without running deferred functions
}
