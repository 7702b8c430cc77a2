package main

import (
	"bytes"
	"debug/buildinfo"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strings"
)

const (
	checksumsFile  = "checksums.txt"
	provenanceFile = "provenance.json"
)

// runFinish makes the chart's package reproducible, and writes the provenance and the checksums of all files.
func runFinish(args []string, out io.Writer) error {
	var r release
	f := flag.NewFlagSet("finish", flag.ContinueOnError)
	r.addFlags(f)
	builder := f.String("builder", localBuilder, "URI of the builder, for the provenance")
	if err := f.Parse(args); err != nil {
		return err
	}
	if err := r.check(); err != nil {
		return err
	}
	charts, err := filepath.Glob(r.path("*.tgz"))
	if err != nil {
		return err
	}
	for _, chart := range charts {
		if err := r.repack(chart); err != nil {
			return fmt.Errorf("failed to pack %s again: %w", chart, err)
		}
	}
	return r.finish(*builder, out)
}

// repack gives all files in a chart's package the time of the release. Helm gives them the time of the packaging.
func (r *release) repack(chart string) error {
	entries, err := unpack(chart)
	if err != nil {
		return err
	}
	for i := range entries {
		entries[i].when, entries[i].mode = r.time(), 0o644
	}
	slices.SortStableFunc(entries, func(a, b entry) int {
		// Helm reads a chart fastest if Chart.yaml is the first file.
		first := func(e entry) int {
			if strings.Count(e.name, "/") == 1 && strings.HasSuffix(e.name, "/Chart.yaml") {
				return 0
			}
			return 1
		}
		if d := first(a) - first(b); d != 0 {
			return d
		}
		return strings.Compare(a.name, b.name)
	})
	data, err := packTar(entries)
	if err != nil {
		return err
	}
	return os.WriteFile(chart, data, 0o644) //nolint:gosec // because it is published
}

func (r *release) finish(builder string, out io.Writer) error {
	for _, name := range []string{checksumsFile, provenanceFile} {
		if err := os.Remove(r.path(name)); err != nil && !errors.Is(err, os.ErrNotExist) {
			return err
		}
	}
	subjects, err := r.sums()
	if err != nil {
		return err
	}
	if len(subjects) == 0 {
		return fmt.Errorf("%s has no files: run make release", r.dist)
	}
	images, err := r.imageDigests()
	if err != nil {
		return err
	}
	built, err := r.toolchain()
	if err != nil {
		return err
	}
	statement, err := provenance(*r, builder, built, append(subjects, images...))
	if err != nil {
		return err
	}
	if err := os.WriteFile(r.path(provenanceFile), statement, 0o644); err != nil { //nolint:gosec // because it is published
		return err
	}
	subjects = append(subjects, subject{provenanceFile, hexSum(statement)})
	slices.SortFunc(subjects, func(a, b subject) int { return strings.Compare(a.name, b.name) })
	var sums bytes.Buffer
	for _, s := range subjects {
		fmt.Fprintf(&sums, "%s  %s\n", s.sha256, s.name)
	}
	fmt.Fprintln(out, r.path(checksumsFile))                        //nolint:errcheck // because a failed write of progress is no failure
	return os.WriteFile(r.path(checksumsFile), sums.Bytes(), 0o644) //nolint:gosec // because it is published
}

// sums returns the files of dist with their checksums, except for the checksum file itself.
func (r *release) sums() ([]subject, error) {
	files, err := os.ReadDir(r.dist)
	if err != nil {
		return nil, err
	}
	var all []subject
	for _, file := range files {
		if file.Name() == checksumsFile {
			continue
		}
		if !file.Type().IsRegular() {
			return nil, fmt.Errorf("%s is not a file: remove it", r.path(file.Name()))
		}
		data, err := os.ReadFile(r.path(file.Name()))
		if err != nil {
			return nil, err
		}
		all = append(all, subject{file.Name(), hexSum(data)})
	}
	return all, nil
}

// toolchain returns the version of Go that has built the programs in the archives of the command line.
func (r *release) toolchain() (toolchain, error) {
	archives, err := filepath.Glob(r.path("capstan_" + r.version + "_*"))
	if err != nil {
		return "", err
	}
	var built toolchain
	for _, archive := range archives {
		name := "capstan"
		switch filepath.Ext(archive) {
		case ".zip":
			name += ".exe"
		case ".gz":
		default: // an archive of an image, or an SBOM
			continue
		}
		entries, err := unpack(archive)
		if err != nil {
			return "", err
		}
		info, err := buildinfo.Read(bytes.NewReader(find(entries, name)))
		if err != nil {
			return "", fmt.Errorf("failed to read the build information of the program in %s: %w", archive, err)
		}
		if err := built.add(info); err != nil {
			return "", err
		}
	}
	if built == "" {
		return "", fmt.Errorf("%s has no archive of the command line: run make release", r.dist)
	}
	return built, nil
}

// imageDigests returns the images in the OCI archives of dist, by name.
func (r *release) imageDigests() ([]subject, error) {
	archives, err := filepath.Glob(r.path(imageArchive("*", r.version)))
	if err != nil {
		return nil, err
	}
	var all []subject
	for _, archive := range archives {
		opened, err := openArchive(archive)
		if err != nil {
			return nil, err
		}
		all = append(all, subject{opened.name, opened.digest.Hex})
		if err := opened.Close(); err != nil {
			return nil, err
		}
	}
	return all, nil
}
