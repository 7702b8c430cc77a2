//go:build race

package memory_test

import "github.com/capstan-dev/capstan/internal/memory"

// maxInEngine is the memory that a waiting Turn may use in the engine, in bytes. With the race detector, stack frames
// are larger.
const maxInEngine = memory.TurnBytes
