package api_test

import (
	"regexp"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
)

// goTerms matches terms of Go and its tools, which mean nothing to a reader of kubectl explain.
var goTerms = regexp.MustCompile(`(?i)\b(nil|structs?|slices?|pointers?|goroutines?|int32|int64|bool|metav1|omitempty` +
	`|TODO|FIXME)\b|\+kubebuilder|\+listType|\+optional|\+required`)

// TestSchemaRules checks every field of every kind against the rules of the API contract.
func TestSchemaRules(t *testing.T) {
	t.Parallel()
	rules := map[string]func(path string, s *apiextensionsv1.JSONSchemaProps) (broken string){
		"described by JSON name":  described,
		"no implementation words": plainWords,
		"strings bounded":         boundedString,
		"lists bounded and typed": boundedList,
		"integers have a minimum": boundedInteger,
		"no floats":               noFloat,
		"no free-form objects":    noFreeForm,
		"no bare patterns":        noBarePattern,
		"times are readable":      readableTime,
		"defaults are owned":      ownedDefault,
	}
	all, err := definitions()
	if err != nil {
		t.Fatal(err)
	}
	if len(all) != 8 {
		t.Errorf("there are %d CRDs, want 8: Agent, Budget, ModelProvider, PromptProfile, Session, ToolApproval, ToolServer and Turn",
			len(all))
	}
	for name, rule := range rules {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			for _, definition := range all {
				walk("", schemaOf(definition), func(path string, s *apiextensionsv1.JSONSchemaProps) {
					if broken := rule(path, s); broken != "" {
						t.Errorf("%s: %s: %s", definition.Name, path, broken)
					}
				})
			}
		})
	}
}

func described(path string, s *apiextensionsv1.JSONSchemaProps) string {
	if isStandard(path) || strings.HasSuffix(path, "[]") || strings.HasSuffix(path, "{}") {
		return ""
	}
	name := path[strings.LastIndex(path, ".")+1:]
	if !strings.HasPrefix(s.Description, name+" ") {
		return "the description must start with the field's name, have " + quoteStart(s.Description)
	}
	if !strings.HasSuffix(strings.TrimSpace(s.Description), ".") {
		return "the description must end with a period"
	}
	return ""
}

func plainWords(path string, s *apiextensionsv1.JSONSchemaProps) string {
	if isStandard(path) {
		return ""
	}
	if word := goTerms.FindString(s.Description); word != "" {
		return "the description must not use the word " + word
	}
	return ""
}

func boundedString(path string, s *apiextensionsv1.JSONSchemaProps) string {
	if s.Type != "string" || path == "apiVersion" || path == "kind" {
		return ""
	}
	if s.MaxLength == nil && len(s.Enum) == 0 && s.Format != "date-time" {
		return "a string must have a maxLength, an enum or the format date-time"
	}
	return ""
}

func noBarePattern(path string, s *apiextensionsv1.JSONSchemaProps) string {
	if s.Pattern != "" && !isStandard(path) && s.Format != "date-time" { // a CEL rule gets the time, and not its text
		return "a format must be checked by a CEL rule with a readable message: an error of a pattern shows the regular expression"
	}
	return ""
}

// readableTime checks that the API server refuses times that a client in Go cannot decode: see the spec "A status that
// a manager could not decode".
func readableTime(path string, s *apiextensionsv1.JSONSchemaProps) string {
	isTransition := strings.HasSuffix(path, "conditions[].lastTransitionTime")
	switch {
	case s.Format == "date-time" && s.Pattern == "" && !isTransition:
		return "the format date-time allows times that clients cannot decode: a pattern must forbid them"
	case strings.HasSuffix(path, "conditions") && len(s.XValidations) == 0:
		return "a rule must forbid each lastTransitionTime that clients cannot decode"
	}
	return ""
}

func boundedList(_ string, s *apiextensionsv1.JSONSchemaProps) string {
	switch {
	case s.Type != "array":
		return ""
	case s.MaxItems == nil:
		return "a list must have maxItems"
	case s.XListType == nil:
		return "a list must have an x-kubernetes-list-type"
	case *s.XListType == "map" && len(s.XListMapKeys) == 0:
		return "a list of type map must have x-kubernetes-list-map-keys"
	default:
		return ""
	}
}

// ownedDefault finds defaults within an atomic list, which no manifest may own. If a manifest leaves out such a field,
// the list of the manifest differs from the stored list: a second tool that applies the same manifest with server-side
// apply gets a conflict, and the first apply after the creation writes the object again.
func ownedDefault(path string, s *apiextensionsv1.JSONSchemaProps) string {
	if s.Type != "array" || s.XListType != nil && *s.XListType != "atomic" {
		return ""
	}
	var broken []string
	walk(path, s, func(path string, s *apiextensionsv1.JSONSchemaProps) {
		if s.Default != nil {
			broken = append(broken, path)
		}
	})
	if len(broken) == 0 {
		return ""
	}
	return "these fields in an atomic list must have no default: " + strings.Join(broken, ", ")
}

func boundedInteger(_ string, s *apiextensionsv1.JSONSchemaProps) string {
	if s.Type == "integer" && s.Minimum == nil {
		return "an integer must have a minimum"
	}
	return ""
}

func noFloat(_ string, s *apiextensionsv1.JSONSchemaProps) string {
	if s.Type == "number" {
		return "a number must be an integer or a decimal in a string"
	}
	return ""
}

func noFreeForm(path string, s *apiextensionsv1.JSONSchemaProps) string {
	switch {
	case path == "metadata":
		return ""
	case strings.HasSuffix(strings.ToLower(path), "selector.matchlabels") && s.MaxProperties != nil: // the names are those of labels
		return ""
	case path == "spec.output.schema", path == "status.result.data", // a JSON Schema, and JSON that matches one
		path == "spec.context.data": // the caller's JSON, which only the model reads
		return ""
	case s.XPreserveUnknownFields != nil:
		return "an object must not keep unknown fields"
	case s.Type == "object" && len(s.Properties) == 0:
		return "an object must list its properties"
	case s.AdditionalProperties != nil:
		return "an object must not have properties of any name"
	default:
		return ""
	}
}

func quoteStart(text string) string {
	return `"` + text[:min(len(text), 40)] + `..."`
}

// TestNamesAndColumns checks names, categories and the columns of kubectl get against the API contract. A star
// marks a wide column.
func TestNamesAndColumns(t *testing.T) {
	t.Parallel()
	type names struct {
		ShortNames, Categories []string
		Columns                string
	}
	want := map[string]names{
		"Agent":         {[]string{"ag"}, []string{"capstan"}, "Profile Model State Hash* Message* Age"},
		"Budget":        {[]string{"bg"}, []string{"capstan"}, "Period Tokens Cost Turns Exceeded Reset State* Message* Age"},
		"ModelProvider": {[]string{"mp"}, []string{"capstan"}, "Type State URL* Message* Age"},
		"PromptProfile": {[]string{"pp"}, []string{"capstan"}, "ID Version State Hash* Message* Age"},
		"Session":       {[]string{"sn"}, []string{"capstan"}, "State Turns Tokens Cost History Last Subject* Message* Age"},
		"ToolApproval":  {[]string{"ta"}, []string{"capstan"}, "Turn Call Decision By Reason* Age"},
		"ToolServer":    {[]string{"ts"}, []string{"capstan"}, "Type Tools State URL* Message* Age"},
		"Turn": {
			[]string{"tn"},
			[]string{"capstan"},
			"Agent State Steps Tokens Cost Age Requester* Model* Strategy* Stop* Answer* Message*",
		},
	}
	all, err := definitions()
	if err != nil {
		t.Fatal(err)
	}
	got := map[string]names{}
	for _, definition := range all {
		spec := definition.Spec
		if spec.Scope != apiextensionsv1.NamespaceScoped {
			t.Errorf("%s: scope is %s, want Namespaced", definition.Name, spec.Scope)
		}
		_, hasStatus := schemaOf(definition).Properties["status"]
		if hasStatus == (spec.Names.Kind == "ToolApproval") {
			t.Errorf("%s: has a status: %t, want one on all kinds except ToolApproval", definition.Name, hasStatus)
		}
		if hasStatus && (spec.Versions[0].Subresources == nil || spec.Versions[0].Subresources.Status == nil) {
			t.Errorf("%s: has no status subresource: users who may write the spec could write the status", definition.Name)
		}
		var columns []string
		for _, c := range spec.Versions[0].AdditionalPrinterColumns {
			columns = append(columns, c.Name+strings.Repeat("*", int(c.Priority)))
		}
		got[spec.Names.Kind] = names{spec.Names.ShortNames, spec.Names.Categories, strings.Join(columns, " ")}
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("names and columns differ from the API contract (-want +got):\n%s", diff)
	}
}
