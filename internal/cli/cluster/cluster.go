// Package cluster reads the kubeconfig and gets Turns from the API server.
package cluster

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"net/http"
	"regexp"
	"strings"
	"sync"
	"time"

	authenticationv1 "k8s.io/api/authentication/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes/scheme"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/capstan-dev/capstan/api/v1alpha1"
	"github.com/capstan-dev/capstan/internal/cli/exit"
	"github.com/capstan-dev/capstan/internal/onclose"
)

// TurnKind is the kind of a Turn, for messages and references.
const TurnKind = "Turn"

// Flags select a cluster and the credentials for it.
type Flags struct {
	// Kubeconfig is the path of a kubeconfig file, and Context one of its contexts. If they are empty, the usual
	// file and its current context are used.
	Kubeconfig, Context string
	// Token replaces the credentials of the kubeconfig.
	Token string

	// once reads the kubeconfig that the flags select, only once, because the file may be a pipe. given is the client
	// configuration. Config copies it: if client-go made another one, it would change a part that both share.
	once      sync.Once
	given     *rest.Config
	namespace string
	failed    error
}

// read reads the kubeconfig that the flags select.
func (f *Flags) read() {
	rules := clientcmd.NewDefaultClientConfigLoadingRules()
	rules.ExplicitPath = f.Kubeconfig
	kubeconfig := clientcmd.NewNonInteractiveDeferredLoadingClientConfig(rules, &clientcmd.ConfigOverrides{CurrentContext: f.Context})
	if f.given, f.failed = kubeconfig.ClientConfig(); f.failed == nil {
		f.namespace, _, f.failed = kubeconfig.Namespace()
	}
}

// Config reads the kubeconfig. It returns the client configuration and the given namespace. If namespace is empty, it
// returns the namespace of the kubeconfig's context instead.
func (f *Flags) Config(namespace string) (*rest.Config, string, error) {
	if f.once.Do(f.read); f.failed != nil {
		return nil, "", fmt.Errorf("failed to read the kubeconfig: %w", f.failed)
	}
	return rest.CopyConfig(f.given), cmp.Or(namespace, f.namespace), nil
}

// Identity returns a client configuration that uses --token if it is set, and otherwise the credentials of the
// kubeconfig.
func (f *Flags) Identity(config *rest.Config) *rest.Config {
	if f.Token == "" {
		return config
	}
	acting := rest.AnonymousClientConfig(config)
	acting.BearerToken = f.Token
	return acting
}

// NewClient returns an API server client for Turns, ToolApprovals and the built-in kinds. The end of ctx ends all of
// its requests, even those by which it discovers the API server's kinds: the client sends these without a context.
func NewClient(ctx context.Context, config *rest.Config) (client.Client, error) {
	kinds := runtime.NewScheme()
	if err := errors.Join(scheme.AddToScheme(kinds), v1alpha1.AddToScheme(kinds)); err != nil {
		return nil, err
	}
	config = rest.CopyConfig(config)
	config.Wrap(func(next http.RoundTripper) http.RoundTripper { return untilEnd{ctx, next} })
	api, err := client.New(config, client.Options{Scheme: kinds})
	if err != nil {
		return nil, fmt.Errorf("failed to create a client of the API server: %w", err)
	}
	return api, nil
}

// untilEnd is a transport whose requests end with a context, in addition to their own.
type untilEnd struct {
	ctx  context.Context //nolint:containedctx // because some requests have no context of their own
	next http.RoundTripper
}

// RoundTrip sends a request.
func (t untilEnd) RoundTrip(r *http.Request) (*http.Response, error) {
	ctx, cancel := context.WithCancel(r.Context())
	stop := context.AfterFunc(t.ctx, cancel) //nolint:contextcheck // because the request ends with either context
	response, err := t.next.RoundTrip(r.WithContext(ctx))
	if err != nil {
		stop()
		cancel()
		return nil, err
	}
	response.Body = onclose.Body(response.Body, func() { stop(); cancel() })
	return response, nil
}

// WhoAmI returns the user, according to the API server.
func WhoAmI(ctx context.Context, api client.Client) (authenticationv1.UserInfo, error) {
	var review authenticationv1.SelfSubjectReview
	if err := api.Create(ctx, &review); err != nil {
		return authenticationv1.UserInfo{}, exit.WithCode(exit.Failed, fmt.Errorf("failed to ask the API server who you are: %w", err))
	}
	return review.Status.UserInfo, nil
}

// GetTurn gets a Turn from the cluster.
func GetTurn(ctx context.Context, api client.Client, namespace, name string) (*v1alpha1.Turn, error) {
	var t v1alpha1.Turn
	err := api.Get(ctx, types.NamespacedName{Namespace: namespace, Name: name}, &t)
	switch {
	case apierrors.IsNotFound(err):
		return nil, exit.WithCode(exit.Failed, fmt.Errorf("there is no Turn %s/%s", namespace, name))
	case err != nil:
		return nil, exit.WithCode(exit.Failed, fmt.Errorf("failed to get Turn %s/%s: %w", namespace, name, err))
	}
	return &t, nil
}

const (
	// mostCompleted and completionTimeout limit the number of names that a completion offers and the time to list
	// them.
	mostCompleted     = 500
	completionTimeout = 3 * time.Second
)

// TurnNames returns the names of the Turns of a namespace for which wanted returns true. It lists them with the
// credentials of Identity. It is for shell completion, so it lists at most mostCompleted Turns.
func (f *Flags) TurnNames(ctx context.Context, namespace string, wanted func(*v1alpha1.Turn) bool) ([]string, error) {
	ctx, cancel := context.WithTimeout(ctx, completionTimeout)
	defer cancel()
	config, namespace, err := f.Config(namespace)
	if err != nil {
		return nil, err
	}
	api, err := NewClient(ctx, f.Identity(config))
	if err != nil {
		return nil, err
	}
	var list v1alpha1.TurnList
	if err := api.List(ctx, &list, client.InNamespace(namespace), client.Limit(mostCompleted)); err != nil {
		return nil, err
	}
	found := make([]string, 0, len(list.Items))
	for i := range list.Items {
		if wanted(&list.Items[i]) {
			found = append(found, list.Items[i].Name)
		}
	}
	return found, nil
}

// IsRefused reports whether the API server refuses a request because of who sends it: Forbidden or Unauthorized. An API
// server that has not loaded its roles yet does so, too, so a refusal after a success may pass.
func IsRefused(err error) bool { return apierrors.IsForbidden(err) || apierrors.IsUnauthorized(err) }

// noPermission matches the message about a missing permission, which is the same for each authorizer.
var noPermission = regexp.MustCompile(`^[^ ]+( "[^"]*")? is forbidden: User "`)

// LacksPermission reports whether the API server refuses a request because the user lacks a permission. Forbidden is
// also the answer of admission: of a policy or a webhook that denies the object, of a ResourceQuota, and in a namespace
// that is being deleted. A permission changes none of these.
func LacksPermission(err error) bool {
	status, ok := errors.AsType[*apierrors.StatusError](err)
	return ok && apierrors.IsForbidden(err) && noPermission.MatchString(status.Status().Message)
}

// SplitName splits NAME or NAMESPACE/NAME of a Turn. given is the value of --namespace, which applies to a NAME alone.
func SplitName(turn, given string) (namespace, name string, err error) {
	namespace, name, qualified := strings.Cut(turn, "/")
	switch {
	case !qualified:
		namespace, name = given, turn
	case namespace == "": // for example, because a variable of a script is empty
		return "", "", fmt.Errorf("%q has no namespace before the slash: it must be NAME or NAMESPACE/NAME of a Turn", turn)
	case given != "" && given != namespace:
		return "", "", fmt.Errorf("the Turn %q and --namespace %q name different namespaces", turn, given)
	}
	if name == "" || strings.Contains(name, "/") {
		return "", "", fmt.Errorf("%q must be NAME or NAMESPACE/NAME of a Turn", turn)
	}
	return namespace, name, nil
}

// longestWait is the maximum of --wait-seconds.
const longestWait = 3600

// CheckWaitSeconds returns an error unless a value of --wait-seconds is valid.
func CheckWaitSeconds(seconds int) error {
	if seconds < 0 || seconds > longestWait {
		return fmt.Errorf("--wait-seconds is %d: it must be from 0 to %d", seconds, longestWait)
	}
	return nil
}
