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

// testProgram returns a program that runs this test's executable with the role serve or stubborn: see TestMain.
func testProgram(t *testing.T, role string) Program {
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

func mustStop(t *testing.T, s *Harness) {
	t.Helper()
	if err := s.Stop(); err != nil {
		t.Errorf("Stop: %v", err)
	}
}

// failOnExit returns a function for New that fails the test when a program exits without being stopped.
func failOnExit(t *testing.T) func(error) {
	t.Helper()
	return func(err error) {
		t.Errorf("the harness reported an unexpected exit, although the test stopped the program or its start failed: %v", err)
	}
}

// serve answers every request with 200 until SIGTERM, and then exits. If stubborn is true, it ignores SIGTERM.
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
