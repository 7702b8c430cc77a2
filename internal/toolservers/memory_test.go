package toolservers_test

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"runtime"
	"strings"
	"testing"

	sdk "github.com/modelcontextprotocol/go-sdk/mcp"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/capstan-dev/capstan/api/v1alpha1"
	"github.com/capstan-dev/capstan/internal/bytebudget"
	"github.com/capstan-dev/capstan/internal/mcp"
)

// TestToolListsAreBounded checks that a namespace can hold only as many long lists of tools as the memory budget
// allows, also after a restart, and that a list that does not fit is refused each time. Another namespace has its own
// share.
func TestToolListsAreBounded(t *testing.T) {
	s := serve(t)
	schema := json.RawMessage(`{"type":"object","description":"` + strings.Repeat("x", 200<<10) + `"}`)
	s.AddTool(&sdk.Tool{Name: "long", InputSchema: schema}, func(context.Context, *sdk.CallToolRequest) (*sdk.CallToolResult, error) {
		return &sdk.CallToolResult{}, nil
	})
	const fit = 8 // of 201 KiB each, in seven eighths of 2 MiB
	for start := range 2 {
		_, c := newEnvironment(t)
		budget := bytebudget.New(2<<20, 64<<20)
		c.SetMemoryBudget(budget)
		server := func(namespace string, i int) *v1alpha1.ToolServer {
			return object(s.URL, func(o *v1alpha1.ToolServer) {
				o.Namespace, o.Name, o.Spec.CredentialsRef = namespace, fmt.Sprintf("tools-%d", i), nil
			})
		}
		for i := range 10 {
			for range 2 { // the second discovery reserves nothing more
				_, err := c.Discover(patient(t), server("greedy", i))
				failure, refused := errors.AsType[*mcp.Error](err)
				if refused = refused && failure.Kind == mcp.NoMemory; refused != (i >= fit) || err != nil && !refused {
					t.Fatalf("start %d, server %d: error %v, want the first %d lists to fit", start, i, err, fit)
				}
				if refused && !strings.Contains(err.Error(), "have the server list fewer tools") {
					t.Errorf("the error does not say what to do: %v", err)
				}
			}
		}
		if _, err := c.Discover(patient(t), server("victim", 0)); err != nil {
			t.Errorf("start %d: another namespace has no memory for its list: %v", start, err)
		}
		for i := range fit {
			c.Forget(client.ObjectKeyFromObject(server("greedy", i)))
		}
		eventually(t, "the memory of deleted servers' lists to be released", func() bool {
			runtime.GC()
			_, err := c.Discover(patient(t), server("greedy", 99))
			return err == nil
		})
	}
}
