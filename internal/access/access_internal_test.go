package access

import (
	"net/http"
	"net/http/httptest"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	authenticationv1 "k8s.io/api/authentication/v1"
	authorizationv1 "k8s.io/api/authorization/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/kubernetes/fake"
	k8stesting "k8s.io/client-go/testing"
)

// reviewer is a fake API server. It authenticates the tokens that begin with "good", and authorizes all requests.
type reviewer struct {
	*fake.Clientset
	// reviews counts the reviews of tokens.
	reviews atomic.Int64
	// audiences are the audiences that the TokenReview of each token returns.
	audiences []string
}

func newReviewer() *reviewer {
	r := &reviewer{Clientset: fake.NewClientset()}
	r.PrependReactor("create", "tokenreviews", func(a k8stesting.Action) (bool, runtime.Object, error) {
		//nolint:forcetypeassert // because the test knows the type
		review := a.(k8stesting.CreateAction).GetObject().(*authenticationv1.TokenReview)
		r.reviews.Add(1)
		review.Status.Authenticated, review.Status.User.Username = strings.HasPrefix(review.Spec.Token, "good"), review.Spec.Token
		review.Status.Audiences = r.audiences
		return true, review, nil
	})
	r.PrependReactor("create", "subjectaccessreviews", func(a k8stesting.Action) (bool, runtime.Object, error) {
		//nolint:forcetypeassert // because the test knows the type
		review := a.(k8stesting.CreateAction).GetObject().(*authorizationv1.SubjectAccessReview)
		review.Status.Allowed = true
		return true, review, nil
	})
	return r
}

// requestWith returns a request with a token.
func requestWith(t *testing.T, token string) *http.Request {
	t.Helper()
	r := httptest.NewRequestWithContext(t.Context(), http.MethodGet, "/", http.NoBody)
	r.Header.Set("Authorization", "Bearer "+token)
	return r
}

// statusOf returns the status of a request to read a Turn with a token: 200 if the token allows it.
func statusOf(t *testing.T, g *Guard, token, turn string) int {
	t.Helper()
	user, refused := g.Check(t.Context(), requestWith(t, token), Right{Verb: "get", Resource: "turns", Namespace: "helpdesk", Name: turn})
	if refused != nil {
		return refused.Status
	}
	if user != token {
		t.Errorf("user = %q, want the user of token %q", user, token)
	}
	return http.StatusOK
}

func TestInventedTokenIsReviewedOnce(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		r := newReviewer()
		g := New(r, nil, time.Now)
		for _, turn := range []string{"first", "second", "first"} {
			if got := statusOf(t, g, "invented", turn); got != http.StatusUnauthorized {
				t.Errorf("status = %d, want 401", got)
			}
		}
		if n := r.reviews.Load(); n != 1 {
			t.Errorf("%d reviews of an unknown token, want 1", n)
		}
		time.Sleep(keepDenied + time.Millisecond)
		statusOf(t, g, "invented", "first")
		if n := r.reviews.Load(); n != 2 {
			t.Errorf("%d reviews after %s, want 2", n, keepDenied)
		}
	})
}

func TestInventedTokensDoNotBlockActiveUsers(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		g := New(newReviewer(), nil, time.Now)
		if got := statusOf(t, g, "good", "first"); got != http.StatusOK {
			t.Fatalf("status = %d, want 200", got)
		}
		for range mostStrange { // reviews of invented tokens, which the API server does not answer
			g.strangeSlots <- struct{}{}
		}
		if got := statusOf(t, g, "good", "second"); got != http.StatusOK {
			t.Errorf("status = %d for a known token, want 200: it has its own slots", got)
		}
		start := time.Now()
		if got := statusOf(t, g, "good too", "first"); got != http.StatusServiceUnavailable {
			t.Errorf("status = %d for an unknown token without a slot, want 503", got)
		}
		if waited := time.Since(start); waited != reviewWait {
			t.Errorf("the request waited %s, want %s", waited, reviewWait)
		}
		var served sync.WaitGroup
		served.Go(func() {
			if got := statusOf(t, g, "good too", "first"); got != http.StatusOK {
				t.Errorf("status = %d for an unknown token with a slot, want 200", got)
			}
		})
		synctest.Wait()
		<-g.strangeSlots
		served.Wait()
	})
}

// TestManyTokensOfOneNamespaceLeaveReviewsToOthers checks that the ServiceAccounts of a namespace do not use all slots.
func TestManyTokensOfOneNamespaceLeaveReviewsToOthers(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		g := New(newReviewer(), nil, time.Now)
		for _, turn := range []string{"first", "second"} { // the second review is that of a known token
			if got := statusOf(t, g, "good", turn); got != http.StatusOK {
				t.Fatalf("status = %d, want 200", got)
			}
		}
		end := make(chan struct{})
		var all sync.WaitGroup
		for i := range 10 * mostReviews { // reviews that the API server does not answer
			all.Go(func() {
				if leave, ok := g.enter(t.Context(), callerOf("system:serviceaccount:greedy:"+strconv.Itoa(i))); ok {
					defer leave()
				}
				<-end
			})
		}
		synctest.Wait()
		begin := time.Now()
		if got := statusOf(t, g, "good", "third"); got != http.StatusOK || time.Since(begin) > 0 {
			t.Errorf("status = %d after %s, want 200 at once", got, time.Since(begin))
		}
		close(end)
		all.Wait()
	})
}

// TestTokenMustHaveAudience also covers an authenticator that does not support audiences and returns none.
func TestTokenMustHaveAudience(t *testing.T) {
	t.Parallel()
	for name, tc := range map[string]struct {
		wanted, has []string
		want        int
	}{
		"no audience required":             {has: []string{"https://kubernetes.default.svc"}, want: http.StatusOK},
		"no audience required, none given": {want: http.StatusOK},
		"the required audience":            {wanted: []string{"capstan"}, has: []string{"capstan"}, want: http.StatusOK},
		"one of several audiences":         {wanted: []string{"capstan", "logs"}, has: []string{"other", "logs"}, want: http.StatusOK},
		"another audience":                 {wanted: []string{"capstan"}, has: []string{"vault"}, want: http.StatusUnauthorized},
		"the audience of the API server": {
			wanted: []string{"capstan"}, has: []string{"https://kubernetes.default.svc"},
			want: http.StatusUnauthorized,
		},
		"unknown audience": {wanted: []string{"capstan"}, want: http.StatusUnauthorized},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			r := newReviewer()
			r.audiences = tc.has
			var asked []string
			r.PrependReactor("create", "tokenreviews", func(a k8stesting.Action) (bool, runtime.Object, error) {
				//nolint:forcetypeassert // because the test knows the type
				asked = a.(k8stesting.CreateAction).GetObject().(*authenticationv1.TokenReview).Spec.Audiences
				return false, nil, nil
			})
			if got := statusOf(t, New(r, tc.wanted, time.Now), "good", "first"); got != tc.want {
				t.Errorf("status = %d, want %d", got, tc.want)
			}
			if !slices.Equal(asked, tc.wanted) {
				t.Errorf("the API server is asked about the audiences %v, want %v", asked, tc.wanted)
			}
		})
	}
}

// TestHandlerChecksPath checks that the API server is asked about the requested path, and the messages of refusals.
func TestHandlerChecksPath(t *testing.T) {
	t.Parallel()
	r := newReviewer()
	var paths []authorizationv1.NonResourceAttributes
	r.PrependReactor("create", "subjectaccessreviews", func(a k8stesting.Action) (bool, runtime.Object, error) {
		//nolint:forcetypeassert // because the test knows the type
		review := a.(k8stesting.CreateAction).GetObject().(*authorizationv1.SubjectAccessReview)
		paths = append(paths, *review.Spec.NonResourceAttributes)
		review.Status.Allowed = review.Spec.User == "good scraper"
		return true, review, nil
	})
	h := New(r, nil, time.Now).Handler(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { _, _ = w.Write([]byte("figures")) }))
	for token, want := range map[string]struct {
		status int
		body   string
	}{
		"good scraper": {http.StatusOK, "figures"},
		"good other": {
			http.StatusForbidden,
			`user "good other" may not get /metrics: this requires a rule with nonResourceURLs [/metrics] and verbs [get]`,
		},
		"invented": {http.StatusUnauthorized, "the API server rejects the token"},
		"":         {http.StatusUnauthorized, "the request has no bearer token"},
	} {
		request := httptest.NewRequestWithContext(t.Context(), http.MethodGet, "/metrics", http.NoBody)
		if token != "" {
			request.Header.Set("Authorization", "Bearer "+token)
		}
		w := httptest.NewRecorder()
		h.ServeHTTP(w, request)
		if w.Code != want.status || !strings.HasPrefix(w.Body.String(), want.body) {
			t.Errorf("token %q gets %d %q, want %d %q", token, w.Code, w.Body, want.status, want.body)
		}
	}
	for _, p := range paths {
		if p.Path != "/metrics" || p.Verb != "get" {
			t.Errorf("the API server is asked about %+v, want get on /metrics", p)
		}
	}
}
