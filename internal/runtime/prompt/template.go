package prompt

import (
	"bytes"
	"errors"
	"fmt"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"text/template"
	"text/template/parse"
	"unicode/utf8"

	"github.com/capstan-dev/capstan/internal/runtime/fence"
)

// MaxRenderedBytes bounds what one text may render to.
const MaxRenderedBytes = 1 << 20

// TemplateError is a text that cannot be rendered.
type TemplateError struct {
	// Field the text stands in, such as spec.identity.systemPrompt.
	Field string
	// Line and Column of the failure in the text, from 1; 0 where it has no place. Columns count code points.
	Line, Column int
	// Reason says what is wrong and what to do.
	Reason string
}

// Error returns field:line:column: reason.
func (e *TemplateError) Error() string {
	switch {
	case e.Line == 0:
		return e.Field + ": " + e.Reason
	case e.Column == 0:
		return fmt.Sprintf("%s:%d: %s", e.Field, e.Line, e.Reason)
	}
	return fmt.Sprintf("%s:%d:%d: %s", e.Field, e.Line, e.Column, e.Reason)
}

// Value of a variable.
type Value struct {
	// Text of the value.
	Text string
	// Trusted values are inserted as they are, all others are fenced.
	Trusted bool
}

// Scope is what templates may use.
type Scope struct {
	// Variables by name: {{ .name }}.
	Variables map[string]Value
	// Objects are built-in names with fields: {{ .Agent.Name }}.
	Objects map[string]map[string]string
}

// functions a template may call: those that decide, none that build text. Together with the ban on loops and on
// templates that call templates this bounds the time and the size of a rendering by the size of the text.
var functions = []string{"and", "or", "not", "eq", "ne", "lt", "le", "gt", "ge", "len"}

// untrusted is a value that templates compare and test as it came, and print in a fence.
type untrusted string

// String returns the value, cleaned and fenced.
func (u untrusted) String() string { return fence.UntrustedInline(string(u)) }

// render executes one text. usedUntrusted reports that the text uses a value that is printed in a fence. What it
// returns is valid UTF-8.
func (s Scope) render(field, text string) (out string, usedUntrusted bool, err error) {
	tmpl, err := template.New(field).Option("missingkey=error").Parse(text)
	if err != nil {
		return "", false, parseError(field, text, err)
	}
	c := checker{field: field, text: text, scope: s}
	if tmpl.Tree != nil {
		c.list(tmpl.Root)
	}
	if len(tmpl.Templates()) > 1 {
		c.failAt(c.definition(), "{{ define }} is not available: write the text where it is used")
	}
	if c.err != nil {
		return "", false, c.err
	}
	buf := &boundedBuffer{}
	if err := tmpl.Execute(buf, s.data()); err != nil {
		return "", false, execError(field, text, err)
	}
	return strings.ToValidUTF8(buf.String(), "\uFFFD"), c.untrusted, nil
}

func (s Scope) data() map[string]any {
	data := make(map[string]any, len(s.Variables)+len(s.Objects))
	for name, v := range s.Variables {
		if v.Trusted {
			data[name] = v.Text
		} else {
			data[name] = untrusted(v.Text)
		}
	}
	for name, fields := range s.Objects {
		data[name] = fields
	}
	return data
}

// names lists all that a template may use, for messages.
func (s Scope) names() string {
	var all []string
	for name := range s.Variables {
		all = append(all, "."+name)
	}
	for object, fields := range s.Objects {
		for f := range fields {
			all = append(all, "."+object+"."+f)
		}
	}
	slices.Sort(all)
	return strings.Join(all, ", ")
}

// checker walks a parsed template and refuses what is not allowed, wherever a rendering would get to.
type checker struct {
	field, text string
	scope       Scope
	untrusted   bool
	err         *TemplateError
}

func (c *checker) failAt(pos parse.Pos, format string, args ...any) {
	if c.err != nil {
		return
	}
	before := c.text[:min(int(pos), len(c.text))]
	line := 1 + strings.Count(before, "\n")
	column := 1 + utf8.RuneCountInString(before[strings.LastIndexByte(before, '\n')+1:])
	c.err = &TemplateError{Field: c.field, Line: line, Column: column, Reason: fmt.Sprintf(format, args...)}
}

var define = regexp.MustCompile(`\{\{-?\s*define\b`)

// definition returns where the first template is defined; the parser keeps no place of it.
func (c *checker) definition() parse.Pos {
	if at := define.FindStringIndex(c.text); at != nil {
		return parse.Pos(at[0])
	}
	return 0
}

func (c *checker) list(l *parse.ListNode) {
	if l == nil {
		return
	}
	for _, n := range l.Nodes {
		switch n := n.(type) {
		case *parse.TextNode, *parse.CommentNode:
		case *parse.ActionNode:
			c.pipe(n.Pipe)
		case *parse.IfNode:
			c.pipe(n.Pipe)
			c.list(n.List)
			c.list(n.ElseList)
		default:
			c.failAt(n.Position(), "%s is not available: use values and {{ if }} only", action(n))
		}
	}
}

// action names the action of a node, such as {{ range }}.
func action(n parse.Node) string {
	if n.Type() == parse.NodeTemplate {
		return "{{ template }} or {{ block }}" // the parser makes the same node of both
	}
	word, _, _ := strings.Cut(strings.Trim(n.String(), "{} "), " ")
	return "{{ " + word + " }}"
}

func (c *checker) pipe(p *parse.PipeNode) {
	for _, cmd := range p.Cmds {
		for _, arg := range cmd.Args {
			c.arg(arg)
		}
	}
}

func (c *checker) arg(n parse.Node) {
	switch n := n.(type) {
	case *parse.FieldNode:
		pos := n.Position()
		if len(n.Ident) > 1 {
			pos -= parse.Pos(len(n.Ident[0]) + 1) // the parser gives the place of the second name
		}
		c.name(pos, n.Ident)
	case *parse.VariableNode:
		if n.Ident[0] == "$" && len(n.Ident) > 1 {
			c.name(n.Position(), n.Ident[1:])
		} else if n.Ident[0] == "$" || len(n.Ident) > 1 {
			c.failAt(n.Position(), "%q is not a value: use one of %s", n.String(), c.scope.names())
		}
	case *parse.IdentifierNode:
		if !slices.Contains(functions, n.Ident) {
			c.failAt(n.Position(), "function %q is not available: use one of %s", n.Ident, strings.Join(functions, ", "))
		}
	case *parse.PipeNode:
		c.pipe(n)
	case *parse.StringNode, *parse.NumberNode, *parse.BoolNode:
	default:
		c.failAt(n.Position(), "%q is not a value: use one of %s", n.String(), c.scope.names())
	}
}

func (c *checker) name(pos parse.Pos, ident []string) {
	v, declared := c.scope.Variables[ident[0]]
	fields, object := c.scope.Objects[ident[0]]
	switch {
	case declared && len(ident) == 1:
		c.untrusted = c.untrusted || !v.Trusted
	case declared:
		c.failAt(pos, "variable %q is a text and has no field %q", ident[0], ident[1])
	case object && len(ident) == 2:
		if _, ok := fields[ident[1]]; !ok {
			c.failAt(pos, "%q has no field %q: use one of %s", ident[0], ident[1], c.scope.names())
		}
	case object:
		c.failAt(pos, "%q is not a text: use one of %s", strings.Join(ident, "."), c.scope.names())
	default:
		c.failAt(pos, "variable %q is not declared: add it to the profile's spec.variables, or use one of %s", ident[0], c.scope.names())
	}
}

var (
	parsePlace = regexp.MustCompile(`(?s)^template: .*?:(\d+): (.*)$`)
	execPlace  = regexp.MustCompile(`(?s)^template: .*?:(\d+):(\d+): executing .*? at <.*?>: (.*)$`)
	undefined  = regexp.MustCompile(`^function "([^"]*)" not defined$`)
)

// parseError takes the line from the parser's message, which has no column: the column is that of the last action that
// opens on the line.
func parseError(field, text string, err error) error {
	m := parsePlace.FindStringSubmatch(err.Error())
	if m == nil {
		return &TemplateError{Field: field, Reason: err.Error()}
	}
	line, _ := strconv.Atoi(m[1]) // the expression matches digits only
	e := &TemplateError{Field: field, Line: line, Column: 1, Reason: "template error: " + m[2]}
	if f := undefined.FindStringSubmatch(m[2]); f != nil {
		e.Reason = fmt.Sprintf("function %q is not available: use one of %s", f[1], strings.Join(functions, ", "))
	}
	if lines := strings.Split(text, "\n"); line >= 1 && line <= len(lines) {
		if at := strings.LastIndex(lines[line-1], "{{"); at >= 0 {
			e.Column = 1 + utf8.RuneCountInString(lines[line-1][:at])
		}
	}
	return e
}

func execError(field, text string, err error) error {
	if errors.Is(err, errTooLong) {
		return &TemplateError{Field: field, Reason: fmt.Sprintf("renders to more than %d bytes: shorten the text or the values", MaxRenderedBytes)}
	}
	m := execPlace.FindStringSubmatch(err.Error())
	if m == nil {
		return &TemplateError{Field: field, Reason: err.Error()}
	}
	line, _ := strconv.Atoi(m[1]) // the expression matches digits only
	column, _ := strconv.Atoi(m[2])
	if lines := strings.Split(text, "\n"); line >= 1 && line <= len(lines) {
		before := lines[line-1] // text/template counts bytes
		column = utf8.RuneCountInString(before[:min(column, len(before))])
	}
	return &TemplateError{Field: field, Line: line, Column: column + 1, Reason: "template error: " + m[3]}
}

var errTooLong = errors.New("rendered text is too long")

type boundedBuffer struct{ bytes.Buffer }

// Write refuses to grow beyond MaxRenderedBytes.
func (b *boundedBuffer) Write(p []byte) (int, error) {
	if b.Len()+len(p) > MaxRenderedBytes {
		return 0, errTooLong
	}
	return b.Buffer.Write(p)
}
