package journal

import (
	"crypto/sha256"
	"encoding/hex"
	"fmt"

	"github.com/klauspost/compress/zstd"
)

// Artifact is content that is too large for an entry. It is identified by its digest.
type Artifact struct {
	// SHA256 is the digest of the content, in hexadecimal.
	SHA256 string
	// Bytes is the size of the content.
	Bytes int64
	// Data is the content, compressed with zstd.
	Data []byte
}

// maxArtifact is the maximum size of an artifact's content, in bytes. Log neither writes nor reads a larger artifact.
const maxArtifact = 64 << 20

// The encoder and the decoder are safe for concurrent use and expensive to create. They are created here because they
// hold channels: if they were created on first use in a test, the channels would belong to the synctest bubble of that
// test.
var (
	encoder = newEncoder()
	decoder = newDecoder()
)

func newEncoder() *zstd.Encoder {
	e, err := zstd.NewWriter(nil, zstd.WithEncoderConcurrency(1))
	if err != nil {
		panic(err) // only if an option is invalid
	}
	e.EncodeAll([]byte{0}, nil) // makes the allocations of the first use; an empty content makes none
	return e
}

func newDecoder() *zstd.Decoder {
	d, err := zstd.NewReader(nil, zstd.WithDecoderConcurrency(1), zstd.WithDecoderMaxMemory(maxArtifact))
	if err != nil {
		panic(err) // only if an option is invalid
	}
	return d
}

// NewArtifact returns an artifact with the given content.
func NewArtifact(content []byte) Artifact {
	sum := sha256.Sum256(content)
	return Artifact{SHA256: hex.EncodeToString(sum[:]), Bytes: int64(len(content)), Data: encoder.EncodeAll(content, nil)}
}

// Content returns the content of an artifact. It returns an error if the content does not match SHA256.
func (a Artifact) Content() ([]byte, error) {
	content, err := decoder.DecodeAll(a.Data, nil)
	if err != nil {
		return nil, fmt.Errorf("failed to decompress artifact %s: %w", a.SHA256, err)
	}
	if sum := sha256.Sum256(content); hex.EncodeToString(sum[:]) != a.SHA256 {
		return nil, fmt.Errorf("artifact %s has other content: the store is damaged", a.SHA256)
	}
	return content, nil
}
