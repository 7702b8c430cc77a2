// Package yamldoc checks that a YAML file has one document.
package yamldoc

import (
	"bytes"
	"errors"
	"fmt"
	"io"

	"go.yaml.in/yaml/v2"
)

// CheckSingle returns an error if a text has several documents. Empty documents, such as one of comments after the last
// separator, do not count as further ones. sigs.k8s.io/yaml reads only the first document, so a caller of it would
// ignore the others. CheckSingle uses the same parser, so both agree where a document ends.
func CheckSingle(text []byte) error {
	decoder := yaml.NewDecoder(bytes.NewReader(text))
	for n := 0; ; n++ {
		var document any
		err := decoder.Decode(&document)
		switch {
		case errors.Is(err, io.EOF):
			return nil
		case err != nil:
			return fmt.Errorf("it must be YAML: %w", err)
		case n > 0 && document != nil:
			return errors.New(
				"it must have one document, but has more: remove the other documents, or put each into its own file")
		}
	}
}
