package cli

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
	// defaultReader is the ServiceAccount as which journals are read by default where there is no token.
	defaultReader = "capstan-turn-reader"
	// readerSeconds is how long its token is valid: the least that the API server allows.
	readerSeconds = 600
)

// reader makes tokens of ServiceAccounts of a Turn's namespace, with the rights of the kubeconfig.
type reader struct {
	api       client.Client
	namespace string
}

// token returns a new token of a ServiceAccount. The API server has it made only for users who may create serviceaccounts/token of it.
func (r reader) token(ctx context.Context, name string) (string, error) {
	request := &authenticationv1.TokenRequest{Spec: authenticationv1.TokenRequestSpec{ExpirationSeconds: new(int64(readerSeconds))}}
	account := &corev1.ServiceAccount{ObjectMeta: metav1.ObjectMeta{Namespace: r.namespace, Name: name}}
	if err := r.api.SubResource("token").Create(ctx, account, request); err != nil {
		return "", fmt.Errorf("the kubeconfig has no bearer token (it may have a client certificate), and a token of ServiceAccount %s/%s, by which the journal is "+
			"read then, could not be made: %w; the page about access, docs/access.md, says how to set it up; or give a token with --token", r.namespace, name, err)
	}
	return request.Status.Token, nil
}

// bearsToken reports whether a kubeconfig may have a bearer token: a text, a file, or what a plug-in gets. A plug-in may also get a client
// certificate; then the request says that there is no token.
func bearsToken(config *rest.Config) bool {
	return config.BearerToken != "" || config.BearerTokenFile != "" || config.ExecProvider != nil || config.AuthProvider != nil
}
