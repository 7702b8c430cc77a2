package readapi

import (
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	authenticationv1 "k8s.io/api/authentication/v1"
	authorizationv1 "k8s.io/api/authorization/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes/fake"
	k8stesting "k8s.io/client-go/testing"
)

// reviewer is an API server that takes its time: it knows the tokens that begin with good, and lets everybody read.
type reviewer struct {
	*fake.Clientset
	// asked counts the reviews of tokens.
	asked atomic.Int64
}

func newReviewer() *reviewer {
	r := &reviewer{Clientset: fake.NewClientset()}
	r.PrependReactor("create", "tokenreviews", func(a k8stesting.Action) (bool, runtime.Object, error) {
		review := a.(k8stesting.CreateAction).GetObject().(*authenticationv1.TokenReview) //nolint:forcetypeassert // because it is that
		r.asked.Add(1)
		review.Status.Authenticated, review.Status.User.Username = strings.HasPrefix(review.Spec.Token, "good"), review.Spec.Token
		return true, review, nil
	})
	r.PrependReactor("create", "subjectaccessreviews", func(a k8stesting.Action) (bool, runtime.Object, error) {
		review := a.(k8stesting.CreateAction).GetObject().(*authorizationv1.SubjectAccessReview) //nolint:forcetypeassert // because it is that
		review.Status.Allowed = true
		return true, review, nil
	})
	return r
}

// with is a request with a token.
func with(t *testing.T, token string) *http.Request {
	t.Helper()
	r := httptest.NewRequestWithContext(t.Context(), http.MethodGet, "/", http.NoBody)
	r.Header.Set("Authorization", "Bearer "+token)
	return r
}

// statusOf asks whether a token lets read a Turn: 200 if it does.
func statusOf(t *testing.T, a *access, token, turn string) int {
	t.Helper()
	user, refused := a.check(t.Context(), with(t, token), types.NamespacedName{Namespace: "helpdesk", Name: turn})
	if refused != nil {
		return refused.Status
	}
	if user != token {
		t.Errorf("want the user of token %q, have %q", token, user)
	}
	return http.StatusOK
}

func TestAnInventedTokenIsUnknownForEveryTurn(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		r := newReviewer()
		a := newAccess(r, time.Now)
		for _, turn := range []string{"first", "second", "first"} {
			if got := statusOf(t, a, "invented", turn); got != http.StatusUnauthorized {
				t.Errorf("want 401, have %d", got)
			}
		}
		if n := r.asked.Load(); n != 1 {
			t.Errorf("want one review of a token that is not known, have %d", n)
		}
		time.Sleep(keepDenied + time.Millisecond)
		statusOf(t, a, "invented", "first")
		if n := r.asked.Load(); n != 2 {
			t.Errorf("want another review after %s, have %d in all", keepDenied, n)
		}
	})
}

func TestInventedTokensKeepOutNobodyWhoIsAtWork(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		a := newAccess(newReviewer(), time.Now)
		if got := statusOf(t, a, "good", "first"); got != http.StatusOK {
			t.Fatalf("want 200, have %d", got)
		}
		for range mostStrange { // reviews of invented tokens, which the API server does not answer
			a.strangeSlots <- struct{}{}
		}
		if got := statusOf(t, a, "good", "second"); got != http.StatusOK {
			t.Errorf("want a token that was known asked about at once, have %d", got)
		}
		begun := time.Now()
		if got := statusOf(t, a, "good too", "first"); got != http.StatusServiceUnavailable {
			t.Errorf("want who was never seen told to come again, have %d", got)
		}
		if waited := time.Since(begun); waited != reviewWait {
			t.Errorf("want a wait of %s, have %s", reviewWait, waited)
		}
		var served sync.WaitGroup
		served.Go(func() {
			if got := statusOf(t, a, "good too", "first"); got != http.StatusOK {
				t.Errorf("want who was never seen asked about once there is a place, have %d", got)
			}
		})
		synctest.Wait()
		<-a.strangeSlots
		served.Wait()
	})
}
