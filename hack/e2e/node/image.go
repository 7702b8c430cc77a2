package node

import (
	"archive/tar"
	"bytes"
	"crypto/sha256"
	"encoding/json"
	"fmt"
	"os"
	"path"
	"runtime"
)

// Image is an image of one static program, made from nothing.
type Image struct {
	// Reference is the image's whole name, with registry and tag.
	Reference string
	// Program is the path of the executable file; in the image it is in the root folder.
	Program string
	// User is the numeric user and group, such as 65532:65532: a name could not be checked against runAsNonRoot.
	User string
}

// file is one entry of an archive.
type file struct {
	name string
	mode int64
	data []byte
}

// archive returns the image in the form of docker save, which ctr images import reads. The same program gives the same bytes.
func (i Image) archive() ([]byte, error) {
	program, err := os.ReadFile(i.Program)
	if err != nil {
		return nil, fmt.Errorf("failed to read the program of image %s: %w", i.Reference, err)
	}
	entrypoint := "/" + path.Base(i.Program)
	layer, err := pack([]file{
		{"etc/", 0o755, nil},
		{"etc/passwd", 0o644, []byte("root:x:0:0:root:/:/sbin/nologin\nnonroot:x:65532:65532:nonroot:/:/sbin/nologin\n")},
		{"tmp/", 0o1777, nil},
		{entrypoint[1:], 0o755, program},
	})
	if err != nil {
		return nil, err
	}
	config, err := json.Marshal(map[string]any{
		"architecture": runtime.GOARCH, "os": "linux",
		"config": map[string]any{"User": i.User, "Entrypoint": []string{entrypoint}, "WorkingDir": "/"},
		"rootfs": map[string]any{"type": "layers", "diff_ids": []string{digest(layer)}},
	})
	if err != nil {
		return nil, err
	}
	name := fmt.Sprintf("%x.json", sha256.Sum256(config))
	manifest, err := json.Marshal([]map[string]any{{"Config": name, "RepoTags": []string{i.Reference}, "Layers": []string{"layer.tar"}}})
	if err != nil {
		return nil, err
	}
	return pack([]file{{name, 0o644, config}, {"layer.tar", 0o644, layer}, {"manifest.json", 0o644, manifest}})
}

func digest(data []byte) string { return fmt.Sprintf("sha256:%x", sha256.Sum256(data)) }

// pack returns a tar archive; a name with a slash at its end is a folder.
func pack(files []file) ([]byte, error) {
	var out bytes.Buffer
	w := tar.NewWriter(&out)
	for _, f := range files {
		header := &tar.Header{Name: f.name, Mode: f.mode, Size: int64(len(f.data)), Typeflag: tar.TypeReg}
		if f.data == nil {
			header.Typeflag = tar.TypeDir
		}
		if err := w.WriteHeader(header); err != nil {
			return nil, fmt.Errorf("failed to pack %s: %w", f.name, err)
		}
		if _, err := w.Write(f.data); err != nil {
			return nil, fmt.Errorf("failed to pack %s: %w", f.name, err)
		}
	}
	if err := w.Close(); err != nil {
		return nil, err
	}
	return out.Bytes(), nil
}
