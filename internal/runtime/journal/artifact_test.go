package journal_test

import (
	"bytes"
	"strings"
	"testing"
	"testing/synctest"

	"github.com/klauspost/compress/zstd"

	"github.com/capstan-dev/capstan/internal/runtime/journal"
)

// TestArtifactsWithinBubbles must be the first test of this file, so that it is the first use of the encoder and the
// decoder.
func TestArtifactsWithinBubbles(t *testing.T) {
	for range 2 { // the encoder and the decoder must work in two bubbles
		synctest.Test(t, func(t *testing.T) {
			a := journal.NewArtifact([]byte("content"))
			if content, err := a.Content(); err != nil || string(content) != "content" {
				t.Errorf("Content: %q, %v; want the original content", content, err)
			}
		})
	}
}

func TestArtifactHoldsItsContent(t *testing.T) {
	for name, tc := range map[string]struct {
		reason  string
		content []byte
		sum     string
		maxData int
	}{
		"Empty": {"content may be empty", nil, "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855", 32},
		"Short": {
			"short content may grow by a few bytes", []byte("abc"),
			"ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad", 32,
		},
		"Text": {"long text is compressed well", []byte(strings.Repeat("all work and no play ", 50_000)), "", 10_000},
	} {
		t.Run(name, func(t *testing.T) {
			a := journal.NewArtifact(tc.content)
			if tc.sum != "" && a.SHA256 != tc.sum || a.Bytes != int64(len(tc.content)) || len(a.Data) > tc.maxData {
				t.Errorf("artifact %s of %d bytes, compressed to %d; want %s of %d bytes, compressed to at most %d: %s",
					a.SHA256, a.Bytes, len(a.Data), tc.sum, len(tc.content), tc.maxData, tc.reason)
			}
			if got, err := a.Content(); err != nil || !bytes.Equal(got, tc.content) {
				t.Errorf("Content: %d bytes, %v; want the original content", len(got), err)
			}
		})
	}
}

func TestContentOfADamagedArtifact(t *testing.T) {
	good, other := journal.NewArtifact([]byte(strings.Repeat("content ", 1000))), journal.NewArtifact([]byte("other"))
	encoder, err := zstd.NewWriter(nil)
	if err != nil {
		t.Fatal(err)
	}
	for name, tc := range map[string]struct {
		reason, want string
		data         []byte
	}{
		"Replaced":  {"the data belongs to another artifact", "has other content: the store is damaged", other.Data},
		"Empty":     {"the data is missing", "has other content: the store is damaged", nil},
		"Truncated": {"a part of the data is missing", "failed to decompress", good.Data[:len(good.Data)-4]},
		"Noise":     {"the data was overwritten", "failed to decompress", bytes.Repeat([]byte{0x5a}, 100)},
		"Bomb":      {"decompressed data is limited", "failed to decompress", encoder.EncodeAll(make([]byte, 65<<20), nil)},
	} {
		t.Run(name, func(t *testing.T) {
			a := good
			a.Data = tc.data
			content, err := a.Content()
			if err == nil || !strings.Contains(err.Error(), tc.want) || !strings.Contains(err.Error(), good.SHA256) {
				t.Errorf("Content: %d bytes, %v; want an error with %q and the digest: %s", len(content), err, tc.want, tc.reason)
			}
		})
	}
}
