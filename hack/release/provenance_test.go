package main

import (
	"bytes"
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"testing"
)

// otherGo returns a version of Go that is as long as that of this test, and not the same.
func otherGo() string {
	last := "0"
	if strings.HasSuffix(runtime.Version(), last) {
		last = "1"
	}
	return runtime.Version()[:len(runtime.Version())-1] + last
}

// builtWith returns copies of programs that name another version of Go as the one that has built them.
func builtWith(t *testing.T, version string, args []string) []string {
	t.Helper()
	args = slices.Clone(args)
	for at, arg := range args {
		name, path, found := strings.Cut(arg, "=")
		if !found {
			continue
		}
		to := filepath.Join(t.TempDir(), filepath.Base(path))
		for _, suffix := range []string{"", sbomSuffix} {
			data, err := os.ReadFile(path + suffix)
			if err != nil {
				t.Fatal(err)
			}
			write(t, to+suffix, string(bytes.ReplaceAll(data, []byte(runtime.Version()), []byte(version))))
		}
		args[at] = name + "=" + to
	}
	return args
}

// TestTheProvenanceNamesTheGoOfThePrograms checks that the provenances name the version of Go that has built the
// programs, and not the version that has built this command.
func TestTheProvenanceNamesTheGoOfThePrograms(t *testing.T) {
	dist := t.TempDir()
	manager, cli := build(t, "manager", both...), build(t, "capstan", host, platform{"windows", "amd64"})
	makeRelease(t, dist, builtWith(t, otherGo(), manager), builtWith(t, otherGo(), cli))
	data, err := os.ReadFile(filepath.Join(dist, provenanceFile))
	if err != nil {
		t.Fatal(err)
	}
	a := opened(t, dist)
	ofImage, err := a.refersTo(a.digest, string(mediaTypeProvenance))
	if err != nil {
		t.Fatal(err)
	}
	for of, data := range map[string][]byte{"files": data, "image": ofImage} {
		if !bytes.Contains(data, []byte(`"`+otherGo()+`"`)) || bytes.Contains(data, []byte(runtime.Version())) {
			t.Errorf("the provenance of the %s is %s, want Go %s", of, data, otherGo())
		}
	}
	if out, err := verified(t, dist); err != nil {
		t.Errorf("verify: %v\n%s", err, out)
	}
	args := append([]string{"image", "-reference", "capstan-dev/capstan:" + version}, common(t.TempDir())...)
	args = append(append(args, manager[:2]...), builtWith(t, otherGo(), manager[2:])...)
	if _, err := command(t, args...); err == nil || !strings.Contains(err.Error(), "build all of them again with one version of Go") {
		t.Errorf("error = %v, want an error, because two versions of Go have built the programs", err)
	}
}

// TestProvenanceMatchesSLSA checks the statement against SLSA's field names, not against the library that
// writes it.
func TestProvenanceMatchesSLSA(t *testing.T) {
	data, err := provenance(release{version: version, revision: revision, epoch: 1700000000}, localBuilder, "go1.26.0",
		[]subject{{"a", strings.Repeat("0", 64)}})
	if err != nil {
		t.Fatal(err)
	}
	var s struct {
		Type          string `json:"_type"`
		PredicateType string `json:"predicateType"`
		Subject       []struct {
			Name   string            `json:"name"`
			Digest map[string]string `json:"digest"`
		} `json:"subject"`
		Predicate struct {
			BuildDefinition struct {
				BuildType            string         `json:"buildType"`
				ExternalParameters   map[string]any `json:"externalParameters"`
				ResolvedDependencies []struct {
					URI    string            `json:"uri"`
					Digest map[string]string `json:"digest"`
				} `json:"resolvedDependencies"`
			} `json:"buildDefinition"`
			RunDetails struct {
				Builder struct {
					ID string `json:"id"`
				} `json:"builder"`
			} `json:"runDetails"`
		} `json:"predicate"`
	}
	if err := json.Unmarshal(data, &s); err != nil {
		t.Fatal(err)
	}
	if s.Type != "https://in-toto.io/Statement/v1" || s.PredicateType != "https://slsa.dev/provenance/v1" ||
		s.Subject[0].Digest["sha256"] == "" {
		t.Errorf("the statement is %s, want one of in-toto with SLSA's provenance", data)
	}
	p := s.Predicate
	if p.RunDetails.Builder.ID != localBuilder || p.BuildDefinition.ResolvedDependencies[0].Digest["gitCommit"] != revision ||
		fmt.Sprint(p.BuildDefinition.ExternalParameters["sourceDateEpoch"]) != "1.7e+09" {
		t.Errorf("the provenance is %+v, want the builder, the commit and its time", p)
	}
}
