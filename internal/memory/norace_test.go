//go:build !race

package memory_test

import "github.com/capstan-dev/capstan/internal/memory"

// maxInEngine is the part of TurnBytes that a waiting Turn may use in the engine, in bytes. The rest is for the objects
// of the API server, for buffers of TLS, and for garbage.
const maxInEngine = memory.TurnBytes * 3 / 4
