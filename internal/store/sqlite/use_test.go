package sqlite_test

import (
	"crypto/rand"
	"fmt"
	"path/filepath"
	"testing"
	"time"

	"github.com/capstan-dev/capstan/internal/quota"
	"github.com/capstan-dev/capstan/internal/runtime/journal"
)

// TestUse lets the namespace "hog" write until it must wait, and checks that the namespace "victim" can still write. It
// also checks that purged journals leave space for new entries, although the file keeps its size.
func TestUse(t *testing.T) {
	s := openAt(t, filepath.Join(t.TempDir(), "journal.db"))
	limits := quota.Limits{Total: 8 << 20}
	evaluate := func() (hog, victim quota.Verdict, bytes int64) {
		t.Helper()
		u, err := s.Use(t.Context())
		if err != nil || u.Free <= 0 {
			t.Fatalf("Use = %+v, %v; want the free bytes of the volume", u, err)
		}
		r := limits.Evaluate(u, nil)
		return r.VerdictFor("hog"), r.VerdictFor("victim"), u.Bytes
	}
	content := make([]byte, 100<<10)
	write := func(namespace, uid string) {
		t.Helper()
		if _, err := rand.Read(content); err != nil { // so that compression cannot make the content smaller
			t.Fatal(err)
		}
		e := entry(1)
		e.Namespace, e.Artifacts = namespace, []journal.Artifact{journal.NewArtifact(content)}
		if err := s.Append(t.Context(), uid, e); err != nil {
			t.Fatal(err)
		}
	}
	write("victim", "victim-0")
	var uids []string
	for i := 0; ; i++ {
		hog, victim, bytes := evaluate()
		if victim.New || bytes > limits.Total/2 {
			t.Fatalf("after %d journals of hog, %d bytes are used; hog: %+v, victim: %+v; want victim never to wait, and hog to wait "+
				"before half of the limit is used", i, bytes, hog, victim)
		}
		if hog.New {
			break
		}
		uids = append(uids, fmt.Sprintf("hog-%d", i))
		write("hog", uids[i])
	}
	_, _, before := evaluate()
	if err := s.Retire(t.Context(), time.Unix(1, 0), uids...); err != nil {
		t.Fatal(err)
	}
	if hog, _, _ := evaluate(); !hog.New {
		t.Error("hog need not wait, want it to wait while its retired journals are kept")
	}
	if _, err := s.Purge(t.Context(), time.Unix(1, 0), len(uids)); err != nil {
		t.Fatal(err)
	}
	if hog, _, after := evaluate(); hog.New || after > before/2 {
		t.Errorf("after the purge %d bytes of %d are used: %+v; want hog to write again, and at most half of the bytes", after, before, hog)
	}
}
