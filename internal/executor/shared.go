package executor

import (
	"context"
	"errors"
	"fmt"
	"slices"

	apierrors "k8s.io/apimachinery/pkg/api/errors"

	"github.com/capstan-dev/capstan/api/v1alpha1"
	"github.com/capstan-dev/capstan/internal/bytebudget"
	"github.com/capstan-dev/capstan/internal/fairgate"
	"github.com/capstan-dev/capstan/internal/mcp"
	"github.com/capstan-dev/capstan/internal/providers"
	"github.com/capstan-dev/capstan/internal/runtime/model"
	"github.com/capstan-dev/capstan/internal/runtime/tool"
	"github.com/capstan-dev/capstan/internal/secrets"
	"github.com/capstan-dev/capstan/internal/sharing"
	"github.com/capstan-dev/capstan/internal/toolbox"
)

// sharedProvider is a ModelProvider for a Turn if the ModelProvider or the Agent of the Turn is in another namespace.
// The consent of their owners is checked before each request, so a withdrawn consent takes effect at the next request.
type sharedProvider struct {
	model.Provider
	executor *Executor
	turn     *v1alpha1.Turn
	ref      v1alpha1.SharedReference
	// agentNamespace is the namespace of the Agent. The ModelProvider must allow this namespace.
	agentNamespace string
	// namespace is the namespace of the ModelProvider.
	namespace string
}

// Generate sends the request if the owners of the Agent and of the ModelProvider still allow it.
func (s *sharedProvider) Generate(ctx context.Context, req *model.Request) (*model.Reply, error) {
	e := s.executor
	err := e.checkConsent(ctx, s.turn)
	if err == nil {
		_, err = e.Sharing.Provider(ctx, e.objects(s.turn.Namespace), s.ref, s.agentNamespace)
	}
	if refused, ok := errors.AsType[*sharing.RefusedError](err); ok {
		return providers.Unusable(s.ref.String(), refused).Generate(ctx, req)
	}
	if err != nil {
		return nil, providers.Unsent(s.ref.String(), err)
	}
	reply, err := s.Provider.Generate(bytebudget.WithPayer(ctx, s.turn.Namespace), req)
	if s.namespace == s.turn.Namespace {
		return reply, err
	}
	clean := e.cleanShared(ctx, s.turn, s.namespace)
	if req.Facts != nil {
		req.Facts.Model = clean(req.Facts.Model)
	}
	if err != nil {
		return reply, model.AsError(s.withoutSecrets(err)).Redacted(clean)
	}
	reply.Redact(clean)
	return reply, nil
}

// cleanShared returns the function that removes the credentials of a namespace from a text of one of its servers, which
// it shares with the Turn. A shared server may know the credentials of other servers of its owner. They are removed
// here only if the run does not remove them from all texts of the Turn.
func (e *Executor) cleanShared(ctx context.Context, t *v1alpha1.Turn, namespace string) func(text string) string {
	if slices.Contains(t.CredentialNamespaces(), namespace) {
		return func(text string) string { return text }
	}
	return fairgate.Fairly(ctx, e.Credentials.RedactFunc(namespace))
}

// withoutSecrets returns an error of a request without the names of the owner's Secrets and workload tokens.
func (s *sharedProvider) withoutSecrets(err error) error {
	if _, ok := errors.AsType[*providers.SecretError](err); ok {
		return providers.Unsent(s.ref.String(), &providers.SecretError{Reason: "its credentials cannot be used: ask its owner"})
	}
	hidden := *model.AsError(err)
	_, unread := errors.AsType[*apierrors.StatusError](err)
	switch {
	case unread: // the API server did not return a Secret
		hidden.Message = fmt.Sprintf("the credentials of ModelProvider %q cannot be read at the moment", s.ref)
	case hidden.Kind == model.Auth && !hidden.Unsent:
		hidden.Message = fmt.Sprintf("the endpoint refused the credentials: ask the owner of ModelProvider %q", s.ref)
	default:
		return err
	}
	return &hidden
}

// sharedServers are the ToolServers of a Turn. The memory for results of servers in other namespaces is charged to the
// Turn's namespace. Errors of these servers do not name the owners' Secrets, and their texts do not contain the owners'
// credentials.
type sharedServers struct {
	toolbox.Servers
	executor *Executor
	turn     *v1alpha1.Turn
}

// Caller returns the caller of a tool.
func (s sharedServers) Caller(server *v1alpha1.ToolServer, name string) tool.Caller {
	caller := s.Servers.Caller(server, name)
	if server.Namespace == s.turn.Namespace {
		return caller
	}
	return tool.CallerFunc(func(ctx context.Context, call tool.Call) (tool.Result, error) {
		result, err := caller.Call(bytebudget.WithPayer(ctx, s.turn.Namespace), call)
		clean := s.executor.cleanShared(ctx, s.turn, server.Namespace)
		_, unusable := errors.AsType[*secrets.Error](err)
		if e, ok := errors.AsType[*tool.Error](err); ok {
			hidden := *e
			if unusable || mcp.IsRefused(err) {
				hidden.Message = fmt.Sprintf("tool server %q cannot be used with its credentials: ask its owner",
					server.Namespace+"/"+server.Name)
			}
			hidden.Message, hidden.RemoteMessage = clean(hidden.Message), clean(hidden.RemoteMessage)
			err = &hidden
		}
		return result.Map(clean), err
	})
}
