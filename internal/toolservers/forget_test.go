package toolservers

import (
	"context"
	"encoding/json"
	"fmt"
	"net/http"
	"net/http/httptest"
	"testing"
	"time"

	"github.com/go-logr/logr"
	sdk "github.com/modelcontextprotocol/go-sdk/mcp"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/capstan-dev/capstan/api/v1alpha1"
	"github.com/capstan-dev/capstan/internal/netpolicy"
	"github.com/capstan-dev/capstan/internal/redact"
)

// TestDeletedServersLeaveNothing checks that no session, cache entry or credential remains of ToolServers that are
// deleted. Each of them is used once more after its deletion: by a Turn that still runs, and by a caller that was about
// to connect.
func TestDeletedServersLeaveNothing(t *testing.T) {
	server := sdk.NewServer(&sdk.Implementation{Name: "site", Version: "1"}, nil)
	server.AddTool(&sdk.Tool{Name: "a", InputSchema: json.RawMessage(`{"type":"object"}`)},
		func(context.Context, *sdk.CallToolRequest) (*sdk.CallToolResult, error) {
			return &sdk.CallToolResult{}, nil
		})
	web := httptest.NewServer(sdk.NewStreamableHTTPHandler(func(*http.Request) *sdk.Server { return server }, nil))
	defer web.Close()
	c := NewCache(func(context.Context, types.NamespacedName) (*corev1.Secret, error) {
		return &corev1.Secret{Data: map[string][]byte{"token": []byte("token-0")}}, nil
	}, netpolicy.NewLocalPolicy(), time.Now, logr.Discard())
	c.idle = 50 * time.Millisecond
	defer c.Close()
	known := redact.NewSet()
	c.SetCredentialSet(known)
	object := func(i int) *v1alpha1.ToolServer {
		return &v1alpha1.ToolServer{
			ObjectMeta: metav1.ObjectMeta{Namespace: "demo", Name: fmt.Sprint(i), UID: types.UID(fmt.Sprint(i)), Generation: 1},
			Spec: v1alpha1.ToolServerSpec{
				MCP: &v1alpha1.MCPEndpoint{URL: web.URL}, CredentialsRef: &v1alpha1.SecretKeyReference{Name: "tickets", Key: "token"},
			},
		}
	}
	for i := range 20 {
		s := object(i)
		if _, err := c.Tools(t.Context(), s); err != nil {
			t.Fatal(err)
		}
		e, err := c.entry(s)
		if err != nil {
			t.Fatal(err)
		}
		c.Forget(types.NamespacedName{Namespace: "demo", Name: s.Name})
		if e.client != nil || e.settings.token != "" {
			t.Fatal("the token is kept, want it forgotten with the object")
		}
		late, err := c.connection(t.Context(), e, s, secretTTL) // a caller that was about to connect
		if err != nil {
			t.Fatal(err)
		}
		if _, err := late.Discover(t.Context()); err != nil {
			t.Fatal(err)
		}
		if _, err := c.Tools(t.Context(), s); err != nil { // a Turn that is still running
			t.Fatal(err)
		}
	}
	for range maxIdleSweeps {
		c.Sweep()
	}
	c.Sweep()
	if got := known.Redact("demo", "token-0"); got != "token-0" {
		t.Errorf("the token is still redacted, want it forgotten with its objects: %q", got)
	}
	deadline := time.After(time.Minute)
	for {
		c.Sweep()
		sessions := 0
		for range server.Sessions() {
			sessions++
		}
		c.mu.Lock()
		entries, retired := len(c.entries), len(c.retired)
		c.mu.Unlock()
		if sessions == 0 && entries == 0 && retired == 0 {
			return
		}
		select {
		case <-time.After(10 * time.Millisecond):
		case <-deadline:
			t.Fatalf("%d sessions, %d entries and %d ended connections remain, want none", sessions, entries, retired)
		}
	}
}
