package manager

import (
	"encoding/json"
	"errors"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"

	"github.com/go-logr/logr"
	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
)

// namespaceAnswers are the answers of an API server in one namespace: to the creation of an Event, and to reads of the
// namespace, of its Budgets, and of its objects of other kinds. A nil error of event is that of an Event that is not
// valid.
type namespaceAnswers struct{ event, namespace, budgets, others error }

// answering returns a client of an API server that gives these answers, by namespace.
func answering(t *testing.T, answers map[string]namespaceAnswers) kubernetes.Interface {
	t.Helper()
	web := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		_, path, _ := strings.Cut(r.URL.Path, "/namespaces/")
		namespace, resource, _ := strings.Cut(path, "/")
		answers := answers[namespace]
		answer, err := any(&metav1.PartialObjectMetadataList{}), answers.others
		switch resource {
		case "":
			answer, err = &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: namespace}}, answers.namespace
		case "events":
			if err = answers.event; err == nil {
				err = apierrors.NewInvalid(schema.GroupKind{Kind: "Event"}, "", nil)
			}
		case "budgets":
			err = answers.budgets
		}
		w.Header().Set("Content-Type", "application/json")
		if status, ok := errors.AsType[*apierrors.StatusError](err); ok {
			answer = &status.ErrStatus
			w.WriteHeader(int(status.ErrStatus.Code))
		}
		_ = json.NewEncoder(w).Encode(answer)
	}))
	t.Cleanup(web.Close)
	clients, err := kubernetes.NewForConfig(&rest.Config{Host: web.URL, QPS: -1})
	if err != nil {
		t.Fatal(err)
	}
	return clients
}

// TestNamespaceThatCannotBeWatched checks which namespaces are watched if the API server refuses an Event in one of
// two.
func TestNamespaceThatCannotBeWatched(t *testing.T) {
	events := schema.GroupResource{Group: "events.k8s.io", Resource: "events"}
	turns := schema.GroupResource{Group: "capstan.dev", Resource: "turns"}
	both := watchedNamespaces{present: []string{"tenant", "other"}}
	without := watchedNamespaces{present: []string{"other"}, denied: []string{"tenant"}}
	none := watchedNamespaces{denied: []string{"tenant"}}
	denied := apierrors.NewForbidden(turns, "", errors.New("no role"))
	quota := apierrors.NewForbidden(events, "", errors.New("exceeded quota: events, requested: count/events.events.k8s.io=1"))
	missing := apierrors.NewNotFound(schema.GroupResource{Resource: "namespaces"}, "tenant")
	for name, tc := range map[string]struct {
		answers namespaceAnswers
		alone   bool
		want    watchedNamespaces
		fails   bool
	}{
		"has a Role":                     {namespaceAnswers{}, false, both, false},
		"does not exist yet":             {namespaceAnswers{event: missing}, false, both, false},
		"has reached a quota":            {namespaceAnswers{event: quota}, false, both, false},
		"was deleted with its Role":      {namespaceAnswers{denied, missing, denied, denied}, false, without, false},
		"was deleted, and was the last":  {namespaceAnswers{denied, missing, denied, denied}, true, none, true},
		"lacks its Role":                 {namespaceAnswers{denied, nil, denied, denied}, false, without, false},
		"lacks its Role, and is alone":   {namespaceAnswers{denied, nil, denied, denied}, true, none, true},
		"lacks one rule of its Role":     {namespaceAnswers{budgets: denied}, false, without, false},
		"lacks the rule for Events":      {namespaceAnswers{event: denied}, false, both, false},
		"may not exist, as nobody knows": {namespaceAnswers{denied, denied, denied, denied}, false, without, false},
	} {
		t.Run(name, func(t *testing.T) {
			namespaces := []string{"tenant", "other"}
			if tc.alone {
				namespaces = namespaces[:1]
			}
			clients := answering(t, map[string]namespaceAnswers{"tenant": tc.answers})
			got, err := checkWatched(t.Context(), clients, namespaces, logr.Discard())
			if (err != nil) != tc.fails || err != nil && !strings.Contains(err.Error(), `--watch-namespaces: namespace "tenant"`) {
				t.Errorf("the error is %v, want one that names the namespace: %t", err, tc.fails)
			}
			if diff := cmp.Diff(tc.want, got, cmp.AllowUnexported(watchedNamespaces{})); diff != "" {
				t.Errorf("the watched namespaces differ (-want +got):\n%s", diff)
			}
		})
	}
}
