package manager

import (
	"context"
	"errors"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"

	"github.com/go-logr/logr/funcr"
	"github.com/google/go-cmp/cmp"
	authorizationv1 "k8s.io/api/authorization/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	fakeauthorization "k8s.io/client-go/kubernetes/typed/authorization/v1/fake"
	clienttesting "k8s.io/client-go/testing"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/fake"
	"sigs.k8s.io/controller-runtime/pkg/client/interceptor"

	"github.com/capstan-dev/capstan/api/v1alpha1"
	"github.com/capstan-dev/capstan/internal/translate"
)

func TestConfigMapReader(t *testing.T) {
	unreachable := errors.New("the API server is unreachable")
	c := fake.NewClientBuilder().WithObjects(
		&corev1.ConfigMap{
			ObjectMeta: metav1.ObjectMeta{Namespace: "helpdesk", Name: "terms"},
			Data:       map[string]string{"a.md": "Three days."},
		},
		&corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Namespace: "helpdesk", Name: "empty"}},
	).WithInterceptorFuncs(interceptor.Funcs{
		Get: func(ctx context.Context, c client.WithWatch, key client.ObjectKey, o client.Object, opts ...client.GetOption) error {
			if key.Name == "unreadable" {
				return unreachable
			}
			return c.Get(ctx, key, o, opts...)
		},
	}).Build()
	for name, tc := range map[string]struct {
		reason, namespace, configMap, key string
		want                              string
		missing                           string
		err                               error
	}{
		"Value": {reason: "the value of the key", namespace: "helpdesk", configMap: "terms", key: "a.md", want: "Three days."},
		"NoKey": {
			reason: "a missing key is an error", namespace: "helpdesk", configMap: "terms", key: "b.md",
			missing: `ConfigMap "terms" has no key "b.md" in its data: add it, or correct the key`,
		},
		"NoData": {
			reason: "an empty ConfigMap exists", namespace: "helpdesk", configMap: "empty", key: "a.md",
			missing: `ConfigMap "empty" has no key "a.md" in its data: add it, or correct the key`,
		},
		"Elsewhere": {
			reason: "a ConfigMap of another namespace is not visible", namespace: "sales", configMap: "terms",
			key: "a.md", missing: `ConfigMap "terms" does not exist: create it, or correct the name`,
		},
		"Away": {
			reason: "a failed read does not mean that the ConfigMap is missing", namespace: "helpdesk",
			configMap: "unreadable", key: "a.md", err: unreachable,
		},
	} {
		t.Run(name, func(t *testing.T) {
			got, err := configMapReader(c)(tc.namespace)(t.Context(), v1alpha1.ConfigMapKeyReference{Name: tc.configMap, Key: tc.key})
			missing, isMissing := errors.AsType[*translate.MissingError](err)
			if got != tc.want || isMissing != (tc.missing != "") || (isMissing && missing.Reason != tc.missing) ||
				!errors.Is(err, tc.err) && tc.err != nil {
				t.Errorf("%s: got %q, %v", tc.reason, got, err)
			}
		})
	}
}

// TestPreparationReadsConfigMapOnce checks that a preparation does not mix texts of two versions.
func TestPreparationReadsConfigMapOnce(t *testing.T) {
	gets := map[string]int{}
	unreachable := errors.New("the API server is unreachable")
	c := fake.NewClientBuilder().WithObjects(
		&corev1.ConfigMap{
			ObjectMeta: metav1.ObjectMeta{Namespace: "helpdesk", Name: "terms"},
			Data:       map[string]string{"a.md": "old", "b.md": "old"},
		},
	).WithInterceptorFuncs(interceptor.Funcs{
		Get: func(ctx context.Context, c client.WithWatch, key client.ObjectKey, o client.Object, opts ...client.GetOption) error {
			if gets[key.Name]++; key.Name == "flaky" && gets[key.Name] == 1 {
				return unreachable
			}
			return c.Get(ctx, key, o, opts...)
		},
	}).Build()
	reader := configMapReader(c)
	read := func(maps translate.ConfigMaps, name, key string) string {
		text, err := maps(t.Context(), v1alpha1.ConfigMapKeyReference{Name: name, Key: key})
		if err != nil {
			return err.Error()
		}
		return text
	}
	first := reader("helpdesk")
	if got := read(first, "terms", "a.md"); got != "old" {
		t.Fatalf("got %q, want the text", got)
	}
	update := &corev1.ConfigMap{
		ObjectMeta: metav1.ObjectMeta{Namespace: "helpdesk", Name: "terms"},
		Data:       map[string]string{"a.md": "new", "b.md": "new"},
	}
	if err := c.Update(t.Context(), update); err != nil {
		t.Fatal(err)
	}
	if got := read(first, "terms", "b.md"); got != "old" || gets["terms"] != 1 {
		t.Errorf("the same preparation got %q after %d reads, want the text of its first read, after 1", got, gets["terms"])
	}
	if got := read(reader("helpdesk"), "terms", "b.md"); got != "new" {
		t.Errorf("the next preparation got %q, want the current text", got)
	}
	const gone = `ConfigMap "absent" does not exist: create it, or correct the name`
	if a, b := read(first, "absent", "a"), read(first, "absent", "b"); a != gone || b != gone || gets["absent"] != 1 {
		t.Errorf("got %q and %q after %d reads, want %q twice, after 1", a, b, gets["absent"], gone)
	}
	if got := read(first, "flaky", "a"); got != unreachable.Error() {
		t.Errorf("got %q, want the failure", got)
	}
	if read(first, "flaky", "a"); gets["flaky"] != 2 {
		t.Error("a read that failed must not be kept")
	}
}

func TestMayWatchConfigMaps(t *testing.T) {
	unreachable := errors.New("the API server is unreachable")
	for name, tc := range map[string]struct {
		reason     string
		namespaces []string
		may        func(*authorizationv1.ResourceAttributes) (bool, error)
		want       bool
		log        string
		err        error
	}{
		"Everywhere": {
			reason: "one review for all namespaces", want: true,
			may: func(a *authorizationv1.ResourceAttributes) (bool, error) { return a.Namespace == "", nil },
		},
		"InEach": {
			reason: "a permission in each of the namespaces is enough", namespaces: []string{"sales", "helpdesk"}, want: true,
			may: func(a *authorizationv1.ResourceAttributes) (bool, error) { return a.Namespace != "", nil },
		},
		"NotEverywhere": {
			reason: "permissions in some namespaces are not a permission in all", log: `["all namespaces"]`,
			may: func(a *authorizationv1.ResourceAttributes) (bool, error) { return a.Namespace != "", nil },
		},
		"NotInOne": {
			reason: "the message names the namespace", namespaces: []string{"sales", "helpdesk"}, log: `["helpdesk"]`,
			may: func(a *authorizationv1.ResourceAttributes) (bool, error) { return a.Namespace == "sales", nil },
		},
		"ListAlone": {
			reason: "the permission to list is not the permission to watch", log: `["all namespaces"]`,
			may: func(a *authorizationv1.ResourceAttributes) (bool, error) { return a.Verb == "list", nil },
		},
		"MayNotAsk": {
			reason: "a process that may not ask is not allowed to watch", log: `["all namespaces"]`,
			may: func(*authorizationv1.ResourceAttributes) (bool, error) {
				return false, apierrors.NewForbidden(schema.GroupResource{}, "", errors.New("no rule"))
			},
		},
		"Away": {
			reason: "an unavailable API server is not an answer", err: unreachable,
			may: func(*authorizationv1.ResourceAttributes) (bool, error) { return false, unreachable },
		},
	} {
		t.Run(name, func(t *testing.T) {
			clientset := &clienttesting.Fake{}
			clientset.AddReactor("create", "selfsubjectaccessreviews", func(action clienttesting.Action) (bool, runtime.Object, error) {
				review := action.(clienttesting.CreateAction).GetObject().(*authorizationv1.SelfSubjectAccessReview)
				attributes := review.Spec.ResourceAttributes
				if attributes.Resource != "configmaps" || attributes.Group != "" {
					t.Errorf("asked about %+v", attributes)
				}
				var err error
				review.Status.Allowed, err = tc.may(attributes)
				return true, review, err
			})
			var logged []string
			log := funcr.New(func(_, args string) { logged = append(logged, args) }, funcr.Options{})
			got, err := mayWatchConfigMaps(t.Context(), &fakeauthorization.FakeAuthorizationV1{Fake: clientset}, tc.namespaces, log)
			if got != tc.want || !errors.Is(err, tc.err) {
				t.Errorf("%s: got %t, %v", tc.reason, got, err)
			}
			if all := strings.Join(logged, "\n"); (tc.log == "") != (all == "") || !strings.Contains(all, tc.log) || len(logged) > 1 {
				t.Errorf("%s: logged %q, want one line with %q", tc.reason, logged, tc.log)
			}
		})
	}
}

func TestCacheDropsTextsOfConfigMaps(t *testing.T) {
	full := &metav1.PartialObjectMetadata{ObjectMeta: metav1.ObjectMeta{
		Namespace: "helpdesk", Name: "terms", UID: "u", ResourceVersion: "7", Labels: map[string]string{"a": "b"},
		Annotations: map[string]string{corev1.LastAppliedConfigAnnotation: `{"data":{"a.md":"Three days."}}`},
	}}
	got, err := identityOnly(full)
	if err != nil {
		t.Fatal(err)
	}
	want := &metav1.PartialObjectMetadata{
		ObjectMeta: metav1.ObjectMeta{Namespace: "helpdesk", Name: "terms", UID: "u", ResourceVersion: "7"},
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("the cache must keep only the identity of the object (-want +got):\n%s", diff)
	}
}

// TestFewLargeConfigMapsAreKept checks that a reader keeps little, and does not mix texts of two versions nevertheless.
func TestFewLargeConfigMapsAreKept(t *testing.T) {
	large := strings.Repeat("x", keptData/2+1)
	object := func(name string) *corev1.ConfigMap {
		return &corev1.ConfigMap{
			ObjectMeta: metav1.ObjectMeta{Namespace: "helpdesk", Name: name}, Data: map[string]string{"a": "text", "b": large},
		}
	}
	gets := 0
	c := fake.NewClientBuilder().WithObjects(object("one"), object("two")).WithInterceptorFuncs(interceptor.Funcs{
		Get: func(ctx context.Context, c client.WithWatch, key client.ObjectKey, o client.Object, opts ...client.GetOption) error {
			gets++
			return c.Get(ctx, key, o, opts...)
		},
	}).Build()
	maps := attachmentReader(c)("helpdesk")
	read := func(name string) error {
		text, err := maps(t.Context(), v1alpha1.ConfigMapKeyReference{Name: name, Key: "a"})
		if err == nil && text != "text" {
			t.Errorf("got %q, want the text", text)
		}
		return err
	}
	for i, name := range []string{"one", "one", "two", "two", "one"} {
		if err := read(name); err != nil {
			t.Errorf("read %d: %v", i, err)
		}
	}
	if gets != 3 {
		t.Errorf("%d ConfigMaps were read, want 3, because only one is kept", gets)
	}
	if err := c.Update(t.Context(), object("two")); err != nil {
		t.Fatal(err)
	}
	if err := read("two"); err == nil || !strings.Contains(err.Error(), `ConfigMap "two" was changed`) {
		t.Errorf("got %v for another version, want an error", err)
	}
}

// TestFewAttachmentsAreReadAtTheSameTime checks that few ConfigMaps are in memory although many Turns read their
// attachments.
func TestFewAttachmentsAreReadAtTheSameTime(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		answer := make(chan struct{})
		var inside atomic.Int64
		c := fake.NewClientBuilder().WithInterceptorFuncs(interceptor.Funcs{
			Get: func(context.Context, client.WithWatch, client.ObjectKey, client.Object, ...client.GetOption) error {
				inside.Add(1)
				defer inside.Add(-1)
				<-answer
				return errors.New("the API server is unreachable")
			},
		}).Build()
		reader := attachmentReader(c)
		for range 10 * maxDataReads {
			go func() { _, _ = reader("helpdesk")(t.Context(), v1alpha1.ConfigMapKeyReference{Name: "a", Key: "a"}) }()
		}
		synctest.Wait()
		if n := inside.Load(); n < 1 || n > maxDataReads {
			t.Errorf("%d ConfigMaps are read at the same time, want at most %d", n, maxDataReads)
		}
		close(answer)
		synctest.Wait()
		if n := inside.Load(); n != 0 {
			t.Errorf("%d reads have not ended", n)
		}
	})
}
