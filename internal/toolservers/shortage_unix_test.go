//go:build unix

package toolservers_test

import (
	"errors"
	"testing"

	"github.com/capstan-dev/capstan/internal/netpolicy/shortagetest"
	"github.com/capstan-dev/capstan/internal/runtime/tool"
	"github.com/capstan-dev/capstan/internal/toolbox"
)

// TestShortageHidesNoTools checks that a server that was never reached does not count as unknown while this process has
// no free file descriptor: the Turn would run without its tools.
func TestShortageHidesNoTools(t *testing.T) {
	s := serve(t, "a")
	_, c := newEnvironment(t)
	restore := shortagetest.NoFiles(t)
	_, err := c.Tools(patient(t), object(s.URL))
	restore()
	if !errors.Is(err, tool.ErrOwnShortage) || errors.Is(err, toolbox.ErrUnknown) {
		t.Errorf("Tools: %v, want an own shortage", err)
	}
	if got, err := c.Tools(patient(t), object(s.URL)); err != nil || len(got) != 1 {
		t.Errorf("after the shortage, Tools = %v, %v; want the tool", names(got), err)
	}
}
