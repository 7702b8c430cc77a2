package main

import (
	"bytes"
	"context"
	"debug/buildinfo"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"slices"
	"strings"

	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/mutate"
	"github.com/google/go-containerregistry/pkg/v1/tarball"
	"github.com/google/go-containerregistry/pkg/v1/validate"
)

// checkImage checks the OCI archive, and that the archives for docker load contain the same images.
// versionArgument is the argument that makes the program print its version, or empty if the program has none.
func (v *verifier) checkImage(ctx context.Context, image, versionArgument string) error {
	base := filepath.Base(image)
	a, err := openArchive(v.path(imageArchive(base, v.version)))
	if err != nil {
		return err
	}
	defer a.Close() //nolint:errcheck // because it is a temporary directory
	if want := "docker.io/" + image + ":" + v.version; a.name != want {
		return fmt.Errorf("the name is %s, want %s", a.name, want)
	}
	v.images[a.name] = a.digest
	if err := validate.Index(a.index); err != nil {
		return err
	}
	manifest, err := a.index.IndexManifest()
	if err != nil {
		return err
	}
	if len(manifest.Manifests) != len(v.platforms) {
		return fmt.Errorf("it has %d platforms, want %d", len(manifest.Manifests), len(v.platforms))
	}
	for _, p := range v.platforms {
		at := slices.IndexFunc(manifest.Manifests, func(d v1.Descriptor) bool { return d.Platform != nil && d.Platform.Equals(*p.image()) })
		if at < 0 {
			return fmt.Errorf("it lacks the platform %s", p)
		}
		digest := manifest.Manifests[at].Digest
		img, err := a.index.Image(digest)
		if err != nil {
			return err
		}
		program, err := v.platformImage(ctx, img, p, versionArgument)
		if err != nil {
			return fmt.Errorf("%s: %w", p, err)
		}
		sbom, err := a.refersTo(digest, string(mediaTypeSBOM))
		if err != nil {
			return fmt.Errorf("%s: %w", p, err)
		}
		if err := v.sbom(sbom, program); err != nil {
			return fmt.Errorf("%s: %w", p, err)
		}
		if err := v.sameAsDocker(img, v.path(dockerArchive(base, v.version, p))); err != nil {
			return fmt.Errorf("%s: %w", p, err)
		}
	}
	statement, err := a.refersTo(a.digest, string(mediaTypeProvenance))
	if err != nil {
		return err
	}
	return v.statement(statement, map[string]string{a.name: a.digest.Hex})
}

// platformImage checks the image of one platform and returns its program.
func (v *verifier) platformImage(ctx context.Context, img v1.Image, p platform, versionArgument string) ([]byte, error) {
	config, err := img.ConfigFile()
	if err != nil {
		return nil, err
	}
	if config.Config.User != nonroot || len(config.Config.Entrypoint) != 1 {
		return nil, fmt.Errorf("it runs %v as %q, want one program as %s", config.Config.Entrypoint, config.Config.User, nonroot)
	}
	for label, want := range map[string]string{"version": v.version, "revision": v.revision} {
		if have := config.Config.Labels["org.opencontainers.image."+label]; have != want {
			return nil, fmt.Errorf("its label %s is %q, want %q", label, have, want)
		}
	}
	files := mutate.Extract(img)
	defer files.Close() //nolint:errcheck // because it is only read
	entries, err := unpackTar(files)
	if err != nil {
		return nil, err
	}
	if len(find(entries, "etc/ssl/certs/ca-certificates.crt")) == 0 {
		return nil, errors.New("it lacks the certificates of authorities")
	}
	program := find(entries, strings.TrimPrefix(config.Config.Entrypoint[0], "/"))
	return program, v.program(ctx, program, p, versionArgument)
}

// refersTo returns the content of the first artifact of a type that refers to an image.
func (a *archived) refersTo(digest v1.Hash, mediaType string) ([]byte, error) {
	for _, img := range a.attached {
		manifest, err := img.Manifest()
		if err != nil {
			return nil, err
		}
		if manifest.Subject == nil || manifest.Subject.Digest != digest ||
			string(manifest.Config.MediaType) != mediaType || len(manifest.Layers) != 1 {
			continue
		}
		layers, err := img.Layers()
		if err != nil {
			return nil, err
		}
		content, err := layers[0].Compressed()
		if err != nil {
			return nil, err
		}
		data, err := io.ReadAll(content)
		return data, errors.Join(err, content.Close())
	}
	return nil, fmt.Errorf("no artifact of the type %s refers to %s", mediaType, digest)
}

// sameAsDocker checks that an archive for docker load contains the same image.
func (v *verifier) sameAsDocker(img v1.Image, file string) error {
	loaded, err := tarball.ImageFromPath(file, nil)
	if err != nil {
		return err
	}
	want, err := img.ConfigName()
	if err != nil {
		return err
	}
	have, err := loaded.ConfigName()
	if err != nil {
		return err
	}
	if have != want {
		return fmt.Errorf("%s holds the image %s, want %s", filepath.Base(file), have, want)
	}
	return validate.Image(loaded)
}

// program checks the platform that a program is built for, and that one version of Go has built all programs. If the
// program is for this machine, it must print the version when it is run with versionArgument. If versionArgument is
// empty, program does not run it.
func (v *verifier) program(ctx context.Context, data []byte, p platform, versionArgument string) error {
	info, err := buildinfo.Read(bytes.NewReader(data))
	if err != nil {
		return fmt.Errorf("failed to read the build information of the program of %s: %w", p, err)
	}
	if err := v.built.add(info); err != nil {
		return err
	}
	settings := map[string]string{}
	for _, s := range info.Settings {
		settings[s.Key] = s.Value
	}
	for key, want := range map[string]string{"GOOS": p.os, "GOARCH": p.arch, "CGO_ENABLED": "0", "-trimpath": "true"} {
		if settings[key] != want {
			return fmt.Errorf("the program of %s is built with %s=%s, want %s", p, key, settings[key], want)
		}
	}
	if versionArgument == "" || p.os != runtime.GOOS || p.arch != runtime.GOARCH {
		return nil
	}
	directory, err := os.MkdirTemp("", "capstan-release-")
	if err != nil {
		return err
	}
	defer os.RemoveAll(directory) //nolint:errcheck // because it is a temporary directory
	path := filepath.Join(directory, "program"+p.executable())
	if err := os.WriteFile(path, data, 0o700); err != nil { //nolint:gosec // because it is run
		return err
	}
	out, err := exec.CommandContext(ctx, path, versionArgument).CombinedOutput()
	if err != nil {
		return fmt.Errorf("the program of %s cannot be run: %w: %s", p, err, out)
	}
	if !slices.Contains(strings.Fields(string(out)), v.version) {
		return fmt.Errorf("the program of %s prints %q, want the version %s", p, strings.TrimSpace(string(out)), v.version)
	}
	return nil
}

// sbom checks that an SBOM is for this version and lists the modules of the program.
func (v *verifier) sbom(data, program []byte) error {
	var list struct {
		BOMFormat string `json:"bomFormat"`
		Metadata  struct {
			Component struct {
				Version string `json:"version"`
			} `json:"component"`
		} `json:"metadata"`
		Components []struct {
			Name    string `json:"name"`
			Version string `json:"version"`
		} `json:"components"`
	}
	if err := json.Unmarshal(data, &list); err != nil {
		return fmt.Errorf("failed to read the SBOM: %w", err)
	}
	if list.BOMFormat != "CycloneDX" || list.Metadata.Component.Version != v.version {
		return fmt.Errorf("the SBOM is %s of version %s, want CycloneDX of version %s", list.BOMFormat,
			list.Metadata.Component.Version, v.version)
	}
	named := map[string]bool{}
	for _, c := range list.Components {
		named[c.Name+"@"+c.Version] = true
	}
	info, err := buildinfo.Read(bytes.NewReader(program))
	if err != nil {
		return err
	}
	for _, m := range info.Deps {
		if !named[m.Path+"@"+m.Version] {
			return fmt.Errorf("the SBOM lacks %s@%s", m.Path, m.Version)
		}
	}
	return nil
}
