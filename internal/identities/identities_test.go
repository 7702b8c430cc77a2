package identities_test

import (
	"context"
	"io"
	"net/http"
	"net/http/httptest"
	"runtime"
	"strconv"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/fake"

	"github.com/capstan-dev/capstan/api/v1alpha1"
	"github.com/capstan-dev/capstan/internal/identities"
)

// reader returns a Reader of an API server that answers each request with serve.
func reader(t *testing.T, serve http.HandlerFunc) identities.Reader {
	t.Helper()
	server := httptest.NewServer(serve)
	t.Cleanup(server.Close)
	clients, err := kubernetes.NewForConfig(&rest.Config{Host: server.URL})
	if err != nil {
		t.Fatal(err)
	}
	mapper := meta.NewDefaultRESTMapper(nil)
	mapper.Add(v1alpha1.GroupVersion.WithKind("Turn"), meta.RESTScopeNamespace)
	return identities.Reader{Reader: fake.NewClientBuilder().Build(), REST: clients.Discovery().RESTClient(), Mapper: mapper}
}

func list(ctx context.Context, r identities.Reader, opts ...client.ListOption) (*metav1.PartialObjectMetadataList, error) {
	page := &metav1.PartialObjectMetadataList{Items: make([]metav1.PartialObjectMetadata, 1)} // of an earlier page
	page.SetGroupVersionKind(v1alpha1.GroupVersion.WithKind("TurnList"))
	return page, r.List(ctx, page, opts...)
}

func TestList(t *testing.T) {
	r := reader(t, func(w http.ResponseWriter, request *http.Request) {
		const want = "/apis/capstan.dev/v1alpha1/namespaces/helpdesk/turns?continue=next&fieldSelector=a%3Db&limit=500"
		if got := request.URL.String(); got != want {
			t.Errorf("the request is for %s, want %s", got, want)
		}
		if got := request.Header.Get("Accept"); !strings.Contains(got, "as=PartialObjectMetadataList") {
			t.Errorf("the request accepts %q, want only metadata", got)
		}
		w.Header().Set("Content-Type", "application/json")
		_, _ = io.WriteString(w, `{"kind":"PartialObjectMetadataList","extra":{"a":[1]},
			"metadata":{"continue":"more","resourceVersion":"7"},"items":[
			{"kind":"PartialObjectMetadata","metadata":{"name":"a","namespace":"helpdesk","uid":"1","labels":{"many":"x"}}},
			{"metadata":{"uid":"2","name":"b","namespace":"helpdesk","finalizers":["x/y"]}}]}`)
	})
	page, err := list(t.Context(), r, client.InNamespace("helpdesk"), client.Limit(500), client.Continue("next"),
		client.MatchingFieldsSelector{Selector: fields.OneTermEqualSelector("a", "b")})
	if err != nil {
		t.Fatal(err)
	}
	want := []metav1.PartialObjectMetadata{
		{ObjectMeta: metav1.ObjectMeta{Namespace: "helpdesk", Name: "a", UID: "1"}},
		{ObjectMeta: metav1.ObjectMeta{Namespace: "helpdesk", Name: "b", UID: "2"}},
	}
	if diff := cmp.Diff(want, page.Items); diff != "" || page.Continue != "more" || page.ResourceVersion != "7" {
		t.Errorf("got %+v (-want +got):\n%s", page.ListMeta, diff)
	}
}

func TestListThatFails(t *testing.T) {
	for name, tc := range map[string]struct {
		status int
		body   string
		check  func(error) bool
	}{
		"expired": {
			410, `{"kind":"Status","apiVersion":"v1","status":"Failure","reason":"Expired","code":410}`,
			func(err error) bool { return apierrors.IsResourceExpired(err) && identities.RenewedToken(err) == "" },
		},
		"expired, with a new token": {
			410, `{"kind":"Status","apiVersion":"v1","metadata":{"continue":"renewed"},"status":"Failure","reason":"Expired","code":410}`,
			func(err error) bool { return identities.RenewedToken(err) == "renewed" },
		},
		"forbidden": {
			403, `{"kind":"Status","apiVersion":"v1","status":"Failure","reason":"Forbidden","code":403}`,
			func(err error) bool { return apierrors.IsForbidden(err) && identities.RenewedToken(err) == "" },
		},
		"cut off": {200, `{"items":[{"metadata":{"uid":"1"}}`, nil}, "no JSON": {200, `<html>`, nil},
		"no object": {200, `[]`, nil}, "no array": {200, `{"items":{}}`, nil}, "no UID": {200, `{"items":[{}]}`, nil},
	} {
		t.Run(name, func(t *testing.T) {
			r := reader(t, func(w http.ResponseWriter, _ *http.Request) {
				w.Header().Set("Content-Type", "application/json")
				w.WriteHeader(tc.status)
				_, _ = io.WriteString(w, tc.body)
			})
			page, err := list(t.Context(), r)
			if err == nil || tc.check != nil && !tc.check(err) {
				t.Errorf("got %v and %v, want an error", page, err)
			}
		})
	}
	r := reader(t, func(w http.ResponseWriter, _ *http.Request) { _, _ = io.WriteString(w, `{"items":null}`) })
	if page, err := list(t.Context(), r); err != nil || len(page.Items) > 0 {
		t.Errorf("got %v and %v, want an empty list", page, err)
	}
}

// TestLargeMetadata checks that a page of objects with much metadata is never in memory as a whole.
func TestLargeMetadata(t *testing.T) {
	const objects, size = 200, 1 << 20
	text := strings.Repeat("x", size/2)
	r := reader(t, func(w http.ResponseWriter, _ *http.Request) {
		_, _ = io.WriteString(w, `{"items":[`)
		for i := range objects {
			if i > 0 {
				_, _ = io.WriteString(w, ",")
			}
			for _, part := range []string{
				`{"metadata":{"annotations":{"a":"`, text, `"},"uid":"`, strconv.Itoa(i), `","finalizers":["`, text, `"]}}`,
			} {
				_, _ = io.WriteString(w, part) // this allocates nothing
			}
		}
		_, _ = io.WriteString(w, `]}`)
	})
	var before, after runtime.MemStats
	runtime.GC()
	runtime.ReadMemStats(&before)
	page, err := list(t.Context(), r)
	runtime.ReadMemStats(&after)
	if err != nil || len(page.Items) != objects {
		t.Fatalf("got %d objects and %v, want %d", len(page.Items), err, objects)
	}
	if got := after.TotalAlloc - before.TotalAlloc; got > objects*size/4 {
		t.Errorf("%d MiB were allocated for %d objects of 1 MiB, want a small part of it", got>>20, objects)
	}
}
