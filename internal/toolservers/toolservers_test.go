package toolservers_test

import (
	"context"
	"encoding/json"
	"encoding/pem"
	"errors"
	"io"
	"log"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/go-logr/logr"
	"github.com/google/go-cmp/cmp"
	sdk "github.com/modelcontextprotocol/go-sdk/mcp"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"

	"github.com/capstan-dev/capstan/api/v1alpha1"
	"github.com/capstan-dev/capstan/internal/mcp"
	"github.com/capstan-dev/capstan/internal/runtime/prompt"
	"github.com/capstan-dev/capstan/internal/runtime/tool"
	"github.com/capstan-dev/capstan/internal/secrets"
	"github.com/capstan-dev/capstan/internal/toolbox"
	"github.com/capstan-dev/capstan/internal/toolservers"
)

func TestToolsHaveDeclarations(t *testing.T) {
	s := serve(t, "close", "find", "look", "peek", "plain")
	_, c := newEnvironment(t)
	o := object(s.URL, func(o *v1alpha1.ToolServer) {
		o.Spec.Tools = []v1alpha1.ToolDeclaration{
			{
				Name: "find", Effect: v1alpha1.ToolEffectReadOnly, Role: v1alpha1.ToolRoleWebSearch,
				CallTimeoutSeconds: new(int32(20)), RetryOnTimeout: v1alpha1.RetryOnTimeoutOnce,
			},
			{Name: "close", EndsTurn: v1alpha1.EndsTurnOnSuccess},
			{Name: "look", Effect: v1alpha1.ToolEffectReadOnly},
			{Name: "peek", Effect: v1alpha1.ToolEffectReadOnly, RetryOnTimeout: v1alpha1.RetryOnTimeoutNever},
			{Name: "gone", Effect: v1alpha1.ToolEffectReadOnly},
		}
	})
	schema := json.RawMessage(`{"type":"object","properties":{"n":{"type":"integer"}}}`)
	want := []tool.Tool{
		{
			Tool: prompt.Tool{Name: "close", Description: "Says close.", EndsTurn: true}, Schema: schema,
			Effect: tool.Destructive, Role: tool.Other,
			Timeout: 45 * time.Second, Source: tool.Source{Server: "tickets", Name: "close"},
		},
		{
			Tool: prompt.Tool{Name: "find", Description: "Says find."}, Schema: schema, Effect: tool.ReadOnly, Role: tool.WebSearch,
			Timeout: 20 * time.Second, RetryOnTimeout: true, Source: tool.Source{Server: "tickets", Name: "find"},
		},
		{
			Tool: prompt.Tool{Name: "look", Description: "Says look."}, Schema: schema, Effect: tool.ReadOnly, Role: tool.Other,
			Timeout: 45 * time.Second, RetryOnTimeout: true, Source: tool.Source{Server: "tickets", Name: "look"},
		},
		{
			Tool: prompt.Tool{Name: "peek", Description: "Says peek."}, Schema: schema, Effect: tool.ReadOnly, Role: tool.Other,
			Timeout: 45 * time.Second, Source: tool.Source{Server: "tickets", Name: "peek"},
		},
		{
			Tool: prompt.Tool{Name: "plain", Description: "Says plain."}, Schema: schema, Effect: tool.Destructive, Role: tool.Other,
			Timeout: 45 * time.Second, Source: tool.Source{Server: "tickets", Name: "plain"},
		},
	}
	got, err := c.Tools(patient(t), o)
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("Tools: -want +got:\n%s", diff)
	}
	l, err := c.Discover(patient(t), o)
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(toolservers.Listing{
		ServerName: "site", ServerVersion: "1.2.3", ProtocolVersion: "2025-11-25",
		Tools: want, Hints: map[string]tool.Hints{},
	}, l); diff != "" {
		t.Errorf("Discover: -want +got:\n%s", diff)
	}
	got[0].Name = "renamed"
	again, err := c.Tools(patient(t), o)
	if err != nil || again[0].Name != "close" {
		t.Errorf("Tools = %v, %v; want a copy that one Turn can change without affecting another", names(again), err)
	}
	if &again[0].Schema[0] != &got[0].Schema[0] {
		t.Error("each Turn has its own schema, want one shared schema")
	}
	o.Generation, o.Spec.Tools = 2, nil
	if changed, err := c.Tools(patient(t), o); err != nil || changed[1].Effect != tool.Destructive {
		t.Errorf("Tools = %+v, %v; want the current declarations of the object", changed, err)
	}
	if n := s.sessions(); n != 1 {
		t.Errorf("%d sessions, want one: the server's address has not changed", n)
	}
}

// TestHintsGrantNothing checks that a server's hints never make an effect less strict than the declared one.
func TestHintsGrantNothing(t *testing.T) {
	s := serve(t)
	for name, hints := range map[string]*sdk.ToolAnnotations{
		"claims": {ReadOnlyHint: true}, "repeats": {IdempotentHint: true, DestructiveHint: new(false)}, "reads": {ReadOnlyHint: true},
		"writes": {DestructiveHint: new(true)}, "said": {ReadOnlyHint: true}, "stores": {DestructiveHint: new(true), IdempotentHint: true},
	} {
		s.AddTool(&sdk.Tool{Name: name, InputSchema: json.RawMessage(`{"type":"object"}`), Annotations: hints},
			func(context.Context, *sdk.CallToolRequest) (*sdk.CallToolResult, error) {
				return &sdk.CallToolResult{}, nil
			})
	}
	_, c := newEnvironment(t)
	o := object(s.URL, func(o *v1alpha1.ToolServer) {
		o.Spec.Tools = []v1alpha1.ToolDeclaration{
			{Name: "claims", Role: v1alpha1.ToolRoleContextPack},
			{Name: "reads", Effect: v1alpha1.ToolEffectReadOnly},
			{Name: "writes", Effect: v1alpha1.ToolEffectReadOnly},
			{Name: "said", Effect: v1alpha1.ToolEffectDestructive},
			{Name: "stores", Effect: v1alpha1.ToolEffectIdempotent},
		}
	})
	l, err := c.Discover(patient(t), o)
	if err != nil {
		t.Fatal(err)
	}
	got := map[string]tool.Effect{}
	for _, x := range l.Tools {
		got[x.Name] = x.Effect
	}
	want := map[string]tool.Effect{
		"claims": tool.Destructive, "repeats": tool.Destructive, "reads": tool.ReadOnly, "writes": tool.Destructive,
		"said":   tool.Destructive,
		"stores": tool.Idempotent,
	}
	if diff := cmp.Diff(want, got); diff != "" || len(l.Hints) != 6 {
		t.Errorf("%d tools have hints; effects: -want +got:\n%s", len(l.Hints), diff)
	}
}

// TestServerNameAndVersion checks that any name and version fit into a status.
func TestServerNameAndVersion(t *testing.T) {
	s := serve(t, "a")
	s.Server = sdk.NewServer(&sdk.Implementation{
		Name:    "\x1b[31mTickets\n& more\xff\u202e" + strings.Repeat("é", 300),
		Version: "1\u2028 token-0 " + strings.Repeat("x", 100),
	}, nil)
	_, c := newEnvironment(t)
	l, err := c.Discover(patient(t), object(s.URL))
	if err != nil {
		t.Fatal(err)
	}
	if want := "[31mTickets & more\uFFFD" + strings.Repeat("é", 253-19); l.ServerName != want {
		t.Errorf("server name %q, want one line of 253 characters: %q", l.ServerName, want)
	}
	if want := "1 [redacted] " + strings.Repeat("x", 64-13); l.ServerVersion != want {
		t.Errorf("server version %q, want one line of 64 characters, without the credential: %q", l.ServerVersion, want)
	}
}

// TestRotatedToken checks that the old and the new token are kept out of results: a server may store the tokens
// that it receives.
func TestRotatedToken(t *testing.T) {
	s := serve(t)
	s.AddTool(&sdk.Tool{Name: "log", InputSchema: json.RawMessage(`{"type":"object"}`)},
		func(context.Context, *sdk.CallToolRequest) (*sdk.CallToolResult, error) {
			return &sdk.CallToolResult{Content: []sdk.Content{&sdk.TextContent{Text: strings.Join(s.receivedTokens(), ", ")}}}, nil
		})
	env, c := newEnvironment(t)
	o := object(s.URL)
	for i, token := range []string{"the-first-token-0123456789", "the-second-token-987654321"} {
		env.set(func(env *environment) { env.data["token"], env.now = []byte(token), env.now.Add(time.Minute) })
		want := "Bearer [redacted]" + strings.Repeat(", Bearer [redacted]", i)
		if got, err := call(t, c, o, "log"); err != nil || got != want {
			t.Errorf("with token %d: %q, %v; want %q", i+1, got, err, want)
		}
	}
}

func TestOneConnectionPerServer(t *testing.T) {
	s := serve(t, "a")
	env, c := newEnvironment(t)
	o := object(s.URL)
	var all sync.WaitGroup
	for range 100 {
		all.Go(func() {
			if got, err := c.Tools(patient(t), o); err != nil || len(got) != 1 {
				t.Errorf("Tools = %v, %v", names(got), err)
			}
			if got, err := call(t, c, o, "a"); err != nil || got != "a" {
				t.Errorf("Call = %q, %v", got, err)
			}
		})
	}
	all.Wait()
	if n := s.sessions(); n != 1 {
		t.Errorf("%d sessions, want one for all", n)
	}
	env.set(func(env *environment) {
		if env.reads != 1 {
			t.Errorf("the Secret was read %d times, want once", env.reads)
		}
	})
}

func TestCredentials(t *testing.T) {
	s := serve(t, "a")
	env, c := newEnvironment(t)
	o := object(s.URL)
	mustCall := func() {
		t.Helper()
		if got, err := call(t, c, o, "a"); err != nil || got != "a" {
			t.Fatalf("Call = %q, %v", got, err)
		}
	}
	mustCall()
	env.set(func(env *environment) { env.data["token"] = []byte(" token-1\n") })
	mustCall() // within secretTTL, so the Secret is not read
	env.set(func(env *environment) { env.now = env.now.Add(10 * time.Second) })
	mustCall()
	if diff := cmp.Diff([]string{"Bearer token-0", "Bearer token-1"}, s.receivedTokens()); diff != "" {
		t.Errorf("tokens: -want +got:\n%s", diff)
	}
	eventually(t, "the connection with the old token to end", func() bool { return s.sessions() == 1 })

	env.set(func(env *environment) {
		env.now, env.err = env.now.Add(time.Minute), errors.New("no route to the API server")
	})
	mustCall() // the old credential is still used
	env.set(func(env *environment) {
		env.now, env.err = env.now.Add(time.Minute), apierrors.NewUnauthorized("the token cannot be verified")
	})
	mustCall() // this answer says nothing about the Secret

	env.set(func(env *environment) { env.now, env.err = env.now.Add(time.Minute), nil })
	mustCall()
	env.set(func(env *environment) {
		env.err = apierrors.NewForbidden(schema.GroupResource{Resource: "secrets"}, "tickets", errors.New("no permission"))
	})
	forbidden := env.err
	env.set(func(env *environment) {
		env.now, env.err = env.now.Add(time.Hour), errors.New("no route to the API server")
	})
	mustCall()
	env.set(func(env *environment) { env.err = forbidden })
	for range 5 {
		env.set(func(env *environment) { env.now = env.now.Add(time.Minute) })
		mustCall() // an API server that starts may not have loaded its roles yet
	}
	env.set(func(env *environment) { env.now = env.now.Add(time.Minute) })
	if _, err := call(t, c, o, "a"); tool.AsError(err).Class != tool.Unavailable {
		t.Errorf("Call after 5 minutes without the permission: %v, want it not made", err)
	}

	env.set(func(env *environment) { env.now, env.err, env.data = env.now.Add(time.Minute), nil, nil })
	_, err := call(t, c, o, "a")
	const want = `tool server "tickets": Secret "tickets" does not exist in namespace "demo": create it with key "token"`
	if e := tool.AsError(err); e.Class != tool.Unavailable || e.Message != want {
		t.Errorf("Call = %s %q, want %q", e.Class, e.Message, want)
	}
	if _, err := c.Discover(patient(t), o); !isSecret(err) {
		t.Errorf("Discover = %v, want a *secrets.Error", err)
	}
	if got, err := c.Tools(patient(t), o); err != nil || len(got) != 1 {
		t.Errorf("Tools = %v, %v; want the known tools", names(got), err)
	}
}

// TestCallWithoutSecrets checks that Current and a call say whether the credentials may be readable soon.
func TestCallWithoutSecrets(t *testing.T) {
	secrets := schema.GroupResource{Resource: "secrets"}
	for name, tc := range map[string]struct {
		err  error
		down bool
		want bool
	}{
		"no answer":          {errors.New("no route to the API server"), false, true},
		"unknown token":      {apierrors.NewUnauthorized("the token cannot be verified"), false, true},
		"no permission":      {apierrors.NewForbidden(secrets, "tickets", errors.New("no permission")), false, false},
		"no Secret":          {apierrors.NewNotFound(secrets, "tickets"), false, false},
		"unreachable server": {nil, true, false},
	} {
		t.Run(name, func(t *testing.T) {
			s := serve(t, "a")
			s.setDown(tc.down)
			env, c := newEnvironment(t)
			env.set(func(env *environment) { env.err = tc.err })
			if _, err := c.Current(patient(t), object(s.URL)); err == nil || errors.Is(err, tool.ErrUnread) != tc.want {
				t.Errorf("Current: %v, want ErrUnread: %t", err, tc.want)
			}
			if _, err := call(t, c, object(s.URL), "a"); err == nil || errors.Is(err, tool.ErrUnread) != tc.want {
				t.Errorf("Call: %v, want ErrUnread: %t", err, tc.want)
			}
		})
	}
}

func isSecret(err error) bool {
	_, ok := errors.AsType[*secrets.Error](err)
	return ok
}

func TestUnreachableServer(t *testing.T) {
	s := serve(t, "a")
	env, c := newEnvironment(t)
	s.setDown(true)
	o := object(s.URL, func(o *v1alpha1.ToolServer) {
		o.Spec.Tools = []v1alpha1.ToolDeclaration{
			{Name: "a", Effect: v1alpha1.ToolEffectReadOnly},
			{Name: "b", Effect: v1alpha1.ToolEffectReadOnly, Role: v1alpha1.ToolRoleContextPack},
		}
		o.Status.Tools = []v1alpha1.DiscoveredTool{
			{Name: "a", Description: "Was.", Effect: v1alpha1.ToolEffectReadOnly},
			{Name: "b", Effect: v1alpha1.ToolEffectDestructive},
			{Name: "old", Effect: v1alpha1.ToolEffectReadOnly},
		}
	})
	if got, err := c.Tools(patient(t), object(s.URL)); len(got) > 0 || !errors.Is(err, toolbox.ErrUnknown) {
		t.Errorf("Tools = %v, %v; want ErrUnknown for a server that was never reached", got, err)
	}
	o.Status.Tools = append(o.Status.Tools,
		v1alpha1.DiscoveredTool{Name: "c", Effect: v1alpha1.ToolEffectReadOnly, Unusable: "its schema is odd"})
	schema := json.RawMessage(`{"type":"object"}`)
	want := []tool.Tool{
		{
			Tool: prompt.Tool{Name: "a", Description: "Was."}, Schema: schema, Effect: tool.ReadOnly, Role: tool.Other,
			Timeout: 45 * time.Second, RetryOnTimeout: true, Source: tool.Source{Server: "tickets", Name: "a"},
		},
		{
			Tool: prompt.Tool{Name: "b"}, Schema: schema, Effect: tool.Destructive, Role: tool.ContextPack,
			Timeout: 45 * time.Second, Source: tool.Source{Server: "tickets", Name: "b"},
		},
		// The effect of an undeclared tool in the status may come from an older version, which believed the server's
		// hints.
		{
			Tool: prompt.Tool{Name: "old"}, Schema: schema, Effect: tool.Destructive, Role: tool.Other,
			Timeout: 45 * time.Second, Source: tool.Source{Server: "tickets", Name: "old"},
		},
	}
	got, err := c.Tools(patient(t), o)
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("usable tools in the status of a server that was never reached: -want +got:\n%s", diff)
	}
	_, err = c.Discover(patient(t), o)
	if e, ok := errors.AsType[*mcp.Error](err); !ok || e.Kind != mcp.Unreachable || e.Message != "the server failed (HTTP 503)" {
		t.Errorf("Discover = %v, want it unreachable", err)
	}
	if _, err := call(t, c, o, "a"); tool.AsError(err).Class != tool.Unavailable {
		t.Errorf("Call = %v, want Unavailable, because the call was not made", err)
	}

	s.setDown(false)
	if l, err := c.Discover(patient(t), o); err != nil || len(l.Tools) != 1 {
		t.Fatalf("Discover = %v, %v; want the tools as soon as the server is back", names(l.Tools), err)
	}
	s.setDown(true)
	env.set(func(env *environment) { env.now = env.now.Add(time.Hour) })
	if got, err := c.Tools(patient(t), o); err != nil || len(got) != 1 || got[0].Description != "Says a." {
		t.Errorf("Tools = %+v, %v; want the last known tools", got, err)
	}
	ended, cancel := context.WithCancel(patient(t))
	cancel()
	if _, err := c.Tools(ended, o); !errors.Is(err, context.Canceled) {
		t.Errorf("Tools with a cancelled context = %v, want the context's cause", err)
	}
}

func TestRecreatedObject(t *testing.T) {
	s, other := serve(t, "a"), serve(t, "b")
	_, c := newEnvironment(t)
	if got, err := c.Tools(patient(t), object(s.URL)); err != nil || len(got) != 1 {
		t.Fatalf("Tools = %v, %v", names(got), err)
	}
	moved := object(other.URL, func(o *v1alpha1.ToolServer) { o.Generation = 2 })
	if got, err := c.Tools(patient(t), moved); err != nil || names(got)[0] != "b" {
		t.Errorf("Tools = %v, %v; want those of the object's new address", names(got), err)
	}
	eventually(t, "the old connection to end", func() bool { return s.sessions() == 0 })

	other.setDown(true)
	recreated := object(other.URL, func(o *v1alpha1.ToolServer) { o.UID = "u2" })
	if got, err := c.Tools(patient(t), recreated); !errors.Is(err, toolbox.ErrUnknown) || len(got) != 0 {
		t.Errorf("Tools = %v, %v; want ErrUnknown: the known tools belong to a deleted object with the same name", names(got), err)
	}
	// The old connection may end before or after the server is back, so only the sessions from now on are counted.
	old := slices.Collect(other.Sessions())
	sessions := func() int {
		return len(slices.DeleteFunc(slices.Collect(other.Sessions()), func(s *sdk.ServerSession) bool { return slices.Contains(old, s) }))
	}
	other.setDown(false)
	if _, err := c.Discover(patient(t), recreated); err != nil || sessions() != 1 {
		t.Fatalf("Discover = %v with %d new sessions, want one", err, sessions())
	}
	c.Forget(types.NamespacedName{Namespace: "demo", Name: "tickets"})
	c.Forget(types.NamespacedName{Namespace: "demo", Name: "tickets"})
	eventually(t, "the connection of a deleted object to end", func() bool { return sessions() == 0 })
	c.Close()
	if _, err := c.Tools(patient(t), recreated); err == nil {
		t.Error("a closed cache has tools")
	}
	if _, err := call(t, c, recreated, "b"); tool.AsError(err).Class != tool.Unavailable {
		t.Errorf("Call = %v, want Unavailable", err)
	}
}

func TestChangesAreReported(t *testing.T) {
	s := serve(t, "a")
	_, c := newEnvironment(t)
	changed := make(chan types.NamespacedName, 100)
	c.OnChange(func(key types.NamespacedName) { changed <- key })
	o := object(s.URL)
	if _, err := c.Discover(patient(t), o); err != nil {
		t.Fatal(err)
	}
	s.add("b")
	// In case the server reported a change before the connection listened
	if _, err := c.Discover(patient(t), o); err != nil {
		t.Fatal(err)
	}
	select {
	case key := <-changed:
		if key != (types.NamespacedName{Namespace: "demo", Name: "tickets"}) {
			t.Errorf("%s has changed", key)
		}
	case <-time.After(patience):
		t.Fatal("no change was reported")
	}
	if got, err := c.Tools(patient(t), o); err != nil || strings.Join(names(got), " ") != "a b" {
		t.Errorf("Tools = %v, %v; want the new tool as well", names(got), err)
	}
}

func TestTLS(t *testing.T) {
	server := sdk.NewServer(&sdk.Implementation{Name: "site", Version: "1"}, nil)
	web := httptest.NewUnstartedServer(sdk.NewStreamableHTTPHandler(func(*http.Request) *sdk.Server { return server },
		&sdk.StreamableHTTPOptions{Stateless: true}))
	web.Config.ErrorLog = log.New(io.Discard, "", 0)
	web.StartTLS()
	t.Cleanup(web.Close)
	env, c := newEnvironment(t)
	o := object(web.URL, func(o *v1alpha1.ToolServer) {
		o.Spec.TLS = &v1alpha1.ClientTLS{CABundleRef: &v1alpha1.SecretKeyReference{Name: "tickets", Key: "ca.crt"}}
	})
	for name, tc := range map[string]struct {
		bundle []byte
		want   string
	}{
		"own certificate": {pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: web.Certificate().Raw}), ""},
		"missing":         {nil, `Secret "tickets" in namespace "demo" has no key "ca.crt": add it`},
		"bad": {[]byte("x"), `key "ca.crt" of Secret "tickets" in namespace "demo" has no certificate in ` +
			`PEM: put the certificates of the authorities there, as -----BEGIN CERTIFICATE-----`},
	} {
		env.set(func(env *environment) {
			if env.data["ca.crt"] = tc.bundle; tc.bundle == nil {
				delete(env.data, "ca.crt")
			}
		})
		_, err := c.Discover(patient(t), o)
		if tc.want == "" && err != nil || tc.want != "" && (!isSecret(err) || err.Error() != tc.want) {
			t.Errorf("%s: %v, want %q", name, err, tc.want)
		}
	}
}

func TestRefusedAddress(t *testing.T) {
	s := serve(t, "a")
	env, _ := newEnvironment(t)
	c := toolservers.NewCache(env.read, nil, env.clock, logr.Discard())
	t.Cleanup(c.Close)
	_, err := c.Discover(patient(t), object(s.URL))
	const want = "connections to 127.0.0.1 are refused: it is a loopback address; the manager's " +
		"--tool-allow-cidrs=127.0.0.1/32 would allow it"
	if e, ok := errors.AsType[*mcp.Error](err); !ok || e.Kind != mcp.Unreachable || e.Message != want {
		t.Errorf("Discover = %v, want %q", err, want)
	}
	if len(s.receivedTokens()) != 0 {
		t.Error("the server was reached")
	}
}
