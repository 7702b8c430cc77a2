package toolservers

import (
	"context"
	"encoding/json"
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
	"github.com/capstan-dev/capstan/internal/runtime/tool"
)

// TestIdleConnectionIsClosed checks that an idle connection is closed and its token forgotten, and that a tool can be
// called again afterwards.
func TestIdleConnectionIsClosed(t *testing.T) {
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
	s := &v1alpha1.ToolServer{
		ObjectMeta: metav1.ObjectMeta{Namespace: "demo", Name: "tickets", UID: "u1", Generation: 1},
		Spec: v1alpha1.ToolServerSpec{
			MCP: &v1alpha1.MCPEndpoint{URL: web.URL}, CredentialsRef: &v1alpha1.SecretKeyReference{Name: "tickets", Key: "token"},
		},
	}
	for range 2 {
		if tools, err := c.Tools(t.Context(), s); err != nil || len(tools) != 1 {
			t.Fatalf("Tools = %v, %v", tools, err)
		}
		if _, err := c.Caller(s, "a").Call(t.Context(), tool.Call{Arguments: json.RawMessage(`{}`)}); err != nil {
			t.Fatal(err)
		}
		e, err := c.entry(s)
		if err != nil {
			t.Fatal(err)
		}
		deadline := time.After(time.Minute)
		for closed := false; !closed; {
			select {
			case <-time.After(10 * time.Millisecond):
			case <-deadline:
				t.Fatal("the connection is kept, want it closed and its token forgotten")
			}
			e.lock <- struct{}{}
			closed = e.client == nil && e.settings.token == ""
			e.unlock()
		}
		if got := known.Redact("demo", "token-0"); got != "token-0" {
			t.Errorf("the token is still redacted, want it forgotten with its connection: %q", got)
		}
		if e.lastKnown(t.Context(), s) == nil {
			t.Error("the known tools are gone, want them kept for an unreachable server")
		}
	}
}
