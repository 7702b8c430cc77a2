//go:build race

package memory_test

import "github.com/capstan-dev/capstan/internal/memory"

// mostInEngine is how much a waiting Turn may take in the engine, in bytes, with the race detector, whose frames are larger.
const mostInEngine = memory.TurnBytes
