package docs_test

import (
	"go/ast"
	"go/parser"
	"go/token"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
)

// pagesOf maps the beginning of a constant group's comment to the pages that must name each constant of the group.
var pagesOf = map[string][]string{
	"The condition Ready": {
		"docs/agents.md", "docs/promptprofiles.md", "docs/modelproviders.md", "docs/sessions.md", "docs/toolservers.md",
		"docs/budgets.md",
	},
	"Conditions as kstatus defines them": {"docs/turns.md"},
	"The conditions of a Budget with":    {"docs/budgets.md"},
	"The condition Available of a":       {"docs/modelproviders.md"},
	"Reasons of a ModelProvider's":       {"docs/modelproviders.md"},
	"Reasons of a ToolServer's":          {"docs/toolservers.md"},
	"Reasons of a PromptProfile's":       {"docs/promptprofiles.md"},
	"Conditions and reasons of an Agent": {"docs/agents.md"},
	"Reasons of a Session's":             {"docs/sessions.md"},
	"The condition HistoryComplete of":   {"docs/sessions.md"},
	"Conditions of a Turn":               {"docs/turns.md"},
	"Reasons of Succeeded=":              {"docs/turns.md"},
	"Reasons of a Turn's":                {"docs/turns.md"},
	"Reasons of Events about Turns":      {"docs/turns.md"},
}

func TestEveryConditionAndReasonIsOnThePageOfItsKind(t *testing.T) {
	file, err := parser.ParseFile(token.NewFileSet(), filepath.Join(root, "api", "v1alpha1", "conditions.go"), nil, parser.ParseComments)
	if err != nil {
		t.Fatal(err)
	}
	checked := 0
	for _, decl := range file.Decls {
		group, ok := decl.(*ast.GenDecl)
		if !ok || group.Tok != token.CONST {
			continue
		}
		where := pagesFor(t, group.Doc.Text())
		for _, value := range valuesOf(t, group) {
			checked++
			for _, path := range where {
				if !strings.Contains(read(t, path), "| `"+value+"` |") && !strings.Contains(read(t, path), "`"+value+"`, `") &&
					!strings.Contains(read(t, path), ", `"+value+"` |") {
					t.Errorf("%s: no table names `%s`: say when it is set and what to do", path, value)
				}
			}
		}
	}
	if checked < 30 {
		t.Errorf("found %d conditions and reasons in conditions.go, want at least 30", checked)
	}
}

func pagesFor(t *testing.T, comment string) []string {
	t.Helper()
	for begin, where := range pagesOf {
		if strings.HasPrefix(comment, begin) {
			return where
		}
	}
	t.Errorf("no page is known for the constants under %q: add it to pagesOf", comment)
	return nil
}

func valuesOf(t *testing.T, group *ast.GenDecl) []string {
	t.Helper()
	var values []string
	for _, spec := range group.Specs {
		constant, ok := spec.(*ast.ValueSpec)
		if !ok {
			continue
		}
		for _, v := range constant.Values {
			literal, ok := v.(*ast.BasicLit)
			if !ok {
				continue
			}
			value, err := strconv.Unquote(literal.Value)
			if err != nil {
				t.Fatal(err)
			}
			values = append(values, value)
		}
	}
	return values
}
