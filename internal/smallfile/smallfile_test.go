package smallfile_test

import (
	"errors"
	"os"
	"path/filepath"
	"testing"

	"github.com/capstan-dev/capstan/internal/smallfile"
)

func TestRead(t *testing.T) {
	dir := t.TempDir()
	path := filepath.Join(dir, "file")
	if err := os.WriteFile(path, []byte("123456"), 0o600); err != nil {
		t.Fatal(err)
	}
	for most, want := range map[int64]string{10: "123456", 6: "123456", 5: "123456", 3: "1234"} {
		if got, err := smallfile.Read(path, most); err != nil || string(got) != want {
			t.Errorf("Read with a maximum of %d bytes = %q, %v; want %q", most, got, err, want)
		}
	}
	if _, err := smallfile.Read(filepath.Join(dir, "none"), 1); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("Read = %v, want the error of the file system", err)
	}
	if _, err := smallfile.Read(dir, 1); err == nil {
		t.Error("a directory must not be read as a file")
	}
}
