package manifest_test

import (
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/capstan-dev/capstan/internal/manifest"
)

// loaded returns the Set of these documents.
func loaded(t *testing.T, documents ...string) *manifest.Set {
	t.Helper()
	set, err := manifest.Load(t.Context(), []string{"-"},
		manifest.Options{Stdin: strings.NewReader(strings.Join(documents, "\n---\n"))})
	if err != nil {
		t.Fatal(err)
	}
	return set
}

func TestObjectsAreLikeCreatedObjects(t *testing.T) {
	t.Parallel()
	exported := strings.Replace(turn, "{name: first}",
		"{name: first, uid: u, resourceVersion: '7', generation: 3, creationTimestamp: '2026-01-01T00:00:00Z', labels: {a: b}}", 1) +
		"status: {stopReason: Completed}\n"
	got, err := loaded(t, exported).Turn("")
	if err != nil {
		t.Fatal(err)
	}
	if got.Spec.Citations != "Show" || got.Spec.Execution != "Run" || got.Spec.DesiredState != "Active" {
		t.Errorf("the spec lacks its defaults: %+v", got.Spec)
	}
	if got.Status.StopReason != "" {
		t.Errorf("the status is %+v, want none: a new Turn has not run", got.Status)
	}
	meta := got.ObjectMeta
	if meta.Generation != 0 || meta.UID != "" || meta.ResourceVersion != "" || !meta.CreationTimestamp.IsZero() {
		t.Errorf("metadata is %+v, want no field that a server sets", meta)
	}
	if got.Kind != "Turn" || meta.Labels["a"] != "b" {
		t.Errorf("kind %q, labels %v: want them kept", got.Kind, meta.Labels)
	}
}

func TestIgnored(t *testing.T) {
	t.Parallel()
	service := strings.Replace(configMap, "kind: ConfigMap", "kind: Service", 1)
	want := []string{"-:1: Service notes: ignored: Capstan does not use Service of v1"}
	if diff := cmp.Diff(want, loaded(t, service, turn).Ignored); diff != "" {
		t.Errorf("Ignored (-want +got):\n%s", diff)
	}
}

func TestTurnChoice(t *testing.T) {
	t.Parallel()
	second := strings.ReplaceAll(turn, "first", "second")
	elsewhere := strings.ReplaceAll(turn, "{name: first}", "{name: first, namespace: helpdesk}")
	cases := map[string]struct {
		documents []string
		name      string
		want, err string
	}{
		"one Turn, no name":      {[]string{turn}, "", "default/first", ""},
		"by name":                {[]string{turn, second}, "second", "default/second", ""},
		"by namespace and name":  {[]string{turn, elsewhere}, "helpdesk/first", "helpdesk/first", ""},
		"no Turn, no name":       {[]string{agent}, "", "", "failed to choose a Turn: the manifests have none"},
		"several Turns, no name": {[]string{turn, second}, "", "", "failed to choose a Turn: name one of default/first, default/second"},
		"an unknown name":        {[]string{turn}, "third", "", `failed to find Turn "third": the manifests have default/first`},
		"a name of two Turns": {
			[]string{turn, elsewhere},
			"first", "",
			"failed to choose a Turn: name one of default/first, helpdesk/first",
		},
		"no Turn, a name": {[]string{agent}, "first", "", "failed to choose a Turn: the manifests have none"},
	}
	for name, tc := range cases {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			got, err := loaded(t, tc.documents...).Turn(tc.name)
			switch {
			case tc.err != "":
				if err == nil || err.Error() != tc.err {
					t.Errorf("Turn(%q) returned error %v, want %s", tc.name, err, tc.err)
				}
			case err != nil:
				t.Errorf("Turn(%q) returned error %v", tc.name, err)
			case got.Namespace+"/"+got.Name != tc.want:
				t.Errorf("Turn(%q) returned %s/%s, want %s", tc.name, got.Namespace, got.Name, tc.want)
			}
		})
	}
}

func TestSecrets(t *testing.T) {
	t.Parallel()
	secret := "apiVersion: v1\nkind: Secret\nmetadata: {name: s}\ntype: Opaque\ndata: {a: YQ==, b: YQ==}\nstringData: {b: text}\n"
	elsewhere := strings.ReplaceAll(turn, "{name: first}", "{name: first, namespace: helpdesk}")
	lookup := func(name string) (string, bool) {
		value, ok := map[string]string{"KEY": "from-env", "EMPTY": ""}[name]
		return value, ok
	}
	cases := map[string]struct {
		spec string
		want map[string]string // namespace/name/key to value
		err  string
	}{
		"stringData and data": {"", map[string]string{"default/s/a": "a", "default/s/b": "text"}, ""},
		"a key of the manifest": {
			"s/a=KEY",
			map[string]string{"default/s/a": "from-env", "default/s/b": "text", "helpdesk/s/a": "from-env"},
			"",
		},
		"a new Secret":  {"new/k=KEY", map[string]string{"default/new/k": "from-env", "helpdesk/new/k": "from-env"}, ""},
		"one namespace": {"helpdesk/s/a=KEY", map[string]string{"default/s/a": "a", "helpdesk/s/a": "from-env"}, ""},
		"no key":        {"s=KEY", nil, `failed to read "s": must be NAME/KEY=ENVVAR or NAMESPACE/NAME/KEY=ENVVAR`},
		"no variable":   {"s/a", nil, "failed to read the Secret key: must be NAME/KEY=ENVVAR or NAMESPACE/NAME/KEY=ENVVAR"},
		"a value for a variable": {
			"s/a=sk-4711", nil,
			`failed to set "s/a": the text after = must be the name of an environment variable that is set`,
		},
		"a variable that is not set": {"s/a=OTHER", nil, `failed to set "s/a": environment variable "OTHER" must be set and not empty`},
		"a variable that is empty":   {"s/a=EMPTY", nil, `failed to set "s/a": environment variable "EMPTY" must be set and not empty`},
		"an invalid name": {
			"S/a=KEY", nil,
			`failed to read "S/a": the Secret's name "S" is invalid: a lowercase RFC 1123 subdomain must consist of`,
		},
		"an invalid key": {"s/a b=KEY", nil, `failed to read "s/a b": the key "a b" is invalid: a valid config key must consist of`},
		"an invalid namespace": {
			"N/s/a=KEY", nil,
			`failed to read "N/s/a": the namespace "N" is invalid: a lowercase RFC 1123 label must consist of`,
		},
		"too many parts of the target": {"a/b/c/d=KEY", nil, `failed to read "a/b/c/d": must be NAME/KEY=ENVVAR`},
	}
	for name, tc := range cases {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			set := loaded(t, secret, turn, elsewhere)
			if tc.spec != "" {
				err := set.SetSecretFromEnv(tc.spec, lookup)
				if tc.err != "" && (err == nil || !strings.HasPrefix(err.Error(), tc.err)) || tc.err == "" && err != nil {
					t.Fatalf("SetSecretFromEnv(%q) returned error %v, want %q", tc.spec, err, tc.err)
				}
			}
			for path, want := range tc.want {
				parts := strings.Split(path, "/")
				got, ok := set.Secret(parts[0], parts[1])
				if !ok || string(got.Data[parts[2]]) != want {
					t.Errorf("Secret key %s is not as wanted after %q", path, tc.spec)
				}
			}
		})
	}
}

func TestNamesAndOrigins(t *testing.T) {
	t.Parallel()
	set := loaded(t, agent, turn+"---\n"+strings.ReplaceAll(turn, "first", "second"))
	if err := set.SetSecretFromEnv("made/key=KEY", func(string) (string, bool) { return "value", true }); err != nil {
		t.Fatal(err)
	}
	withSession := loaded(t, session, strings.Replace(session, "chat", "other", 1))
	if got := strings.Join(withSession.Names("Session"), " "); got != "default/chat default/other" {
		t.Errorf("Names(Session) returned %q", got)
	}
	for kind, want := range map[string]string{
		"Agent": "default/support", "Turn": "default/first default/second", "Secret": "default/made", "Pod": "",
	} {
		if got := strings.Join(set.Names(kind), " "); got != want {
			t.Errorf("Names(%q) returned %q, want %q", kind, got, want)
		}
	}
	for kind, tc := range map[string]struct {
		name     string
		wantLine int
		wantFile bool
	}{
		"Agent": {"support", 1, true}, "Turn": {"second", 12, true}, "Secret": {"made", 0, false},
	} {
		file, line := set.Origin(kind, "default", tc.name)
		if (file != "") != tc.wantFile || line != tc.wantLine {
			t.Errorf("Origin(%q) returned %q, line %d; want a file: %t, line %d", kind, file, line, tc.wantFile, tc.wantLine)
		}
	}
}

func TestConfigMaps(t *testing.T) {
	t.Parallel()
	notes := configMap + "immutable: true\ndata: {guide.md: \"# Guide\", empty: null}\nbinaryData: {logo: AP8=}\n"
	list := "apiVersion: v1\nkind: ConfigMapList\nitems:\n" +
		"- {apiVersion: v1, kind: ConfigMap, metadata: {name: a, namespace: helpdesk}, data: {k: v}}\n" +
		"- {apiVersion: v1, kind: ConfigMap, metadata: {name: b}}\n"
	set := loaded(t, notes, list, turn)
	if diff := cmp.Diff([]string{"default/b", "default/notes", "helpdesk/a"}, set.Names("ConfigMap")); diff != "" {
		t.Errorf("ConfigMaps (-want +got):\n%s", diff)
	}
	got, ok := set.ConfigMap("default", "notes")
	if !ok {
		t.Fatal("the set lacks ConfigMap default/notes")
	}
	if diff := cmp.Diff(map[string]string{"guide.md": "# Guide", "empty": ""}, got.Data); diff != "" {
		t.Errorf("data (-want +got):\n%s", diff)
	}
	if diff := cmp.Diff(map[string][]byte{"logo": {0, 255}}, got.BinaryData); diff != "" {
		t.Errorf("binaryData (-want +got):\n%s", diff)
	}
	if got.Immutable == nil || !*got.Immutable || got.Kind != "ConfigMap" {
		t.Errorf("kind %q, immutable %v: want them kept", got.Kind, got.Immutable)
	}
	if _, ok := set.ConfigMap("helpdesk", "notes"); ok {
		t.Error("the ConfigMap is also in another namespace")
	}
}

func TestSession(t *testing.T) {
	t.Parallel()
	set := loaded(t, session+"spec: {subject: Order 1042, budget: {maxTurns: 3}}\n")
	got, ok := set.Session("default", "chat")
	if !ok || got.Spec.Subject != "Order 1042" || *got.Spec.Budget.MaxTurns != 3 {
		t.Errorf("Session returned %+v, %t: want the spec of the manifest", got, ok)
	}
	if got.Status.ObservedGeneration != 0 || len(got.Status.Conditions) != 0 {
		t.Errorf("the status is %+v, want none: no controller has processed it", got.Status)
	}
	if _, ok := set.Session("helpdesk", "chat"); ok {
		t.Error("the Session is also in another namespace")
	}
	below := loaded(t, session+"spec: {subject: Order 1}\n")
	if over, _ := set.Over(below).Session("default", "chat"); over != got {
		t.Error("Over returned the Session of the base")
	}
	if _, ok := loaded(t, turn).Over(below).Session("default", "chat"); !ok {
		t.Error("the set lacks the Session, which only the base has")
	}
}

func TestOver(t *testing.T) {
	t.Parallel()
	base := loaded(t, agent, turn, configMap+"data: {k: base}\n")
	top := loaded(t, strings.Replace(turn, "Hello", "Bye", 1), configMap+"data: {k: top}\n", strings.ReplaceAll(turn, "first", "second"))
	both := top.Over(base)
	if got, err := both.Turn("first"); err != nil || got.Spec.Message != "Bye" {
		t.Errorf("Turn returned %v, %v: want the Turn of top", got, err)
	}
	if got, ok := both.ConfigMap("default", "notes"); !ok || got.Data["k"] != "top" {
		t.Errorf("ConfigMap returned %v: want the ConfigMap of top", got)
	}
	if _, ok := both.Agent("default", "support"); !ok {
		t.Error("the set lacks the Agent, which only the base has")
	}
	if _, line := both.Origin("Agent", "default", "support"); line != 1 {
		t.Errorf("the Agent's line is %d, want 1, as in the base", line)
	}
	if got, err := base.Turn("first"); err != nil || got.Spec.Message != "Hello" || len(base.Turns()) != 1 {
		t.Error("the base changed")
	}
}
