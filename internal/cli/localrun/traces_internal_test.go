package localrun

import (
	"context"
	"errors"
	"fmt"
	"testing"
)

// TestExportError checks that the printed error has the last error of the exporter, and also says that the last spans
// could not be sent.
func TestExportError(t *testing.T) {
	refused := errors.New("401 Unauthorized")
	for name, tc := range map[string]struct {
		last, end error
		want      string
	}{
		"none":     {nil, nil, "<nil>"},
		"refused":  {refused, nil, "401 Unauthorized"},
		"too late": {nil, context.DeadlineExceeded, "context deadline exceeded"},
		"both":     {refused, context.DeadlineExceeded, "401 Unauthorized; context deadline exceeded"},
	} {
		var j localRun
		if tc.last != nil {
			j.exportFailure.Store(&tc.last)
		}
		if got := fmt.Sprint(j.exportError(tc.end)); got != tc.want {
			t.Errorf("%s: the error is %q, want %q", name, got, tc.want)
		}
	}
}
