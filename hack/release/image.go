package main

import (
	"archive/tar"
	"bytes"
	"cmp"
	"debug/buildinfo"
	"encoding/pem"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/google/go-containerregistry/pkg/name"
	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/empty"
	"github.com/google/go-containerregistry/pkg/v1/layout"
	"github.com/google/go-containerregistry/pkg/v1/mutate"
	"github.com/google/go-containerregistry/pkg/v1/partial"
	"github.com/google/go-containerregistry/pkg/v1/static"
	"github.com/google/go-containerregistry/pkg/v1/tarball"
	"github.com/google/go-containerregistry/pkg/v1/types"
	"golang.org/x/crypto/x509roots/fallback/bundle"
)

const (
	// nonroot is the numeric user of an image, because Kubernetes can check runAsNonRoot only with a number.
	nonroot = "65532:65532"
	// source is the URL of the project.
	source = "https://github.com/capstan-dev/capstan"

	mediaTypeSBOM       types.MediaType = "application/vnd.cyclonedx+json"
	mediaTypeProvenance types.MediaType = "application/vnd.in-toto+json"

	// annotationName is the annotation from which containerd takes the name of an image in an archive.
	annotationName = "io.containerd.image.name"
	annotationRef  = "org.opencontainers.image.ref.name"
)

// imageSpec describes the content of an image.
type imageSpec struct {
	release
	// reference is the image's name with its tag. name is the prefix of the names of its archives.
	reference, name    string
	title, description string
	user               string
	programs           programs
	builder            string
	// plain omits the provenance and the archives for docker load. It is used for test images.
	plain bool
}

func runImage(args []string, out io.Writer) error {
	var s imageSpec
	f := flag.NewFlagSet("image", flag.ContinueOnError)
	s.addFlags(f)
	f.StringVar(&s.reference, "reference", "", "name and tag of the image")
	f.StringVar(&s.name, "name", "capstan", "start of the names of the archives")
	f.StringVar(&s.title, "title", "Capstan", "title of the image")
	f.StringVar(&s.description, "description", "Runs LLM agents on Kubernetes, one Turn at a time", "description of the image")
	f.StringVar(&s.user, "user", nonroot, "numeric user and group")
	f.StringVar(&s.builder, "builder", localBuilder, "URI of the builder, for the provenance")
	f.BoolVar(&s.plain, "plain", false, "write only the OCI archive, without provenance")
	f.Var(&s.programs, "program", "OS/ARCHITECTURE=PATH of a static program, once for each platform")
	if err := f.Parse(args); err != nil {
		return err
	}
	if err := s.check(); err != nil {
		return err
	}
	return s.write(out)
}

// write writes the archives of the image and prints their paths.
func (s *imageSpec) write(out io.Writer) error {
	tag, err := name.NewTag(s.reference, name.WithDefaultRegistry("docker.io"))
	if err != nil {
		return fmt.Errorf("-reference must be the name and the tag of an image: %w", err)
	}
	if len(s.programs) == 0 {
		return errors.New("-program must name a program for at least one platform")
	}
	index, images, err := s.index()
	if err != nil {
		return err
	}
	attached, err := s.attachments(canonical(tag), index, images)
	if err != nil {
		return err
	}
	digest, err := index.Digest()
	if err != nil {
		return err
	}
	archive := s.path(imageArchive(s.name, s.version))
	if err := writeLayout(archive, tag, index, attached); err != nil {
		return err
	}
	fmt.Fprintf(out, "%s: %s@%s\n", archive, s.reference, digest) //nolint:errcheck // because a failed write of progress is no failure
	if s.plain {
		return nil
	}
	for at, img := range images {
		file := s.path(dockerArchive(s.name, s.version, s.programs[at].platform))
		if err := tarball.WriteToFile(file, tag, img); err != nil {
			return fmt.Errorf("failed to write %s: %w", file, err)
		}
		fmt.Fprintln(out, file) //nolint:errcheck // as above
	}
	return nil
}

// imageArchive returns the name of an image's OCI archive, and dockerArchive the name of its archive for docker
// load.
func imageArchive(image, version string) string { return image + "_" + version + "_image.tar" }

func dockerArchive(image, version string, p platform) string {
	return image + "_" + version + "_image_" + p.fileName() + ".docker.tar"
}

// index returns the index of all platforms and the image of each platform, in the order of the programs.
func (s *imageSpec) index() (v1.ImageIndex, []v1.Image, error) {
	slices.SortFunc(s.programs, func(a, b program) int { return cmp.Compare(a.platform.String(), b.platform.String()) })
	base, err := baseLayer()
	if err != nil {
		return nil, nil, err
	}
	index := mutate.IndexMediaType(empty.Index, types.OCIImageIndex)
	var images []v1.Image
	for _, p := range s.programs {
		img, err := s.image(base, p)
		if err != nil {
			return nil, nil, err
		}
		images = append(images, img)
		index = mutate.AppendManifests(index, mutate.IndexAddendum{Add: img, Descriptor: v1.Descriptor{Platform: p.platform.image()}})
	}
	return mutate.Annotations(index, s.labels()).(v1.ImageIndex), images, nil
}

// image returns the image of one platform.
func (s *imageSpec) image(base v1.Layer, p program) (v1.Image, error) {
	data, err := os.ReadFile(p.path)
	if err != nil {
		return nil, fmt.Errorf("failed to read the program of %s: %w", p.platform, err)
	}
	entrypoint := "/" + filepath.Base(p.path)
	top, err := layer([]entry{{name: entrypoint[1:], mode: 0o755, data: data, when: s.time()}})
	if err != nil {
		return nil, err
	}
	img := mutate.ConfigMediaType(mutate.MediaType(empty.Image, types.OCIManifestSchema1), types.OCIConfigJSON)
	created := v1.Time{Time: s.time()}
	img, err = mutate.ConfigFile(img, &v1.ConfigFile{
		OS: p.platform.os, Architecture: p.platform.arch, Created: created, RootFS: v1.RootFS{Type: "layers"},
		Config: v1.Config{User: s.user, Entrypoint: []string{entrypoint}, WorkingDir: "/", Labels: s.labels()},
	})
	if err != nil {
		return nil, err
	}
	img, err = mutate.Append(img,
		mutate.Addendum{Layer: base, History: v1.History{
			Created:   v1.Time{Time: time.Unix(0, 0).UTC()},
			CreatedBy: "certificates, user and folders",
		}},
		mutate.Addendum{Layer: top, History: v1.History{Created: created, CreatedBy: "the program " + entrypoint}})
	if err != nil {
		return nil, err
	}
	return mutate.Annotations(img, s.labels()).(v1.Image), nil
}

func (s *imageSpec) labels() map[string]string {
	return map[string]string{
		"org.opencontainers.image.title":       s.title,
		"org.opencontainers.image.description": s.description,
		"org.opencontainers.image.source":      source,
		"org.opencontainers.image.licenses":    "Apache-2.0",
		"org.opencontainers.image.version":     s.version,
		"org.opencontainers.image.revision":    s.revision,
		"org.opencontainers.image.created":     s.time().Format(time.RFC3339),
	}
}

// entry is a file of an archive or of a layer. A name that ends with a slash is a directory.
type entry struct {
	name  string
	mode  int64
	owner int
	data  []byte
	when  time.Time
}

// baseLayer returns the layer with the files of each image, except for its program. The layer changes only when the
// trusted authorities change.
func baseLayer() (v1.Layer, error) {
	const users = "root:x:0:0:root:/:/sbin/nologin\nnonroot:x:65532:65532:nonroot:/:/sbin/nologin\n"
	const groups = "root:x:0:\nnonroot:x:65532:\n"
	unixZero := time.Unix(0, 0)
	return layer([]entry{
		{name: "etc/", mode: 0o755, when: unixZero},
		{name: "etc/group", mode: 0o644, data: []byte(groups), when: unixZero},
		{name: "etc/passwd", mode: 0o644, data: []byte(users), when: unixZero},
		{name: "etc/ssl/", mode: 0o755, when: unixZero},
		{name: "etc/ssl/certs/", mode: 0o755, when: unixZero},
		{name: "etc/ssl/certs/ca-certificates.crt", mode: 0o644, data: authorities(), when: unixZero},
		{name: "tmp/", mode: 0o1777, when: unixZero},
		{name: "var/", mode: 0o755, when: unixZero},
		{name: "var/lib/", mode: 0o755, when: unixZero},
		// A directory for the journal with write access for the user, for runs without a volume.
		{name: "var/lib/capstan/", mode: 0o750, owner: 65532, when: unixZero},
	})
}

// authorities returns the root certificates of Mozilla's list as published by the Go project. It leaves out roots
// whose trust has constraints that a certificate file cannot express.
func authorities() []byte {
	var out bytes.Buffer
	for root := range bundle.Roots() {
		if root.Constraint == nil {
			//nolint:errcheck,gosec // because a bytes.Buffer takes all
			pem.Encode(&out, &pem.Block{Type: "CERTIFICATE", Bytes: root.Certificate})
		}
	}
	return out.Bytes()
}

// layer packs files as a compressed layer.
func layer(entries []entry) (v1.Layer, error) {
	var out bytes.Buffer
	if err := writeTar(&out, entries); err != nil {
		return nil, err
	}
	open := func() (io.ReadCloser, error) { return io.NopCloser(bytes.NewReader(out.Bytes())), nil }
	return tarball.LayerFromOpener(open, tarball.WithMediaType(types.OCILayer), tarball.WithCompressedCaching)
}

// attachments returns the artifacts that refer to the image: the SBOM of each platform, and the provenance of all.
func (s *imageSpec) attachments(name string, index v1.ImageIndex, images []v1.Image) ([]v1.Image, error) {
	var attached []v1.Image
	for at, img := range images {
		data, err := s.programs[at].sbom()
		if err != nil {
			return nil, err
		}
		if data == nil {
			continue
		}
		a, err := s.attachment(img, mediaTypeSBOM, data)
		if err != nil {
			return nil, err
		}
		attached = append(attached, a)
	}
	if s.plain {
		return attached, nil
	}
	digest, err := index.Digest()
	if err != nil {
		return nil, err
	}
	var built toolchain
	for _, p := range s.programs {
		info, err := buildinfo.ReadFile(p.path)
		if err != nil {
			return nil, fmt.Errorf("failed to read the build information of the program of %s: %w", p.platform, err)
		}
		if err := built.add(info); err != nil {
			return nil, err
		}
	}
	data, err := provenance(s.release, s.builder, built, []subject{{name, digest.Hex}})
	if err != nil {
		return nil, err
	}
	a, err := s.attachment(index, mediaTypeProvenance, data)
	if err != nil {
		return nil, err
	}
	return append(attached, a), nil
}

// attachment returns an OCI artifact that refers to an image or an index.
func (s *imageSpec) attachment(to partial.Describable, mediaType types.MediaType, data []byte) (v1.Image, error) {
	about, err := partial.Descriptor(to)
	if err != nil {
		return nil, err
	}
	img, err := mutate.AppendLayers(mutate.MediaType(empty.Image, types.OCIManifestSchema1), static.NewLayer(data, mediaType))
	if err != nil {
		return nil, err
	}
	// The media type of the configuration is the artifact type, as the OCI image specification defines.
	img = mutate.ConfigMediaType(img, mediaType)
	img = mutate.Annotations(img, map[string]string{"org.opencontainers.image.created": s.time().Format(time.RFC3339)}).(v1.Image)
	return mutate.Subject(img, v1.Descriptor{MediaType: about.MediaType, Size: about.Size, Digest: about.Digest}).(v1.Image), nil
}

// writeLayout writes an OCI archive with the image under its name, and with the artifacts that refer to the image.
func writeLayout(file string, tag name.Tag, index v1.ImageIndex, attached []v1.Image) error {
	directory, err := os.MkdirTemp(filepath.Dir(file), ".layout-")
	if err != nil {
		return err
	}
	defer os.RemoveAll(directory) //nolint:errcheck // because it is a temporary directory
	written, err := layout.Write(directory, mutate.IndexMediaType(empty.Index, types.OCIImageIndex))
	if err != nil {
		return err
	}
	names := map[string]string{annotationName: canonical(tag), annotationRef: tag.TagStr()}
	if err := written.AppendIndex(index, layout.WithAnnotations(names)); err != nil {
		return err
	}
	for _, a := range attached {
		if err := written.AppendImage(a); err != nil {
			return err
		}
	}
	return packDir(directory, file)
}

// canonical returns the full name of an image in the form that containerd and the kubelet use.
func canonical(tag name.Tag) string {
	registry := strings.Replace(tag.RegistryStr(), "index.docker.io", "docker.io", 1)
	return registry + "/" + tag.RepositoryStr() + ":" + tag.TagStr()
}

// packDir packs the files of a directory, sorted by name and without times.
func packDir(directory, file string) error {
	var names []string
	err := filepath.WalkDir(directory, func(path string, d os.DirEntry, err error) error {
		if err == nil && !d.IsDir() {
			var relative string
			if relative, err = filepath.Rel(directory, path); err == nil {
				names = append(names, filepath.ToSlash(relative))
			}
		}
		return err
	})
	if err != nil {
		return err
	}
	slices.Sort(names)
	out, err := os.Create(file)
	if err != nil {
		return err
	}
	w := tar.NewWriter(out)
	for _, n := range names {
		if err = addFile(w, filepath.Join(directory, n), n); err != nil {
			break
		}
	}
	return errors.Join(err, w.Close(), out.Close())
}

func addFile(w *tar.Writer, from, name string) error {
	in, err := os.Open(from)
	if err != nil {
		return err
	}
	defer in.Close() //nolint:errcheck // because it was only read
	info, err := in.Stat()
	if err != nil {
		return err
	}
	header := &tar.Header{Name: name, Mode: 0o644, Size: info.Size(), ModTime: time.Unix(0, 0), Typeflag: tar.TypeReg}
	if err := w.WriteHeader(header); err != nil {
		return err
	}
	_, err = io.Copy(w, in)
	return err
}
