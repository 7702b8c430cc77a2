package harness

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
)

func TestBuildReturnsExistingPrograms(t *testing.T) {
	dir := t.TempDir()
	t.Setenv(programsVariable, dir)
	if _, err := Build(t.Context(), "../..", t.TempDir(), "capstan"); err == nil || !strings.Contains(err.Error(), programsVariable) {
		t.Errorf("Build = %v without the program, want an error that names %s", err, programsVariable)
	}
	want := filepath.Join(dir, "capstan")
	if err := os.WriteFile(want, nil, 0o700); err != nil {
		t.Fatal(err)
	}
	if path, err := Build(t.Context(), "../..", t.TempDir(), "capstan"); path != want || err != nil {
		t.Errorf("Build = %q, %v; want %q", path, err, want)
	}
}

func TestBuildReportsTheCompilersErrors(t *testing.T) {
	t.Setenv(programsVariable, "")
	_, err := Build(t.Context(), "../..", t.TempDir(), "no-such-program")
	if err == nil || !strings.Contains(err.Error(), "cmd/no-such-program") {
		t.Errorf("Build = %v, want an error that names the package", err)
	}
}
