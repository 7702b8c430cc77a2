package main

import (
	"bytes"
	"encoding/json"
	"fmt"
	"runtime/debug"

	slsa "github.com/in-toto/attestation/go/predicates/provenance/v1"
	intoto "github.com/in-toto/attestation/go/v1"
	"google.golang.org/protobuf/encoding/protojson"
	"google.golang.org/protobuf/types/known/structpb"
)

const (
	// localBuilder is the builder ID of a build on a developer's machine, without a hosted builder.
	localBuilder = source + "/blob/main/docs/releases.md#a-build-on-your-own-machine"
	buildType    = source + "/blob/main/docs/releases.md#how-it-is-built"

	typeProvenance = "https://slsa.dev/provenance/v1"

	// nameOfGo is the name of Go among the dependencies of a build.
	nameOfGo = "go"
)

// subject is the name of a result and its SHA-256 in hexadecimal.
type subject struct{ name, sha256 string }

// toolchain is the version of Go that has built the programs of a release, such as go1.26.0. It is empty if no program
// is known. It may differ from the version that has built this command.
type toolchain string

// add adds a program. It returns an error if another version of Go has built it, because a provenance names only one.
func (t *toolchain) add(program *debug.BuildInfo) error {
	if known := string(*t); known != "" && known != program.GoVersion {
		return fmt.Errorf("the programs are built with %s and with %s: build all of them again with one version of Go",
			known, program.GoVersion)
	}
	*t = toolchain(program.GoVersion)
	return nil
}

// provenance returns an in-toto statement about the sources of the results. The statement is not signed and
// contains no timestamp, so the same build produces the same bytes.
func provenance(r release, builder string, built toolchain, subjects []subject) ([]byte, error) {
	external, err := structpb.NewStruct(map[string]any{"repository": source, "version": r.version, "sourceDateEpoch": float64(r.epoch)})
	if err != nil {
		return nil, err
	}
	build := &slsa.Provenance{
		BuildDefinition: &slsa.BuildDefinition{
			BuildType: buildType, ExternalParameters: external,
			ResolvedDependencies: []*intoto.ResourceDescriptor{{
				Uri: "git+" + source, Digest: map[string]string{"gitCommit": r.revision},
			}, {
				Name: nameOfGo, Annotations: &structpb.Struct{
					Fields: map[string]*structpb.Value{"version": structpb.NewStringValue(string(built))},
				},
				Uri: "https://go.dev/dl/?mode=json&include=all#" + string(built),
			}},
		},
		RunDetails: &slsa.RunDetails{Builder: &slsa.Builder{Id: builder}},
	}
	if err := build.Validate(); err != nil {
		return nil, fmt.Errorf("failed to make the provenance: %w", err)
	}
	statement := &intoto.Statement{Type: intoto.StatementTypeUri, PredicateType: typeProvenance, Predicate: &structpb.Struct{}}
	for _, s := range subjects {
		statement.Subject = append(statement.Subject,
			&intoto.ResourceDescriptor{Name: s.name, Digest: map[string]string{"sha256": s.sha256}})
	}
	predicate, err := protojson.Marshal(build)
	if err != nil {
		return nil, err
	}
	if err := protojson.Unmarshal(predicate, statement.GetPredicate()); err != nil {
		return nil, err
	}
	if err := statement.Validate(); err != nil {
		return nil, fmt.Errorf("failed to make the provenance: %w", err)
	}
	data, err := protojson.Marshal(statement)
	if err != nil {
		return nil, err
	}
	// protojson varies its white space deliberately.
	var out bytes.Buffer
	if err := json.Indent(&out, data, "", "  "); err != nil {
		return nil, err
	}
	out.WriteByte('\n')
	return out.Bytes(), nil
}
