package sharing_test

import (
	"context"
	"errors"
	"fmt"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/fake"
	"sigs.k8s.io/controller-runtime/pkg/client/interceptor"

	"github.com/capstan-dev/capstan/api/v1alpha1"
	"github.com/capstan-dev/capstan/internal/sharing"
)

// matching allows the namespaces with a label.
func matching(key, value string) *v1alpha1.AllowedNamespaces {
	return &v1alpha1.AllowedNamespaces{From: v1alpha1.NamespacesFromSelector, Selector: &v1alpha1.LabelSelector{
		MatchLabels: map[string]v1alpha1.LabelValue{key: v1alpha1.LabelValue(value)},
	}}
}

// cluster is an API server with one namespace. Its reads return failure if it is not nil.
type cluster struct {
	client.WithWatch
	failure error
	reads   int
}

func newCluster() *cluster {
	c := &cluster{}
	c.WithWatch = fake.NewClientBuilder().WithObjects(&corev1.Namespace{
		ObjectMeta: metav1.ObjectMeta{Name: "team", Labels: map[string]string{"models": "shared"}},
	}).WithInterceptorFuncs(interceptor.Funcs{
		Get: func(ctx context.Context, w client.WithWatch, key client.ObjectKey, o client.Object, options ...client.GetOption) error {
			if c.reads++; c.failure != nil {
				return c.failure
			}
			return w.Get(ctx, key, o, options...)
		},
	}).Build()
	return c
}

// setLabel sets the label models of the namespace.
func (c *cluster) setLabel(t *testing.T, value string) {
	t.Helper()
	var n corev1.Namespace
	if err := c.Get(t.Context(), client.ObjectKey{Name: "team"}, &n); err != nil {
		t.Fatal(err)
	}
	n.Labels["models"] = value
	if err := c.Update(t.Context(), &n); err != nil {
		t.Fatal(err)
	}
}

func TestAllows(t *testing.T) {
	t.Parallel()
	for name, tc := range map[string]struct {
		allowed *v1alpha1.AllowedNamespaces
		from    string
		allows  bool
	}{
		"no allowedNamespaces": {allowed: nil, from: "team"},
		"its own namespace":    {allowed: nil, from: "owner", allows: true},
		"Same":                 {allowed: &v1alpha1.AllowedNamespaces{From: v1alpha1.NamespacesFromSame}, from: "team"},
		"no default was set":   {allowed: &v1alpha1.AllowedNamespaces{}, from: "team"},
		"All":                  {allowed: &v1alpha1.AllowedNamespaces{From: v1alpha1.NamespacesFromAll}, from: "team", allows: true},
		"a label":              {allowed: matching("models", "shared"), from: "team", allows: true},
		"another value":        {allowed: matching("models", "other"), from: "team"},
		"a missing namespace":  {allowed: matching("models", "shared"), from: "gone"},
		"a selector without requirements selects nothing": {
			allowed: &v1alpha1.AllowedNamespaces{From: v1alpha1.NamespacesFromSelector}, from: "team",
		},
		"an invalid selector selects nothing": {allowed: matching("not a name", "x"), from: "team"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			allows, err := sharing.New(newCluster(), time.Now, nil).Allows(t.Context(), "owner", tc.allowed, tc.from)
			if err != nil || allows != tc.allows {
				t.Errorf("Allows: %t, %v; want %t", allows, err, tc.allows)
			}
		})
	}
}

// TestLabelsOfNamespaces checks how long labels are used, and what happens while they cannot be read.
func TestLabelsOfNamespaces(t *testing.T) {
	t.Parallel()
	c, now := newCluster(), time.Unix(1_000_000, 0)
	checker := sharing.New(c, func() time.Time { return now }, nil)
	expect := func(want bool, reads int, why string) {
		t.Helper()
		allows, err := checker.Allows(t.Context(), "owner", matching("models", "shared"), "team")
		if err != nil || allows != want || c.reads != reads {
			t.Errorf("%s: %t, %v after %d reads; want %t after %d", why, allows, err, c.reads, want, reads)
		}
	}
	expect(true, 1, "the first read")
	c.setLabel(t, "no longer")
	before := c.reads
	now = now.Add(9 * time.Second)
	expect(true, before, "the labels are 9 s old")
	now = now.Add(2 * time.Second)
	expect(false, before+1, "the labels are 11 s old")
	c.setLabel(t, "shared")
	before = c.reads
	now = now.Add(11 * time.Second)
	expect(true, before+1, "the label is back")

	c.failure = errors.New("the API server is unreachable")
	now = now.Add(time.Minute)
	expect(true, before+2, "the old labels are used while the API server is unreachable")
	now = now.Add(-time.Hour)
	expect(true, before+3, "a clock that was set back does not keep labels for an hour")
	now = now.Add(time.Hour + 4*time.Minute)
	if allows, err := checker.Allows(t.Context(), "owner", matching("models", "shared"), "team"); allows || !errors.Is(err, c.failure) {
		t.Errorf("labels that are 5 minutes old serve while the API server is away: %t, %v", allows, err)
	}
	if _, err := sharing.New(c, time.Now, nil).Allows(t.Context(), "owner", matching("models", "shared"), "team"); err == nil {
		t.Error("no error for a namespace that was never read, so the request would not be tried again")
	}
	c.failure = apierrors.NewForbidden(schema.GroupResource{Resource: "namespaces"}, "team", errors.New("no rule"))
	fresh := sharing.New(c, time.Now, nil)
	for label, want := range map[string]bool{corev1.LabelMetadataName: true, "models": false} {
		value := map[bool]string{true: "team", false: "shared"}[want]
		if allows, err := fresh.Allows(t.Context(), "owner", matching(label, value), "team"); err != nil || allows != want {
			t.Errorf("without the permission to read namespaces, label %s: %t, %v; want %t", label, allows, err, want)
		}
	}
	for _, operator := range []metav1.LabelSelectorOperator{metav1.LabelSelectorOpNotIn, metav1.LabelSelectorOpDoesNotExist} {
		excludes := &v1alpha1.AllowedNamespaces{From: v1alpha1.NamespacesFromSelector, Selector: &v1alpha1.LabelSelector{
			MatchExpressions: []v1alpha1.LabelRequirement{{Key: "guests", Operator: operator}},
		}}
		if operator == metav1.LabelSelectorOpNotIn {
			excludes.Selector.MatchExpressions[0].Values = []v1alpha1.LabelValue{"yes"}
		}
		if allows, err := fresh.Allows(t.Context(), "owner", excludes, "team"); err != nil || allows {
			t.Errorf("without the permission to read namespaces, %s: %t, %v; want no consent by an unknown label", operator, allows, err)
		}
	}
}

// TestLabelsWhileForbidden checks that the last known labels are used for a while if the API server forbids to read
// them, as it does while its roles are not loaded yet. Later, the permission counts as withdrawn.
func TestLabelsWhileForbidden(t *testing.T) {
	t.Parallel()
	c, now := newCluster(), time.Unix(1_000_000, 0)
	forbidden := apierrors.NewForbidden(schema.GroupResource{Resource: "namespaces"}, "team", errors.New("not loaded"))
	checker := sharing.New(c, func() time.Time { return now }, nil)
	for _, step := range []struct {
		after   time.Duration
		failure error
		want    bool
		reads   int
		why     string
	}{
		{0, nil, true, 1, "the first read"},
		{4 * time.Minute, forbidden, true, 2, "the API server may only be loading its roles"},
		{2 * time.Minute, forbidden, false, 3, "the permission was withdrawn"},
		{9 * time.Second, forbidden, false, 3, "the answer is 9 s old"},
		{2 * time.Second, forbidden, false, 4, "the answer is 11 s old"},
		{9 * time.Second, forbidden, false, 4, "the new answer is 9 s old"},
		{2 * time.Second, nil, true, 5, "the permission was added again"},
	} {
		now, c.failure = now.Add(step.after), step.failure
		allows, err := checker.Allows(t.Context(), "owner", matching("models", "shared"), "team")
		if err != nil || allows != step.want || c.reads != step.reads {
			t.Errorf("%s: %t, %v after %d reads; want %t after %d", step.why, allows, err, c.reads, step.want, step.reads)
		}
	}
}

// labelled is an API server that has all namespaces, with the label "models". It forbids to read those in forbidden,
// and all of them if loading is true.
type labelled struct {
	client.Reader
	forbidden map[string]bool
	loading   bool
}

func (l *labelled) Get(_ context.Context, key client.ObjectKey, o client.Object, _ ...client.GetOption) error {
	if l.loading || l.forbidden[key.Name] {
		return apierrors.NewForbidden(schema.GroupResource{Resource: "namespaces"}, key.Name, errors.New("not loaded"))
	}
	o.SetLabels(map[string]string{corev1.LabelMetadataName: key.Name, "models": "shared"})
	return nil
}

// TestLabelsOfManyNamespaces checks that the labels of a new namespace displace only the oldest ones, and that the
// displaced ones are in doubt while the API server loads its roles.
func TestLabelsOfManyNamespaces(t *testing.T) {
	t.Parallel()
	cluster, now := &labelled{}, time.Unix(1_000_000, 0)
	checker := sharing.New(cluster, func() time.Time { return now }, nil)
	allows := func(number int) (bool, error) {
		return checker.Allows(t.Context(), "owner", matching("models", "shared"), fmt.Sprintf("team-%d", number))
	}
	for i := range sharing.MaxNamespaces + 1 {
		now = now.Add(time.Millisecond)
		if ok, err := allows(i); !ok || err != nil {
			t.Fatalf("namespace %d: %t, %v", i, ok, err)
		}
	}
	now = now.Add(time.Minute)
	if ok, err := allows(sharing.MaxNamespaces / 2); !ok || err != nil { // a known namespace displaces none
		t.Fatalf("a known namespace: %t, %v", ok, err)
	}
	cluster.loading = true
	for i := range sharing.MaxNamespaces {
		if ok, err := allows(i + 1); !ok || err != nil {
			t.Fatalf("while the API server loads its roles, namespace %d: %t, %v; want its last labels", i+1, ok, err)
		}
	}
	if ok, err := allows(0); ok || !apierrors.IsForbidden(err) {
		t.Errorf("the displaced namespace: %t, %v; want an error, so that the request is tried again", ok, err)
	}
}

// TestUnknownLabelsWhileForbidden checks a namespace whose labels are not known, or are too old, when the API server
// forbids to read it. If it permitted to read another namespace a moment ago, it may be loading its roles, and the
// request must be tried again. Later, the permission counts as missing.
func TestUnknownLabelsWhileForbidden(t *testing.T) {
	t.Parallel()
	cluster, now := &labelled{forbidden: map[string]bool{"closed": true}}, time.Unix(1_000_000, 0)
	checker := sharing.New(cluster, func() time.Time { return now }, nil)
	allows := func(namespace, label, value string) (bool, error) {
		return checker.Allows(t.Context(), "owner", matching(label, value), namespace)
	}
	if ok, err := allows("closed", "models", "shared"); ok || err != nil {
		t.Errorf("before any read was permitted: %t, %v; want no consent and no error", ok, err)
	}
	for _, namespace := range []string{"busy", "idle"} {
		if ok, err := allows(namespace, "models", "shared"); !ok || err != nil {
			t.Fatalf("namespace %s: %t, %v", namespace, ok, err)
		}
	}
	now = now.Add(6 * time.Minute)
	if ok, err := allows("busy", "models", "shared"); !ok || err != nil {
		t.Fatal(ok, err)
	}
	cluster.loading = true
	for _, namespace := range []string{"idle", "new"} {
		for range 2 { // the answer is not kept
			if ok, err := allows(namespace, "models", "shared"); ok || !apierrors.IsForbidden(err) {
				t.Errorf("namespace %s while the API server loads its roles: %t, %v; want an error", namespace, ok, err)
			}
		}
		if ok, err := allows(namespace, corev1.LabelMetadataName, namespace); !ok || err != nil {
			t.Errorf("namespace %s, selected by its name: %t, %v; want consent", namespace, ok, err)
		}
	}
	if ok, err := allows("closed", "models", "shared"); ok || err != nil {
		t.Errorf("a namespace that has been forbidden for minutes: %t, %v; want no error", ok, err)
	}
	cluster.loading = false
	if ok, err := allows("new", "models", "shared"); !ok || err != nil {
		t.Errorf("once the roles are loaded: %t, %v; want consent at once", ok, err)
	}
	cluster.loading = true
	now = now.Add(6 * time.Minute)
	if ok, err := allows("idle", "models", "shared"); ok || err != nil {
		t.Errorf("without any permitted read for minutes: %t, %v; want no consent and no error", ok, err)
	}
}

func TestRefusedProvider(t *testing.T) {
	t.Parallel()
	ref := v1alpha1.SharedReference{Namespace: "owner", Name: "demo"}
	missing := apierrors.NewNotFound(schema.GroupResource{Resource: "modelproviders"}, "demo")
	unreachable := errors.New("the API server is unreachable")
	for name, tc := range map[string]struct {
		watched []string
		get     error
		from    string
		refused bool
		err     error
	}{
		"without consent":         {from: "team", refused: true},
		"absent":                  {from: "team", get: missing, refused: true},
		"not watched":             {from: "team", watched: []string{"team"}, refused: true, get: unreachable},
		"not readable":            {from: "team", get: unreachable, err: unreachable},
		"its own namespace":       {from: "owner"},
		"absent in its namespace": {from: "owner", get: missing, err: missing},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			get := func(context.Context, client.ObjectKey, client.Object) error { return tc.get }
			_, err := sharing.New(newCluster(), time.Now, tc.watched).Provider(t.Context(), get, ref, tc.from)
			refused, isRefused := errors.AsType[*sharing.RefusedError](err)
			if isRefused != tc.refused || !tc.refused && !errors.Is(err, tc.err) {
				t.Fatalf("Provider: %v, want refused %t or %v", err, tc.refused, tc.err)
			}
			const want = `ModelProvider "owner/demo" cannot be used in namespace "team": it does not exist, or its ` +
				`spec.allowedNamespaces does not allow this namespace: ask its owner, or use an object of this namespace`
			if tc.refused && refused.Error() != want {
				t.Errorf("the message is %q, want %q, which does not say whether the object exists", refused, want)
			}
		})
	}
}

// TestSubAgent checks that an Agent must allow both the namespace of the Agent that refers to it and that of the Turn.
func TestSubAgent(t *testing.T) {
	t.Parallel()
	ref := v1alpha1.SharedReference{Namespace: "owner", Name: "helper"}
	for name, tc := range map[string]struct {
		allowed      *v1alpha1.AllowedNamespaces
		caller, turn string
		refused      string
	}{
		"its own namespace":                    {caller: "owner", turn: "owner"},
		"a Turn of another namespace":          {caller: "owner", turn: "team", refused: "team"},
		"an Agent of another namespace":        {caller: "team", turn: "owner", refused: "team"},
		"both allowed":                         {allowed: matching("models", "shared"), caller: "owner", turn: "team"},
		"the Turn allowed, but not the caller": {allowed: matching("models", "shared"), caller: "third", turn: "team", refused: "third"},
		"the caller allowed, but not the Turn": {allowed: matching("models", "shared"), caller: "team", turn: "third", refused: "third"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			read := func(_ context.Context, key client.ObjectKey, o client.Object) error {
				a := o.(*v1alpha1.Agent)
				a.Namespace, a.Name, a.Spec.AllowedNamespaces = key.Namespace, key.Name, tc.allowed
				return nil
			}
			_, err := sharing.New(newCluster(), time.Now, nil).SubAgent(t.Context(), read, ref, tc.caller, tc.turn)
			want := ""
			if tc.refused != "" {
				want = `Agent "owner/helper" cannot be used in namespace "` + tc.refused + `": it does not exist, or its ` +
					`spec.allowedNamespaces does not allow this namespace: ask its owner, or use an object of this namespace`
			}
			refused, isRefused := errors.AsType[*sharing.RefusedError](err)
			if isRefused != (want != "") || isRefused && refused.Error() != want || !isRefused && err != nil {
				t.Errorf("SubAgent: %v, want %q", err, want)
			}
		})
	}
}
