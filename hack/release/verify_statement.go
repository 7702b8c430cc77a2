package main

import (
	"errors"
	"fmt"
	"os"
	"strings"

	slsa "github.com/in-toto/attestation/go/predicates/provenance/v1"
	intoto "github.com/in-toto/attestation/go/v1"
	"google.golang.org/protobuf/encoding/protojson"
)

// provenance checks that the statement lists all files and images with their checksums, the commit, and the version of
// Go.
func (v *verifier) provenance() error {
	data, err := os.ReadFile(v.path(provenanceFile))
	if err != nil {
		return err
	}
	all, err := v.sums()
	if err != nil {
		return err
	}
	want := map[string]string{}
	for _, s := range all {
		if s.name != provenanceFile {
			want[s.name] = s.sha256
		}
	}
	for name, digest := range v.images {
		want[name] = digest.Hex
	}
	return v.statement(data, want)
}

func (v *verifier) statement(data []byte, want map[string]string) error {
	var s intoto.Statement
	if err := protojson.Unmarshal(data, &s); err != nil {
		return err
	}
	if err := s.Validate(); err != nil {
		return err
	}
	if s.GetPredicateType() != typeProvenance {
		return fmt.Errorf("the predicate is of the type %s, want %s", s.GetPredicateType(), typeProvenance)
	}
	for _, subject := range s.GetSubject() {
		if sum := want[subject.GetName()]; sum == "" || sum != subject.GetDigest()["sha256"] {
			return fmt.Errorf("%s has the sum %q, want %q", subject.GetName(), subject.GetDigest()["sha256"], sum)
		}
		delete(want, subject.GetName())
	}
	for name := range want {
		return fmt.Errorf("it does not name %s", name)
	}
	if !strings.Contains(string(data), `"gitCommit": "`+v.revision+`"`) {
		return fmt.Errorf("it does not name the commit %s", v.revision)
	}
	return v.namesGo(&s)
}

// namesGo checks that a statement names the version of Go that has built the programs that were checked before.
func (v *verifier) namesGo(s *intoto.Statement) error {
	predicate, err := protojson.Marshal(s.GetPredicate())
	if err != nil {
		return err
	}
	var build slsa.Provenance
	if err := protojson.Unmarshal(predicate, &build); err != nil {
		return err
	}
	for _, d := range build.GetBuildDefinition().GetResolvedDependencies() {
		if d.GetName() != nameOfGo {
			continue
		}
		if named := d.GetAnnotations().GetFields()["version"].GetStringValue(); named != string(v.built) {
			return fmt.Errorf("it names the Go version %s, and the programs are built with %s", named, v.built)
		}
		return nil
	}
	return errors.New("it does not name the version of Go")
}
