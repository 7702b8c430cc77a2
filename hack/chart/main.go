// Command chart copies generated files into the Helm chart, so that both ways to install Capstan, the manifests in
// config and the chart, have one source:
//
//   - config/crd/bases/*.yaml, byte for byte, to charts/capstan/files/crds;
//   - the rules of the ClusterRole and of the Role in config/rbac/role.yaml to charts/capstan/files, where the chart's
//     templates put them into the Roles that the values of the chart select;
//   - the policies in config/policy, config/requester and config/usepolicy, and the roles of people in config/rbac,
//     byte for byte, to charts/capstan/files, where templates take their specs and rules;
//   - the defaults of charts/capstan/values.yaml to charts/capstan/files, where a template finds the values that are
//     missing in an upgrade with --reuse-values;
//   - the same defaults with their comments to the table of values in charts/capstan/README.md.
//
// Run it from the root of the repository: go run ./hack/chart. Running it again changes nothing.
package main

import (
	"bufio"
	"bytes"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"path/filepath"

	rbacv1 "k8s.io/api/rbac/v1"
	utilyaml "k8s.io/apimachinery/pkg/util/yaml"
	"sigs.k8s.io/yaml"
)

const (
	crdSource  = "config/crd/bases"
	crdTarget  = "charts/capstan/files/crds"
	roleSource = "config/rbac/role.yaml"

	// managerRules are the rules of the ClusterRole. They apply in each watched namespace.
	managerRules = "charts/capstan/files/manager-rules.yaml"
	// ownRules are the rules of the Role. They apply in the manager's own namespace.
	ownRules = "charts/capstan/files/own-namespace-rules.yaml"
)

// copied maps the files that are copied byte for byte to their paths in the chart.
var copied = map[string]string{
	"config/policy/toolapproval_policy.yaml": "charts/capstan/files/toolapproval-policy.yaml",
	"config/policy/reference_policy.yaml":    "charts/capstan/files/reference-policy.yaml",
	"config/policy/requester_policy.yaml":    "charts/capstan/files/requester-policy.yaml",
	"config/rbac/people_roles.yaml":          "charts/capstan/files/people-roles.yaml",

	"config/requester/requester_mutation.yaml": "charts/capstan/files/requester-mutation.yaml",
	"config/usepolicy/agent_use_policy.yaml":   "charts/capstan/files/agent-use-policy.yaml",
}

func main() {
	root := flag.String("root", ".", "the root of the repository")
	flag.Parse()
	if err := sync(*root); err != nil {
		fmt.Fprintf(os.Stderr, "chart: %v\n", err)
		os.Exit(1)
	}
}

// sync updates the chart below root.
func sync(root string) error {
	if err := syncCRDs(filepath.Join(root, crdSource), filepath.Join(root, crdTarget)); err != nil {
		return err
	}
	if err := syncRules(root); err != nil {
		return err
	}
	if err := syncValues(root); err != nil {
		return err
	}
	for source, target := range copied {
		data, err := os.ReadFile(filepath.Join(root, source))
		if err != nil {
			return fmt.Errorf("failed to read a file to copy into the chart: %w", err)
		}
		if err := write(filepath.Join(root, target), data); err != nil {
			return err
		}
	}
	return nil
}

// syncCRDs makes the YAML files in target equal to those in source. It removes files that source no longer has.
func syncCRDs(source, target string) error {
	found, err := filepath.Glob(filepath.Join(source, "*.yaml"))
	if err != nil {
		return fmt.Errorf("failed to list CRDs in %q: %w", source, err)
	}
	if len(found) == 0 {
		return fmt.Errorf("failed to find a CRD in %q: generate them first with controller-gen", source)
	}
	if err := os.MkdirAll(target, 0o750); err != nil {
		return fmt.Errorf("failed to make the directory of CRDs: %w", err)
	}
	current := make(map[string]bool, len(found))
	for _, path := range found {
		name := filepath.Base(path)
		current[name] = true
		data, err := os.ReadFile(path)
		if err != nil {
			return fmt.Errorf("failed to read CRD: %w", err)
		}
		if err := write(filepath.Join(target, name), data); err != nil {
			return err
		}
	}
	old, err := filepath.Glob(filepath.Join(target, "*.yaml"))
	if err != nil {
		return fmt.Errorf("failed to list CRDs in %q: %w", target, err)
	}
	for _, path := range old {
		if current[filepath.Base(path)] {
			continue
		}
		if err := os.Remove(path); err != nil {
			return fmt.Errorf("failed to remove a CRD that is no longer generated: %w", err)
		}
	}
	return nil
}

// syncRules writes the rules of the only ClusterRole and of the only Role in the generated manifest to separate
// files.
func syncRules(root string) error {
	data, err := os.ReadFile(filepath.Join(root, roleSource))
	if err != nil {
		return fmt.Errorf("failed to read generated roles: %w", err)
	}
	rules, err := rulesByKind(data)
	if err != nil {
		return fmt.Errorf("failed to read %s: %w", roleSource, err)
	}
	for kind, target := range map[string]string{"ClusterRole": managerRules, "Role": ownRules} {
		if len(rules[kind]) == 0 {
			return fmt.Errorf("failed to find a %s with rules in %s: the chart needs one; see internal/controller/rbac.go",
				kind, roleSource)
		}
		text, err := yaml.Marshal(rules[kind])
		if err != nil {
			return fmt.Errorf("failed to write rules of the %s: %w", kind, err)
		}
		header := fmt.Sprintf("# The rules of the %s in %s, copied by hack/chart; do not edit.\n", kind, roleSource)
		if err := write(filepath.Join(root, target), append([]byte(header), text...)); err != nil {
			return err
		}
	}
	return nil
}

// rulesByKind returns the rules of each role in a manifest with several documents, by kind. A second role of the same
// kind is an error, because it is not clear in which namespace its rules apply.
func rulesByKind(manifest []byte) (map[string][]rbacv1.PolicyRule, error) {
	reader := utilyaml.NewYAMLReader(bufio.NewReader(bytes.NewReader(manifest)))
	rules := map[string][]rbacv1.PolicyRule{}
	for {
		document, err := reader.Read()
		if errors.Is(err, io.EOF) {
			return rules, nil
		}
		if err != nil {
			return nil, fmt.Errorf("failed to split documents: %w", err)
		}
		// A Role has the fields of a ClusterRole except for the aggregation, which controller-gen does not write.
		var role rbacv1.Role
		if err := yaml.UnmarshalStrict(document, &role); err != nil {
			return nil, fmt.Errorf("failed to decode role: %w", err)
		}
		if role.Kind == "" {
			continue
		}
		if _, twice := rules[role.Kind]; twice {
			return nil, fmt.Errorf("failed to use %s %q: there must be only one %s", role.Kind, role.Name, role.Kind)
		}
		rules[role.Kind] = role.Rules
	}
}

// write writes data to path. If the file already has this content, write leaves it alone, so that it keeps its
// modification time.
func write(path string, data []byte) error {
	if old, err := os.ReadFile(path); err == nil && bytes.Equal(old, data) {
		return nil
	}
	//nolint:gosec // because these files are checked in, and every user may read them
	if err := os.WriteFile(path, data, 0o644); err != nil {
		return fmt.Errorf("failed to write %q: %w", path, err)
	}
	return nil
}
