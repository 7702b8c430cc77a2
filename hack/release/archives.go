package main

import (
	"archive/tar"
	"archive/zip"
	"bytes"
	"cmp"
	"compress/gzip"
	"crypto/sha256"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strings"
)

// archivesSpec describes the archives of the command line.
type archivesSpec struct {
	release
	programs programs
	// completions is a directory with one completion file per shell.
	completions string
	license     string
	// url is the base URL from which the files of dist will be downloaded.
	url string
}

func runArchives(args []string, out io.Writer) error {
	var s archivesSpec
	f := flag.NewFlagSet("archives", flag.ContinueOnError)
	s.addFlags(f)
	f.StringVar(&s.completions, "completions", "", "directory with the completion files of shells")
	f.StringVar(&s.license, "license", "LICENSE", "path of the license")
	f.StringVar(&s.url, "url", "", "URL of the directory that the archives are downloaded from, for krew")
	f.Var(&s.programs, "program", "OS/ARCHITECTURE=PATH of capstan, once for each platform")
	if err := f.Parse(args); err != nil {
		return err
	}
	if err := s.check(); err != nil {
		return err
	}
	return s.write(out)
}

// write writes an archive and its SBOM for each platform, and the manifest for krew.
func (s *archivesSpec) write(out io.Writer) error {
	if len(s.programs) == 0 {
		return errors.New("-program must name a program for at least one platform")
	}
	slices.SortFunc(s.programs, func(a, b program) int { return cmp.Compare(a.platform.String(), b.platform.String()) })
	common, err := s.common()
	if err != nil {
		return err
	}
	var packed []krewPlatform
	for _, p := range s.programs {
		data, err := os.ReadFile(p.path)
		if err != nil {
			return fmt.Errorf("failed to read the program of %s: %w", p.platform, err)
		}
		executable := entry{name: "capstan" + p.platform.executable(), mode: 0o755, data: data, when: s.time()}
		pack := packTar
		if p.platform.os == "windows" {
			pack = packZip
		}
		archive, err := pack(append([]entry{executable}, common...))
		if err != nil {
			return err
		}
		file := cliArchive(s.version, p.platform)
		if err := os.WriteFile(s.path(file), archive, 0o644); err != nil { //nolint:gosec // because it is published
			return err
		}
		fmt.Fprintln(out, s.path(file)) //nolint:errcheck // because a failed write of progress is no failure
		sbom, err := p.sbom()
		if err != nil {
			return err
		}
		if sbom != nil {
			if err := os.WriteFile(s.path(file+sbomSuffix), sbom, 0o644); err != nil { //nolint:gosec // because it is published
				return err
			}
		}
		packed = append(packed, newKrewPlatform(p.platform, s.url+"/"+file, archive))
	}
	manifest, err := krewManifest(s.version, packed)
	if err != nil {
		return err
	}
	return os.WriteFile(s.path(krewFile), manifest, 0o644) //nolint:gosec // because it is published
}

// cliArchive returns the name of the command line's archive for a platform.
func cliArchive(version string, p platform) string {
	end := ".tar.gz"
	if p.os == "windows" {
		end = ".zip"
	}
	return "capstan_" + version + "_" + p.fileName() + end
}

// common returns the files of the archives that are the same for all platforms.
func (s *archivesSpec) common() ([]entry, error) {
	license, err := os.ReadFile(s.license)
	if err != nil {
		return nil, fmt.Errorf("failed to read the license: %w", err)
	}
	entries := []entry{{name: "LICENSE", mode: 0o644, data: license, when: s.time()}}
	files, err := os.ReadDir(s.completions)
	if err != nil {
		return nil, fmt.Errorf("failed to read -completions: %w", err)
	}
	for _, file := range files {
		data, err := os.ReadFile(filepath.Join(s.completions, file.Name()))
		if err != nil {
			return nil, err
		}
		entries = append(entries, entry{name: "completions/" + file.Name(), mode: 0o644, data: data, when: s.time()})
	}
	return entries, nil
}

func packTar(entries []entry) ([]byte, error) {
	var out bytes.Buffer
	compressed := gzip.NewWriter(&out)
	err := errors.Join(writeTar(compressed, entries), compressed.Close())
	return out.Bytes(), err
}

// writeTar writes a tar archive. A name that ends with a slash is a directory.
func writeTar(to io.Writer, entries []entry) error {
	w := tar.NewWriter(to)
	for _, e := range entries {
		header := &tar.Header{
			Name: e.name, Mode: e.mode, Uid: e.owner, Gid: e.owner, Size: int64(len(e.data)),
			ModTime: e.when, Typeflag: tar.TypeReg,
		}
		if strings.HasSuffix(e.name, "/") {
			header.Typeflag = tar.TypeDir
		}
		if err := w.WriteHeader(header); err != nil {
			return fmt.Errorf("failed to pack %s: %w", e.name, err)
		}
		if _, err := w.Write(e.data); err != nil {
			return fmt.Errorf("failed to pack %s: %w", e.name, err)
		}
	}
	return w.Close()
}

func packZip(entries []entry) ([]byte, error) {
	var out bytes.Buffer
	w := zip.NewWriter(&out)
	for _, e := range entries {
		header := &zip.FileHeader{Name: e.name, Method: zip.Deflate, Modified: e.when}
		header.SetMode(os.FileMode(e.mode)) //nolint:gosec // because modes are small
		file, err := w.CreateHeader(header)
		if err != nil {
			return nil, fmt.Errorf("failed to pack %s: %w", e.name, err)
		}
		if _, err := file.Write(e.data); err != nil {
			return nil, fmt.Errorf("failed to pack %s: %w", e.name, err)
		}
	}
	err := w.Close()
	return out.Bytes(), err
}

// unpack returns the files of a .tar.gz, .tgz or .zip, in order.
func unpack(file string) ([]entry, error) {
	data, err := os.ReadFile(file)
	if err != nil {
		return nil, err
	}
	if filepath.Ext(file) == ".zip" {
		return unpackZip(data)
	}
	compressed, err := gzip.NewReader(bytes.NewReader(data))
	if err != nil {
		return nil, err
	}
	return unpackTar(compressed)
}

func unpackTar(from io.Reader) ([]entry, error) {
	var entries []entry
	for r := tar.NewReader(from); ; {
		header, err := r.Next()
		if errors.Is(err, io.EOF) {
			return entries, nil
		}
		if err != nil {
			return nil, err
		}
		content, err := io.ReadAll(r)
		if err != nil {
			return nil, err
		}
		entries = append(entries, entry{name: header.Name, mode: header.Mode, owner: header.Uid, data: content, when: header.ModTime})
	}
}

func unpackZip(data []byte) ([]entry, error) {
	r, err := zip.NewReader(bytes.NewReader(data), int64(len(data)))
	if err != nil {
		return nil, err
	}
	var entries []entry
	for _, f := range r.File {
		in, err := f.Open()
		if err != nil {
			return nil, err
		}
		content, err := io.ReadAll(in)
		if err := errors.Join(err, in.Close()); err != nil {
			return nil, err
		}
		entries = append(entries, entry{name: f.Name, mode: int64(f.Mode().Perm()), data: content, when: f.Modified})
	}
	return entries, nil
}

// find returns the content of an entry, or nil if there is none.
func find(entries []entry, name string) []byte {
	for _, e := range entries {
		if e.name == name {
			return e.data
		}
	}
	return nil
}

func hexSum(data []byte) string { return fmt.Sprintf("%x", sha256.Sum256(data)) }
