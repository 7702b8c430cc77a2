package api_test

import (
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	. "github.com/onsi/ginkgo/v2"
	. "github.com/onsi/gomega"
	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/yaml"
)

// The permissions of the users in these tests. All users may create and change the objects of these tests. The user
// author may read no Secret and no ConfigMap, named may read those in namedRole, and reader may read all of them.
const (
	authorRole = `
apiVersion: rbac.authorization.k8s.io/v1
kind: ClusterRole
metadata: {name: reference-author}
rules:
- {apiGroups: [capstan.dev], resources: [agents, modelproviders, promptprofiles, sessions, toolservers, turns], ` +
		`verbs: [get, create, update, patch]}
`
	namedRole = `
apiVersion: rbac.authorization.k8s.io/v1
kind: ClusterRole
metadata: {name: reference-named}
rules:
- {apiGroups: [""], resources: [secrets, configmaps], resourceNames: [ours%s], verbs: [get]}
- {apiGroups: [capstan.dev], resources: [turns/log], verbs: [get]}
`
	readerRole = `
apiVersion: rbac.authorization.k8s.io/v1
kind: ClusterRole
metadata: {name: reference-reader}
rules:
- {apiGroups: [""], resources: [secrets, configmaps], verbs: [get]}
- {apiGroups: [capstan.dev], resources: [turns/log], verbs: [get]}
`
)

// allReferences has, for each kind, a patch with as many references as the schema allows. Each refers to NAME.
var allReferences = map[string]string{
	"Agent": `spec: {instructions: null, instructionsFrom: {configMapKeyRef: {name: NAME, key: k}}, contributions: [` +
		numbered(16, `{name: c%d, configMapKeyRef: {name: NAME, key: k}}`) + `]}`,
	"ModelProvider": `spec: {credentialsRef: {name: NAME, key: k}, headers: [` +
		numbered(16, `{name: X-%d, valueFrom: {secretKeyRef: {name: NAME, key: k}}}`) +
		`], tls: {caBundleRef: {name: NAME, key: k}, clientCertificateRef: {name: NAME}}}`,
	"ToolServer": `spec: {mcp: {url: "https://tools.internal/mcp"}, credentialsRef: {name: NAME, key: k}, headers: [` +
		numbered(16, `{name: X-%d, valueFrom: {secretKeyRef: {name: NAME, key: k}}}`) +
		`], tls: {caBundleRef: {name: NAME, key: k}, clientCertificateRef: {name: NAME}}}`,
	"PromptProfile": `spec: {skills: [` + numbered(32, `{key: s%d, contentFrom: {configMapKeyRef: {name: NAME, key: k}}}`) +
		`], instructions: null, instructionsFrom: {configMapKeyRef: {name: NAME, key: k}}, ` +
		`identity: {systemPromptFrom: {configMapKeyRef: {name: NAME, key: k}}}, contributions: [` +
		numbered(16, `{name: c%d, configMapKeyRef: {name: NAME, key: k}}`) + `]}`,
	"Turn": `spec: {message: null, messageFrom: {configMapKeyRef: {name: NAME, key: k}}, parameters: [` +
		numbered(32, `{name: p%d, valueFrom: {configMapKeyRef: {name: NAME, key: k}}}`) + `], context: {contributions: [` +
		numbered(16, `{name: c%d, configMapKeyRef: {name: NAME, key: k}}`) + `]}, attachments: [` +
		numbered(8, `{name: a%d, mediaType: image/png, configMapKeyRef: {name: NAME, key: k}}`) + `]}`,
}

// withNames replaces each NAME of a patch by the name for its index.
func withNames(patch string, name func(i int) string) string {
	parts := strings.Split(patch, "NAME")
	for i := range parts[1:] {
		parts[i] += name(i)
	}
	return strings.Join(parts, "")
}

// notChecked are the fields that do not refer to a Secret or a ConfigMap.
var notChecked = []string{
	"promptProfileRef", "providerRef", "serverRef", "agentRef", "sessionRef", "turnRef", "modelRef", "artifactRef",
}

// mostReferences returns, for each kind, the maximum number of references to Secrets and ConfigMaps in a spec.
func mostReferences() (map[string]int, error) {
	all, err := definitions()
	if err != nil {
		return nil, err
	}
	most := map[string]int{}
	for _, definition := range all {
		spec := schemaOf(definition).Properties["spec"]
		values := map[string]int{"": 1} // the maximum number of values by path; for a list, of its items
		walk("", &spec, func(path string, s *apiextensionsv1.JSONSchemaProps) {
			end := max(0, strings.LastIndexAny(path, ".["))
			n := values[path[:end]]
			if s.Type == "array" {
				n *= int(*s.MaxItems)
			}
			values[path] = n
			if name := strings.TrimPrefix(path[end:], "."); strings.HasSuffix(name, "Ref") && !slices.Contains(notChecked, name) {
				most[definition.Spec.Names.Kind] += n
			}
		})
	}
	return most, nil
}

// TestReferencesFitIntoPolicy checks that the reference policy looks at as many references as an object may have.
// Otherwise a user could refer to a ConfigMap without the right to get it, behind references to another ConfigMap.
func TestReferencesFitIntoPolicy(t *testing.T) {
	t.Parallel()
	text, err := os.ReadFile(filepath.Join("..", "..", "config", "policy", "reference_policy.yaml"))
	if err != nil {
		t.Fatal(err)
	}
	policy := string(text)
	list := regexp.MustCompile(`\.map\(all, \[([0-9, ]+)\]`).FindStringSubmatch(policy)
	if list == nil {
		t.Fatal("the variable names of the policy has no list of indexes")
	}
	bound := strings.Count(list[1], ",") + 1
	if want := numbered(bound, "%d"); list[1] != want {
		t.Errorf("the indexes of the policy are %s, want %s", list[1], want)
	}
	if want := fmt.Sprintf("size(variables.changed) <= %d\n", bound); !strings.Contains(policy, want) {
		t.Errorf("the policy does not contain %q, so it accepts references that it does not look at", want)
	}
	most, err := mostReferences()
	if err != nil {
		t.Fatal(err)
	}
	for kind, n := range most {
		if n > bound {
			t.Errorf("a %s may have %d references, want at most %d, which the policy looks at", kind, n, bound)
		}
		if got := strings.Count(allReferences[kind], "NAME"); got != n {
			t.Errorf("allReferences has %d references of a %s, want the maximum of %d", got, kind, n)
		}
	}
	if want := fmt.Sprintf("A Turn has at most %d, more than any other kind.", most["Turn"]); !strings.Contains(policy, want) {
		t.Errorf("the policy does not contain the comment %q", want)
	}
}

// createPatched creates the object of a manifest with a patch, and deletes it after the test.
func createPatched(ctx SpecContext, base, patch string) *unstructured.Unstructured {
	GinkgoHelper()
	object := merged(base, patch)
	Expect(apiClient.Create(ctx, object, client.FieldValidation("Strict"))).To(Succeed())
	DeferCleanup(func(ctx SpecContext) { Expect(apiClient.Delete(ctx, object)).To(Succeed()) })
	return object
}

var _ = Describe("The author of a reference", Ordered, func() {
	longName := strings.Repeat("x", 250) + "-%02d" // as long as a name may be
	const forbidden = `may not get %s "%s" in namespace "default", which %s refers to`
	attempt := func(ctx SpecContext, user, base, patch string) error {
		GinkgoHelper()
		return clientOf(user).Create(ctx, merged(base, patch), client.DryRunAll, client.FieldValidation("Strict"))
	}
	change := func(ctx SpecContext, user string, object *unstructured.Unstructured, patch string) error {
		GinkgoHelper()
		text, err := yaml.YAMLToJSON([]byte(patch))
		Expect(err).NotTo(HaveOccurred())
		return clientOf(user).Patch(ctx, object.DeepCopy(), client.RawPatch(types.MergePatchType, text), client.DryRunAll)
	}
	BeforeAll(func(ctx SpecContext) {
		createPatched(ctx, authorRole, `{}`)
		createPatched(ctx, fmt.Sprintf(namedRole, ", "+numbered(25, `ours-%d`)+", "+numbered(24, longName)), `{}`)
		createPatched(ctx, readerRole, `{}`)
		bindRole(ctx, "reference-author", "author", "named", "reader")
		bindRole(ctx, "reference-named", "named")
		bindRole(ctx, "reference-reader", "reader")
		attack := func() error {
			return attempt(ctx, "author", providerBase, `spec: {credentialsRef: {name: theirs, key: k}}`)
		}
		createShipped(ctx, "policy", "reference_policy.yaml")
		// The policy is removed with its binding. Wait until it is no longer in force, because it must not affect
		// other tests.
		DeferCleanup(func(ctx SpecContext) {
			Eventually(func() error {
				return attempt(ctx, "author", providerBase, `spec: {credentialsRef: {name: theirs, key: k}}`)
			}).
				WithContext(ctx).WithTimeout(patience).Should(Succeed())
		})
		Eventually(attack).WithContext(ctx).WithTimeout(patience).Should(Succeed(), "without the policy, the attack must work")
		createShipped(ctx, "policy", "reference_binding.yaml")
		Eventually(attack).WithContext(ctx).WithTimeout(patience).Should(MatchError(ContainSubstring("may not get Secret")))
	})

	DescribeTable("must be allowed to get its object",
		func(ctx SpecContext, base, patch, kind, field string) {
			with := func(name string) string { return fmt.Sprintf(patch, name) }
			for user, name := range map[string]string{"author": "ours", "named": "theirs"} {
				err := attempt(ctx, user, base, with(name))
				Expect(apierrors.IsForbidden(err)).To(BeTrue(), "%s refers to %s: %v", user, name, err)
				Expect(err).To(MatchError(And(ContainSubstring(`user "`+user+`" `+fmt.Sprintf(forbidden, kind, name, field)),
					ContainSubstring("ask for a Role with the verb get on"))))
			}
			Expect(attempt(ctx, "named", base, with("ours"))).To(Succeed(), "permission for this object is enough")
			Expect(attempt(ctx, "reader", base, with("theirs"))).To(Succeed())
			Expect(attempt(ctx, "author", base, `{}`)).To(Succeed(), "an object without references needs no permission")
		},
		Entry("the key of a ModelProvider", providerBase, `spec: {credentialsRef: {name: %s, key: k}}`, "Secret", "spec.credentialsRef"),
		Entry("a header of a ModelProvider", providerBase,
			`spec: {headers: [{name: X-A, value: a}, {name: X-B, valueFrom: {secretKeyRef: {name: %s, key: k}}}]}`,
			"Secret", "spec.headers[X-B].valueFrom.secretKeyRef"),
		Entry("the CA bundle of a ModelProvider", providerBase, `spec: {tls: {caBundleRef: {name: %s, key: k}}}`,
			"Secret", "spec.tls.caBundleRef"),
		Entry("the client certificate of a ModelProvider", providerBase,
			`spec: {baseURL: "https://llm.internal/v1", tls: {clientCertificateRef: {name: %s}}}`, "Secret",
			"spec.tls.clientCertificateRef"),
		Entry("the token of a ToolServer", serverBase, `spec: {credentialsRef: {name: %s, key: k}}`, "Secret", "spec.credentialsRef"),
		Entry("a header of a ToolServer", serverBase, `spec: {headers: [{name: X-B, valueFrom: {secretKeyRef: {name: %s, key: k}}}]}`,
			"Secret", "spec.headers[X-B].valueFrom.secretKeyRef"),
		Entry("the CA bundle of a ToolServer", serverBase, `spec: {tls: {caBundleRef: {name: %s, key: k}}}`, "Secret",
			"spec.tls.caBundleRef"),
		Entry("the client certificate of a ToolServer", serverBase,
			`spec: {mcp: {url: "https://tools.internal/mcp"}, tls: {clientCertificateRef: {name: %s}}}`, "Secret",
			"spec.tls.clientCertificateRef"),
		Entry("a skill of a PromptProfile", profileBase,
			`spec: {skills: [{key: a, content: t}, {key: b, contentFrom: {configMapKeyRef: {name: %s, key: k}}}]}`,
			"ConfigMap", "spec.skills[b].contentFrom.configMapKeyRef"),
		Entry("a contribution of a PromptProfile", profileBase,
			`spec: {contributions: [{name: "two\nlines", configMapKeyRef: {name: %s, key: k}}]}`,
			"ConfigMap", "spec.contributions[two lines].configMapKeyRef"),
		Entry("a contribution of an Agent", agentBase,
			`spec: {skills: {loaded: [a]}, contributions: [{name: a, text: t}, {name: b, configMapKeyRef: {name: %s, key: k}}]}`,
			"ConfigMap", "spec.contributions[b].configMapKeyRef"),
		Entry("a contribution of a Turn", turnBase, `spec: {context: {contributions: [{name: b, configMapKeyRef: {name: %s, key: k}}]}}`,
			"ConfigMap", "spec.context.contributions[b].configMapKeyRef"),
		Entry("the instructions of a PromptProfile", profileBase,
			`spec: {instructions: null, instructionsFrom: {configMapKeyRef: {name: %s, key: k}}}`,
			"ConfigMap", "spec.instructionsFrom.configMapKeyRef"),
		Entry("the system prompt of a PromptProfile", profileBase,
			`spec: {identity: {systemPromptFrom: {configMapKeyRef: {name: %s, key: k}}}}`,
			"ConfigMap", "spec.identity.systemPromptFrom.configMapKeyRef"),
		Entry("the instructions of an Agent", agentBase,
			`spec: {instructions: null, instructionsFrom: {configMapKeyRef: {name: %s, key: k}}}`,
			"ConfigMap", "spec.instructionsFrom.configMapKeyRef"),
		Entry("the message of a Turn", turnBase, `spec: {message: null, messageFrom: {configMapKeyRef: {name: %s, key: k}}}`,
			"ConfigMap", "spec.messageFrom.configMapKeyRef"),
		Entry("a parameter of a Turn", turnBase,
			`spec: {parameters: [{name: a, value: v}, {name: b, valueFrom: {configMapKeyRef: {name: %s, key: k}}}]}`,
			"ConfigMap", "spec.parameters[b].valueFrom.configMapKeyRef"),
		Entry("an attachment of a Turn", turnBase,
			`spec: {attachments: [{name: a, mediaType: text/plain, url: "https://files.example/a"}, `+
				`{name: b, mediaType: image/png, configMapKeyRef: {name: %s, key: k}}]}`,
			"ConfigMap", "spec.attachments[b].configMapKeyRef"),
	)

	DescribeTable("must be allowed to get its object, wherever it is among as many references as the schema allows",
		func(ctx SpecContext, base, object string) {
			all := allReferences[merged(base, `{}`).GetKind()]
			with := func(forbidden int) string {
				return withNames(all, func(i int) string { return map[bool]string{true: "theirs", false: "ours"}[i == forbidden] })
			}
			Expect(attempt(ctx, "named", base, with(-1))).To(Succeed())
			for i := range strings.Count(all, "NAME") {
				Expect(attempt(ctx, "named", base, with(i))).To(MatchError(ContainSubstring(`may not get `+object+` "theirs"`)), "%d", i)
			}
		},
		Entry("of an Agent", agentBase, "ConfigMap", SpecTimeout(patience)),
		Entry("of a ModelProvider", providerBase, "Secret", SpecTimeout(patience)),
		Entry("of a PromptProfile", profileBase, "ConfigMap", SpecTimeout(patience)),
		Entry("of a ToolServer", serverBase, "Secret", SpecTimeout(patience)),
		Entry("of a Turn", turnBase, "ConfigMap", SpecTimeout(patience)),
	)

	It("must be allowed to read journals for an artifact of any Turn of the namespace", func(ctx SpecContext) {
		const inSession = `spec: {sessionRef: {name: s}, attachments: [{name: a, mediaType: text/plain, ` +
			`artifactRef: {turnName: t, name: call-1-1}}]}`
		const inNamespace = `spec: {attachments: [{name: a, mediaType: text/plain, url: "https://files.example/a"}, ` +
			`{name: b, mediaType: text/plain, artifactRef: {turnName: t, name: call-1-1, scope: Namespace}}]}`
		Expect(attempt(ctx, "author", turnBase, inSession)).To(Succeed(), "a Turn may use the artifacts of its Session")
		err := attempt(ctx, "author", turnBase, inNamespace)
		Expect(apierrors.IsForbidden(err)).To(BeTrue(), "%v", err)
		Expect(err).To(MatchError(ContainSubstring(`user "author" may not read the journals of Turns in namespace "default", ` +
			`which spec.attachments[b].artifactRef with the scope Namespace needs: ` +
			`ask for a Role with the verb get on turns.capstan.dev/log`)))
		Expect(attempt(ctx, "reader", turnBase, inNamespace)).To(Succeed())
		turn := createPatched(ctx, turnBase, inNamespace)
		Expect(change(ctx, "author", turn, `spec: {desiredState: Cancelled}`)).To(Succeed(), "a user who may change Turns may cancel one")
	}, SpecTimeout(2*patience))

	It("is the user who adds or changes it, not one who changes another field", func(ctx SpecContext) {
		provider := createPatched(ctx, providerBase, `spec: {credentialsRef: {name: theirs, key: k}, headers: [{name: `+
			`X-B, valueFrom: {secretKeyRef: {name: theirs, key: b}}}], tls: {caBundleRef: {name: ca, key: ca}}}`)
		Expect(change(ctx, "author", provider,
			`{metadata: {labels: {a: b}}, spec: {timeouts: {idleSeconds: 5}, headers: [{name: X-A, value: a}, `+
				`{name: X-B, valueFrom: {secretKeyRef: {name: theirs, key: b}}}]}}`)).To(Succeed())
		Expect(change(ctx, "author", provider, `spec: {credentialsRef: null, headers: null}`)).To(Succeed(),
			"removing a reference needs no permission")
		for patch, field := range map[string]string{
			`spec: {credentialsRef: {key: other}}`:                                              "spec.credentialsRef",
			`spec: {credentialsRef: {name: ca}}`:                                                "spec.credentialsRef",
			`spec: {headers: [{name: X-C, valueFrom: {secretKeyRef: {name: theirs, key: b}}}]}`: "spec.headers[X-C].valueFrom.secretKeyRef",
			`spec: {baseURL: "https://attacker.example/v1"}`:                                    "spec.credentialsRef",
			`spec: {baseURL: "http://llm.internal/v1"}`:                                         "spec.credentialsRef",
			`spec: {tls: {caBundleRef: {key: other}}}`:                                          "spec.credentialsRef",
			`spec: {tls: null}`:                                                                 "spec.credentialsRef",
		} {
			Expect(change(ctx, "author", provider, patch)).To(MatchError(ContainSubstring("which "+field+" refers to")), patch)
			Expect(change(ctx, "reader", provider, patch)).To(Succeed(), patch)
		}

		server := createPatched(ctx, serverBase, `spec: {credentialsRef: {name: theirs, key: k}}`)
		Expect(change(ctx, "author", server, `spec: {callTimeoutSeconds: 7}`)).To(Succeed())
		Expect(change(ctx, "author", server, `spec: {mcp: {url: "https://attacker.example/mcp"}}`)).To(
			MatchError(ContainSubstring(fmt.Sprintf(forbidden, "Secret", "theirs", "spec.credentialsRef"))))

		profile := createPatched(ctx, profileBase, `spec: {skills: [{key: a, contentFrom: {configMapKeyRef: {name: theirs, key: k}}}]}`)
		Expect(change(ctx, "author", profile,
			`spec: {instructions: Be short., skills: [{key: b, content: t}, {key: a, contentFrom: `+
				`{configMapKeyRef: {name: theirs, key: k}}}]}`)).To(Succeed())
		Expect(change(ctx, "author", profile, `spec: {skills: [{key: a, contentFrom: {configMapKeyRef: {name: theirs, key: l}}}]}`)).
			To(MatchError(ContainSubstring(fmt.Sprintf(forbidden, "ConfigMap", "theirs", "spec.skills[a].contentFrom.configMapKeyRef"))))

		turn := createPatched(ctx, turnBase, `spec: {context: {contributions: [{name: b, configMapKeyRef: {name: theirs, key: k}}]}}`)
		Expect(change(ctx, "author", turn, `spec: {desiredState: Cancelled}`)).To(Succeed(), "a user who may change Turns may cancel one")
	}, SpecTimeout(2*patience))

	It("is checked within the cost limits of the API server, even for the longest lists", func(ctx SpecContext) {
		headers := func(n int) string {
			return `spec: {headers: [` + numbered(n, `{name: X-%[1]d, valueFrom: {secretKeyRef: {name: ours-%[1]d, key: k}}}`) +
				`], credentialsRef: {name: ours-23, key: k}, tls: {caBundleRef: {name: ours-22, key: k}}}`
		}
		Expect(attempt(ctx, "named", providerBase, headers(16))).To(Succeed())
		Expect(attempt(ctx, "author", providerBase, headers(16))).To(MatchError(ContainSubstring(`may not get Secret "ours-`)))

		skills := func(n int, name string) string {
			return `spec: {skills: [` + numbered(n,
				`{key: s%[1]d, contentFrom: {configMapKeyRef: {name: `+name+`, key: k}}}`) + `], contributions: [` +
				numbered(16, `{name: c%[1]d, configMapKeyRef: {name: `+name+`, key: l}}`) + `]}`
		}
		Expect(attempt(ctx, "named", profileBase, skills(24, "ours-%[1]d"))).To(Succeed(), "24 objects, 40 references")
		Expect(attempt(ctx, "named", profileBase, skills(25, "ours-%[1]d"))).
			To(MatchError(ContainSubstring("this request refers to 25 ConfigMaps: the rights of a user who may " +
				"not get all configmaps of namespace \"default\" are checked for at most 24")))
		Expect(attempt(ctx, "reader", profileBase, skills(32, "ours-%[1]d"))).To(Succeed())
		Expect(attempt(ctx, "named", profileBase, skills(32, "ours"))).To(Succeed(), "48 references to one object")
		Expect(attempt(ctx, "named", profileBase,
			`spec: {skills: [`+numbered(23, `{key: s%[1]d, contentFrom: {configMapKeyRef: {name: ours-%[1]d, `+
				`key: k}}}`)+`, {key: last, contentFrom: {configMapKeyRef: {name: theirs, key: k}}}]}`)).
			To(MatchError(ContainSubstring(fmt.Sprintf(forbidden, "ConfigMap", "theirs", "spec.skills[last].contentFrom.configMapKeyRef"))),
				"each of the names is checked")

		long := func(i int) string { return fmt.Sprintf(longName, i%24) }
		turn := withNames(strings.Replace(allReferences["Turn"], `{name: a7, mediaType: image/png, configMapKeyRef: {name: NAME, key: k}}`,
			`{name: a7, mediaType: image/png, artifactRef: {turnName: t, name: call-1-1, scope: Namespace}}`, 1), long)
		Expect(turn).To(ContainSubstring("scope: Namespace"))
		Expect(attempt(ctx, "named", turnBase, turn)).To(Succeed(), "24 objects with long names, 56 references, and an artifact")
		Expect(attempt(ctx, "author", turnBase, turn)).To(MatchError(ContainSubstring(`may not get ConfigMap "` + long(0))))
		Expect(attempt(ctx, "reader", turnBase, withNames(allReferences["Turn"], func(i int) string { return fmt.Sprintf(longName, i) }))).
			To(Succeed(), "57 objects")
		all := withNames(allReferences["PromptProfile"], long)
		profile := createPatched(ctx, profileBase, all)
		Expect(change(ctx, "named", profile, strings.ReplaceAll(all, "key: k}", "key: l}"))).To(Succeed(), "an update of all references")
	}, SpecTimeout(2*patience))
})
