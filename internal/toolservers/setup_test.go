package toolservers_test

import (
	"context"
	"encoding/json"
	"net/http"
	"net/http/httptest"
	"sync"
	"testing"
	"time"

	"github.com/go-logr/logr"
	sdk "github.com/modelcontextprotocol/go-sdk/mcp"
	"go.uber.org/goleak"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"

	"github.com/capstan-dev/capstan/api/v1alpha1"
	"github.com/capstan-dev/capstan/internal/netpolicy"
	"github.com/capstan-dev/capstan/internal/runtime/tool"
	"github.com/capstan-dev/capstan/internal/toolbox"
	"github.com/capstan-dev/capstan/internal/toolservers"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// patience is long enough for any event in these tests.
const patience = time.Minute

var _ toolbox.Servers = (*toolservers.Cache)(nil)

// environment holds the Secrets that a cache reads, and the time that its clock shows.
type environment struct {
	mu    sync.Mutex
	data  map[string][]byte // of the Secret "tickets", which does not exist if data is nil
	err   error
	reads int
	now   time.Time
}

func (env *environment) read(_ context.Context, key types.NamespacedName) (*corev1.Secret, error) {
	env.mu.Lock()
	defer env.mu.Unlock()
	env.reads++
	if env.err != nil {
		return nil, env.err
	}
	if env.data == nil || key != (types.NamespacedName{Namespace: "demo", Name: "tickets"}) {
		return nil, apierrors.NewNotFound(schema.GroupResource{Resource: "secrets"}, key.Name)
	}
	return &corev1.Secret{Data: env.data}, nil
}

func (env *environment) clock() time.Time {
	env.mu.Lock()
	defer env.mu.Unlock()
	return env.now
}

// set changes the environment between two calls of the cache.
func (env *environment) set(change func(*environment)) {
	env.mu.Lock()
	defer env.mu.Unlock()
	change(env)
}

func newEnvironment(t *testing.T) (*environment, *toolservers.Cache) {
	t.Helper()
	env := &environment{data: map[string][]byte{"token": []byte("token-0")}, now: time.Date(2026, 6, 11, 15, 4, 5, 0, time.UTC)}
	c := toolservers.NewCache(env.read, netpolicy.NewLocalPolicy(), env.clock, logr.Discard())
	t.Cleanup(c.Close)
	return env, c
}

// fakeToolServer is an MCP server in the process of the test. It records the tokens that it receives.
type fakeToolServer struct {
	*sdk.Server
	URL string
	web *httptest.Server

	mu     sync.Mutex
	down   bool
	tokens []string
}

func serve(t *testing.T, names ...string) *fakeToolServer {
	t.Helper()
	s := &fakeToolServer{Server: sdk.NewServer(&sdk.Implementation{Name: "site", Version: "1.2.3"}, nil)}
	for _, name := range names {
		s.add(name)
	}
	handler := sdk.NewStreamableHTTPHandler(func(*http.Request) *sdk.Server { return s.Server }, nil)
	s.web = httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		s.mu.Lock()
		down := s.down
		s.tokens = append(s.tokens, r.Header.Get("Authorization"))
		s.mu.Unlock()
		if down {
			http.Error(w, "", http.StatusServiceUnavailable)
			return
		}
		handler.ServeHTTP(w, r)
	}))
	s.URL = s.web.URL
	t.Cleanup(func() {
		for session := range s.Sessions() {
			_ = session.Close() // the test is over
		}
		s.web.CloseClientConnections()
		s.web.Close()
	})
	return s
}

// add adds a tool that answers with its own name.
func (s *fakeToolServer) add(name string) {
	s.AddTool(&sdk.Tool{
		Name: name, Description: "Says " + name + ".",
		InputSchema: json.RawMessage(`{"type":"object","properties":{"n":{"type":"integer"}}}`),
	},
		func(context.Context, *sdk.CallToolRequest) (*sdk.CallToolResult, error) {
			return &sdk.CallToolResult{Content: []sdk.Content{&sdk.TextContent{Text: name}}}, nil
		})
}

func (s *fakeToolServer) setDown(down bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.down = down
}

// receivedTokens returns the tokens that the server received, each once, in order.
func (s *fakeToolServer) receivedTokens() []string {
	s.mu.Lock()
	defer s.mu.Unlock()
	var all []string
	seen := map[string]bool{}
	for _, token := range s.tokens {
		if !seen[token] {
			seen[token] = true
			all = append(all, token)
		}
	}
	return all
}

// sessions returns the number of the server's sessions.
func (s *fakeToolServer) sessions() int {
	n := 0
	for range s.Sessions() {
		n++
	}
	return n
}

// object returns a ToolServer.
func object(url string, mutate ...func(*v1alpha1.ToolServer)) *v1alpha1.ToolServer {
	s := &v1alpha1.ToolServer{
		ObjectMeta: metav1.ObjectMeta{Namespace: "demo", Name: "tickets", UID: "u1", Generation: 1},
		Spec: v1alpha1.ToolServerSpec{
			Type: v1alpha1.ToolServerTypeMCP, MCP: &v1alpha1.MCPEndpoint{URL: url}, CallTimeoutSeconds: 45, ConnectTimeoutSeconds: 30,
			CredentialsRef: &v1alpha1.SecretKeyReference{Name: "tickets", Key: "token"},
		},
	}
	for _, m := range mutate {
		m(s)
	}
	return s
}

// patient returns a context that ends with the test, or after patience.
func patient(t *testing.T) context.Context {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	t.Cleanup(cancel)
	return ctx
}

func call(t *testing.T, c *toolservers.Cache, s *v1alpha1.ToolServer, name string) (string, error) {
	t.Helper()
	result, err := c.Caller(s, name).Call(patient(t), tool.Call{Arguments: json.RawMessage(`{}`)})
	return result.Content, err
}

func names(tools []tool.Tool) []string {
	var all []string
	for i := range tools {
		all = append(all, tools[i].Name)
	}
	return all
}

// eventually waits for a condition.
func eventually(t *testing.T, what string, condition func() bool) {
	t.Helper()
	deadline := time.NewTimer(patience)
	defer deadline.Stop()
	tick := time.NewTicker(10 * time.Millisecond)
	defer tick.Stop()
	for !condition() {
		select {
		case <-tick.C:
		case <-deadline.C:
			t.Fatalf("waited %s for %s", patience, what)
		}
	}
}
