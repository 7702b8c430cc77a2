package manager

import (
	"io"
	"strings"

	"github.com/go-logr/logr"

	"github.com/capstan-dev/capstan/internal/runtime/untrusted"
)

// maxLine is the maximum length of a line of the standard logger, in characters.
const maxLine = 512

// StandardLog returns the output for the standard logger. Package net/http writes to it what servers cause, such as
// frames of an unknown type, and quotes the servers. So the lines go to the debug log only, as values of at most 512
// characters: a server cannot fill the log, or imitate its lines.
func StandardLog(log logr.Logger) io.Writer { return standardLog{log.V(1)} }

type standardLog struct{ log logr.Logger }

func (w standardLog) Write(p []byte) (int, error) {
	if w.log.Enabled() {
		text, _ := untrusted.Cap(untrusted.Line(strings.TrimSpace(string(p))), maxLine)
		w.log.Info("A library reports", "text", text)
	}
	return len(p), nil
}
