// Package yamldoc reads YAML files that have one document, and words the messages about their values.
package yamldoc

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"regexp"
	"strconv"
	"strings"

	yamlv2 "go.yaml.in/yaml/v2"
	"sigs.k8s.io/yaml"
)

// ToJSON returns the JSON form of a YAML text. It returns an error if a key occurs twice, or if the text has several
// documents. Empty documents, such as one of comments after the last separator, do not count as further ones.
func ToJSON(text []byte) ([]byte, error) {
	data, err := yaml.YAMLToJSONStrict(text)
	if err != nil {
		return nil, explain(err)
	}
	if err := checkSingle(text); err != nil {
		return nil, err
	}
	return data, nil
}

// checkSingle returns an error if a text has several documents. sigs.k8s.io/yaml reads only the first document, so its
// caller would ignore the others. checkSingle uses the same parser, so both agree where a document ends.
func checkSingle(text []byte) error {
	decoder := yamlv2.NewDecoder(bytes.NewReader(text))
	for n := 0; ; n++ {
		var document any
		err := decoder.Decode(&document)
		switch {
		case errors.Is(err, io.EOF):
			return nil
		case err != nil:
			return explain(err)
		case n > 0 && document != nil:
			return errors.New(
				"it must have one document, but has more: remove the other documents, or put each into its own file")
		}
	}
}

// explain returns the error of a parser as one line for people.
func explain(err error) error {
	var all []string
	for _, f := range Faults(err) {
		if f.Line > 0 {
			f.Message = fmt.Sprintf("line %d: %s", f.Line, f.Message)
		}
		all = append(all, f.Message)
	}
	return errors.New("it must be YAML: " + strings.Join(all, "; "))
}

// Fault is a reason why a text is not YAML. Line is its line in the text, from 1, or 0 if it is not known.
type Fault struct {
	Line    int
	Message string
}

// lineOfFault matches the line number at the beginning of a message of the YAML parser.
var lineOfFault = regexp.MustCompile(`^line (\d+): `)

// Faults returns the faults in an error of the YAML parser, which has one of two forms: "yaml: " and one fault, or
// "yaml: unmarshal errors:" and a line for each fault. Most faults begin with their line number.
func Faults(err error) []Fault {
	messages := []string{strings.TrimPrefix(cause(err).Error(), "yaml: ")}
	if list, ok := strings.CutPrefix(messages[0], "unmarshal errors:\n"); ok {
		messages = strings.Split(list, "\n")
	}
	all := make([]Fault, 0, len(messages))
	for _, message := range messages {
		f := Fault{Message: strings.TrimSpace(message)}
		if at := lineOfFault.FindStringSubmatch(f.Message); at != nil {
			f.Line, _ = strconv.Atoi(at[1]) // the pattern matches only digits
			f.Message = f.Message[len(at[0]):]
		}
		all = append(all, f)
	}
	return all
}

// cause returns the innermost error: the error of the parser, without the text that its callers added.
func cause(err error) error {
	for {
		inner := errors.Unwrap(err)
		if inner == nil {
			return err
		}
		err = inner
	}
}
