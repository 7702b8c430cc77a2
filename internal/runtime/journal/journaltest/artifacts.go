package journaltest

import (
	"bytes"
	"errors"
	"testing"

	"github.com/capstan-dev/capstan/internal/runtime/journal"
)

// made returns an artifact with some content, and an entry whose payload is this artifact.
func made(seq int64, content string) (journal.Artifact, journal.Entry) {
	a := journal.NewArtifact([]byte(content))
	e := entry(seq, 1)
	e.Payload, e.Artifact, e.Artifacts = nil, a.SHA256, []journal.Artifact{a}
	return a, e
}

// bare returns an entry as it is read back: without artifacts.
func bare(e journal.Entry) journal.Entry {
	e.Artifacts = nil
	return e
}

func artifacts(t *testing.T, j journal.Journal, reopen func(t *testing.T, j journal.Journal) journal.Journal) {
	one, first := made(1, "\x00 the content \xff")
	beside := journal.Artifact{SHA256: "0123", Bytes: 9, Data: []byte{0, 255, '\n', 0}} // a store does not check the content
	first.Artifacts = append(first.Artifacts, beside, one)
	empty := journal.Artifact{SHA256: "4567"}
	_, second := made(2, "\x00 the content \xff") // the same content again
	second.Artifacts = append(second.Artifacts, empty)
	add(t, j, "a", nil, first, second)
	other, third := made(3, "other")
	add(t, j, "a", nil, third)
	_, again := made(4, "other")
	add(t, j, "a", nil, again)

	for range 2 {
		expect(t, j, "a", bare(first), bare(second), bare(third), bare(again))
		for _, want := range []journal.Artifact{one, beside, empty, other} {
			got, err := j.Artifact(t.Context(), "a", want.SHA256)
			if err != nil || got.SHA256 != want.SHA256 || got.Bytes != want.Bytes || !bytes.Equal(got.Data, want.Data) {
				t.Errorf("Artifact(%s): %v, %v; want it byte for byte", want.SHA256, got, err)
			}
		}
		for seq, want := range []int64{0, one.Bytes, one.Bytes, other.Bytes, other.Bytes, 0} {
			payloadBytes(t, j, "a", int64(seq), int64(seq), want)
		}
		payloadBytes(t, j, "a", 1, 9, 2*one.Bytes+2*other.Bytes)
		j = reopen(t, j)
	}
	whole, err := journal.Collect(t.Context(), j, "a")
	if err == nil || !errors.Is(err, journal.ErrNewer) {
		t.Errorf("Collect: %v, %v; want ErrNewer, because no build knows the version of the entries yet", whole, err)
	}
	for uid, sum := range map[string]string{"a": "89ab", "b": one.SHA256, "unknown": other.SHA256} {
		if got, err := j.Artifact(t.Context(), uid, sum); !errors.Is(err, journal.ErrNoArtifact) {
			t.Errorf("Artifact(%s, %s): %v, %v; want ErrNoArtifact", uid, sum, got, err)
		}
	}
}

func refused(t *testing.T, j journal.Journal) {
	_, first := made(1, "first")
	first.Epoch = 2
	add(t, j, "a", nil, first)
	late, gap := entry(2, 1), entry(3, 2)
	var sums []string
	for i, e := range []*journal.Entry{&late, &gap} {
		a := journal.NewArtifact([]byte{byte(i)})
		e.Artifacts, sums = []journal.Artifact{a}, append(sums, a.SHA256)
	}
	taken, repeat := made(1, "taken")
	add(t, j, "a", journal.ErrFenced, late)
	add(t, j, "a", journal.ErrSequence, gap)
	repeat.Epoch = 2
	add(t, j, "a", journal.ErrSequence, repeat)
	for _, sum := range append(sums, taken.SHA256) {
		if got, err := j.Artifact(t.Context(), "a", sum); !errors.Is(err, journal.ErrNoArtifact) {
			t.Errorf("Artifact of an append that was refused: %v, %v; want ErrNoArtifact", got, err)
		}
	}
	expect(t, j, "a", bare(first))
}
