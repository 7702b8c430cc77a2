// Package access knows who has sent an HTTP request and whether they may do what it asks for: the API server says so, by a TokenReview and
// a SubjectAccessReview.
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
)

const (
	// keepGranted and keepDenied are how long an answer of the API server is taken for granted. A denial is soon asked again:
	// the right may just have been given.
	keepGranted, keepDenied = 5 * time.Second, time.Second
	// mostAnswers bounds the answers that are kept, and mostTokens the tokens that are remembered, of each sort.
	mostAnswers, mostTokens = 1024, 1024
	// keepKnown is how long a token that the API server knew is remembered as one that it may know again.
	keepKnown = time.Hour
	// mostReviews bounds the reviews that the API server is asked at once of tokens that it knew, and mostStrange those of
	// tokens never seen: invented tokens do not keep out a user who is at work.
	mostReviews, mostStrange = 16, 8
	// reviewWait is how long a request waits for its turn to be reviewed, and reviewTimeout bounds the review.
	reviewWait, reviewTimeout = 2 * time.Second, 10 * time.Second
)

// Right is what a request needs: a verb on one object, or on a path that is no resource. It is comparable.
type Right struct {
	Verb string
	// Path is set for a path that is no resource, such as /metrics; the fields after it are empty then.
	Path                                  string
	Group, Version, Resource, Subresource string
	// Namespace and Name are those of the object.
	Namespace, Name string
}

// Refusal says why a request is not answered.
type Refusal struct {
	// Status is that of HTTP: 401 for a token that is not known, 403 for a user who may not, 503 if the API server could not be asked.
	Status int
	// User is who may not, with the status 403.
	User string
	// Message says what is wrong and what to do, except with the status 403: that depends on the right.
	Message string
}

// Guard asks the API server. It keeps hashes of tokens, no token. It is safe for concurrent use.
type Guard struct {
	reviews kubernetes.Interface
	// audiences are those for which a token may be made; none for that of the API server.
	audiences []string
	// answers, by token and right, are of tokens that the API server knows. What it does not know is kept elsewhere: invented
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
	refused *Refusal
}

// question is what an answer is kept for.
type question struct {
	token [sha256.Size]byte
	right Right
}

// clock is the time of day as the cache wants it.
type clock func() time.Time

// Now returns the time of day.
func (c clock) Now() time.Time { return c() }

// New returns a Guard that accepts tokens that were made for one of these audiences; none for that of the API server.
func New(reviews kubernetes.Interface, audiences []string, now func() time.Time) *Guard {
	return &Guard{
		reviews:    reviews,
		audiences:  audiences,
		answers:    cache.NewLRUExpireCacheWithClock(mostAnswers, clock(now)),
		known:      cache.NewLRUExpireCacheWithClock(mostTokens, clock(now)),
		unknown:    cache.NewLRUExpireCacheWithClock(mostTokens, clock(now)),
		knownSlots: make(chan struct{}, mostReviews), strangeSlots: make(chan struct{}, mostStrange),
	}
}

// Check returns the name of the user whose bearer token a request has, or why they have not got a right.
func (g *Guard) Check(ctx context.Context, r *http.Request, right Right) (user string, refused *Refusal) {
	scheme, token, _ := strings.Cut(r.Header.Get("Authorization"), " ")
	if token = strings.TrimSpace(token); !strings.EqualFold(scheme, "Bearer") || token == "" {
		return "", refuse(http.StatusUnauthorized, "there is no bearer token: send one that the API server knows, such as that of kubectl create token NAME%s", g.option())
	}
	q := question{token: sha256.Sum256([]byte(token)), right: right}
	if answer, ok := g.unknown.Get(q.token); ok {
		return "", answer.(*Refusal) //nolint:forcetypeassert // because nothing else is put in
	}
	if answer, ok := g.answers.Get(q); ok {
		v := answer.(verdict) //nolint:forcetypeassert // because nothing else is put in
		return v.user, v.refused
	}
	_, known := g.known.Get(q.token)
	v := g.wait(ctx, token, right, known)
	switch {
	case v.refused == nil:
		g.known.Add(q.token, true, keepKnown)
		g.answers.Add(q, v, keepGranted)
	case v.refused.Status == http.StatusUnauthorized:
		g.known.Remove(q.token)
		g.unknown.Add(q.token, v.refused, keepDenied)
	case v.refused.Status == http.StatusForbidden:
		g.known.Add(q.token, true, keepKnown)
		g.answers.Add(q, v, keepDenied)
	}
	return v.user, v.refused
}

// wait asks as soon as not too many others do. Tokens that the API server knew wait among themselves.
func (g *Guard) wait(ctx context.Context, token string, right Right, known bool) verdict {
	slots := g.strangeSlots
	if known {
		slots = g.knownSlots
	}
	bounded, cancel := context.WithTimeout(ctx, reviewWait)
	defer cancel()
	select {
	case slots <- struct{}{}:
	case <-bounded.Done():
		return verdict{refused: refuse(http.StatusServiceUnavailable, "too many requests wait for the API server: try again in a moment")}
	}
	defer func() { <-slots }()
	return g.ask(ctx, token, right)
}

// ask asks the API server who it is and what they may.
func (g *Guard) ask(ctx context.Context, token string, right Right) verdict {
	ctx, cancel := context.WithTimeout(ctx, reviewTimeout)
	defer cancel()
	who, err := g.reviews.AuthenticationV1().TokenReviews().Create(ctx,
		&authenticationv1.TokenReview{Spec: authenticationv1.TokenReviewSpec{Token: token, Audiences: g.audiences}}, metav1.CreateOptions{})
	if err != nil {
		return verdict{refused: away("tokenreviews of authentication.k8s.io", err)}
	}
	if !who.Status.Authenticated || !g.isFor(who.Status.Audiences) {
		return verdict{refused: refuse(http.StatusUnauthorized,
			"the API server does not know the token: it may have expired, or be that of another cluster or for another audience; get a new one, "+
				"such as that of kubectl create token NAME%s", g.option())}
	}
	return verdict{user: who.Status.User.Username, refused: g.allowed(ctx, who.Status.User, right)}
}

// isFor reports whether a token that is valid for some audiences was made for one of this Guard. An authenticator that knows no audiences
// returns none: its tokens are those of the API server.
func (g *Guard) isFor(audiences []string) bool {
	return len(g.audiences) == 0 || slices.ContainsFunc(audiences, func(a string) bool { return slices.Contains(g.audiences, a) })
}

// option is that by which kubectl makes a token for this Guard.
func (g *Guard) option() string {
	if len(g.audiences) == 0 {
		return ""
	}
	return " --audience " + g.audiences[0]
}

// allowed asks the API server whether a user has a right.
func (g *Guard) allowed(ctx context.Context, user authenticationv1.UserInfo, right Right) *Refusal {
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
	may, err := g.reviews.AuthorizationV1().SubjectAccessReviews().Create(ctx, &authorizationv1.SubjectAccessReview{Spec: spec}, metav1.CreateOptions{})
	if err != nil {
		return away("subjectaccessreviews of authorization.k8s.io", err)
	}
	if !may.Status.Allowed {
		return &Refusal{Status: http.StatusForbidden, User: user.Username}
	}
	return nil
}

// away is the refusal for reviews that could not be made.
func away(what string, err error) *Refusal {
	return refuse(http.StatusServiceUnavailable, "the manager cannot ask the API server who you are and what you may: failed to create %s: %s", what, err)
}

func refuse(status int, format string, args ...any) *Refusal {
	return &Refusal{Status: status, Message: fmt.Sprintf(format, args...)}
}

// Handler answers with next if the user of a request may get the path that it asks for, which is no resource.
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
		http.Error(w, cmp.Or(refused.Message, fmt.Sprintf("%q may not %s %s: it takes a rule with nonResourceURLs [%s] and verbs [%s]",
			refused.User, right.Verb, right.Path, right.Path, right.Verb)), refused.Status)
	})
}
