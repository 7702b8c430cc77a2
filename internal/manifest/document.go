package manifest

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"path/filepath"
	"strings"
	"unicode/utf8"

	kjson "sigs.k8s.io/json"
	"sigs.k8s.io/yaml"

	"github.com/capstan-dev/capstan/internal/yamldoc"
)

// maxDocuments is the maximum number of documents in a file.
const maxDocuments = 10_000

// document is one YAML or JSON document of a file, as text.
type document struct {
	line int // the first line of the document, counted from 1
	text []byte
	json bool
}

// split splits a file into its documents: YAML at separator lines, JSON after each object. It leaves out YAML documents
// that are empty or have only comments.
func split(name string, text []byte) ([]document, error) {
	if !utf8.Valid(text) {
		return nil, errors.New("must be UTF-8 text")
	}
	text = bytes.TrimPrefix(text, []byte("\ufeff"))
	found, err := splitJSON(text)
	isJSON := strings.EqualFold(filepath.Ext(name), ".json")
	if err != nil && isJSON {
		return nil, err
	}
	if err != nil || len(found) == 0 && !isJSON {
		found, err = splitYAML(text)
	}
	if len(found) > maxDocuments {
		return nil, fmt.Errorf("must hold at most %d documents", maxDocuments)
	}
	return found, err
}

// splitJSON splits a stream of JSON objects. An error means that the text is not JSON. It may still be YAML, because
// flow-style YAML begins with a brace, too.
func splitJSON(text []byte) ([]document, error) {
	if !bytes.HasPrefix(bytes.TrimSpace(text), []byte("{")) {
		return nil, errors.New("must be JSON objects")
	}
	var found []document
	decoder := json.NewDecoder(bytes.NewReader(text))
	line, counted := 1, 0
	for {
		var raw json.RawMessage
		err := decoder.Decode(&raw)
		if errors.Is(err, io.EOF) {
			return found, nil
		}
		if err != nil {
			end := min(int(decoder.InputOffset()), len(text))
			return nil, fmt.Errorf("must be JSON: %w near line %d", err, 1+bytes.Count(text[:end], []byte("\n")))
		}
		start := int(decoder.InputOffset()) - len(raw)
		line += bytes.Count(text[counted:start], []byte("\n"))
		counted = start
		found = append(found, document{line: line, text: raw, json: true})
	}
}

// splitYAML splits a file at lines that begin with "---" or "...". In YAML, such a line always ends a document, even
// within a block scalar, so no parser is needed.
func splitYAML(text []byte) ([]document, error) {
	var found []document
	number, begin, beginLine, end := 0, 0, 1, 0
	flush := func(next int) {
		if part := text[begin:end]; !onlyComments(part) {
			found = append(found, document{line: beginLine, text: part})
		}
		begin, beginLine = next, number+1
	}
	for line := range bytes.Lines(text) {
		number++
		if rest, ok := separator(line); ok {
			if rest != "" && !strings.HasPrefix(rest, "#") {
				return nil, fmt.Errorf("must have only a comment after the separator on line %d", number)
			}
			flush(end + len(line))
		}
		end += len(line)
	}
	flush(end)
	return found, nil
}

// separator reports whether a line separates documents, and returns the rest of that line.
func separator(line []byte) (rest string, ok bool) {
	for _, mark := range []string{"---", "..."} {
		after, found := strings.CutPrefix(string(line), mark)
		if found && strings.TrimLeft(after, " \t\r\n") != after || found && after == "" {
			return strings.TrimSpace(after), true
		}
	}
	return "", false
}

func onlyComments(text []byte) bool {
	for line := range bytes.Lines(text) {
		if trimmed := bytes.TrimSpace(line); len(trimmed) > 0 && trimmed[0] != '#' {
			return false
		}
	}
	return true
}

// fault is the reason why a document cannot be decoded. line is its line in the file, or 0 if it is not known.
type fault struct {
	line    int
	message string
}

// decode returns the document as a JSON object, or the faults because of which it cannot be decoded. It is a fault if a
// key occurs twice.
func (d document) decode() (map[string]any, []fault) {
	text := d.text
	if !d.json {
		converted, err := yaml.YAMLToJSONStrict(text)
		if err != nil {
			// Parse again after as many empty lines as precede the document, so that errors have the line numbers of
			// the file.
			_, err = yaml.YAMLToJSONStrict(append(bytes.Repeat([]byte("\n"), d.line-1), text...))
			var all []fault
			for _, f := range yamldoc.Faults(err) {
				all = append(all, fault{f.Line, "must be YAML: " + f.Message})
			}
			return nil, all
		}
		text = converted
	}
	var value any
	duplicates, err := kjson.UnmarshalStrict(text, &value)
	if err != nil {
		return nil, []fault{{message: "must be JSON: " + err.Error()}}
	}
	if len(duplicates) > 0 {
		return nil, []fault{{message: errors.Join(duplicates...).Error()}}
	}
	object, ok := value.(map[string]any)
	if !ok {
		return nil, []fault{{message: "must be an object with apiVersion, kind and metadata"}}
	}
	return object, nil
}
