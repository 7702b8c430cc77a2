package readapi

import (
	"context"
	"crypto/sha256"
	"fmt"
	"net/http"
	"strings"
	"time"

	authenticationv1 "k8s.io/api/authentication/v1"
	authorizationv1 "k8s.io/api/authorization/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/cache"
	"k8s.io/client-go/kubernetes"

	"github.com/capstan-dev/capstan/api/v1alpha1"
)

const (
	// keepGranted and keepDenied are how long an answer of the API server is taken for granted. A denial is soon asked again:
	// somebody may just have been given the right.
	keepGranted, keepDenied = 5 * time.Second, time.Second
	// mostAnswers bounds the answers that are kept.
	mostAnswers = 1024
	// mostReviews bounds the reviews that the API server is asked at once, and reviewTimeout each of them.
	mostReviews   = 16
	reviewTimeout = 10 * time.Second
)

// access knows who may read which Turn. It keeps hashes of tokens, no token.
type access struct {
	reviews kubernetes.Interface
	answers *cache.LRUExpireCache
	// slots bound the reviews at once.
	slots chan struct{}
}

// clock is the time of day as the cache wants it.
type clock func() time.Time

// Now returns the time of day.
func (c clock) Now() time.Time { return c() }

func newAccess(reviews kubernetes.Interface, now func() time.Time) *access {
	return &access{reviews: reviews, answers: cache.NewLRUExpireCacheWithClock(mostAnswers, clock(now)), slots: make(chan struct{}, mostReviews)}
}

// check returns nil if whoever has the token of a request may read the conversation of a Turn. It says nothing of whether
// that exists.
func (a *access) check(ctx context.Context, r *http.Request, turn types.NamespacedName) *Error {
	scheme, token, _ := strings.Cut(r.Header.Get("Authorization"), " ")
	if token = strings.TrimSpace(token); !strings.EqualFold(scheme, "Bearer") || token == "" {
		return refuse(http.StatusUnauthorized, "there is no bearer token: send one that the API server knows, such as that of kubectl create token NAME")
	}
	key := fmt.Sprintf("%x %s", sha256.Sum256([]byte(token)), turn)
	if answer, ok := a.answers.Get(key); ok {
		return answer.(*Error) //nolint:forcetypeassert // because nothing else is put in
	}
	answer := a.ask(ctx, token, turn)
	switch {
	case answer == nil:
		a.answers.Add(key, answer, keepGranted)
	case answer.Status != http.StatusServiceUnavailable:
		a.answers.Add(key, answer, keepDenied)
	}
	return answer
}

// ask asks the API server who it is and what it may.
func (a *access) ask(ctx context.Context, token string, turn types.NamespacedName) *Error {
	select {
	case a.slots <- struct{}{}:
		defer func() { <-a.slots }()
	default:
		return refuse(http.StatusServiceUnavailable, "too many requests wait for the API server: try again in a moment")
	}
	ctx, cancel := context.WithTimeout(ctx, reviewTimeout)
	defer cancel()
	who, err := a.reviews.AuthenticationV1().TokenReviews().Create(ctx,
		&authenticationv1.TokenReview{Spec: authenticationv1.TokenReviewSpec{Token: token}}, metav1.CreateOptions{})
	if err != nil {
		return away("tokenreviews of authentication.k8s.io", err)
	}
	if !who.Status.Authenticated {
		return refuse(http.StatusUnauthorized, "the API server does not know the token: it may have expired, or be that of another cluster; get a new one")
	}
	user := who.Status.User
	extra := make(map[string]authorizationv1.ExtraValue, len(user.Extra))
	for name, values := range user.Extra {
		extra[name] = authorizationv1.ExtraValue(values)
	}
	may, err := a.reviews.AuthorizationV1().SubjectAccessReviews().Create(ctx, &authorizationv1.SubjectAccessReview{
		Spec: authorizationv1.SubjectAccessReviewSpec{
			User: user.Username, UID: user.UID, Groups: user.Groups, Extra: extra,
			ResourceAttributes: &authorizationv1.ResourceAttributes{
				Group: v1alpha1.GroupVersion.Group, Version: v1alpha1.GroupVersion.Version, Resource: "turns", Subresource: "log",
				Verb: "get", Namespace: turn.Namespace, Name: turn.Name,
			},
		},
	}, metav1.CreateOptions{})
	if err != nil {
		return away("subjectaccessreviews of authorization.k8s.io", err)
	}
	if !may.Status.Allowed {
		return refuse(http.StatusForbidden, "%q may not read what was said in Turn %q of namespace %q: it takes a rule with apiGroups [%s], "+
			"resources [turns/log] and verbs [get] there, such as a RoleBinding to the ClusterRole capstan-turn-reader gives",
			user.Username, turn.Name, turn.Namespace, v1alpha1.GroupVersion.Group)
	}
	return nil
}

// away is the error for reviews that could not be made.
func away(what string, err error) *Error {
	return refuse(http.StatusServiceUnavailable, "the manager cannot ask the API server who you are and what you may: failed to create %s: %s", what, err)
}
