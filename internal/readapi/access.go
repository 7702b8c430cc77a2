package readapi

import (
	"context"
	"net/http"

	"k8s.io/apimachinery/pkg/types"

	"github.com/capstan-dev/capstan/api/v1alpha1"
	"github.com/capstan-dev/capstan/internal/access"
)

// check returns the name of the user who has the token of a request, or why they may not read the conversation of a Turn. It
// says nothing of whether that exists.
func (s *Server) check(ctx context.Context, r *http.Request, turn types.NamespacedName) (user string, refused *Error) {
	user, no := s.o.Access.Check(ctx, r, access.Right{
		Verb: "get", Group: v1alpha1.GroupVersion.Group, Version: v1alpha1.GroupVersion.Version, Resource: "turns", Subresource: "log",
		Namespace: turn.Namespace, Name: turn.Name,
	})
	switch {
	case no == nil:
		return user, nil
	case no.Status == http.StatusForbidden:
		return "", refuse(no.Status, "%q may not read what was said in Turn %q of namespace %q: it takes a rule with apiGroups [%s], "+
			"resources [turns/log] and verbs [get] there%s",
			no.User, turn.Name, turn.Namespace, v1alpha1.GroupVersion.Group, s.suchAs())
	}
	return "", &Error{Status: no.Status, Message: no.Message}
}

// suchAs names the role that gives the right to read, if this installation has one.
func (s *Server) suchAs() string {
	if s.o.RolePrefix == "" {
		return ""
	}
	return ", such as a RoleBinding to the ClusterRole " + s.o.RolePrefix + "-turn-reader gives"
}
