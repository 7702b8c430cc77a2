package docs_test

import (
	"regexp"
	"strings"
	"testing"

	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
)

// ownKinds are the fields that refer to kinds of capstan.dev. The reference policy does not check them. It checks
// references to Secrets, ConfigMaps and artifacts.
var ownKinds = map[string]bool{
	"promptProfileRef": true, "providerRef": true, "serverRef": true, "agentRef": true, "sessionRef": true, "turnRef": true,
	"modelRef": true, // a ModelProvider and one of its models
}

// indexInPolicy matches the index of a list in a field's name in the reference policy.
var indexInPolicy = regexp.MustCompile(`\[' \+ [a-z.]+ \+ '\]`)

// TestReferencePolicyChecksEveryReference checks that each field that refers to a Secret, a ConfigMap or an artifact is
// in the reference policy and on the page about the policy. With a field that the policy does not check, a user could
// make the manager read an object that the user may not read.
func TestReferencePolicyChecksEveryReference(t *testing.T) {
	policy := indexInPolicy.ReplaceAllString(read(t, "config/policy/reference_policy.yaml"), "[]")
	page := read(t, "docs/security.md")
	count := 0
	for plural := range kinds {
		walk(schemaOf(t, plural).Properties["spec"], "spec", func(field string, _ apiextensionsv1.JSONSchemaProps, _ bool) {
			name := field[strings.LastIndex(field, ".")+1:]
			if !strings.HasSuffix(name, "Ref") || ownKinds[name] {
				return
			}
			count++
			if !strings.Contains(policy, "'"+field+"'") {
				t.Errorf("config/policy/reference_policy.yaml does not check %s of %s", field, plural)
			}
			if !strings.Contains(page, "`"+field+"`") {
				t.Errorf("docs/security.md does not list %s of %s among the references that are checked", field, plural)
			}
		})
	}
	if want := 19; count != want {
		t.Errorf("found %d references to Secrets, ConfigMaps and artifacts, want %d: change the policy and this number together",
			count, want)
	}
}
