package node

import (
	"archive/tar"
	"bytes"
	"encoding/json"
	"errors"
	"io"
	"os"
	"path/filepath"
	"testing"
)

// unpack returns the files of an archive by name.
func unpack(t *testing.T, data []byte) map[string][]byte {
	t.Helper()
	files := map[string][]byte{}
	for r := tar.NewReader(bytes.NewReader(data)); ; {
		header, err := r.Next()
		if errors.Is(err, io.EOF) {
			return files
		}
		if err != nil {
			t.Fatal(err)
		}
		if files[header.Name], err = io.ReadAll(r); err != nil {
			t.Fatal(err)
		}
	}
}

func TestAnImageHoldsItsProgram(t *testing.T) {
	program := filepath.Join(t.TempDir(), "server")
	if err := os.WriteFile(program, []byte("#!"), 0o600); err != nil {
		t.Fatal(err)
	}
	image := Image{Reference: "e2e.local/server:1", Program: program, User: "65532:65532"}
	data, err := image.archive()
	if err != nil {
		t.Fatal(err)
	}
	if again, err := image.archive(); err != nil || !bytes.Equal(data, again) {
		t.Errorf("the same program gives another image, or %v", err)
	}
	files := unpack(t, data)
	var manifest []struct {
		Config   string
		RepoTags []string
		Layers   []string
	}
	if err := json.Unmarshal(files["manifest.json"], &manifest); err != nil || len(manifest) != 1 || manifest[0].RepoTags[0] != image.Reference {
		t.Fatalf("manifest = %s, %v; want one image of the name %s", files["manifest.json"], err, image.Reference)
	}
	var config struct {
		Config struct {
			User       string
			Entrypoint []string
		} `json:"config"`
		RootFS struct {
			DiffIDs []string `json:"diff_ids"`
		} `json:"rootfs"`
	}
	if err := json.Unmarshal(files[manifest[0].Config], &config); err != nil {
		t.Fatal(err)
	}
	layer := files[manifest[0].Layers[0]]
	if config.Config.User != image.User || config.Config.Entrypoint[0] != "/server" || config.RootFS.DiffIDs[0] != digest(layer) {
		t.Errorf("config = %+v, want the user, the program, and the layer's digest", config)
	}
	if got := unpack(t, layer)["server"]; string(got) != "#!" {
		t.Errorf("the program in the image = %q, want that of the host", got)
	}
}
