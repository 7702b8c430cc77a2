package installation

import (
	"crypto/x509"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	coordinationv1 "k8s.io/api/coordination/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes/fake"

	"github.com/capstan-dev/capstan/internal/executor"
)

func TestCheckRollout(t *testing.T) {
	for name, tc := range map[string]struct {
		replicas *int32
		status   appsv1.DeploymentStatus
		// want is part of the error; empty for none.
		want string
	}{
		"ready": {
			new(int32(2)),
			appsv1.DeploymentStatus{ObservedGeneration: 3, UpdatedReplicas: 2, AvailableReplicas: 2},
			"",
		},
		"one by default": {nil, appsv1.DeploymentStatus{ObservedGeneration: 3, UpdatedReplicas: 1, AvailableReplicas: 1}, ""},
		"scaled to zero": {new(int32(0)), appsv1.DeploymentStatus{ObservedGeneration: 3}, "scaled to zero"},
		"the change is new": {
			new(int32(1)),
			appsv1.DeploymentStatus{ObservedGeneration: 2, UpdatedReplicas: 1, AvailableReplicas: 1},
			"last change",
		},
		"the old Pod still runs": {
			new(int32(1)),
			appsv1.DeploymentStatus{ObservedGeneration: 3, UpdatedReplicas: 0, AvailableReplicas: 1},
			"0 of 1 Pods have the newest template",
		},
		"one is not ready": {
			new(int32(2)),
			appsv1.DeploymentStatus{ObservedGeneration: 3, UpdatedReplicas: 2, AvailableReplicas: 1},
			"1 are ready",
		},
	} {
		t.Run(name, func(t *testing.T) {
			_, err := checkRollout(&appsv1.Deployment{
				ObjectMeta: metav1.ObjectMeta{Generation: 3},
				Spec:       appsv1.DeploymentSpec{Replicas: tc.replicas}, Status: tc.status,
			})
			if (err == nil) != (tc.want == "") || err != nil && !strings.Contains(err.Error(), tc.want) {
				t.Errorf("error = %v, want %q", err, tc.want)
			}
		})
	}
}

// TestCheckNamespace checks that the installation shares its namespace with no other one, whose leader and executors
// would be taken for its own.
func TestCheckNamespace(t *testing.T) {
	deployment := func(namespace, name, partOf string) *appsv1.Deployment {
		return &appsv1.Deployment{ObjectMeta: metav1.ObjectMeta{
			Namespace: namespace, Name: name, Labels: map[string]string{"app.kubernetes.io/part-of": partOf},
		}}
	}
	o := Options{Namespace: "capstan-system", Deployments: []string{"capstan", "capstan-executor"}}
	for name, tc := range map[string]struct {
		other *appsv1.Deployment
		want  string // part of the error; empty for none
	}{
		"a second release":      {deployment("capstan-system", "capstan-b", "capstan"), `with the Deployment "capstan-b"`},
		"elsewhere":             {deployment("team", "capstan-b", "capstan"), ""},
		"a program of the user": {deployment("capstan-system", "proxy", "gateway"), ""},
	} {
		t.Run(name, func(t *testing.T) {
			clients := fake.NewClientset(deployment("capstan-system", "capstan", "capstan"),
				deployment("capstan-system", "capstan-executor", "capstan"), tc.other)
			_, err := checkNamespace(t.Context(), clients, o)
			if (err == nil) != (tc.want == "") || err != nil && !strings.Contains(err.Error(), tc.want) {
				t.Errorf("error = %v, want %q", err, tc.want)
			}
		})
	}
}

func TestWasRenewed(t *testing.T) {
	at := time.Date(2020, time.January, 1, 0, 0, 0, 0, time.UTC) // the holder's clock may be years behind
	lease := func(holder *string, renewed *time.Time) *coordinationv1.Lease {
		l := &coordinationv1.Lease{ObjectMeta: metav1.ObjectMeta{Name: "capstan-executor-a"}}
		l.Spec.HolderIdentity = holder
		if renewed != nil {
			l.Spec.RenewTime = &metav1.MicroTime{Time: *renewed}
		}
		return l
	}
	later := at.Add(3 * time.Second)
	seen := renewals{}
	for i, check := range []struct {
		lease *coordinationv1.Lease
		want  bool
	}{
		{lease(new("a"), nil), false},
		{lease(new("a"), &at), false},
		{lease(new("a"), &at), false},
		{lease(new("a"), &later), true},
		{lease(new("a"), &later), true},
		{lease(new(""), &later), false},
		{lease(nil, &later), false},
	} {
		if got := seen.wasRenewed(check.lease); got != check.want {
			t.Errorf("check %d: wasRenewed = %t, want %t", i, got, check.want)
		}
	}
}

// TestStoreIsNoExecutor checks that the Lease of a store, which has the label of executors, is not taken for an
// executor.
func TestStoreIsNoExecutor(t *testing.T) {
	lease := func(name string, renewed time.Time) *coordinationv1.Lease {
		return &coordinationv1.Lease{
			ObjectMeta: metav1.ObjectMeta{
				Namespace: "capstan-system", Name: name, Labels: map[string]string{executor.LeaseLabel: executor.LeaseLabelValue},
				Annotations: map[string]string{executor.CapacityAnnotation: "10"},
			},
			Spec: coordinationv1.LeaseSpec{HolderIdentity: new("x"), RenewTime: &metav1.MicroTime{Time: renewed}},
		}
	}
	at := time.Date(2026, time.March, 4, 5, 6, 7, 0, time.UTC)
	seen := renewals{}
	// Even if somebody gives it a holder and a capacity, and renews it.
	for i := range 2 {
		renewed := at.Add(time.Duration(i) * time.Second)
		clients := fake.NewClientset(lease(executor.StoreLeaseName("a"), renewed), lease(executor.LeasePrefix+"a", at))
		_, err := seen.checkExecutors(t.Context(), clients, "capstan-system")
		if want := "none of 1 executors in namespace capstan-system"; err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("error %v, want %q", err, want)
		}
	}
}

func TestCheckReadAPI(t *testing.T) {
	status, sent := http.StatusUnauthorized, "" // sent are the credentials of the last request
	web := httptest.NewTLSServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		sent = r.Header.Get("Authorization")
		w.WriteHeader(status)
	}))
	t.Cleanup(web.Close)
	now := web.Certificate().NotBefore.Add(time.Hour)
	if found, err := checkReadAPI(t.Context(), web.URL, now); err != nil || !strings.Contains(found, "answers") || sent != "" {
		t.Errorf("result %q, error %v, sent the credentials %q; want success without credentials", found, err, sent)
	}
	status = http.StatusOK
	if _, err := checkReadAPI(t.Context(), web.URL, now); err == nil || !strings.Contains(err.Error(), "200 OK, want 401") {
		t.Errorf("a server that requires no credentials: %v, want an error", err)
	}
	status = http.StatusUnauthorized
	if _, err := checkReadAPI(t.Context(), web.URL, web.Certificate().NotAfter.Add(time.Second)); err == nil ||
		!strings.Contains(err.Error(), "readAPI.tlsSecret") {
		t.Errorf("an expired certificate: %v, want an error that names its Secret", err)
	}
	web.Close()
	if _, err := checkReadAPI(t.Context(), web.URL, now); err == nil {
		t.Error("no server listens, want an error")
	}
	if err := checkValidity(&x509.Certificate{NotBefore: now.Add(time.Second), NotAfter: now.Add(time.Hour)}, now); err == nil {
		t.Error("a certificate that is not valid yet, want an error")
	}
}
