package toolservers_test

import (
	"errors"
	"fmt"
	"strings"
	"testing"

	"k8s.io/apimachinery/pkg/types"

	"github.com/capstan-dev/capstan/api/v1alpha1"
	"github.com/capstan-dev/capstan/internal/bytebudget"
	"github.com/capstan-dev/capstan/internal/mcp"
	"github.com/capstan-dev/capstan/internal/secrets"
)

// TestCredentialsAreCounted checks that the credentials of many ToolServers use at most the share of their namespace.
func TestCredentialsAreCounted(t *testing.T) {
	env, c := newEnvironment(t)
	c.SetMemoryBudget(bytebudget.New(8<<20, 8<<20))
	url := serve(t, "search").URL
	env.set(func(env *environment) {
		env.data["token"] = []byte(strings.Repeat("0123456789abcdef", secrets.MaxCredential/16))
	})
	for i := range 100 {
		s := object(url)
		s.Name, s.UID = fmt.Sprintf("s%d", i), types.UID(fmt.Sprint(i))
		_, err := c.Discover(t.Context(), s)
		if e, ok := errors.AsType[*mcp.Error](err); ok && e.Kind == mcp.NoMemory {
			if i < 3 || !strings.Contains(e.Message, "no memory left for the credentials") {
				t.Errorf("ToolServer %d: %v, want more of them, and the reason", i, err)
			}
			return
		} else if err != nil {
			t.Fatal(err)
		}
	}
	t.Error("100 ToolServers with a long credential fit into 8 MiB, want some of them refused")
}

// TestTooManyCredentials checks the bound of all credentials of a ToolServer together.
func TestTooManyCredentials(t *testing.T) {
	env, c := newEnvironment(t)
	env.set(func(env *environment) {
		env.data["token"] = []byte(strings.Repeat("0123456789abcdef", secrets.MaxCredential/16))
	})
	s := object(serve(t, "search").URL)
	for i := range 2 {
		s.Spec.Headers = append(s.Spec.Headers, v1alpha1.Header{
			Name: fmt.Sprintf("X-Key-%d", i), ValueFrom: &v1alpha1.HeaderSource{
				SecretKeyRef: v1alpha1.SecretKeyReference{Name: "tickets", Key: "token"},
			},
		})
	}
	_, err := c.Discover(t.Context(), s)
	if _, ok := errors.AsType[*secrets.Error](err); !ok || !strings.Contains(err.Error(), "49152 bytes together") {
		t.Errorf("three credentials of 16 KiB: %v, want a *secrets.Error with their length", err)
	}
}
