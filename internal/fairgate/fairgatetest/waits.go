// Package fairgatetest checks in tests which work waits for its turn at the processors.
package fairgatetest

import (
	"context"
	"testing"
	"testing/synctest"

	"github.com/capstan-dev/capstan/internal/fairgate"
)

// Waits reports whether work waits while another namespace has the only processor. The work must use the context that
// it gets. It fails the test if the work does not end after its turn has come, or if it keeps the processor.
func Waits(t *testing.T, work func(ctx context.Context)) (waited bool) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) {
		processors := fairgate.NewProcessors(1)
		other := processors.With(t.Context(), "other")
		done := fairgate.AcquireProcessor(other, fairgate.Large)
		ended := make(chan struct{})
		go func() {
			defer close(ended)
			work(processors.With(t.Context(), "own"))
		}()
		synctest.Wait()
		select {
		case <-ended:
		default:
			waited = true
		}
		done()
		<-ended
		fairgate.AcquireProcessor(other, fairgate.Large)() // it waits forever if the work has not released the processor
	})
	return waited
}
