package journal_test

import (
	"bytes"
	"strings"
	"testing"
	"testing/synctest"

	"github.com/klauspost/compress/zstd"

	"github.com/capstan-dev/capstan/internal/runtime/journal"
)

// The first of all tests, so that nothing was made before it.
func TestArtifactsWithinBubbles(t *testing.T) {
	for range 2 { // what one bubble has made must be of use in the next
		synctest.Test(t, func(t *testing.T) {
			a := journal.NewArtifact([]byte("content"))
			if content, err := a.Content(); err != nil || string(content) != "content" {
				t.Errorf("Content: %q, %v; want what it was made of", content, err)
			}
		})
	}
}

func TestArtifactHoldsItsContent(t *testing.T) {
	for name, tc := range map[string]struct {
		reason  string
		content []byte
		sum     string
		most    int
	}{
		"Empty": {"nothing is content, too", nil, "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855", 32},
		"Short": {"it may get longer, but not by much", []byte("abc"), "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad", 32},
		"Text":  {"text gets much shorter", []byte(strings.Repeat("all work and no play ", 50_000)), "", 10_000},
	} {
		t.Run(name, func(t *testing.T) {
			a := journal.NewArtifact(tc.content)
			if tc.sum != "" && a.SHA256 != tc.sum || a.Bytes != int64(len(tc.content)) || len(a.Data) > tc.most {
				t.Errorf("artifact %s of %d bytes in %d; want %s of %d in at most %d: %s",
					a.SHA256, a.Bytes, len(a.Data), tc.sum, len(tc.content), tc.most, tc.reason)
			}
			if got, err := a.Content(); err != nil || !bytes.Equal(got, tc.content) {
				t.Errorf("Content: %d bytes, %v; want what it was made of", len(got), err)
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
		"Replaced":  {"it is the data of another one", "holds something else: the store is damaged", other.Data},
		"Empty":     {"its data are gone", "holds something else: the store is damaged", nil},
		"Truncated": {"a part of it is missing", "failed to decompress", good.Data[:len(good.Data)-4]},
		"Noise":     {"it was overwritten", "failed to decompress", bytes.Repeat([]byte{0x5a}, 100)},
		"Bomb":      {"nobody may fill the memory", "failed to decompress", encoder.EncodeAll(make([]byte, 65<<20), nil)},
	} {
		t.Run(name, func(t *testing.T) {
			a := good
			a.Data = tc.data
			content, err := a.Content()
			if err == nil || !strings.Contains(err.Error(), tc.want) || !strings.Contains(err.Error(), good.SHA256) {
				t.Errorf("Content: %d bytes, %v; want it to say %q of the artifact: %s", len(content), err, tc.want, tc.reason)
			}
		})
	}
}
