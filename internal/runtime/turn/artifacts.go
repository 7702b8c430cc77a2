package turn

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"strings"
	"sync"
	"unicode/utf8"

	"github.com/capstan-dev/capstan/internal/runtime/journal"
	"github.com/capstan-dev/capstan/internal/runtime/loop"
	"github.com/capstan-dev/capstan/internal/runtime/tool"
)

// How many characters of an artifact read_artifact returns where it is not told, and at most.
const (
	defaultPage = 8_000
	maxPage     = 10_000
)

// maxNamed is how many artifacts a model is told of that asks for one which is not there.
const maxNamed = 20

// artifacts are the outputs of tools that were too long for a message. Calls that run at the same time read them while others
// are added.
type artifacts struct {
	mu sync.Mutex
	// names in order, and the SHA-256 of each.
	names  []string
	byName map[string]string
}

func (a *artifacts) add(f loop.Finish) {
	if f.ArtifactName == "" || f.Artifact == "" {
		return
	}
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.byName == nil {
		a.byName = map[string]string{}
	}
	if _, ok := a.byName[f.ArtifactName]; !ok {
		a.names, a.byName[f.ArtifactName] = append(a.names, f.ArtifactName), f.Artifact
	}
}

// find returns the SHA-256 of an artifact of this Turn, or what to ask for instead.
func (a *artifacts) find(name string) (string, *tool.Error) {
	a.mu.Lock()
	defer a.mu.Unlock()
	if sha, ok := a.byName[name]; ok {
		return sha, nil
	}
	known := "no output of this turn was too long for its message"
	if n := len(a.names); n > 0 {
		known = "use one of " + strings.Join(a.names[max(0, n-maxNamed):], ", ")
	}
	return "", &tool.Error{Class: tool.InvalidArguments, Message: fmt.Sprintf("name: there is no artifact %q: %s", clean(name, maxCallName), known)}
}

// readArtifact is the tool read_artifact: it returns a part of an output of this Turn's tools.
func (r *run) readArtifact(ctx context.Context, c tool.Call) (tool.Result, error) {
	arguments := struct {
		Name   string `json:"name"`
		Offset int    `json:"offset"`
		Limit  int    `json:"limit"`
	}{Limit: defaultPage}
	if err := json.Unmarshal(c.Arguments, &arguments); err != nil {
		return tool.Result{}, &tool.Error{Class: tool.InvalidArguments, Message: `the arguments must be {"name": "...", "offset": 0, "limit": 8000}`, Err: err}
	}
	switch {
	case arguments.Offset < 0:
		return tool.Result{}, &tool.Error{Class: tool.InvalidArguments, Message: "offset: must be 0 or more"}
	case arguments.Limit < 1:
		return tool.Result{}, &tool.Error{Class: tool.InvalidArguments, Message: fmt.Sprintf("limit: must be from 1 to %d", maxPage)}
	}
	sha, unknown := r.past.artifacts.find(arguments.Name)
	if unknown != nil {
		return tool.Result{}, unknown
	}
	a, err := r.engine.Journal.Artifact(ctx, r.in.UID, sha)
	var content []byte
	if err == nil {
		content, err = a.Content()
	}
	switch {
	case errors.Is(err, journal.ErrNoArtifact):
		return tool.Result{}, &tool.Error{Class: tool.Failed, Message: fmt.Sprintf("artifact %q is not there any more", arguments.Name), Err: err}
	case err != nil:
		return tool.Result{}, &tool.Error{Class: tool.Unavailable, Message: fmt.Sprintf("artifact %q cannot be read now", arguments.Name), Err: err}
	}
	return page(arguments.Name, content, arguments.Offset, min(arguments.Limit, maxPage))
}

// page is a part of a text, by characters, with a line before it that says which and where the next begins.
func page(name string, content []byte, offset, limit int) (tool.Result, error) {
	total := utf8.RuneCount(content)
	if offset >= total && total > 0 {
		return tool.Result{}, &tool.Error{Class: tool.InvalidArguments, Message: fmt.Sprintf("offset: artifact %q has %d characters, so it must be below that", name, total)}
	}
	part := skip(content, offset)
	part = part[:len(part)-len(skip(part, limit))]
	end := offset + utf8.RuneCount(part)
	head := fmt.Sprintf("Artifact %q, characters %d to %d of %d; ", name, offset, end, total)
	if end < total {
		head += fmt.Sprintf("go on at offset %d.\n", end)
	} else {
		head += "this is the end.\n"
	}
	return tool.Result{Content: head + strings.ToValidUTF8(string(part), "\uFFFD")}, nil
}

// skip returns what follows so many characters of a text.
func skip(text []byte, n int) []byte {
	for ; n > 0 && len(text) > 0; n-- {
		_, size := utf8.DecodeRune(text)
		text = text[size:]
	}
	return text
}
