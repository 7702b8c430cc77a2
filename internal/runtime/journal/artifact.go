package journal

import (
	"crypto/sha256"
	"encoding/hex"
	"fmt"

	"github.com/klauspost/compress/zstd"
)

// Artifact is content that is too large for an entry, named by what it holds.
type Artifact struct {
	// SHA256 of the content, in hexadecimal.
	SHA256 string
	// Bytes of the content.
	Bytes int64
	// Data is the content, compressed with zstd.
	Data []byte
}

// maxArtifact bounds the content of an artifact, in bytes: Log writes no larger one, and none is read.
const maxArtifact = 64 << 20

// The coders are safe for concurrent use and cost much to make. They hold channels, which would belong to the synctest
// bubble of a test if they were made when they are first needed.
var (
	encoder = newEncoder()
	decoder = newDecoder()
)

func newEncoder() *zstd.Encoder {
	e, err := zstd.NewWriter(nil, zstd.WithEncoderConcurrency(1))
	if err != nil {
		panic(err) // only for options that do not exist
	}
	e.EncodeAll(nil, nil) // makes what it would make at the first use
	return e
}

func newDecoder() *zstd.Decoder {
	d, err := zstd.NewReader(nil, zstd.WithDecoderConcurrency(1), zstd.WithDecoderMaxMemory(maxArtifact))
	if err != nil {
		panic(err) // only for options that do not exist
	}
	return d
}

// NewArtifact returns the artifact of some content.
func NewArtifact(content []byte) Artifact {
	sum := sha256.Sum256(content)
	return Artifact{SHA256: hex.EncodeToString(sum[:]), Bytes: int64(len(content)), Data: encoder.EncodeAll(content, nil)}
}

// Content returns the content of an artifact. It fails if it is not what its name says.
func (a Artifact) Content() ([]byte, error) {
	content, err := decoder.DecodeAll(a.Data, nil)
	if err != nil {
		return nil, fmt.Errorf("failed to decompress artifact %s: %w", a.SHA256, err)
	}
	if sum := sha256.Sum256(content); hex.EncodeToString(sum[:]) != a.SHA256 {
		return nil, fmt.Errorf("artifact %s holds something else: the store is damaged", a.SHA256)
	}
	return content, nil
}
