package template

import (
	"fmt"
	"regexp"
	"slices"
	"strings"
	texttemplate "text/template"
	"text/template/parse"
	"unicode/utf8"

	"github.com/capstan-dev/capstan/internal/runtime/invalid"
)

// functions lists the functions that a template may call. They make decisions and build no text. Templates have no
// loops and cannot call templates. So the sizes of the text and of the values bound the time and the size of a
// rendering.
var functions = []string{"and", "or", "not", "eq", "ne", "lt", "le", "gt", "ge", "len"}

// checker walks a parsed template and rejects everything that is not allowed, in every branch that a rendering may
// take.
type checker struct {
	field, text string
	scope       Scope
	untrusted   bool
	condition   bool // true while the condition of an {{ if }} is checked
	// anyVariables is true if any variable counts as declared. undeclared is true if the text uses one that is not.
	anyVariables, undeclared bool
	err                      *invalid.Error
}

// parse parses the text and checks it.
func (c *checker) parse() (*texttemplate.Template, error) {
	tmpl, err := texttemplate.New(c.field).Option("missingkey=error").Parse(c.text)
	if err != nil {
		return nil, parseError(c.field, c.text, err)
	}
	if tmpl.Tree != nil {
		c.list(tmpl.Root)
	}
	if len(tmpl.Templates()) > 1 {
		c.failAt(c.definition(), "{{ define }} is not available: write the text where it is used")
	}
	if c.err != nil {
		return nil, c.err
	}
	return tmpl, nil
}

// execute executes the text, which parse has checked.
func (c *checker) execute(tmpl *texttemplate.Template) (Text, error) {
	buf := &boundedBuffer{}
	if err := tmpl.Execute(buf, c.scope.data()); err != nil {
		return Text{}, execError(c.field, c.text, err)
	}
	return newText(c.field, buf.String(), c.untrusted)
}

func (c *checker) failAt(pos parse.Pos, format string, args ...any) {
	if c.err != nil {
		return
	}
	before := c.text[:min(int(pos), len(c.text))]
	line := 1 + strings.Count(before, "\n")
	column := 1 + utf8.RuneCountInString(before[strings.LastIndexByte(before, '\n')+1:])
	c.err = &invalid.Error{Field: c.field, Line: line, Column: column, Reason: fmt.Sprintf(format, args...)}
}

var define = regexp.MustCompile(`\{\{-?\s*define\b`)

// definition returns the position of the first {{ define }}, which the parser does not keep.
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
			c.condition = len(n.Pipe.Decl) == 0 // {{ if $x := .Session }} could print the object
			c.pipe(n.Pipe)
			c.condition = false
			c.list(n.List)
			c.list(n.ElseList)
		default:
			c.failAt(n.Position(), "%s is not available: use values and {{ if }} only", action(n))
		}
	}
}

// action returns the action of a node, such as {{ range }}.
func action(n parse.Node) string {
	if n.Type() == parse.NodeTemplate {
		return "{{ template }} or {{ block }}" // the parser makes the same node for both
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
	if c.err != nil {
		return // only the first fault is reported, because thousands of messages take seconds
	}
	switch n := n.(type) {
	case *parse.FieldNode:
		pos := n.Position()
		if len(n.Ident) > 1 {
			pos -= parse.Pos(len(n.Ident[0]) + 1) // the parser gives the position of the second name
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
	object, builtIn := c.scope.Objects[ident[0]]
	switch {
	case declared && len(ident) == 1:
		c.untrusted = c.untrusted || !v.Trusted && !c.condition // a value in a condition is not printed
	case declared:
		c.failAt(pos, "variable %q is a text and has no field %q", ident[0], ident[1])
	case builtIn && len(ident) == 1 && c.condition: // a condition may test whether the object exists
	case builtIn && len(ident) == 2:
		if _, ok := object.Fields[ident[1]]; !ok {
			c.failAt(pos, "%q has no field %q: use one of %s", ident[0], ident[1], c.scope.names())
		}
	case builtIn:
		c.failAt(pos, "%q is not a text: use one of %s", strings.Join(ident, "."), c.scope.names())
	case c.anyVariables && len(ident) == 1: // a variable is a text and has no fields
		c.undeclared = true
	default:
		c.failAt(pos, "variable %q is not declared: add it to the profile's spec.variables, or use one of %s", ident[0], c.scope.names())
	}
}
