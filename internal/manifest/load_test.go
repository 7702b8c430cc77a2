package manifest_test

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/capstan-dev/capstan/internal/manifest"
)

const (
	agent = `apiVersion: capstan.dev/v1alpha1
kind: Agent
metadata: {name: support}
spec: {promptProfileRef: {name: support}, models: [{providerRef: {name: demo}, model: small}]}
`
	turn = `apiVersion: capstan.dev/v1alpha1
kind: Turn
metadata: {name: first}
spec: {agentRef: {name: support}, message: Hello}
`
	blankTurn = `apiVersion: capstan.dev/v1alpha1
kind: Turn
metadata: {name: blank}
spec: {agentRef: {name: support}, message: " "}
`
	session = `apiVersion: capstan.dev/v1alpha1
kind: Session
metadata: {name: chat}
`
	configMap = `apiVersion: v1
kind: ConfigMap
metadata: {name: notes}
`
)

// writeFiles writes files into a new directory and returns its path.
func writeFiles(t *testing.T, content map[string]string) string {
	t.Helper()
	dir := t.TempDir()
	for name, text := range content {
		path := filepath.Join(dir, name)
		if err := os.MkdirAll(filepath.Dir(path), 0o750); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	return dir
}

// turnNames returns the Turns of a set as namespace/name.
func turnNames(set *manifest.Set) []string {
	var names []string
	for _, t := range set.Turns() {
		names = append(names, t.Namespace+"/"+t.Name)
	}
	return names
}

func TestLoadReads(t *testing.T) {
	t.Parallel()
	second := strings.ReplaceAll(turn, "first", "second")
	cases := map[string]struct {
		reason string
		files  map[string]string
		want   []string
	}{
		"nested directories": {
			"people keep manifests in directories by team or environment",
			map[string]string{"b/c/turn.yml": second, "a.YAML": turn},
			[]string{"default/first", "default/second"},
		},
		"other files": {
			"READMEs, hidden files and kustomizations are not manifests",
			map[string]string{
				"turn.yaml": turn, "README.md": "# x", ".hidden.yaml": "{", ".git/x.yaml": "{", "kustomization.yaml": "resources: []",
			},
			[]string{"default/first"},
		},
		"documents of one file": {
			"comments, empty documents and end marks are no objects",
			map[string]string{"all.yaml": "# first\n---\n" + turn + "...\n--- # second\n" + second + "---\n# end\n"},
			[]string{"default/first", "default/second"},
		},
		"line ends of Windows, byte order mark": {
			"some editors write them",
			map[string]string{"all.yaml": "\ufeff" + strings.ReplaceAll(turn+"---\n"+second, "\n", "\r\n")},
			[]string{"default/first", "default/second"},
		},
		"JSON with tabs": {
			"JSON allows what YAML does not",
			map[string]string{
				"a.json": "{\n\t\"apiVersion\": \"capstan.dev/v1alpha1\",\n\t\"kind\": \"Turn\", \"metadata\": {\"name\": \"first\"},\n\t" +
					"\"spec\": {\"agentRef\": {\"name\": \"a\"}, \"message\": \"m\"}}\n",
			},
			[]string{"default/first"},
		},
		"flow-style YAML": {
			"it begins like JSON",
			map[string]string{
				"a.yaml": "{apiVersion: capstan.dev/v1alpha1, kind: Turn, metadata: {name: first}, spec: " +
					"{agentRef: {name: a}, message: m}}",
			},
			[]string{"default/first"},
		},
		"a separator within a block text": {
			"an indented separator does not end the document",
			map[string]string{"a.yaml": strings.Replace(turn, "spec: {agentRef: {name: support}, message: Hello}",
				"spec:\n  agentRef: {name: support}\n  message: |\n    Hello\n    ---\n    there", 1)},
			[]string{"default/first"},
		},
		"a list": {
			"kubectl get -o yaml prints one",
			map[string]string{"a.yaml": "apiVersion: v1\nkind: List\nitems:\n- " +
				strings.ReplaceAll(strings.TrimSpace(turn), "\n", "\n  ")},
			[]string{"default/first"},
		},
		"another namespace": {
			"each namespace may have an object of this name",
			map[string]string{"a.yaml": turn, "b.yaml": strings.ReplaceAll(turn, "{name: first}", "{name: first, namespace: helpdesk}")},
			[]string{"default/first", "helpdesk/first"},
		},
	}
	for name, tc := range cases {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			set, err := manifest.Load(t.Context(), []string{writeFiles(t, tc.files)}, manifest.Options{})
			if err != nil {
				t.Fatalf("%s: %v", tc.reason, err)
			}
			if diff := cmp.Diff(tc.want, turnNames(set)); diff != "" {
				t.Errorf("%s: Turns (-want +got):\n%s", tc.reason, diff)
			}
		})
	}
}

func TestLoadRejects(t *testing.T) {
	const noManifest = ": failed to find a manifest in the directory or its subdirectories: a manifest is a *.yaml, *.yml or " +
		"*.json file, except kustomization files and names that begin with a period"
	t.Parallel()
	cases := map[string]struct {
		reason string
		files  map[string]string
		want   []string // lines of the error, without the directory
	}{
		"each fault of each file": {
			"people want to see all mistakes together",
			map[string]string{"a.yaml": blankTurn, "b.yaml": turn + "---\n" + strings.Replace(agent, "spec:", "sepc:", 1)},
			[]string{
				`a.yaml: Turn default/blank: spec.message: Invalid value: " ": message must not be blank: ` +
					`it must have more than white space, control and zero-width characters`,
				"b.yaml:9: Agent default/support: sepc: unknown field: check its spelling and indentation",
				"b.yaml:6: Agent default/support: spec: Required value",
			},
		},
		"the same object twice": {
			"one of them would be lost",
			map[string]string{"a.yaml": turn, "b.yaml": turn},
			[]string{"b.yaml: Turn default/first: metadata.name: must be unique: a.yaml has the same object"},
		},
		"an unknown kind of ours": {
			"it is a mistake, not an object of another system",
			map[string]string{"a.yaml": strings.Replace(turn, "kind: Turn", "kind: Trun", 1)},
			[]string{"a.yaml: Trun first: unknown kind in capstan.dev/v1alpha1: " +
				"must be one of Agent, Budget, ModelProvider, PromptProfile, Session, ToolApproval, ToolServer, " +
				"Turn in capstan.dev/v1alpha1"},
		},
		"an unknown version of ours": {
			"its fields may have other meanings",
			map[string]string{"a.yaml": strings.Replace(turn, "v1alpha1", "v2", 1)},
			[]string{"a.yaml: Turn first: unknown kind in capstan.dev/v2: " +
				"must be one of Agent, Budget, ModelProvider, PromptProfile, Session, ToolApproval, ToolServer, " +
				"Turn in capstan.dev/v1alpha1"},
		},
		"no kind": {
			"the object cannot be read without its kind",
			map[string]string{"a.yaml": "apiVersion: v1\n"},
			[]string{"a.yaml: kind: is required, as a string"},
		},
		"a generated name": {
			"only a server generates names",
			map[string]string{"a.yaml": strings.Replace(turn, "name: first", "generateName: first-", 1)},
			[]string{"a.yaml: Turn: metadata.name: must be given: names are generated only in a cluster"},
		},
		"metadata of wrong types": {
			"the message names the field",
			map[string]string{
				"a.yaml": strings.Replace(turn, "{name: first}", "{name: first, labels: [a]}", 1),
				"b.yaml": strings.Replace(turn, "{name: first}", "5", 1),
			},
			[]string{
				"a.yaml: Turn first: metadata.labels: must be of type object, not a list",
				"b.yaml: Turn: metadata: must be of type object, not a number",
			},
		},
		"names that YAML does not read as texts": {
			"an author does not see that n and on are booleans",
			map[string]string{
				"a.yaml": strings.Replace(turn, "{name: first}", "{name: n}", 1),
				"b.yaml": strings.Replace(turn, "{name: first}", "{name: 123}", 1),
				"c.yaml": strings.Replace(configMap, "name: notes", "name: yes", 1),
				"d.yaml": strings.Replace(turn, "{name: first}", "{name: first, labels: {a: on}}", 1),
				"e.yaml": strings.Replace(turn, "name: support", "name: on", 1),
			},
			[]string{
				"a.yaml: Turn: metadata.name: must be of type string, not a boolean: put it in quotes",
				"b.yaml: Turn: metadata.name: must be of type string, not a number: put it in quotes",
				"c.yaml: ConfigMap: metadata.name: must be of type string, not a boolean: put it in quotes",
				"d.yaml: Turn first: metadata.labels: each value must be of type string, not a boolean: put it in quotes",
				"e.yaml: Turn default/first: spec.agentRef.name: must be of type string, not a boolean: put it in quotes",
			},
		},
		"numbers that are no integers of their field": {
			"the API server adds an error without a field to some of these errors",
			map[string]string{
				"a.yaml": strings.Replace(turn, "Hello", "Hello, limits: {maxSteps: 1e30}", 1),
				"b.yaml": strings.NewReplacer("first", "second", "Hello", "Hello, limits: {maxSteps: 1.5}").Replace(turn),
				"c.yaml": strings.NewReplacer("first", "third", "Hello", "Hello, limits: {maxSteps: 12345678901}").Replace(turn),
			},
			[]string{
				"a.yaml: Turn default/first: spec.limits.maxSteps: must be of type integer, not a number",
				"a.yaml: Turn default/first: spec.limits.maxSteps: Invalid value: 1e+30: spec.limits.maxSteps in body should be " +
					"less than or equal to 100",
				"b.yaml: Turn default/second: spec.limits.maxSteps: must be of type integer, not a number",
				"c.yaml: Turn default/third: spec.limits.maxSteps: Invalid value: 12345678901: spec.limits.maxSteps in body should be " +
					"less than or equal to 100",
			},
		},
		"several mistakes in one of several documents": {
			"the document may be long",
			map[string]string{"a.yaml": "# a comment\n" + session + "---\n" + `apiVersion: capstan.dev/v1alpha1
kind: Agent
metadata:
  name: support
  labels: {"a.b/c": "!"}
spec:
  promptProfileRef: {name: support}
  models: [{providerRef: {name: a}, model: m},
    {providerRef: {name: b}, model: m, version: n}]
  toolPolicy:
    effects: Perhaps
`, "b.json": "{}\n" + `{
  "apiVersion": "capstan.dev/v1alpha1", "kind": "Session", "metadata": {"name": "talk"},
  "spec": {
    "subject": 1
  }
}`},
			[]string{
				"a.yaml:14: Agent default/support: spec.models[1].version: unknown field: check its spelling and indentation",
				`a.yaml:10: Agent default/support: metadata.labels: Invalid value: "!": a valid label must be an empty string or consist ` +
					`of alphanumeric characters, '-', '_' or '.', and must start and end with an alphanumeric character (e.g. ` +
					`'MyValue',  or 'my_value',  or '12345', regex used for validation is '(([A-Za-z0-9][-A-Za-z0-9_.]*)?[A-Za-z0-9])?')`,
				`a.yaml:16: Agent default/support: spec.toolPolicy.effects: Unsupported value: "Perhaps": supported values: ` +
					`"Any", "ReadOnly"`,
				"b.json:1: apiVersion: is required, as a string",
				"b.json:5: Session default/talk: spec.subject: must be of type string, not a whole number: put it in quotes",
			},
		},
		"values of other types": {
			"the message says what is needed",
			map[string]string{"a.yaml": strings.Replace(turn, "{name: support}", "support", 1)},
			[]string{"a.yaml: Turn default/first: spec.agentRef: must be of type object, not a string"},
		},
		"a key twice": {
			"one of the values would be lost",
			map[string]string{"a.yaml": turn + "kind: Agent\n"},
			[]string{`a.yaml:5: must be YAML: key "kind" already set in map`},
		},
		"two keys twice": {
			"people want to see all mistakes together, each with its line",
			map[string]string{"a.yaml": turn + "---\n" + turn + "kind: Agent\nspec: {}\n"},
			[]string{
				`a.yaml:10: must be YAML: key "kind" already set in map`,
				`a.yaml:11: must be YAML: key "spec" already set in map`,
			},
		},
		"broken YAML": {
			"the line number is that of the fault",
			map[string]string{"a.yaml": "a: 1\n b: 2\n"},
			[]string{"a.yaml:2: must be YAML: mapping values are not allowed in this context"},
		},
		"broken YAML in a later document": {
			"the line number is that of the fault in the file",
			map[string]string{"a.yaml": turn + "---\na: 1\nb: [\n"},
			[]string{"a.yaml:7: must be YAML: did not find expected node content"},
		},
		"a fault for which the parser gives no line": {
			"the line number is that of the document",
			map[string]string{"a.yaml": turn + "---\na: *b\n", "b.yaml": "a: *b\n"},
			[]string{
				"a.yaml:6: must be YAML: unknown anchor 'b' referenced",
				"b.yaml: must be YAML: unknown anchor 'b' referenced",
			},
		},
		"no object": {
			"a text is not a manifest",
			map[string]string{"a.yaml": "hello"},
			[]string{"a.yaml: must be an object with apiVersion, kind and metadata"},
		},
		"other encodings": {
			"YAML would read them as other values",
			map[string]string{"a.yaml": "a: \xff\xfe"},
			[]string{"a.yaml: must be UTF-8 text"},
		},
		"a Secret that is not encoded": {
			"messages must not repeat the value",
			map[string]string{"a.yaml": "apiVersion: v1\nkind: Secret\nmetadata: {name: s}\ndata: {key: " +
				"not-base64!}\nstringData: {port: 80}\n"},
			[]string{
				"a.yaml: Secret default/s: data[key]: must be base64: use stringData for a value that is not encoded",
				"a.yaml: Secret default/s: stringData[port]: must be a string: put it in quotes",
			},
		},
		"a ConfigMap that an API server would reject": {
			"otherwise the prompt would lack the text",
			map[string]string{"a.yaml": configMap +
				"immutable: \"no\"\ndta: {k: v}\ndata: {\"a b\": x, port: 5, twice: x}\nbinaryData: {twice: eA==, raw: \"!\"}\n"},
			[]string{
				"a.yaml: ConfigMap default/notes: dta: unknown field: check its spelling and indentation",
				"a.yaml: ConfigMap default/notes: immutable: must be true or false",
				"a.yaml: ConfigMap default/notes: data[a b]: a valid config key must consist of alphanumeric characters, '-', '_' or '.' " +
					"(e.g. 'key.name',  or 'KEY_NAME',  or 'key-name', regex used for validation is '[-._a-zA-Z0-9]+')",
				"a.yaml: ConfigMap default/notes: data[port]: must be a string: put it in quotes",
				"a.yaml: ConfigMap default/notes: binaryData[raw]: must be base64: use data for a value that is not encoded",
				"a.yaml: ConfigMap default/notes: binaryData[twice]: must not be in data too",
			},
		},
		"a ConfigMap beyond 1 MiB": {
			"an API server would reject it",
			map[string]string{"a.yaml": configMap + "data: {k: " + strings.Repeat("x", 1<<20) + ", l: x}\n"},
			[]string{"a.yaml: ConfigMap default/notes: must hold at most 1048576 bytes: it has 1048577"},
		},
		"the same ConfigMap twice": {
			"one of them would be lost",
			map[string]string{"a.yaml": configMap, "b.yaml": configMap},
			[]string{"b.yaml: ConfigMap default/notes: metadata.name: must be unique: a.yaml has the same object"},
		},
		"a directory without manifests": {
			"the path is probably wrong",
			map[string]string{"README.md": "x"},
			[]string{noManifest},
		},
		"a directory with only a kustomization file": {
			"the message must not suggest adding a kustomization file, because there is one and it is no manifest",
			map[string]string{"kustomization.yaml": "kind: Kustomization\n"},
			[]string{noManifest},
		},
		"a file of 9 MiB": {
			"a file of this size is not a manifest",
			map[string]string{"a.yaml": strings.Repeat("#", 9<<20)},
			[]string{"a.yaml: failed to read it: it must be at most 8 MiB"},
		},
	}
	for name, tc := range cases {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			dir := writeFiles(t, tc.files)
			_, err := manifest.Load(t.Context(), []string{dir}, manifest.Options{})
			if err == nil {
				t.Fatalf("%s: Load succeeded, want an error", tc.reason)
			}
			text := strings.ReplaceAll(strings.ReplaceAll(err.Error(), dir+"/", ""), dir, "")
			if diff := cmp.Diff(tc.want, strings.Split(text, "\n")); diff != "" {
				t.Errorf("%s: error (-want +got):\n%s", tc.reason, diff)
			}
		})
	}
}

func TestLoadPaths(t *testing.T) {
	t.Parallel()
	dir := writeFiles(t, map[string]string{"turn.yaml": turn, "x.txt": agent})
	t.Run("a file with any extension, and standard input", func(t *testing.T) {
		t.Parallel()
		set, err := manifest.Load(t.Context(), []string{filepath.Join(dir, "x.txt"), "-"},
			manifest.Options{Stdin: strings.NewReader(turn), Namespace: "helpdesk"})
		if err != nil {
			t.Fatal(err)
		}
		if diff := cmp.Diff([]string{"helpdesk/first"}, turnNames(set)); diff != "" {
			t.Errorf("Turns (-want +got):\n%s", diff)
		}
		if _, ok := set.Agent("helpdesk", "support"); !ok {
			t.Error("the set lacks Agent helpdesk/support")
		}
	})
	t.Run("a file named twice is read once", func(t *testing.T) {
		t.Parallel()
		if _, err := manifest.Load(t.Context(), []string{dir, filepath.Join(dir, "turn.yaml")}, manifest.Options{}); err != nil {
			t.Error(err)
		}
	})
	t.Run("a symbolic link to a directory", func(t *testing.T) {
		t.Parallel()
		link := filepath.Join(t.TempDir(), "link")
		if err := os.Symlink(dir, link); err != nil {
			t.Fatal(err)
		}
		set, err := manifest.Load(t.Context(), []string{link}, manifest.Options{})
		if err != nil {
			t.Fatal(err)
		}
		if diff := cmp.Diff([]string{"default/first"}, turnNames(set)); diff != "" {
			t.Errorf("Turns (-want +got):\n%s", diff)
		}
	})
	refused := map[string]struct {
		paths []string
		want  string
	}{
		"no path": {nil, "failed to load manifests: name a file, a directory or - for standard input"},
		"a path that does not exist": {
			[]string{filepath.Join(dir, "none")},
			filepath.Join(dir, "none") + ": failed to find it: no such file or directory",
		},
		"no standard input": {[]string{"-"}, "-: failed to read standard input: there is none"},
	}
	for name, tc := range refused {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			_, err := manifest.Load(t.Context(), tc.paths, manifest.Options{})
			if err == nil || err.Error() != tc.want {
				t.Errorf("Load(%q) returned %v, want %s", tc.paths, err, tc.want)
			}
		})
	}
}

func FuzzLoad(f *testing.F) {
	for _, seed := range []string{
		agent, turn, blankTurn + "---\n" + configMap, "{}", "[]", "---", "...", "a: &a [*a]",
		`{"a":1}{"b":2}`, "{", "\x00",
	} {
		f.Add(seed)
	}
	f.Fuzz(func(t *testing.T, text string) {
		set, err := manifest.Load(t.Context(), []string{"-"}, manifest.Options{Stdin: strings.NewReader(text)})
		if (set == nil) != (err != nil) {
			t.Errorf("Load returned set %v and error %v, want exactly one of them", set, err)
		}
	})
}
