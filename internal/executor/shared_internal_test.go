package executor

import (
	"errors"
	"fmt"
	"strings"
	"testing"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/runtime/schema"

	"github.com/capstan-dev/capstan/api/v1alpha1"
	"github.com/capstan-dev/capstan/internal/providers"
	"github.com/capstan-dev/capstan/internal/runtime/model"
)

// TestErrorsOfSharedProvidersHideSecrets checks that the error of a request names no Secret of the owner, and that
// other errors stay as they are.
func TestErrorsOfSharedProvidersHideSecrets(t *testing.T) {
	const name = "platform-key"
	denied := apierrors.NewForbidden(schema.GroupResource{Resource: "secrets"}, name, errors.New("no rule"))
	ref := v1alpha1.SharedReference{Namespace: "platform", Name: "shared"}
	for why, tc := range map[string]struct {
		err  error
		want string
	}{
		"a missing Secret": {
			providers.Unsent("shared", &providers.SecretError{Reason: "Secret " + name + " does not exist"}),
			`provider "platform/shared": its credentials cannot be used: ask its owner`,
		},
		"a Secret that may not be read": {
			providers.Unsent("shared", fmt.Errorf("failed to read Secret %q: %w", name, denied)),
			`the credentials of ModelProvider "platform/shared" cannot be read at the moment`,
		},
		"a refused key": {
			&model.Error{Kind: model.Auth, Message: "check Secret " + name},
			`the endpoint refused the credentials: ask the owner of ModelProvider "platform/shared"`,
		},
		"a proxy":         {&model.Error{Kind: model.Auth, Unsent: true, Message: "the proxy refused"}, "the proxy refused"},
		"another failure": {&model.Error{Kind: model.Timeout, Message: "no answer"}, "no answer"},
	} {
		err := (&sharedProvider{ref: ref}).withoutSecrets(tc.err)
		if err.Error() != tc.want || strings.Contains(err.Error(), name) {
			t.Errorf("%s: %q, want %q", why, err, tc.want)
		}
		if got, want := model.AsError(err), model.AsError(tc.err); got.Kind != want.Kind || got.Unsent != want.Unsent {
			t.Errorf("%s: the error is %+v, want the kind of %+v", why, got, want)
		}
	}
}
