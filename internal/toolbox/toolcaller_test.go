package toolbox_test

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"testing"
	"testing/synctest"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/capstan-dev/capstan/api/v1alpha1"
	"github.com/capstan-dev/capstan/internal/runtime/prompt"
	"github.com/capstan-dev/capstan/internal/runtime/tool"
	"github.com/capstan-dev/capstan/internal/toolbox"
)

// fakeCluster is a cluster with one ToolServer and one Agent; a test can replace both.
type fakeCluster struct {
	uid    types.UID
	schema string
	err    error
	calls  int
}

func (f *fakeCluster) Tools(context.Context, *v1alpha1.ToolServer) ([]tool.Tool, error) {
	return []tool.Tool{
		{Tool: prompt.Tool{Name: "look"}, Schema: json.RawMessage(f.schema)},
		{Tool: prompt.Tool{Name: "close"}, Schema: json.RawMessage(f.schema)},
	}, f.err
}

func (f *fakeCluster) Current(ctx context.Context, s *v1alpha1.ToolServer) ([]tool.Tool, error) {
	return f.Tools(ctx, s)
}

func (f *fakeCluster) Caller(*v1alpha1.ToolServer, string) tool.Caller { return f }

// Call counts calls.
func (f *fakeCluster) Call(context.Context, tool.Call) (tool.Result, error) {
	f.calls++
	return tool.Result{Content: "done"}, nil
}

// box returns a toolbox with one ToolServer and one Agent. The tools "close" and "helper" require approval.
func (f *fakeCluster) box() *toolbox.Box {
	agent := &v1alpha1.Agent{}
	agent.Spec.Tools = []v1alpha1.AgentTool{
		{ServerRef: &v1alpha1.SharedReference{Name: "tickets"}, RequireApproval: []string{"close"}},
		{AgentRef: &v1alpha1.SharedReference{Name: "helper"}, RequireApproval: []string{"*"}},
	}
	meta := func(name string) metav1.ObjectMeta { return metav1.ObjectMeta{Name: name, UID: f.uid} }
	return &toolbox.Box{
		Agent: agent, MaxDepth: 1, MaxDescendants: 1, Servers: f,
		Call: func(_ string, mayCreate func(context.Context) error) tool.Caller {
			return tool.CallerFunc(func(ctx context.Context, c tool.Call) (tool.Result, error) {
				if err := mayCreate(ctx); err != nil {
					return tool.Result{}, err
				}
				return f.Call(ctx, c)
			})
		},
		Server: func(_ context.Context, name string) (*v1alpha1.ToolServer, error) {
			return &v1alpha1.ToolServer{ObjectMeta: meta(name)}, nil
		},
		SubAgent: func(_ context.Context, name string) (*v1alpha1.Agent, error) {
			return &v1alpha1.Agent{ObjectMeta: meta(name)}, nil
		},
	}
}

// TestApprovedToolMustNotBeReplaced checks that a tool that requires approval is not called if its object or its schema
// was replaced: the call would not be the approved one.
func TestApprovedToolMustNotBeReplaced(t *testing.T) {
	for name, tc := range map[string]struct {
		reason  string
		tool    string
		change  func(*fakeCluster)
		changed bool
		made    bool
	}{
		"nothing": {"the tool is the same", "close", func(*fakeCluster) {}, false, true},
		"server":  {"another ToolServer has the name", "close", func(f *fakeCluster) { f.uid = "second" }, true, false},
		"schema": {
			"the tool takes other arguments now", "close",
			func(f *fakeCluster) { f.schema = `{"type":"object","properties":{"all":{"type":"boolean"}}}` }, true, false,
		},
		"same schema": {
			"white space and order do not matter", "close",
			func(f *fakeCluster) { f.schema = ` { "properties" : {"id":{"type" : "string"}}, "type":"object" }` }, false, true,
		},
		"unreachable": {
			"nobody knows whether the tool is the same", "close",
			func(f *fakeCluster) { f.err = errors.New("unreachable") }, false, false,
		},
		"agent": {"another Agent has the name", "helper", func(f *fakeCluster) { f.uid = "second" }, true, false},
		"without approval": {
			"no approver saw the tool", "look",
			func(f *fakeCluster) { f.uid, f.schema, f.err = "second", `{}`, errors.New("unreachable") }, false, true,
		},
	} {
		t.Run(name, func(t *testing.T) {
			f := &fakeCluster{uid: "first", schema: `{"type":"object","properties":{"id":{"type":"string"}}}`}
			box := f.box()
			offers, err := box.Offers(t.Context())
			if err != nil {
				t.Fatal(err)
			}
			var of tool.Tool
			for _, exposed := range tool.Expose(t.Context(), offers, nil) {
				data, err := json.Marshal(exposed) // in the form that a journal stores
				if err != nil {
					t.Fatal(err)
				}
				if exposed.Name == tc.tool && json.Unmarshal(data, &of) != nil {
					t.Fatal("the tool cannot be read back")
				}
			}
			if of.Source.UID != "first" {
				t.Fatalf("the tool comes from %+v, want the UID of its object", of.Source)
			}
			tc.change(f)
			caller := box.Caller(of)
			if of.RequiresApproval {
				err := caller.(tool.Checker).Check(t.Context())
				if errors.Is(err, tool.ErrChanged) != tc.changed || (err == nil) != tc.made {
					t.Errorf("Check: %v: %s", err, tc.reason)
				}
			}
			_, err = caller.Call(t.Context(), tool.Call{Attempt: 1, Arguments: json.RawMessage(`{}`)})
			if (err == nil) != tc.made || f.calls == 1 != tc.made {
				t.Errorf("Call: %v after %d calls: %s", err, f.calls, tc.reason)
			}
			if err != nil && tool.AsError(err).Class != tool.Unavailable {
				t.Errorf("class %q, want unavailable: nothing was called", tool.AsError(err).Class)
			}
		})
	}
}

// TestCheckOfAnUnreadTool checks that the check of a tool says whether its object is gone, or could not be read.
func TestCheckOfAnUnreadTool(t *testing.T) {
	for name, source := range map[string]tool.Source{"server": {Server: "tickets", Name: "close"}, "agent": {Agent: "helper"}} {
		t.Run(name, func(t *testing.T) {
			for _, tc := range []struct {
				err  error
				want bool
			}{{errors.New("the API server is away"), true}, {fmt.Errorf("%w: it is gone", toolbox.ErrUnusable), false}} {
				box := (&fakeCluster{}).box()
				box.Server = func(context.Context, string) (*v1alpha1.ToolServer, error) { return nil, tc.err }
				box.SubAgent = func(context.Context, string) (*v1alpha1.Agent, error) { return nil, tc.err }
				caller := box.Caller(tool.Tool{Source: source, RequiresApproval: true})
				err := caller.(tool.Checker).Check(t.Context())
				if tool.AsError(err).Class != tool.Unavailable || !errors.Is(err, tc.err) || errors.Is(err, tool.ErrUnread) != tc.want {
					t.Errorf("Check: %v, want ErrUnread: %t", err, tc.want)
				}
			}
		})
	}
}

// unreadFor is a toolbox whose first reads from the API server fail: those of the ToolServer and the Agent, or else
// those of the credentials for a call.
type unreadFor struct {
	fakeCluster
	objects, credentials int
	mayHaveActed         bool
	// cause is the cause of the failures for the credentials. The default is tool.ErrUnread.
	cause error
}

// fails reports whether a read fails, and counts it.
func fails(left *int) bool {
	*left--
	return *left >= 0
}

// Caller returns a caller that needs the credentials.
func (u *unreadFor) Caller(*v1alpha1.ToolServer, string) tool.Caller {
	return tool.CallerFunc(func(ctx context.Context, c tool.Call) (tool.Result, error) {
		if fails(&u.credentials) {
			return tool.Result{}, &tool.Error{
				Class: tool.Unavailable, Message: "its credentials could not be read", MayHaveActed: u.mayHaveActed,
				Err: cmp.Or(u.cause, tool.ErrUnread),
			}
		}
		return u.Call(ctx, c)
	})
}

// TestCallWaitsForTheAPIServer checks that a call without approval waits within its time while the API server gives no
// answer about its tool, and then fails without a call.
func TestCallWaitsForTheAPIServer(t *testing.T) {
	const callTime = 10 * time.Second
	for name, tc := range map[string]struct {
		source tool.Source
		unread unreadFor
		made   bool
		waits  bool
	}{
		"credentials": {tool.Source{Server: "tickets", Name: "look"}, unreadFor{credentials: 3}, true, true},
		"no socket": {
			tool.Source{Server: "tickets", Name: "look"}, unreadFor{credentials: 3, cause: tool.ErrOwnShortage}, true, true,
		},
		"ToolServer":            {tool.Source{Server: "tickets", Name: "look"}, unreadFor{objects: 3}, true, true},
		"Agent":                 {tool.Source{Agent: "owner/helper"}, unreadFor{objects: 3}, true, true},
		"credentials, for long": {tool.Source{Server: "tickets", Name: "look"}, unreadFor{credentials: 1000}, false, true},
		"Agent, for long":       {tool.Source{Agent: "owner/helper"}, unreadFor{objects: 1000}, false, true},
		"after a call that may have been sent": {
			tool.Source{Server: "tickets", Name: "look"}, unreadFor{credentials: 1, mayHaveActed: true}, false, false,
		},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				u := tc.unread
				box := u.box()
				box.Servers = &u
				server, agent := box.Server, box.SubAgent
				away := errors.New("the API server is away")
				box.Server = func(ctx context.Context, name string) (*v1alpha1.ToolServer, error) {
					if fails(&u.objects) {
						return nil, away
					}
					return server(ctx, name)
				}
				box.SubAgent = func(ctx context.Context, name string) (*v1alpha1.Agent, error) {
					if fails(&u.objects) {
						return nil, away
					}
					return agent(ctx, name)
				}
				ctx, cancel := context.WithTimeout(t.Context(), callTime)
				defer cancel()
				begin := time.Now()
				_, err := box.Caller(tool.Tool{Source: tc.source}).Call(ctx, tool.Call{Attempt: 1, Arguments: json.RawMessage(`{}`)})
				if (err == nil) != tc.made || u.calls == 1 != tc.made {
					t.Errorf("Call: %v after %d calls, want it made: %t", err, u.calls, tc.made)
				}
				if err != nil && (tool.AsError(err).Class != tool.Unavailable || !errors.Is(err, tool.ErrUnread)) {
					t.Errorf("Call: %v, want the error of the read", err)
				}
				if took := time.Since(begin); took > callTime/2 || took > 0 != tc.waits {
					t.Errorf("Call took %s of %s, want at most half, and a wait: %t", took, callTime, tc.waits)
				}
			})
		})
	}
}

// TestCallEndsWithItsContext checks that a call that waits for the API server ends with its context, and still says
// that nothing was sent.
func TestCallEndsWithItsContext(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		ctx, cancel := context.WithCancel(t.Context())
		u := unreadFor{credentials: 1000}
		box := u.box()
		box.Servers = &u
		time.AfterFunc(time.Second, cancel)
		begin := time.Now()
		_, err := box.Caller(tool.Tool{Source: tool.Source{Server: "tickets", Name: "look"}}).Call(ctx, tool.Call{Attempt: 1})
		if tool.AsError(err).Class != tool.Unavailable || tool.IsUncertain(err) || time.Since(begin) != time.Second {
			t.Errorf("Call: %v after %s, want an error of the class Unavailable after a second", err, time.Since(begin))
		}
	})
}

// TestEffectIsTheCurrentDeclaration checks that the effect is the one that the ToolServer declares now, and that
// another ToolServer with the same name declares nothing.
func TestEffectIsTheCurrentDeclaration(t *testing.T) {
	for name, tc := range map[string]struct {
		reason string
		source tool.Source
		effect v1alpha1.ToolEffect
		err    error
		want   tool.Effect
	}{
		"declared": {
			"the ToolServer declares the effect",
			tool.Source{Server: "tickets", Name: "look", UID: "first"},
			"ReadOnly", nil, tool.ReadOnly,
		},
		"corrected": {
			"the ToolServer declares another effect now",
			tool.Source{Server: "tickets", Name: "look", UID: "first"},
			"Destructive", nil, tool.Destructive,
		},
		"not declared": {
			"no effect is declared",
			tool.Source{Server: "tickets", Name: "close", UID: "first"},
			"ReadOnly", nil, tool.Destructive,
		},
		"replaced": {
			"another ToolServer has the name",
			tool.Source{Server: "tickets", Name: "look", UID: "zeroth"},
			"ReadOnly", nil, tool.Destructive,
		},
		"journal without a UID": {
			"older versions recorded no UID",
			tool.Source{Server: "tickets", Name: "look"},
			"ReadOnly", nil,
			tool.ReadOnly,
		},
		"deleted ToolServer": {
			"nothing is declared any more",
			tool.Source{Server: "tickets", Name: "look", UID: "first"},
			"ReadOnly", fmt.Errorf("%w: it is gone", toolbox.ErrUnusable), tool.Destructive,
		},
		"sub-agent": {"a repeated call finds its Turn", tool.Source{Agent: "helper", UID: "zeroth"}, "", nil, tool.Idempotent},
	} {
		t.Run(name, func(t *testing.T) {
			box := (&fakeCluster{}).box()
			box.Server = func(context.Context, string) (*v1alpha1.ToolServer, error) {
				s := &v1alpha1.ToolServer{ObjectMeta: metav1.ObjectMeta{Name: "tickets", UID: "first"}}
				s.Spec.Tools = []v1alpha1.ToolDeclaration{{Name: "look", Effect: tc.effect}}
				return s, tc.err
			}
			if got, err := box.Effect(t.Context(), tool.Tool{Source: tc.source, Effect: tool.Idempotent}); got != tc.want || err != nil {
				t.Errorf("%q (error %v), want %q: %s", got, err, tc.want, tc.reason)
			}
		})
	}
	box := (&fakeCluster{}).box()
	unread := errors.New("the API server is away")
	box.Server = func(context.Context, string) (*v1alpha1.ToolServer, error) { return nil, unread }
	if got, err := box.Effect(t.Context(), tool.Tool{Source: tool.Source{Server: "tickets"}}); got != "" || !errors.Is(err, unread) {
		t.Errorf("%q (error %v) while the ToolServer cannot be read, want the cause: the declaration is not known", got, err)
	}
	ended, end := context.WithCancel(t.Context())
	end()
	box.Server = func(context.Context, string) (*v1alpha1.ToolServer, error) { return nil, context.Canceled }
	if _, err := box.Effect(ended, tool.Tool{Source: tool.Source{Server: "tickets"}}); !errors.Is(err, context.Canceled) {
		t.Errorf("error %v after the run has ended, want the cause of the end", err)
	}
}

// TestCallsOfAgentsOfOtherNamespaces checks that a call that creates a Turn needs the consent of the Agent's owner,
// even if the call is repeated. A call that finds its Turn needs no consent.
func TestCallsOfAgentsOfOtherNamespaces(t *testing.T) {
	for name, tc := range map[string]struct {
		agent   string
		attempt int
		found   bool
		made    bool
	}{
		"a new call":                                           {"owner/helper", 1, false, false},
		"a repeated call that finds its Turn":                  {"owner/helper", 2, true, true},
		"a repeated call that creates its Turn":                {"owner/helper", 2, false, false},
		"an Agent of the same namespace, which may be missing": {"helper", 1, false, true},
	} {
		t.Run(name, func(t *testing.T) {
			called := ""
			box := &toolbox.Box{
				SubAgent: func(context.Context, string) (*v1alpha1.Agent, error) {
					return nil, fmt.Errorf("%w: refused", toolbox.ErrUnusable)
				},
				Call: func(agent string, mayCreate func(context.Context) error) tool.Caller {
					return tool.CallerFunc(func(ctx context.Context, _ tool.Call) (tool.Result, error) {
						if !tc.found {
							if err := mayCreate(ctx); err != nil {
								return tool.Result{}, err
							}
						}
						called = agent
						return tool.Result{}, nil
					})
				},
			}
			_, err := box.Caller(tool.Tool{Source: tool.Source{Agent: tc.agent}}).Call(t.Context(), tool.Call{Attempt: tc.attempt})
			if made := called == tc.agent; made != tc.made || (err == nil) != tc.made {
				t.Errorf("the call was made: %t, %v; want %t", made, err, tc.made)
			}
			if err != nil && tool.AsError(err).Class != tool.Unavailable {
				t.Errorf("class %q, want unavailable: nothing was called", tool.AsError(err).Class)
			}
		})
	}
}
