package readapi

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"strings"
	"unicode/utf8"

	"github.com/shopspring/decimal"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/util/validation"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/capstan-dev/capstan/api/v1alpha1"
	"github.com/capstan-dev/capstan/internal/access"
	"github.com/capstan-dev/capstan/internal/runtime/cut"
	"github.com/capstan-dev/capstan/internal/runtime/turnrecord"
	"github.com/capstan-dev/capstan/internal/store"
	"github.com/capstan-dev/capstan/internal/translate"
)

// maxFeedback is the maximum size of the body of a feedback, in bytes. JSON may escape each byte of a comment of
// turnrecord.MaxComment bytes.
const maxFeedback = 16 << 10

// isFeedback reports whether a request gives feedback. Only such a request may have a body.
func isFeedback(r *http.Request) bool {
	return r.Method == http.MethodPost && strings.HasSuffix(r.URL.Path, "/feedback")
}

// CheckFeedback returns an error unless a feedback has a score from 0 to 1 and a short comment.
func CheckFeedback(score, comment string) error {
	d, err := decimal.NewFromString(score)
	if err != nil || len(score) > 6 || d.IsNegative() || d.GreaterThan(decimal.NewFromInt(1)) || d.Exponent() < -4 {
		return fmt.Errorf("the score %.20q must be a number from 0 to 1 with at most four digits after the point, such as 0.8", score)
	}
	if len(comment) > turnrecord.MaxComment || !utf8.ValidString(comment) {
		return fmt.Errorf("the comment must be UTF-8 of at most %d bytes", turnrecord.MaxComment)
	}
	return nil
}

// scored returns the Turn that gets feedback, or nil if it was deleted.
func (s *Server) scored(ctx context.Context, namespace, name string) (*v1alpha1.Turn, *Error) {
	t, refusal := s.turn(ctx, client.ObjectKey{Namespace: namespace, Name: name})
	if refusal != nil && refusal.Status == http.StatusNotFound {
		return nil, nil
	}
	return t, refusal
}

// redactComment applies the current redaction rules of the Turn's Agent to a comment, and removes credentials. It cuts
// a comment that then exceeds turnrecord.MaxComment. It refuses the comment if the Turn or its Agent does not exist,
// because the rules are then unknown.
func (s *Server) redactComment(ctx context.Context, t *v1alpha1.Turn, comment *string) *Error {
	if t == nil {
		return refuse(http.StatusConflict, "%s", store.ErrTurnDeleted)
	}
	ctx, cancel := context.WithTimeout(ctx, getTimeout)
	defer cancel()
	var a v1alpha1.Agent
	err := s.o.Turns.Get(ctx, t.AgentKey(), &a)
	if apierrors.IsNotFound(err) {
		return refuse(http.StatusConflict, "Agent %q of the Turn, which has the rules that redact comments, does not exist anymore: "+
			"give a score without a comment", t.AgentKey())
	}
	if err != nil {
		return failureOf(err)
	}
	redaction, err := translate.Redaction(ctx, &a, s.o.Credentials.RedactFunc(t.CredentialNamespaces()...))
	if err != nil {
		return refuse(http.StatusConflict, "the rules of Agent %q that redact comments cannot be used: %s", t.AgentKey(), err)
	}
	// The replacements may be longer than what they replace, and the user cannot know that.
	*comment = cut.Bytes(redaction.Redact(*comment), turnrecord.MaxComment)
	return nil
}

// serveFeedback stores the feedback of a user who may give it. If the Turn exists, the feedback is about its answer.
// Otherwise a score is about the newest Turn that had the name, and the response says so.
func (s *Server) serveFeedback(w http.ResponseWriter, r *http.Request) {
	namespace, name := r.PathValue("namespace"), r.PathValue("name")
	if len(validation.IsDNS1123Label(namespace)) > 0 || len(validation.IsDNS1123Subdomain(name)) > 0 {
		s.answer(w, r, refuse(http.StatusBadRequest,
			"the namespace and the name of the Turn must be valid names of Kubernetes objects"))
		return
	}
	user, refusal := s.o.Access.Check(r.Context(), r, access.Right{
		Verb: "create", Group: v1alpha1.GroupVersion.Group, Version: v1alpha1.GroupVersion.Version, Resource: "turns",
		Subresource: "feedback", Namespace: namespace, Name: name,
	})
	switch {
	case refusal != nil && refusal.Status == http.StatusForbidden:
		s.answer(w, r, refuse(refusal.Status, "user %q may not give feedback to Turn %q in namespace %q: this requires a rule with "+
			"apiGroups [%s], resources [turns/feedback] and verbs [create] there%s",
			refusal.User, name, namespace, v1alpha1.GroupVersion.Group, s.roleHint("turn-author")))
		return
	case refusal != nil:
		s.answer(w, r, &Error{Status: refusal.Status, Message: refusal.Message})
		return
	case s.o.Records == nil:
		s.answer(w, r, refuse(http.StatusNotFound, "this server has no records of Turns"))
		return
	}
	leave, refused := s.enter(r, namespace, user)
	if refused != nil {
		s.answer(w, r, refused)
		return
	}
	defer leave()
	var body struct{ Score, Comment string }
	data, err := io.ReadAll(http.MaxBytesReader(w, r.Body, maxFeedback))
	if err == nil {
		err = json.Unmarshal(data, &body)
	}
	if err != nil {
		s.answer(w, r, refuse(http.StatusBadRequest,
			`the body must be JSON such as {"score": "0.8", "comment": "..."}, with at most %d bytes`, maxFeedback))
		return
	}
	if err := CheckFeedback(body.Score, body.Comment); err != nil {
		s.answer(w, r, refuse(http.StatusBadRequest, "%s", err))
		return
	}
	t, refused := s.scored(r.Context(), namespace, name)
	if refused == nil && body.Comment != "" {
		refused = s.redactComment(r.Context(), t, &body.Comment)
	}
	if refused != nil {
		s.answer(w, r, refused)
		return
	}
	ctx, cancel := context.WithTimeout(r.Context(), RecordsTimeout)
	defer cancel()
	uid, deleted := "", t == nil
	if !deleted {
		uid = string(t.UID)
	}
	err = s.o.Records.AddFeedback(ctx, namespace, name, uid, turnrecord.Feedback{
		User: user, Score: body.Score, Comment: body.Comment, Time: s.o.Now().UTC(),
	})
	switch {
	case errors.Is(err, store.ErrNoRecord) && !deleted && !t.IsFinished():
		s.answer(w, r, refuse(http.StatusConflict, "the Turn %q in namespace %q has not ended", name, namespace))
	case errors.Is(err, store.ErrNoRecord):
		s.answer(w, r, refuse(http.StatusNotFound,
			"there is no record of Turn %q in namespace %q: it has not ended, or its record was deleted", name, namespace))
	case errors.Is(err, turnrecord.ErrFull), errors.Is(err, store.ErrTurnDeleted):
		s.answer(w, r, refuse(http.StatusConflict, "%s", err))
	case err != nil:
		s.answer(w, r, failureOf(err))
	default:
		w.Header().Set("Content-Type", "application/json")
		_ = json.NewEncoder(w).Encode(Scored{TurnDeleted: deleted}) // the client may be gone
	}
}

// Scored says which Turn has received the feedback.
type Scored struct {
	// TurnDeleted is true if no Turn with the name exists anymore. The feedback is then about the newest deleted Turn
	// with the name.
	TurnDeleted bool `json:"turnDeleted,omitempty"`
}

// AddFeedback gives feedback on a Turn, in the name of the user of the token.
func (c *Client) AddFeedback(ctx context.Context, namespace, name, score, comment string) (out Scored, err error) {
	if err := CheckFeedback(score, comment); err != nil {
		return out, err
	}
	data, err := json.Marshal(map[string]string{"score": score, "comment": comment})
	if err != nil {
		return out, fmt.Errorf("failed to encode the feedback: %w", err)
	}
	ctx, cancel := context.WithTimeout(ctx, RecordsTimeout)
	defer cancel()
	u := c.base.JoinPath("v1", "namespaces", url.PathEscape(namespace), "turns", url.PathEscape(name), "feedback")
	r, err := http.NewRequestWithContext(ctx, http.MethodPost, u.String(), bytes.NewReader(data))
	if err != nil {
		return out, fmt.Errorf("failed to create the request: %w", err)
	}
	response, err := c.http.Do(r)
	if err != nil {
		return out, fmt.Errorf("%w: %w", ErrBroken, err)
	}
	if response.StatusCode != http.StatusOK {
		return out, c.refusal(response)
	}
	defer func() { err = errors.Join(err, response.Body.Close()) }()
	if err := json.NewDecoder(io.LimitReader(response.Body, maxFeedback)).Decode(&out); err != nil {
		return out, fmt.Errorf("%w: %w", ErrBroken, err)
	}
	return out, nil
}
