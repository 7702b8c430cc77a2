// Package access authenticates and authorizes HTTP requests. It asks the API server, with a TokenReview and a
// SubjectAccessReview.
package access

import (
	"cmp"
	"context"
	"crypto/sha256"
	"fmt"
	"net/http"
	"slices"
	"strings"
	"time"

	authenticationv1 "k8s.io/api/authentication/v1"
	authorizationv1 "k8s.io/api/authorization/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/cache"
	"k8s.io/client-go/kubernetes"

	"github.com/capstan-dev/capstan/internal/fairgate"
)

const (
	// keepGranted and keepDenied are how long an answer of the API server is used. A denial is used for a shorter time,
	// because the permission may be granted soon.
	keepGranted, keepDenied = 5 * time.Second, time.Second
	// mostAnswers limits the number of stored answers. mostTokens limits the number of stored known tokens, and that of
	// unknown tokens.
	mostAnswers, mostTokens = 1024, 1024
	// keepKnown is how long a token counts as known after the API server has accepted it.
	keepKnown = time.Hour
	// mostReviews limits the concurrent reviews of known tokens. While there are several callers, one user, or the
	// ServiceAccounts of one namespace, has a lower limit, at least reviewsOfCaller: see fairgate.New. mostStrange
	// limits the reviews of all other tokens, so that invented tokens do not block active users.
	mostReviews, reviewsOfCaller, mostStrange = 16, 8, 8
	// reviewWait is the maximum time that a request waits until its review may begin. reviewTimeout is the time limit
	// of the review.
	reviewWait, reviewTimeout = 2 * time.Second, 10 * time.Second
)

// Right is the permission that a request needs: a verb on an object, or on a path that is not a resource. It is
// comparable.
type Right struct {
	Verb string
	// Path is set for a path that is not a resource, such as /metrics; the fields after it are empty then.
	Path                                  string
	Group, Version, Resource, Subresource string
	// Namespace and Name are the namespace and the name of the object.
	Namespace, Name string
}

// Refusal says why a request is not answered.
type Refusal struct {
	// Status is the HTTP status: 401 for an unknown token, 403 for a user who lacks the permission, 503 if the API
	// server could not be asked.
	Status int
	// User is the user who lacks the permission. It is set only if Status is 403.
	User string
	// Message describes the problem and what to do. It is empty if Status is 403: the caller writes that message,
	// because it depends on the permission.
	Message string
}

// Guard authenticates and authorizes requests. It stores hashes of tokens, but not the tokens. It is safe for
// concurrent use.
type Guard struct {
	reviews kubernetes.Interface
	// audiences are the audiences that a token may have; none means the audience of the API server.
	audiences []string
	// answers has the answers by token and permission, for known tokens. Unknown tokens are stored in another cache, so
	// that invented tokens cannot evict answers.
	answers *cache.LRUExpireCache
	// known has the callers of the tokens that the API server accepted at their last review, and unknown the refusals
	// of those that it rejected.
	known, unknown *cache.LRUExpireCache
	// knownSlots and strangeSlots bound the concurrent reviews. Callers take turns at knownSlots.
	knownSlots   *fairgate.Gate
	strangeSlots chan struct{}
}

// verdict is the answer of the API server: the user, and the refusal, which is nil if the user has the permission.
type verdict struct {
	user    string
	refused *Refusal
}

// question is the key of a stored answer.
type question struct {
	token [sha256.Size]byte
	right Right
}

// clock adapts a function that returns the current time to the interface of the cache.
type clock func() time.Time

// Now returns the current time.
func (c clock) Now() time.Time { return c() }

// New returns a Guard that accepts tokens for one of these audiences. If audiences is empty, it accepts tokens for
// the audience of the API server.
func New(reviews kubernetes.Interface, audiences []string, now func() time.Time) *Guard {
	return &Guard{
		reviews:    reviews,
		audiences:  audiences,
		answers:    cache.NewLRUExpireCacheWithClock(mostAnswers, clock(now)),
		known:      cache.NewLRUExpireCacheWithClock(mostTokens, clock(now)),
		unknown:    cache.NewLRUExpireCacheWithClock(mostTokens, clock(now)),
		knownSlots: fairgate.New(mostReviews, reviewsOfCaller), strangeSlots: make(chan struct{}, mostStrange),
	}
}

// Check returns the name of the user whose bearer token a request has. It returns a refusal if the token is missing or
// invalid, if the user lacks the permission, or if the API server cannot be asked.
func (g *Guard) Check(ctx context.Context, r *http.Request, right Right) (user string, refused *Refusal) {
	scheme, token, _ := strings.Cut(r.Header.Get("Authorization"), " ")
	if token = strings.TrimSpace(token); !strings.EqualFold(scheme, "Bearer") || token == "" {
		return "", refuse(http.StatusUnauthorized,
			"the request has no bearer token: send a token of this cluster, for example from kubectl create token NAME%s", g.option())
	}
	q := question{token: sha256.Sum256([]byte(token)), right: right}
	if answer, ok := g.unknown.Get(q.token); ok {
		return "", answer.(*Refusal) //nolint:forcetypeassert // because the cache has only values of this type
	}
	if answer, ok := g.answers.Get(q); ok {
		v := answer.(verdict) //nolint:forcetypeassert // because the cache has only values of this type
		return v.user, v.refused
	}
	var caller string // of a known token
	if of, ok := g.known.Get(q.token); ok {
		caller = of.(string) //nolint:forcetypeassert // because the cache has only values of this type
	}
	v := g.review(ctx, token, right, caller)
	switch {
	case v.refused == nil:
		g.known.Add(q.token, callerOf(v.user), keepKnown)
		g.answers.Add(q, v, keepGranted)
	case v.refused.Status == http.StatusUnauthorized:
		g.known.Remove(q.token)
		g.unknown.Add(q.token, v.refused, keepDenied)
	case v.refused.Status == http.StatusForbidden:
		g.known.Add(q.token, callerOf(v.user), keepKnown)
		g.answers.Add(q, v, keepDenied)
	}
	return v.user, v.refused
}

// callerOf returns the name under which a user takes turns with others: ServiceAccounts of the same namespace count as
// one caller, because whoever may create one may create many. It is not empty.
func callerOf(user string) string {
	const prefix = "system:serviceaccount:"
	if account, ok := strings.CutPrefix(user, prefix); ok {
		namespace, _, _ := strings.Cut(account, ":")
		return prefix + namespace
	}
	return "user:" + user
}

// review asks the API server as soon as there is a slot. Known and unknown tokens have separate slots. caller is empty
// for an unknown token.
func (g *Guard) review(ctx context.Context, token string, right Right, caller string) verdict {
	leave, ok := g.enter(ctx, caller)
	if !ok {
		return verdict{refused: refuse(http.StatusServiceUnavailable, "too many requests wait for the API server: try again in a moment")}
	}
	defer leave()
	return g.ask(ctx, token, right)
}

// enter waits for a slot, at most reviewWait. The caller must call leave if ok is true.
func (g *Guard) enter(ctx context.Context, caller string) (leave func(), ok bool) {
	ctx, cancel := context.WithTimeout(ctx, reviewWait)
	defer cancel()
	if caller != "" {
		err := g.knownSlots.Enter(ctx, caller)
		return func() { g.knownSlots.Leave(caller) }, err == nil
	}
	select {
	case g.strangeSlots <- struct{}{}:
		return func() { <-g.strangeSlots }, true
	case <-ctx.Done():
		return nil, false
	}
}

// ask asks the API server for the user of a token, and whether that user has the permission.
func (g *Guard) ask(ctx context.Context, token string, right Right) verdict {
	ctx, cancel := context.WithTimeout(ctx, reviewTimeout)
	defer cancel()
	who, err := g.reviews.AuthenticationV1().TokenReviews().Create(ctx,
		&authenticationv1.TokenReview{Spec: authenticationv1.TokenReviewSpec{Token: token, Audiences: g.audiences}}, metav1.CreateOptions{})
	if err != nil {
		return verdict{refused: unavailable("tokenreviews of authentication.k8s.io", err)}
	}
	if !who.Status.Authenticated || !g.isFor(who.Status.Audiences) {
		return verdict{refused: refuse(http.StatusUnauthorized,
			"the API server rejects the token: it may have expired, or belong to another cluster or audience; get a new one, "+
				"for example from kubectl create token NAME%s", g.option())}
	}
	return verdict{user: who.Status.User.Username, refused: g.authorize(ctx, who.Status.User, right)}
}

// isFor reports whether one of the audiences of a token is an audience of this Guard. An authenticator that does not
// support audiences returns none: its tokens are for the API server.
func (g *Guard) isFor(audiences []string) bool {
	return len(g.audiences) == 0 || slices.ContainsFunc(audiences, func(a string) bool { return slices.Contains(g.audiences, a) })
}

// option returns the option of kubectl create token for this Guard.
func (g *Guard) option() string {
	if len(g.audiences) == 0 {
		return ""
	}
	return " --audience " + g.audiences[0]
}

// authorize asks the API server whether a user has a permission.
func (g *Guard) authorize(ctx context.Context, user authenticationv1.UserInfo, right Right) *Refusal {
	spec := authorizationv1.SubjectAccessReviewSpec{
		User: user.Username, UID: user.UID, Groups: user.Groups, Extra: make(map[string]authorizationv1.ExtraValue, len(user.Extra)),
	}
	for name, values := range user.Extra {
		spec.Extra[name] = authorizationv1.ExtraValue(values)
	}
	if right.Path != "" {
		spec.NonResourceAttributes = &authorizationv1.NonResourceAttributes{Path: right.Path, Verb: right.Verb}
	} else {
		spec.ResourceAttributes = &authorizationv1.ResourceAttributes{
			Group: right.Group, Version: right.Version, Resource: right.Resource, Subresource: right.Subresource, Verb: right.Verb,
			Namespace: right.Namespace, Name: right.Name,
		}
	}
	may, err := g.reviews.AuthorizationV1().SubjectAccessReviews().Create(ctx,
		&authorizationv1.SubjectAccessReview{Spec: spec}, metav1.CreateOptions{})
	if err != nil {
		return unavailable("subjectaccessreviews of authorization.k8s.io", err)
	}
	if !may.Status.Allowed {
		return &Refusal{Status: http.StatusForbidden, User: user.Username}
	}
	return nil
}

// unavailable returns the refusal for a review that could not be made.
func unavailable(what string, err error) *Refusal {
	return refuse(http.StatusServiceUnavailable,
		"the manager cannot check your permissions with the API server: failed to create %s: %s", what, err)
}

func refuse(status int, format string, args ...any) *Refusal {
	return &Refusal{Status: status, Message: fmt.Sprintf(format, args...)}
}

// Handler calls next if the user of a request may use the requested path, which is not a resource.
func (g *Guard) Handler(next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		right := Right{Verb: strings.ToLower(r.Method), Path: r.URL.Path}
		_, refused := g.Check(r.Context(), r, right)
		if refused == nil {
			next.ServeHTTP(w, r)
			return
		}
		switch refused.Status {
		case http.StatusUnauthorized:
			w.Header().Set("WWW-Authenticate", "Bearer")
		case http.StatusServiceUnavailable:
			w.Header().Set("Retry-After", "2")
		}
		http.Error(w, cmp.Or(refused.Message,
			fmt.Sprintf("user %q may not %s %s: this requires a rule with nonResourceURLs [%s] and verbs [%s]",
				refused.User, right.Verb, right.Path, right.Path, right.Verb)), refused.Status)
	})
}
