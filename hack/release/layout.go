package main

import (
	"fmt"
	"os"
	"path/filepath"

	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/layout"
)

// archived is an OCI archive, unpacked into a temporary directory.
type archived struct {
	directory string
	// name is the full name of the image, and digest the digest of its index.
	name   string
	digest v1.Hash
	// root lists the image and the artifacts that refer to it.
	root v1.ImageIndex
	// index is the index of the image.
	index v1.ImageIndex
	// attached are the artifacts that refer to the image or to one of its platforms.
	attached []v1.Image
}

// openArchive unpacks an OCI archive. The caller must close it.
func openArchive(file string) (a *archived, err error) {
	in, err := os.Open(file)
	if err != nil {
		return nil, err
	}
	defer in.Close() //nolint:errcheck // because it is only read
	entries, err := unpackTar(in)
	if err != nil {
		return nil, fmt.Errorf("failed to read %s: %w", file, err)
	}
	a = &archived{}
	if a.directory, err = os.MkdirTemp("", "capstan-image-"); err != nil {
		return nil, err
	}
	defer func() {
		if err != nil {
			err = fmt.Errorf("%s: %w", file, err)
			os.RemoveAll(a.directory) //nolint:errcheck,gosec // because it is a temporary directory
		}
	}()
	for _, e := range entries {
		if !filepath.IsLocal(e.name) {
			return a, fmt.Errorf("the path %q leads out of the archive", e.name)
		}
		path := filepath.Join(a.directory, e.name)
		if err := os.MkdirAll(filepath.Dir(path), 0o700); err != nil {
			return a, err
		}
		if err := os.WriteFile(path, e.data, 0o600); err != nil {
			return a, err
		}
	}
	return a, a.read()
}

func (a *archived) read() error {
	path, err := layout.FromPath(a.directory)
	if err != nil {
		return err
	}
	if a.root, err = path.ImageIndex(); err != nil {
		return err
	}
	manifest, err := a.root.IndexManifest()
	if err != nil {
		return err
	}
	for _, d := range manifest.Manifests {
		if d.Annotations[annotationName] == "" {
			img, err := a.root.Image(d.Digest)
			if err != nil {
				return err
			}
			a.attached = append(a.attached, img)
			continue
		}
		if a.index != nil {
			return fmt.Errorf("the archive contains two images, %s and %s", a.name, d.Annotations[annotationName])
		}
		a.name, a.digest = d.Annotations[annotationName], d.Digest
		if a.index, err = a.root.ImageIndex(d.Digest); err != nil {
			return err
		}
	}
	if a.index == nil {
		return fmt.Errorf("the archive contains no image with the annotation %s", annotationName)
	}
	return nil
}

// Close removes the temporary directory.
func (a *archived) Close() error { return os.RemoveAll(a.directory) }
