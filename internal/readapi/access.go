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
	// mostAnswers bounds the answers that are kept, and mostTokens the tokens that are remembered, of each sort.
	mostAnswers, mostTokens = 1024, 1024
	// keepKnown is how long a token that the API server knew is remembered as one that it may know again.
	keepKnown = time.Hour
	// mostReviews bounds the reviews that the API server is asked at once of tokens that it knew, and mostStrange those of
	// tokens never seen: whoever invents tokens keeps out nobody who is at work.
	mostReviews, mostStrange = 16, 8
	// reviewWait is how long a request waits for its turn to be reviewed, and reviewTimeout bounds the review.
	reviewWait, reviewTimeout = 2 * time.Second, 10 * time.Second
)

// access knows who may read which Turn. It keeps hashes of tokens, no token.
type access struct {
	reviews kubernetes.Interface
	// answers, by token and Turn, are of tokens that the API server knows. What it does not know is kept elsewhere: invented
	// tokens must not push answers out.
	answers *cache.LRUExpireCache
	// known and unknown are tokens, by whether the API server knew them when it was asked last.
	known, unknown *cache.LRUExpireCache
	// knownSlots and strangeSlots bound the reviews at once.
	knownSlots, strangeSlots chan struct{}
}

// verdict is what the API server said: who it is, and why they may not, nil if they may.
type verdict struct {
	user    string
	refused *Error
}

// clock is the time of day as the cache wants it.
type clock func() time.Time

// Now returns the time of day.
func (c clock) Now() time.Time { return c() }

func newAccess(reviews kubernetes.Interface, now func() time.Time) *access {
	return &access{
		reviews:    reviews,
		answers:    cache.NewLRUExpireCacheWithClock(mostAnswers, clock(now)),
		known:      cache.NewLRUExpireCacheWithClock(mostTokens, clock(now)),
		unknown:    cache.NewLRUExpireCacheWithClock(mostTokens, clock(now)),
		knownSlots: make(chan struct{}, mostReviews), strangeSlots: make(chan struct{}, mostStrange),
	}
}

// check returns the name of the user who has the token of a request, or why they may not read the conversation of a Turn. It
// says nothing of whether that exists.
func (a *access) check(ctx context.Context, r *http.Request, turn types.NamespacedName) (user string, refused *Error) {
	scheme, token, _ := strings.Cut(r.Header.Get("Authorization"), " ")
	if token = strings.TrimSpace(token); !strings.EqualFold(scheme, "Bearer") || token == "" {
		return "", refuse(http.StatusUnauthorized, "there is no bearer token: send one that the API server knows, such as that of kubectl create token NAME")
	}
	hash := sha256.Sum256([]byte(token))
	if answer, ok := a.unknown.Get(hash); ok {
		return "", answer.(*Error) //nolint:forcetypeassert // because nothing else is put in
	}
	key := fmt.Sprintf("%x %s", hash, turn)
	if answer, ok := a.answers.Get(key); ok {
		v := answer.(verdict) //nolint:forcetypeassert // because nothing else is put in
		return v.user, v.refused
	}
	_, known := a.known.Get(hash)
	v := a.wait(ctx, token, turn, known)
	switch {
	case v.refused == nil:
		a.known.Add(hash, true, keepKnown)
		a.answers.Add(key, v, keepGranted)
	case v.refused.Status == http.StatusUnauthorized:
		a.known.Remove(hash)
		a.unknown.Add(hash, v.refused, keepDenied)
	case v.refused.Status == http.StatusForbidden:
		a.known.Add(hash, true, keepKnown)
		a.answers.Add(key, v, keepDenied)
	}
	return v.user, v.refused
}

// wait asks as soon as not too many others do. Tokens that the API server knew wait among themselves.
func (a *access) wait(ctx context.Context, token string, turn types.NamespacedName, known bool) verdict {
	slots := a.strangeSlots
	if known {
		slots = a.knownSlots
	}
	bounded, cancel := context.WithTimeout(ctx, reviewWait)
	defer cancel()
	if !take(bounded, slots) {
		return verdict{refused: refuse(http.StatusServiceUnavailable, "too many requests wait for the API server: try again in a moment")}
	}
	defer func() { <-slots }()
	return a.ask(ctx, token, turn)
}

// ask asks the API server who it is and what they may.
func (a *access) ask(ctx context.Context, token string, turn types.NamespacedName) verdict {
	ctx, cancel := context.WithTimeout(ctx, reviewTimeout)
	defer cancel()
	who, err := a.reviews.AuthenticationV1().TokenReviews().Create(ctx,
		&authenticationv1.TokenReview{Spec: authenticationv1.TokenReviewSpec{Token: token}}, metav1.CreateOptions{})
	if err != nil {
		return verdict{refused: away("tokenreviews of authentication.k8s.io", err)}
	}
	if !who.Status.Authenticated {
		return verdict{refused: refuse(http.StatusUnauthorized,
			"the API server does not know the token: it may have expired, or be that of another cluster; get a new one")}
	}
	return verdict{user: who.Status.User.Username, refused: a.allowed(ctx, who.Status.User, turn)}
}

// allowed asks the API server what a user may.
func (a *access) allowed(ctx context.Context, user authenticationv1.UserInfo, turn types.NamespacedName) *Error {
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
