package journals

import (
	"context"
	"fmt"

	authenticationv1 "k8s.io/api/authentication/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/rest"
	"sigs.k8s.io/controller-runtime/pkg/client"
)

const (
	// DefaultServiceAccount is the ServiceAccount whose token is sent by default if the kubeconfig has no token.
	DefaultServiceAccount = "capstan-turn-reader"
	// tokenSeconds is the lifetime of a token in seconds: the minimum that the API server allows.
	tokenSeconds = 600
)

// tokenSource creates tokens for ServiceAccounts of a Turn's namespace, as the user of the kubeconfig.
type tokenSource struct {
	api       client.Client
	namespace string
}

// token returns a new token for a ServiceAccount. The user must have permission to create the subresource
// serviceaccounts/token.
func (r tokenSource) token(ctx context.Context, name string) (string, error) {
	request := &authenticationv1.TokenRequest{Spec: authenticationv1.TokenRequestSpec{ExpirationSeconds: new(int64(tokenSeconds))}}
	account := &corev1.ServiceAccount{ObjectMeta: metav1.ObjectMeta{Namespace: r.namespace, Name: name}}
	if err := r.api.SubResource("token").Create(ctx, account, request); err != nil {
		return "", fmt.Errorf("the kubeconfig has no bearer token (it may have a client certificate), and no "+
			"token could be created for ServiceAccount %s/%s, "+
			"whose token is sent to the manager in this case: %w; set this up as in docs/access.md, or pass a token with --token",
			r.namespace, name, err)
	}
	return request.Status.Token, nil
}

// mayHaveToken reports whether a kubeconfig may have a bearer token: a text, a file or the output of a plug-in. A
// plug-in may return a client certificate instead; the request then fails with errNoToken.
func mayHaveToken(config *rest.Config) bool {
	return config.BearerToken != "" || config.BearerTokenFile != "" || config.ExecProvider != nil || config.AuthProvider != nil
}
