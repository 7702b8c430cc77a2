// Package template renders authored texts: the texts of the authors of a profile and an agent, with the values of
// variables. A text can make decisions and insert values. It cannot use loops, files, the environment, the time or
// the network.
package template

import (
	"bytes"
	"errors"
	"slices"
	"strings"

	"github.com/capstan-dev/capstan/internal/runtime/untrusted"
)

// MaxRenderedBytes bounds the size of one rendered text.
const MaxRenderedBytes = 1 << 20

// Text is a rendered text.
type Text struct {
	// Body is the text, which is valid UTF-8.
	Body string
	// Fenced is true if the text contains values in fences, which untrusted.Notice explains.
	Fenced bool
}

// Blank reports whether the text is blank.
func (t Text) Blank() bool { return untrusted.Blank(t.Body) }

// Value is the value of a variable.
type Value struct {
	// Text is the text of the value.
	Text string
	// Trusted is true if the value is inserted unchanged. Other values are fenced.
	Trusted bool
}

// Object is a built-in name with fields: {{ .Agent.Name }}.
type Object struct {
	// Fields are the values of the fields by name.
	Fields map[string]string
	// Absent is true if the object does not exist. {{ if .Session }} is then false, and printing a field is an
	// error.
	Absent bool
}

// Scope holds the names that templates may use.
type Scope struct {
	// Variables are the variables by name: {{ .name }}.
	Variables map[string]Value
	// Objects are the objects by name.
	Objects map[string]Object
}

// fenced is a cleaned value that is not trusted. Templates compare and test it unchanged, and print it in a
// fence.
type fenced string

// String returns the value escaped and in a fence.
func (u fenced) String() string { return untrusted.Inline(string(u)) }

// Render renders one text. The error, an *invalid.Error, names the field and the position in the text.
func (s Scope) Render(field, text string) (Text, error) {
	if !strings.Contains(text, "{{") {
		return newText(field, text, false)
	}
	c := checker{field: field, text: text, scope: s}
	tmpl, err := c.parse()
	if err != nil {
		return Text{}, err
	}
	return c.execute(tmpl)
}

// CheckAnyVariables returns an *invalid.Error if a text cannot be rendered, whatever variables are added to the scope.
// It does not execute a text that uses such variables, so it does not find every fault of such a text.
func (s Scope) CheckAnyVariables(field, text string) error {
	c := checker{field: field, text: text, scope: s, anyVariables: true}
	tmpl, err := c.parse()
	if err == nil && !c.undeclared {
		_, err = c.execute(tmpl)
	}
	return err
}

// newText returns a body as a Text. Each byte that is not UTF-8 becomes one U+FFFD, as in a fence.
func newText(field, body string, fenced bool) (Text, error) {
	body = strings.Map(func(r rune) rune { return r }, body) // Map passes invalid bytes as U+FFFD
	if len(body) > MaxRenderedBytes {
		return Text{}, execError(field, "", errTooLong)
	}
	return Text{Body: body, Fenced: fenced}, nil
}

func (s Scope) data() map[string]any {
	data := make(map[string]any, len(s.Variables)+len(s.Objects))
	for name, v := range s.Variables {
		if v.Trusted {
			data[name] = v.Text
		} else {
			data[name] = fenced(untrusted.Strip(v.Text))
		}
	}
	for name, object := range s.Objects {
		data[name] = map[string]string{}
		if !object.Absent {
			data[name] = object.Fields
		}
	}
	return data
}

// names lists all names that a template may use, for messages.
func (s Scope) names() string {
	var all []string
	for name := range s.Variables {
		all = append(all, "."+name)
	}
	for name, object := range s.Objects {
		for f := range object.Fields {
			all = append(all, "."+name+"."+f)
		}
	}
	slices.Sort(all)
	return strings.Join(all, ", ")
}

var errTooLong = errors.New("rendered text is too long")

type boundedBuffer struct{ bytes.Buffer }

// Write returns an error if the buffer would grow beyond MaxRenderedBytes.
func (b *boundedBuffer) Write(p []byte) (int, error) {
	if b.Len()+len(p) > MaxRenderedBytes {
		return 0, errTooLong
	}
	return b.Buffer.Write(p)
}
