package manager

import (
	"cmp"
	"context"
	"fmt"
	"time"

	"github.com/go-logr/logr"
	authorizationv1 "k8s.io/api/authorization/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes"
	authorizationclient "k8s.io/client-go/kubernetes/typed/authorization/v1"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/capstan-dev/capstan/api/v1alpha1"
	"github.com/capstan-dev/capstan/internal/fairgate"
	"github.com/capstan-dev/capstan/internal/translate"
)

const (
	// keptTexts and keptData are the maximum total sizes, in bytes, of the ConfigMaps that a reader keeps, so that it
	// need not read them again for the next reference. Most preparations need less than keptTexts, and few run at the
	// same time. Thousands of Turns may read attachments.
	keptTexts, keptData = 4 << 20, 64 << 10
	// maxDataReads is the number of ConfigMaps that may be read for attachments at the same time, because each may have
	// 1 MiB. While several namespaces read ConfigMaps, each of them also has a smaller maximum of its own, which is
	// never below dataReadsOfNamespace: see fairgate.New.
	maxDataReads, dataReadsOfNamespace = 8, 2
)

// configMapReader returns a function that returns a reader for the ConfigMaps of a namespace. They are read from the
// API server, because their texts are not cached. All texts from one reader come from the same version of a ConfigMap.
// A reader is not safe for concurrent use.
func configMapReader(r client.Reader) func(namespace string) translate.ConfigMaps {
	return readerOf(r, nil, keptTexts, func(m *corev1.ConfigMap) map[string]string { return m.Data })
}

// attachmentReader is like configMapReader, for the data of attachments, which may be binary.
func attachmentReader(r client.Reader) func(namespace string) translate.ConfigMaps {
	return readerOf(r, fairgate.New(maxDataReads, dataReadsOfNamespace), keptData, func(m *corev1.ConfigMap) map[string]string {
		return translate.ConfigMapContents(m.Data, m.BinaryData)
	})
}

func readerOf(
	r client.Reader, gate *fairgate.Gate, maxKept int, data func(*corev1.ConfigMap) map[string]string,
) func(namespace string) translate.ConfigMaps {
	return func(namespace string) translate.ConfigMaps {
		reader := &configMaps{
			reader: r, gate: gate, maxKept: maxKept, data: data, namespace: namespace,
			versions: map[string]string{}, kept: map[string]map[string]string{},
		}
		return reader.value
	}
}

// configMaps reads the ConfigMaps of a namespace, and keeps some of them.
type configMaps struct {
	reader    client.Reader
	gate      *fairgate.Gate // nil means no limit
	maxKept   int            // in bytes
	data      func(*corev1.ConfigMap) map[string]string
	namespace string

	// versions holds the version of each ConfigMap that was read, by name; empty if it does not exist.
	versions map[string]string
	// kept holds the values of ConfigMaps of at most maxKept bytes in total, by name. bytes is their size.
	kept  map[string]map[string]string
	bytes int
}

// value returns the value to which ref refers. It returns an error if another version of the ConfigMap was read before.
func (c *configMaps) value(ctx context.Context, ref v1alpha1.ConfigMapKeyReference) (string, error) {
	if values, ok := c.kept[ref.Name]; ok {
		return translate.ConfigMapValue(ref, values)
	}
	if err := c.gate.Enter(ctx, c.namespace); err != nil {
		return "", err
	}
	defer c.gate.Leave(c.namespace)
	var m corev1.ConfigMap
	err := c.reader.Get(ctx, types.NamespacedName{Namespace: c.namespace, Name: ref.Name}, &m)
	if client.IgnoreNotFound(err) != nil {
		return "", err
	}
	if last, known := c.versions[ref.Name]; known && last != m.ResourceVersion {
		return "", fmt.Errorf("ConfigMap %q was changed between two reads", ref.Name)
	}
	c.versions[ref.Name] = m.ResourceVersion
	var values map[string]string // nil if the ConfigMap does not exist
	if err == nil {
		if values = c.data(&m); values == nil {
			values = map[string]string{}
		}
	}
	c.keep(ref.Name, values)
	return translate.ConfigMapValue(ref, values)
}

// keep keeps the values of a ConfigMap. If there is no room, it drops all others, and does not keep a ConfigMap that is
// too large.
func (c *configMaps) keep(name string, values map[string]string) {
	size := 0
	for key, value := range values {
		size += len(key) + len(value)
	}
	if c.bytes+size > c.maxKept {
		clear(c.kept)
		c.bytes = 0
	}
	if size <= c.maxKept {
		c.kept[name], c.bytes = values, c.bytes+size
	}
}

// configMapsSeen returns the reader that shows whether a ConfigMap exists, and the interval at which objects that name
// a ConfigMap must be checked again. If this process may watch ConfigMaps, the reader reads from the cache, and the
// interval is 0 because watch events report changes. Otherwise the reader reads from the API server.
func configMapsSeen(
	ctx context.Context, mgr ctrl.Manager, clientset kubernetes.Interface, o Options, watched watchedNamespaces, log logr.Logger,
) (client.Reader, time.Duration, error) {
	may, err := mayWatchConfigMaps(ctx, clientset.AuthorizationV1(), watched.present, log)
	if err != nil || may {
		return mgr.GetClient(), 0, err
	}
	return mgr.GetAPIReader(), time.Duration(o.ProbeIntervalSeconds) * time.Second, nil
}

// mayWatchConfigMaps reports whether this process may list and watch the ConfigMaps of the given namespaces, or of all
// namespaces if none is given. If it may not, mayWatchConfigMaps logs the missing rule and the effect, because a role
// that was written by hand, or for an older version, may lack the rule.
func mayWatchConfigMaps(
	ctx context.Context, reviews authorizationclient.SelfSubjectAccessReviewsGetter, namespaces []string, log logr.Logger,
) (bool, error) {
	if len(namespaces) == 0 {
		namespaces = []string{metav1.NamespaceAll}
	}
	var without []string
	for _, ns := range namespaces {
		may, err := mayAll(ctx, reviews, ns, "list", "watch")
		if err != nil {
			return false, err
		}
		if !may {
			without = append(without, cmp.Or(ns, "all namespaces"))
		}
	}
	if len(without) > 0 {
		log.Info("The manager may not list and watch ConfigMaps, so it checks the objects that name a ConfigMap only every "+
			"--probe-interval-seconds, and not when the ConfigMap changes. Add the rule to the manager's role, and restart the manager",
			"missingIn", without, "rule", `apiGroups: [""], resources: [configmaps], verbs: [get, list, watch]`)
	}
	return len(without) == 0, nil
}

// mayAll reports whether this process may use all these verbs on the ConfigMaps of a namespace. If the process may
// not even ask, mayAll returns false.
func mayAll(
	ctx context.Context, reviews authorizationclient.SelfSubjectAccessReviewsGetter, namespace string, verbs ...string,
) (bool, error) {
	for _, verb := range verbs {
		review, err := reviews.SelfSubjectAccessReviews().Create(ctx, &authorizationv1.SelfSubjectAccessReview{
			Spec: authorizationv1.SelfSubjectAccessReviewSpec{ResourceAttributes: &authorizationv1.ResourceAttributes{
				Namespace: namespace, Verb: verb, Resource: "configmaps",
			}},
		}, metav1.CreateOptions{})
		if apierrors.IsForbidden(err) {
			return false, nil
		}
		if err != nil {
			return false, fmt.Errorf("failed to check whether this process may %s ConfigMaps: %w", verb, err)
		}
		if !review.Status.Allowed {
			return false, nil
		}
	}
	return true, nil
}

// identityOnly removes all metadata from a ConfigMap except its identity, before the object is cached. An annotation
// may contain a copy of the ConfigMap's text, such as the annotation of kubectl apply.
func identityOnly(o any) (any, error) {
	if m, ok := o.(*metav1.PartialObjectMetadata); ok {
		m.ObjectMeta = metav1.ObjectMeta{Namespace: m.Namespace, Name: m.Name, UID: m.UID, ResourceVersion: m.ResourceVersion}
	}
	return o, nil
}
