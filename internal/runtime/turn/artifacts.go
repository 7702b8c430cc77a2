package turn

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"sync"
	"unicode/utf8"

	"github.com/capstan-dev/capstan/internal/fairgate"
	"github.com/capstan-dev/capstan/internal/runtime/journal"
	"github.com/capstan-dev/capstan/internal/runtime/loop"
	"github.com/capstan-dev/capstan/internal/runtime/tool"
)

// The default and the maximum number of characters that read_artifact returns.
const (
	defaultPage = 8_000
	maxPage     = 10_000
)

// maxNamed is the maximum number of artifacts that an error about an unknown artifact lists.
const maxNamed = 20

// artifacts are the tool outputs that were too long for a message. It is safe for concurrent use.
type artifacts struct {
	mu sync.Mutex
	// names are in the order of the calls.
	names  []string
	byName map[string]artifact
}

// artifact is the SHA-256 of a stored output, and its size in bytes.
type artifact struct {
	sha256 string
	bytes  int64
}

// add adds the artifact of a call result, if there is one. Only the first artifact of a name counts.
func (a *artifacts) add(f loop.CallResult) {
	if f.ArtifactName == "" || f.Artifact == "" {
		return
	}
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.byName == nil {
		a.byName = map[string]artifact{}
	}
	if _, ok := a.byName[f.ArtifactName]; !ok {
		a.names, a.byName[f.ArtifactName] = append(a.names, f.ArtifactName), artifact{f.Artifact, f.Bytes}
	}
}

// remove removes the artifact with this name, if there is one.
func (a *artifacts) remove(name string) {
	a.mu.Lock()
	defer a.mu.Unlock()
	delete(a.byName, name)
	a.names = slices.DeleteFunc(a.names, func(known string) bool { return known == name })
}

// artifactName matches the names of artifacts. The first group is the number of a Turn in its Session. A name without
// it belongs to the first Turn, or to a Turn of an older version.
var artifactName = regexp.MustCompile(`^(?:turn-([1-9][0-9]{0,17})-)?call-[0-9]+-[0-9]+$`)

// artifactPrefix returns the start of the names of artifacts of the Turn with this number in its Session.
func artifactPrefix(number int64) string {
	if number <= 1 {
		return ""
	}
	return fmt.Sprintf("turn-%d-", number)
}

// ofEarlierTurn reports whether a name belongs to an earlier Turn of the Session than the Turn with this number.
func ofEarlierTurn(name string, number int64) bool {
	groups := artifactName.FindStringSubmatch(name)
	if groups == nil {
		return false
	}
	of := int64(1)
	if groups[1] != "" {
		of, _ = strconv.ParseInt(groups[1], 10, 64) // the pattern allows only numbers of this size
	}
	return of < number
}

// find returns an artifact of the Turn with this number in its Session, or an error. The error says whether the name
// belongs to an earlier Turn, whose messages are in the history, or lists the newest artifacts.
func (a *artifacts) find(name string, number int64) (artifact, *tool.Error) {
	a.mu.Lock()
	defer a.mu.Unlock()
	if found, ok := a.byName[name]; ok {
		return found, nil
	}
	if ofEarlierTurn(name, number) {
		return artifact{}, &tool.Error{
			Class: tool.InvalidArguments,
			Message: fmt.Sprintf("name: artifact %q belongs to an earlier turn and can no longer be read: "+
				"call the tool that returned it again", clean(name, maxCallName)),
		}
	}
	known := "this turn has no artifacts"
	if n := len(a.names); n > 0 {
		known = "use one of " + strings.Join(a.names[max(0, n-maxNamed):], ", ")
	}
	return artifact{}, &tool.Error{
		Class:   tool.InvalidArguments,
		Message: fmt.Sprintf("name: there is no artifact %q: %s", clean(name, maxCallName), known),
	}
}

// readArtifact implements the tool read_artifact. It returns a part of an output of this Turn's tools.
func (r *run) readArtifact(ctx context.Context, c tool.Call) (tool.Result, error) {
	arguments := struct {
		Name   string `json:"name"`
		Offset int    `json:"offset"`
		Limit  int    `json:"limit"`
	}{Limit: defaultPage}
	if err := json.Unmarshal(c.Arguments, &arguments); err != nil {
		return tool.Result{}, &tool.Error{
			Class:   tool.InvalidArguments,
			Message: `the arguments must be {"name": "...", "offset": 0, "limit": 8000}`, Err: err,
		}
	}
	switch {
	case arguments.Offset < 0:
		return tool.Result{}, &tool.Error{Class: tool.InvalidArguments, Message: "offset: must be 0 or more"}
	case arguments.Limit < 1:
		return tool.Result{}, &tool.Error{
			Class:   tool.InvalidArguments,
			Message: fmt.Sprintf("limit: must be 1 or more; at most %d characters are returned", maxPage),
		}
	}
	found, unknown := r.replayed.artifacts.find(arguments.Name, r.turnNumber())
	if unknown != nil {
		return tool.Result{}, unknown
	}
	if r.in.ReserveRead != nil {
		release, err := r.in.ReserveRead(ctx, found.bytes)
		if err != nil {
			return tool.Result{}, err
		}
		defer release()
	}
	content, err := r.artifactContent(ctx, found)
	switch {
	case errors.Is(err, journal.ErrNoArtifact):
		return tool.Result{}, &tool.Error{
			Class:   tool.Failed,
			Message: fmt.Sprintf("artifact %q no longer exists", arguments.Name), Err: err,
		}
	case err != nil:
		return tool.Result{}, &tool.Error{
			Class:   tool.Unavailable,
			Message: fmt.Sprintf("artifact %q cannot be read at the moment", arguments.Name), Err: err,
		}
	}
	return page(arguments.Name, content, arguments.Offset, min(arguments.Limit, maxPage))
}

// artifactContent reads an artifact.
func (r *run) artifactContent(ctx context.Context, ref artifact) ([]byte, error) {
	a, err := r.engine.Journal.Artifact(ctx, r.in.UID, ref.sha256)
	if err != nil {
		return nil, err
	}
	defer fairgate.AcquireProcessor(ctx, int(ref.bytes))()
	return a.Content()
}

// page returns a part of a text. offset and limit are in characters. The first line of the result says which part it
// is, and at which offset the next part begins.
func page(name string, content []byte, offset, limit int) (tool.Result, error) {
	total := utf8.RuneCount(content)
	if offset >= total && total > 0 {
		return tool.Result{}, &tool.Error{
			Class:   tool.InvalidArguments,
			Message: fmt.Sprintf("offset: must be below %d, the number of characters of artifact %q", total, name),
		}
	}
	part := skip(content, offset)
	part = part[:len(part)-len(skip(part, limit))]
	end := offset + utf8.RuneCount(part)
	head := fmt.Sprintf("Artifact %q, characters %d to %d of %d; ", name, offset, end, total)
	if end < total {
		head += fmt.Sprintf("continue at offset %d.\n", end)
	} else {
		head += "this is the end.\n"
	}
	return tool.Result{Content: head + strings.ToValidUTF8(string(part), "\uFFFD")}, nil
}

// skip returns the text after its first n characters.
func skip(text []byte, n int) []byte {
	for ; n > 0 && len(text) > 0; n-- {
		_, size := utf8.DecodeRune(text)
		text = text[size:]
	}
	return text
}
