package manifest

import (
	"context"
	"encoding/base64"
	"errors"
	"fmt"
	"maps"
	"regexp"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/validation"
)

// secretFields are the allowed fields of a Secret.
var secretFields = []string{"apiVersion", "kind", "metadata", "type", "immutable", "data", "stringData"}

// addSecret adds a Secret to the set. Messages never repeat a value of the Secret.
func (l *loader) addSecret(ctx context.Context, at origin, object map[string]any) {
	secret, findings := readSecret(ctx, object, l.opts.Namespace)
	key := objectKey{"Secret", types.NamespacedName{Namespace: secret.Namespace, Name: secret.Name}}
	if l.register(at, key, findings) {
		l.set.secrets[key.NamespacedName] = secret
	}
}

func readSecret(ctx context.Context, object map[string]any, namespace string) (*corev1.Secret, []finding) {
	secret := &corev1.Secret{Data: map[string][]byte{}}
	secret.APIVersion, secret.Kind = "v1", "Secret"
	meta, findings := readMeta(ctx, object, namespace, secretFields)
	secret.ObjectMeta = *meta
	return secret, append(findings, readValues(object, secret)...)
}

// readValues fills in the type and the data of a Secret. As in an API server, stringData overrides data.
func readValues(object map[string]any, secret *corev1.Secret) []finding {
	var findings []finding
	if kind, ok := object["type"].(string); ok {
		secret.Type = corev1.SecretType(kind)
	} else if object["type"] != nil {
		findings = append(findings, finding{"type", "must be a string"})
	}
	var problems []finding
	secret.Immutable, problems = readImmutable(object)
	findings = append(findings, problems...)
	findings = append(findings, eachValue(object, "data", func(key, value string) string {
		decoded, err := base64.StdEncoding.DecodeString(value)
		if err != nil {
			return "must be base64: use stringData for a value that is not encoded"
		}
		secret.Data[key] = decoded
		return ""
	})...)
	return append(findings, eachValue(object, "stringData", func(key, value string) string {
		secret.Data[key] = []byte(value)
		return ""
	})...)
}

// variableName matches the usual names of environment variables, and almost no credential.
var variableName = regexp.MustCompile(`^[A-Z_][A-Z0-9_]{0,62}$`)

// SetSecretFromEnv sets one key of a Secret to the value of an environment variable. The value overrides that of the
// manifests. SetSecretFromEnv creates the Secret if the manifests do not have it. lookup is os.LookupEnv or a
// substitute. The spec has one of two forms:
//  1. NAME/KEY=ENVVAR sets the key in each namespace in which the Set has an Agent, PromptProfile, ModelProvider,
//     ToolServer or Turn, or in the namespace default if there is none.
//  2. NAMESPACE/NAME/KEY=ENVVAR sets the key in one namespace.
//
// Errors repeat neither the value nor a text after "=" that does not look like the name of a variable, because that
// text may be the credential.
func (s *Set) SetSecretFromEnv(spec string, lookup func(name string) (value string, ok bool)) error {
	target, variable, ok := strings.Cut(spec, "=")
	parts := strings.Split(target, "/")
	if !ok || variable == "" {
		return errors.New("failed to read the Secret key: must be NAME/KEY=ENVVAR or NAMESPACE/NAME/KEY=ENVVAR")
	}
	if len(parts) < 2 || len(parts) > 3 {
		return fmt.Errorf("failed to read %q: must be NAME/KEY=ENVVAR or NAMESPACE/NAME/KEY=ENVVAR", target)
	}
	name, key := parts[len(parts)-2], parts[len(parts)-1]
	if problems := validation.IsDNS1123Subdomain(name); len(problems) > 0 {
		return fmt.Errorf("failed to read %q: the Secret's name %q is invalid: %s", target, name, problems[0])
	}
	if problems := validation.IsConfigMapKey(key); len(problems) > 0 {
		return fmt.Errorf("failed to read %q: the key %q is invalid: %s", target, key, problems[0])
	}
	namespaces := s.namespaces()
	if len(parts) == 3 {
		if problems := validation.IsDNS1123Label(parts[0]); len(problems) > 0 {
			return fmt.Errorf("failed to read %q: the namespace %q is invalid: %s", target, parts[0], problems[0])
		}
		namespaces = parts[:1]
	}
	value, ok := lookup(variable)
	if !ok || value == "" {
		if !variableName.MatchString(variable) {
			return fmt.Errorf("failed to set %q: the text after = must be the name of an environment variable that is set", target)
		}
		return fmt.Errorf("failed to set %q: environment variable %q must be set and not empty", target, variable)
	}
	for _, namespace := range namespaces {
		s.setSecret(types.NamespacedName{Namespace: namespace, Name: name}, key, value)
	}
	return nil
}

func (s *Set) setSecret(name types.NamespacedName, key, value string) {
	secret, ok := s.secrets[name]
	if !ok {
		secret = &corev1.Secret{
			TypeMeta:   metav1.TypeMeta{APIVersion: "v1", Kind: "Secret"},
			ObjectMeta: metav1.ObjectMeta{Namespace: name.Namespace, Name: name.Name},
			Type:       corev1.SecretTypeOpaque,
			Data:       map[string][]byte{},
		}
		s.secrets[name] = secret
	}
	secret.Data[key] = []byte(value)
}

// namespaces returns the namespaces of the Agents, PromptProfiles, ModelProviders, ToolServers and Turns in the set,
// sorted. If there are none, it returns default.
func (s *Set) namespaces() []string {
	used := map[string]bool{}
	addNamespaces(used, s.agents)
	addNamespaces(used, s.profiles)
	addNamespaces(used, s.providers)
	addNamespaces(used, s.servers)
	addNamespaces(used, s.turns)
	if len(used) == 0 {
		return []string{metav1.NamespaceDefault}
	}
	return slices.Sorted(maps.Keys(used))
}

func addNamespaces[T any](used map[string]bool, objects map[types.NamespacedName]T) {
	for name := range objects {
		used[name.Namespace] = true
	}
}
