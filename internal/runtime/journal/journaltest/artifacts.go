package journaltest

import (
	"bytes"
	"errors"
	"testing"

	"github.com/capstan-dev/capstan/internal/runtime/journal"
)

// artifactEntry returns an artifact, and an entry whose payload is this artifact.
func artifactEntry(seq int64, content string) (journal.Artifact, journal.Entry) {
	a := journal.NewArtifact([]byte(content))
	e := entry(seq, 1)
	e.Payload, e.Artifact, e.Artifacts = nil, a.SHA256, []journal.Artifact{a}
	return a, e
}

// asRead returns an entry as a store returns it: without artifacts.
func asRead(e journal.Entry) journal.Entry {
	e.Artifacts = nil
	return e
}

func testArtifacts(t *testing.T, j journal.Journal, reopen func(t *testing.T, j journal.Journal) journal.Journal) {
	one, first := artifactEntry(1, "\x00 the content \xff")
	separate := journal.Artifact{SHA256: "0123", Bytes: 9, Data: []byte{0, 255, '\n', 0}} // a store does not check the content
	first.Artifacts = append(first.Artifacts, separate, one)
	empty := journal.Artifact{SHA256: "4567"}
	_, second := artifactEntry(2, "\x00 the content \xff") // the same content again
	second.Artifacts = append(second.Artifacts, empty)
	add(t, j, "a", nil, first, second)
	other, third := artifactEntry(3, "other")
	add(t, j, "a", nil, third)
	_, again := artifactEntry(4, "other")
	add(t, j, "a", nil, again)

	for range 2 {
		expect(t, j, "a", asRead(first), asRead(second), asRead(third), asRead(again))
		for _, want := range []journal.Artifact{one, separate, empty, other} {
			got, err := j.Artifact(t.Context(), "a", want.SHA256)
			if err != nil || got.SHA256 != want.SHA256 || got.Bytes != want.Bytes || !bytes.Equal(got.Data, want.Data) {
				t.Errorf("Artifact(%s): %v, %v; want the artifact byte for byte", want.SHA256, got, err)
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
		t.Errorf("Collect: %v, %v; want ErrNewer, because the entries have a newer version than this build can read", whole, err)
	}
	for uid, sum := range map[string]string{"a": "89ab", "b": one.SHA256, "unknown": other.SHA256} {
		if got, err := j.Artifact(t.Context(), uid, sum); !errors.Is(err, journal.ErrNoArtifact) {
			t.Errorf("Artifact(%s, %s): %v, %v; want ErrNoArtifact", uid, sum, got, err)
		}
	}
}

func testRefusedAppends(t *testing.T, j journal.Journal) {
	_, first := artifactEntry(1, "first")
	first.Epoch = 2
	add(t, j, "a", nil, first)
	late, gap := entry(2, 1), entry(3, 2)
	var sums []string
	for i, e := range []*journal.Entry{&late, &gap} {
		a := journal.NewArtifact([]byte{byte(i)})
		e.Artifacts, sums = []journal.Artifact{a}, append(sums, a.SHA256)
	}
	taken, repeat := artifactEntry(1, "taken")
	add(t, j, "a", journal.ErrFenced, late)
	add(t, j, "a", journal.ErrSequence, gap)
	repeat.Epoch = 2
	add(t, j, "a", journal.ErrSequence, repeat)
	for _, sum := range append(sums, taken.SHA256) {
		if got, err := j.Artifact(t.Context(), "a", sum); !errors.Is(err, journal.ErrNoArtifact) {
			t.Errorf("Artifact of an append that was refused: %v, %v; want ErrNoArtifact", got, err)
		}
	}
	expect(t, j, "a", asRead(first))
}
