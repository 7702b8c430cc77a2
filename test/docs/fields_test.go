package docs_test

import (
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"
	"testing"

	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	"sigs.k8s.io/yaml"
)

// kinds maps the plural name of each kind to its page.
var kinds = map[string]string{
	"agents":         "docs/agents.md",
	"budgets":        "docs/budgets.md",
	"promptprofiles": "docs/promptprofiles.md",
	"modelproviders": "docs/modelproviders.md",
	"sessions":       "docs/sessions.md",
	"toolservers":    "docs/toolservers.md",
	"toolapprovals":  "docs/toolapprovals.md",
	"turns":          "docs/turns.md",
}

func TestEveryFieldIsOnThePageOfItsKind(t *testing.T) {
	for plural, path := range kinds {
		t.Run(plural, func(t *testing.T) {
			page := read(t, path)
			schema := schemaOf(t, plural)
			for _, part := range []string{"spec", "status"} {
				walk(schema.Properties[part], part, func(field string, s apiextensionsv1.JSONSchemaProps, required bool) {
					line := row(page, field)
					if line == "" {
						t.Errorf("%s has no row for `%s`: describe the field there", path, field)
						return
					}
					if part == "status" {
						return
					}
					for _, fact := range factsOf(s, required) {
						if !strings.Contains(line, fact) {
							t.Errorf("%s: the row of `%s` must say %q: %s", path, field, fact, line)
						}
					}
				})
			}
			for _, name := range columnsOf(t, plural) {
				if !strings.Contains(page, name) {
					t.Errorf("%s shows no output with the column %q", path, name)
				}
			}
		})
	}
}

// factsOf returns the facts that the row of a field must contain: whether it is required, its default, bounds and
// values.
func factsOf(s apiextensionsv1.JSONSchemaProps, required bool) []string {
	var facts []string
	add := func(format string, value any) { facts = append(facts, fmt.Sprintf(format, value)) }
	if required {
		add("| %s |", "required")
	}
	if s.Default != nil && string(s.Default.Raw) != "{}" {
		add("| `%s` |", strings.Trim(string(s.Default.Raw), `"`))
	}
	for _, value := range s.Enum {
		add("`%s`", strings.Trim(string(value.Raw), `"`))
	}
	for _, bound := range []*int64{s.MaxLength, s.MaxItems} {
		if bound != nil {
			add("%s", strconv.FormatInt(*bound, 10))
		}
	}
	if s.Minimum != nil && s.Maximum != nil {
		facts = append(facts, fmt.Sprintf("%.0f to %.0f", *s.Minimum, *s.Maximum))
	}
	return facts
}

// walk visits all fields below a schema, except for those of conditions, which are the same in all of Kubernetes.
func walk(s apiextensionsv1.JSONSchemaProps, path string, visit func(string, apiextensionsv1.JSONSchemaProps, bool)) {
	for _, name := range slices.Sorted(maps.Keys(s.Properties)) {
		field, fieldPath := s.Properties[name], path+"."+name
		visit(fieldPath, field, slices.Contains(s.Required, name))
		switch {
		case name == "conditions":
		case field.Items != nil && field.Items.Schema != nil:
			walk(*field.Items.Schema, fieldPath+"[]", visit)
		default:
			walk(field, fieldPath, visit)
		}
	}
}

func crdOf(t *testing.T, plural string) apiextensionsv1.CustomResourceDefinition {
	t.Helper()
	var crd apiextensionsv1.CustomResourceDefinition
	if err := yaml.UnmarshalStrict([]byte(read(t, "config/crd/bases/capstan.dev_"+plural+".yaml")), &crd); err != nil {
		t.Fatal(err)
	}
	return crd
}

func schemaOf(t *testing.T, plural string) *apiextensionsv1.JSONSchemaProps {
	t.Helper()
	return crdOf(t, plural).Spec.Versions[0].Schema.OpenAPIV3Schema
}

// columnsOf returns the headings of the columns that kubectl prints.
func columnsOf(t *testing.T, plural string) []string {
	t.Helper()
	var names []string
	for _, c := range crdOf(t, plural).Spec.Versions[0].AdditionalPrinterColumns {
		names = append(names, strings.ToUpper(c.Name))
	}
	return names
}
