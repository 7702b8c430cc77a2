package main

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"
)

const (
	clusterRole = "kind: ClusterRole\nmetadata: {name: manager}\nrules: [{apiGroups: [capstan.dev], resources: [turns], verbs: [get]}]\n"
	policy      = "# {{ no template }}\nkind: ValidatingAdmissionPolicy\nspec: {failurePolicy: Fail}\n"
	role        = "kind: Role\nmetadata: {name: manager}\nrules: [{apiGroups: [coordination.k8s.io], resources: [leases], verbs: [get]}]\n"
)

// repository creates a directory that looks like the repository for sync, and returns its root.
func repository(t *testing.T, roles string, crds map[string]string) string {
	t.Helper()
	root := t.TempDir()
	put(t, filepath.Join(root, roleSource), roles)
	for source := range copied {
		put(t, filepath.Join(root, source), policy)
	}
	put(t, filepath.Join(root, valuesSource), "# How many Pods.\nreplicas: 1\n")
	put(t, filepath.Join(root, schemaSource), `{"properties": {"replicas": {"type": "integer"}}}`)
	put(t, filepath.Join(root, readmeTarget), "Before\n\n"+tableHead+"| old |\n\nAfter\n")
	for name, text := range crds {
		put(t, filepath.Join(root, crdSource, name), text)
	}
	return root
}

func put(t *testing.T, path, text string) {
	t.Helper()
	if err := os.MkdirAll(filepath.Dir(path), 0o750); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
}

func get(t *testing.T, path string) string {
	t.Helper()
	data, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	return string(data)
}

func TestSyncCopiesCRDsAndSplitsRules(t *testing.T) {
	crd := "# a comment and {{ a template }} stay as they are\nkind: CustomResourceDefinition\n"
	root := repository(t, "---\n"+clusterRole+"---\n"+role, map[string]string{"turns.yaml": crd})
	put(t, filepath.Join(root, crdTarget, "gone.yaml"), "kind: CustomResourceDefinition\n")

	for range 2 { // the second run must find nothing to do
		if err := sync(root); err != nil {
			t.Fatalf("sync: %v", err)
		}
	}
	if got := get(t, filepath.Join(root, crdTarget, "turns.yaml")); got != crd {
		t.Errorf("CRD in the chart = %q, want the source byte for byte: %q", got, crd)
	}
	if _, err := os.Stat(filepath.Join(root, crdTarget, "gone.yaml")); !os.IsNotExist(err) {
		t.Errorf("a CRD that is no longer generated is still in the chart (%v)", err)
	}
	for _, target := range copied {
		if got := get(t, filepath.Join(root, target)); got != policy {
			t.Errorf("copy in the chart, %s = %q, want the source byte for byte: %q", target, got, policy)
		}
	}
	for path, want := range map[string]string{managerRules: "- turns", ownRules: "- leases"} {
		if got := get(t, filepath.Join(root, path)); !strings.Contains(got, want) || strings.Count(got, "verbs:") != 1 {
			t.Errorf("%s = %q, want the one rule with %q", path, got, want)
		}
	}
}

func TestSyncLeavesCurrentFilesAlone(t *testing.T) {
	root := repository(t, clusterRole+"---\n"+role, map[string]string{"turns.yaml": "kind: CustomResourceDefinition\n"})
	if err := sync(root); err != nil {
		t.Fatalf("sync: %v", err)
	}
	target := filepath.Join(root, managerRules)
	longAgo := time.Date(2020, time.January, 1, 0, 0, 0, 0, time.UTC)
	if err := os.Chtimes(target, longAgo, longAgo); err != nil {
		t.Fatal(err)
	}
	if err := sync(root); err != nil {
		t.Fatalf("second sync: %v", err)
	}
	info, err := os.Stat(target)
	if err != nil {
		t.Fatal(err)
	}
	if !info.ModTime().Equal(longAgo) {
		t.Errorf("a file that was current has been written again at %v", info.ModTime())
	}
}

func TestSyncRefuses(t *testing.T) {
	crds := map[string]string{"turns.yaml": "kind: CustomResourceDefinition\n"}
	tests := map[string]struct {
		reason string
		roles  string
		crds   map[string]string
		want   string
	}{
		"NoCRDs": {
			reason: "an empty chart would remove every kind", roles: clusterRole + "---\n" + role,
			want: "failed to find a CRD",
		},
		"NoRole": {
			reason: "the manager could hold no Lease", roles: clusterRole, crds: crds,
			want: "failed to find a Role with rules",
		},
		"TwoRoles": {
			reason: "it is not clear in which namespace the second Role applies",
			roles:  clusterRole + "---\n" + role + "---\n" + role, crds: crds, want: "there must be only one Role",
		},
		"UnknownField": {
			reason: "the field would be lost in the chart",
			roles:  clusterRole + "aggregationRule: {}\n---\n" + role, crds: crds, want: "aggregationRule",
		},
	}
	for name, tc := range tests {
		t.Run(name, func(t *testing.T) {
			err := sync(repository(t, tc.roles, tc.crds))
			if err == nil || !strings.Contains(err.Error(), tc.want) {
				t.Errorf("sync = %v, want an error with %q: %s", err, tc.want, tc.reason)
			}
		})
	}
}

func TestValuesBecomeATableAndDefaults(t *testing.T) {
	root := repository(t, clusterRole+"---\n"+role, map[string]string{"turns.yaml": "kind: CustomResourceDefinition\n"})
	put(t, filepath.Join(root, valuesSource), `# Of the file.

# How many
# Pods.
replicas: 2
# What a | group is.
image:
  # Its tag.
  tag: ""
# The user's own.
labels: {a: "1"}
# Null lets the platform choose.
user: 65532
# Null: another decides.
pods: 1
# Kubernetes' own.
resources:
  limits:
    memory: 1Gi
`)
	put(t, filepath.Join(root, schemaSource),
		`{"definitions": {"count": {"oneOf": [{"type": "null"}, {"type": "integer"}]}, `+
			`"group": {"properties": {"tag": {"type": "string"}}}, `+
			`"resources": {"properties": {"limits": {}}}},
		"properties": {"replicas": {}, "image": {"$ref": "#/definitions/group"}, "labels": {"type": "object"}, `+
			`"user": {"type": ["integer", "null"]}, "pods": {"$ref": "#/definitions/count"},
		"resources": {"properties": {"limits": {"type": "object"}}}}}`)
	for range 2 { // the second run must find nothing to do
		if err := sync(root); err != nil {
			t.Fatal(err)
		}
	}
	want := "Before\n\n" + tableHead + "| `replicas` | `2` | How many Pods. |\n| `image` |  | What a \\| group " +
		"is. |\n| `image.tag` | `\"\"` | Its tag. |\n" +
		"| `labels` | `{a: \"1\"}` | The user's own. |\n| `user` | `65532` | Null lets the platform choose. " +
		"|\n| `pods` | `1` | Null: another decides. |\n| `resources` | `{limits: {memory: 1Gi}}` | Kubernetes' own. |\n\nAfter\n"
	if got := get(t, filepath.Join(root, readmeTarget)); got != want {
		t.Errorf("README = %q\nwant %q", got, want)
	}
	defaults := get(t, filepath.Join(root, defaultsTarget))
	for text, isThere := range map[string]bool{
		"- replicas": true, "- tag": true, "- user": false, "- pods": false,
		"- limits": false, "memory: 1Gi": true, "a: \"1\"": true,
	} {
		if strings.Contains(defaults, text) != isThere {
			t.Errorf("defaults = %s\nhave %q: %t, want %t", defaults, text, !isThere, isThere)
		}
	}
}
