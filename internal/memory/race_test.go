//go:build race

package memory_test

import "github.com/capstan-dev/capstan/internal/memory"

// mostInEngine is the memory that a waiting Turn may use in the engine, in bytes. With the race detector, stack
// frames are larger.
const mostInEngine = memory.TurnBytes
