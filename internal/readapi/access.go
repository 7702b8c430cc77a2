package readapi

import (
	"context"
	"net/http"

	"k8s.io/apimachinery/pkg/types"

	"github.com/capstan-dev/capstan/api/v1alpha1"
	"github.com/capstan-dev/capstan/internal/access"
)

// check returns the name of the user who has sent a request, or a refusal if that user may not read the conversation of
// a Turn. The refusal does not reveal whether the Turn exists.
func (s *Server) check(ctx context.Context, r *http.Request, turn types.NamespacedName) (user string, refused *Error) {
	user, refusal := s.o.Access.Check(ctx, r, access.Right{
		Verb: "get", Group: v1alpha1.GroupVersion.Group, Version: v1alpha1.GroupVersion.Version, Resource: "turns", Subresource: "log",
		Namespace: turn.Namespace, Name: turn.Name,
	})
	switch {
	case refusal == nil:
		return user, nil
	case refusal.Status == http.StatusForbidden:
		return "", refuse(refusal.Status, "user %q may not read the conversation of Turn %q in namespace %q: this "+
			"requires a rule with apiGroups [%s], "+
			"resources [turns/log] and verbs [get] there%s",
			refusal.User, turn.Name, turn.Namespace, v1alpha1.GroupVersion.Group, s.roleHint("turn-reader"))
	}
	return "", &Error{Status: refusal.Status, Message: refusal.Message}
}

// roleHint returns the part of a message that names one of the roles of this installation, or an empty text if it has
// none.
func (s *Server) roleHint(role string) string {
	if s.o.RolePrefix == "" {
		return ""
	}
	return ", for example by a RoleBinding to the ClusterRole " + s.o.RolePrefix + "-" + role
}
