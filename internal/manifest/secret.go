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

// addSecret adds a Secret to the set. Secrets have no CRD, so the checks are written out here. No message repeats a
// value.
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

// readValues fills in the type and the data of a Secret. As on a server, stringData overrides data.
func readValues(object map[string]any, secret *corev1.Secret) []finding {
	var findings []finding
	if kind, ok := object["type"].(string); ok {
		secret.Type = corev1.SecretType(kind)
	} else if object["type"] != nil {
		findings = append(findings, finding{"type", "must be a string"})
	}
	var wrong []finding
	secret.Immutable, wrong = readImmutable(object)
	findings = append(findings, wrong...)
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

// variableName matches the conventional names of environment variables, and hardly any credential.
var variableName = regexp.MustCompile(`^[A-Z_][A-Z0-9_]{0,62}$`)

// SetSecretFromEnv sets one key of a Secret to the value of an environment variable, and overrides the manifests.
// It creates the Secret if the manifests do not hold it. lookup is os.LookupEnv or a substitute. The spec has one
// of two forms:
//  1. NAME/KEY=ENVVAR sets the key in each namespace in which the Set has objects.
//  2. NAMESPACE/NAME/KEY=ENVVAR sets it in one namespace.
//
// No error repeats the value, nor a text after "=" that does not look like a variable's name: it may be the
// credential itself.
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
	if wrong := validation.IsDNS1123Subdomain(name); len(wrong) > 0 {
		return fmt.Errorf("failed to read %q: the Secret's name %q %s", target, name, wrong[0])
	}
	if wrong := validation.IsConfigMapKey(key); len(wrong) > 0 {
		return fmt.Errorf("failed to read %q: the key %q %s", target, key, wrong[0])
	}
	namespaces := s.namespaces()
	if len(parts) == 3 {
		if wrong := validation.IsDNS1123Label(parts[0]); len(wrong) > 0 {
			return fmt.Errorf("failed to read %q: the namespace %q %s", target, parts[0], wrong[0])
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

// namespaces returns the namespaces of our objects, sorted; it returns default if there are no objects.
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
