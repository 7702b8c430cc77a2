package onclose_test

import (
	"errors"
	"io"
	"strings"
	"testing"

	"github.com/capstan-dev/capstan/internal/onclose"
)

// broken is a body that cannot be closed.
type broken struct{ io.Reader }

var errBroken = errors.New("the connection is broken")

func (broken) Close() error { return errBroken }

func TestBody(t *testing.T) {
	calls := 0
	body := onclose.Body(broken{strings.NewReader("text")}, func() { calls++ })
	if text, err := io.ReadAll(body); err != nil || string(text) != "text" || calls != 0 {
		t.Errorf("read %q, %v and %d calls; want the text, and no call before the end", text, err, calls)
	}
	if err := body.Close(); !errors.Is(err, errBroken) || calls != 1 {
		t.Errorf("Close = %v after %d calls, want the error of the body and 1 call", err, calls)
	}
}
