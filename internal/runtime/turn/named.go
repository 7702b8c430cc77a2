package turn

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/capstan-dev/capstan/internal/fairgate"
	"github.com/capstan-dev/capstan/internal/runtime/journal"
	"github.com/capstan-dev/capstan/internal/runtime/loop"
	"github.com/capstan-dev/capstan/internal/runtime/model"
	"github.com/capstan-dev/capstan/internal/runtime/outputpolicy"
)

// AttachedPrefix begins the names of the artifacts that are attachments of a Turn. The name of the attachment follows.
const AttachedPrefix = "attachments/"

// NamedArtifact is an artifact of a Turn with the name by which users refer to it.
type NamedArtifact struct {
	Name, SHA256 string
	// Bytes is the size of the content or, for an output of a tool, of the whole output, which may have more bytes than
	// its artifact.
	Bytes int64
}

// ArtifactsOf returns the artifacts that an entry of a Turn's journal names: an attachment, the whole output of a call,
// or a long answer. Most entries name none. The payload of e must be filled.
func ArtifactsOf(e journal.Entry) ([]NamedArtifact, error) {
	switch e.Kind { //nolint:exhaustive // because the others name no artifact
	case journal.Prepared:
		var p struct {
			Messages []struct{ Attachments []model.Attachment }
		}
		if err := json.Unmarshal(e.Payload, &p); err != nil {
			return nil, err
		}
		var all []NamedArtifact
		for _, m := range p.Messages {
			for _, a := range m.Attachments {
				all = append(all, NamedArtifact{AttachedPrefix + a.Name, a.SHA256, a.Bytes})
			}
		}
		return all, nil
	case journal.ToolFinished:
		var f loop.CallResult
		if err := json.Unmarshal(e.Payload, &f); err != nil || f.ArtifactName == "" {
			return nil, err
		}
		return []NamedArtifact{{f.ArtifactName, f.Artifact, f.Bytes}}, nil
	case journal.Finalized:
		var r struct{ Answer *Artifact }
		if err := json.Unmarshal(e.Payload, &r); err != nil || r.Answer == nil {
			return nil, err
		}
		return []NamedArtifact{{r.Answer.Name, r.Answer.SHA256, r.Answer.Bytes}}, nil
	}
	return nil, nil
}

// kindsOf returns the kinds of entries that may name an artifact, or may refuse it.
func kindsOf(name string) []journal.Kind {
	if strings.HasPrefix(name, AttachedPrefix) {
		return []journal.Kind{journal.Prepared}
	}
	return []journal.Kind{journal.ToolFinished, journal.OutputChecked, journal.Finalized}
}

// artifactEntry is what an entry says about artifacts.
type artifactEntry struct {
	artifacts []NamedArtifact
	// call is the call whose output the artifact is, or whose output was checked. isAnswer is true if the output may be
	// the answer of its Turn. refuses is true if output policies have refused it.
	call              callKey
	isAnswer, refuses bool
}

// readArtifactEntry decodes the payload of an entry.
func readArtifactEntry(e journal.Entry) (a artifactEntry, err error) {
	switch e.Kind { //nolint:exhaustive // because the others are not about a call
	case journal.OutputChecked:
		var c loop.AnswerCheck
		err = json.Unmarshal(e.Payload, &c)
		return artifactEntry{call: callKey{c.Step, c.CallID}, refuses: c.Refused()}, err
	case journal.ToolFinished:
		var f loop.CallResult
		if err := json.Unmarshal(e.Payload, &f); err != nil {
			return a, err
		}
		a.call, a.isAnswer = callKey{f.Step, f.CallID}, f.EndsTurn
	}
	a.artifacts, err = ArtifactsOf(e)
	return a, err
}

// ArtifactError means that an artifact of another Turn cannot be used.
type ArtifactError struct {
	// Message describes the problem and its remedy.
	Message string
}

// Error returns the message.
func (e *ArtifactError) Error() string { return e.Message }

// Reserve waits until there is memory to read the given number of bytes of a journal, and returns the function that
// releases this memory.
type Reserve func(ctx context.Context, bytes int64) (release func(), err error)

// ReadArtifact returns the content of a named artifact of a Turn that another run may still be working on. uid is the
// UID of that Turn. Content of more than maxBytes bytes is not read. If reserve is nil, memory has no limit. The error
// is an *ArtifactError if the artifact cannot be used.
func ReadArtifact(ctx context.Context, j journal.Journal, uid, name string, maxBytes int, reserve Reserve) ([]byte, error) {
	if reserve == nil {
		reserve = func(context.Context, int64) (func(), error) { return func() {}, nil }
	}
	found, err := findArtifact(ctx, j, uid, name, reserve)
	if err != nil {
		return nil, err
	}
	if found.Bytes > int64(maxBytes) {
		return nil, &ArtifactError{fmt.Sprintf("artifact %q has %d bytes and may have at most %d: use a smaller one",
			name, found.Bytes, maxBytes)}
	}
	release, err := reserve(ctx, found.Bytes)
	if err != nil {
		return nil, err
	}
	defer release()
	a, err := j.Artifact(ctx, uid, found.SHA256)
	if errors.Is(err, journal.ErrNoArtifact) {
		return nil, &ArtifactError{fmt.Sprintf("artifact %q no longer exists: its journal was deleted", name)}
	}
	if err != nil {
		return nil, err
	}
	defer fairgate.AcquireProcessor(ctx, int(found.Bytes))()
	return a.Content()
}

// findArtifact returns the first artifact of a journal with this name. It returns an *ArtifactError for an output that
// output policies have refused as the answer, or have not checked yet: only people who may read journals may see it.
func findArtifact(ctx context.Context, j journal.Journal, uid, name string, reserve Reserve) (NamedArtifact, error) {
	kinds := kindsOf(name)
	var known []string
	var found *NamedArtifact
	var source artifactEntry
	isChecked := false
	for e, err := range j.Read(ctx, uid, 0) {
		if err != nil {
			return NamedArtifact{}, err
		}
		if !slices.Contains(kinds, e.Kind) || found != nil && e.Kind != journal.OutputChecked {
			continue
		}
		read, err := loadArtifactEntry(ctx, j, uid, e, reserve)
		if err != nil {
			return NamedArtifact{}, err
		}
		if found != nil && read.call == source.call {
			if isChecked = true; read.refuses {
				return NamedArtifact{}, &ArtifactError{fmt.Sprintf(
					"artifact %q cannot be used: an output policy has refused it as the answer", name)}
			}
		}
		for _, a := range read.artifacts {
			if found == nil && a.Name == name {
				found, source = &a, read
			}
			known = append(known, a.Name)
		}
	}
	switch {
	case found != nil && source.isAnswer && !isChecked:
		return *found, checkNoPolicy(ctx, j, uid, name, reserve)
	case found != nil:
		return *found, nil
	}
	has := "it has no artifacts of this kind so far"
	if n := len(known); n > 0 {
		has = "it has " + strings.Join(known[max(0, n-maxNamed):], ", ")
	}
	return NamedArtifact{}, &ArtifactError{fmt.Sprintf("there is no artifact %q: %s", name, has)}
}

// checkNoPolicy returns an *ArtifactError if a Turn has output policies that its answer must comply with. The check of
// an answer may still be running, or may have been impossible, for example because of a limit.
func checkNoPolicy(ctx context.Context, j journal.Journal, uid, name string, reserve Reserve) error {
	for e, err := range j.Read(ctx, uid, 0) {
		if err != nil {
			return err
		}
		if e.Kind != journal.PreparationInput {
			continue
		}
		enforced, err := enforcesPolicies(ctx, j, uid, e, reserve)
		if err == nil && enforced {
			err = &ArtifactError{fmt.Sprintf("artifact %q cannot be used: the output policies have not checked it as the answer", name)}
		}
		return err
	}
	return nil
}

// enforcesPolicies reports whether an entry with the input for the messages has enforced output policies.
func enforcesPolicies(ctx context.Context, j journal.Journal, uid string, e journal.Entry, reserve Reserve) (bool, error) {
	release, err := loadPayload(ctx, j, uid, &e, reserve)
	defer release()
	if err != nil {
		return false, asArtifactError(err)
	}
	var f struct { // not frozen, because only the policies are needed
		Input struct {
			Profile struct{ OutputPolicies []outputpolicy.Policy }
		}
	}
	if err := json.Unmarshal(e.Payload, &f); err != nil {
		return false, &ArtifactError{fmt.Sprintf("entry %d of its journal cannot be read: %s", e.Seq, err)}
	}
	return outputpolicy.AnyEnforced(f.Input.Profile.OutputPolicies), nil
}

// loadArtifactEntry fills the payload of an entry and returns what it says about artifacts.
func loadArtifactEntry(ctx context.Context, j journal.Journal, uid string, e journal.Entry, reserve Reserve) (artifactEntry, error) {
	release, err := loadPayload(ctx, j, uid, &e, reserve)
	defer release()
	if err != nil {
		return artifactEntry{}, asArtifactError(err)
	}
	read, err := readArtifactEntry(e)
	if err != nil {
		return artifactEntry{}, &ArtifactError{fmt.Sprintf("entry %d of its journal cannot be read: %s", e.Seq, err)}
	}
	return read, nil
}

// loadPayload fills the payload of an entry. If an artifact has the payload, loadPayload first reserves the memory for
// it, unless reserve is nil. The caller must call release when it no longer needs the payload, also after an error.
func loadPayload(ctx context.Context, j journal.Journal, uid string, e *journal.Entry, reserve Reserve) (release func(), err error) {
	release = func() {}
	err = journal.LoadAdmittedPayload(ctx, j, uid, e, func(bytes int64) error {
		if e.Artifact == "" || reserve == nil {
			return nil
		}
		reserved, err := reserve(ctx, bytes)
		if err == nil {
			release = reserved
		}
		return err
	})
	return release, err
}

// asArtifactError converts the error of an entry that will never be readable into an *ArtifactError.
func asArtifactError(err error) error {
	if errors.Is(err, journal.ErrDamaged) || errors.Is(err, journal.ErrNewer) {
		return &ArtifactError{"its journal cannot be read: " + err.Error()}
	}
	return err
}
