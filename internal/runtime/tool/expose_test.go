package tool_test

import (
	"encoding/json"
	"fmt"
	"math/rand/v2"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/capstan-dev/capstan/internal/runtime/prompt"
	"github.com/capstan-dev/capstan/internal/runtime/tool"
)

func bare(names ...string) []tool.Tool {
	var all []tool.Tool
	for _, n := range names {
		all = append(all, tool.Tool{Tool: prompt.Tool{Name: n}})
	}
	return all
}

func server(name string, tools ...string) tool.Offer {
	return tool.Offer{Server: name, Tools: bare(tools...)}
}

func agent(name, as string) tool.Offer {
	return tool.Offer{Tools: []tool.Tool{{Tool: prompt.SubAgent(as, "Does it."), Source: tool.Source{Agent: name}}}}
}

func allowing(o tool.Offer, patterns ...string) tool.Offer {
	o.Allow = patterns
	return o
}

// sourcesAndNames returns one line for each tool, with its source and its name.
func sourcesAndNames(tools []tool.Tool) []string {
	var all []string
	for _, t := range tools {
		all = append(all, strings.Trim(t.Source.Server+"/"+t.Source.Name+t.Source.Agent, "/")+" "+t.Name)
	}
	return all
}

func TestNamesOfExposedTools(t *testing.T) {
	long := strings.Repeat("a", 64)
	for name, tc := range map[string]struct {
		reason string
		offers []tool.Offer
		want   []string
	}{
		"nothing": {"without offers there are no tools", nil, nil},
		"in order": {
			"the tools stay in the declared order",
			[]tool.Offer{server("z", "b", "a"), agent("x", "c")},
			[]string{"z/b b", "z/a a", "x c"},
		},
		"other letters": {
			"providers accept letters, digits, '_' and '-'",
			[]tool.Offer{server("s", "a.b/ü-1")},
			[]string{"s/a.b/ü-1 a_b__-1"},
		},
		"digit first": {
			"a name begins with a letter or '_'",
			[]tool.Offer{server("s", "1st", "-x", "")},
			[]string{"s/1st _1st", "s/-x _-x", "s _"},
		},
		"64 characters": {"64 characters is the maximum", []tool.Offer{server("s", long)}, []string{"s/" + long + " " + long}},
		"65 characters": {
			"a longer name ends in a hash, so that two long names stay different",
			[]tool.Offer{server("s", long+"b", long+"c")},
			[]string{"s/" + long + "b " + long[:55] + "_3e63da2d", "s/" + long + "c " + long[:55] + "_e644caa9"},
		},
		"two servers": {
			"all tools with the same name get their server's name as a prefix",
			[]tool.Offer{server("a", "search", "x"), server("b.c", "search")},
			[]string{"a/search a_search", "a/x x", "b.c/search b_c_search"},
		},
		"equal after cleaning": {
			"names of one server that become equal after cleaning get a hash",
			[]tool.Offer{server("a", "s.t", "s_t")},
			[]string{"a/s.t a_s_t_e4227aff", "a/s_t a_s_t_b9a78388"},
		},
		"reserved": {
			"Capstan's own tools keep their names",
			[]tool.Offer{server("a", "load_skill", "read_artifact", "given")},
			[]string{"a/load_skill a_load_skill", "a/read_artifact a_read_artifact", "a/given a_given"},
		},
		"sub-agent": {
			"a sub-agent keeps the name that its Agent declares",
			[]tool.Offer{server("a", "search"), agent("seeker", "search")},
			[]string{"a/search a_search", "seeker search"},
		},
		"two sub-agents": {
			"two sub-agents with the same name get a hash",
			[]tool.Offer{agent("x", "n"), agent("y", "n")},
			[]string{"x n_c96d73ac", "y n_53a399c1"},
		},
		"sub-agent with two names": {
			"one sub-agent may have two names",
			[]tool.Offer{agent("x", "m"), agent("x", "n"), agent("x", "m")},
			[]string{"x m", "x n"},
		},
		"prefix is taken": {
			"a prefix must not create the name of another tool",
			[]tool.Offer{server("a", "s"), server("b", "s"), server("c", "a_s")},
			[]string{"a/s a_s_7d190400", "b/s b_s", "c/a_s c_a_s_beb7e9fb"},
		},
		"equal prefixed names": {
			"two prefixed names must not be equal",
			[]tool.Offer{server("a", "b_s"), server("a_b", "s"), server("x", "s", "b_s")},
			[]string{"a/b_s a_b_s_c50f73b8", "a_b/s a_b_s_fb7f0814", "x/s x_s", "x/b_s x_b_s"},
		},
		"allowed twice": {
			"a tool that two entries of its server allow is listed once",
			[]tool.Offer{server("a", "s"), server("a", "s", "t")},
			[]string{"a/s s", "a/t t"},
		},
		"allow patterns": {
			"patterns match the server's names",
			[]tool.Offer{allowing(server("a", "get.a", "get.b", "set.a", "got"), "get.*", "go?")},
			[]string{"a/get.a get_a", "a/get.b get_b", "a/got got"},
		},
	} {
		t.Run(name, func(t *testing.T) {
			exposed := tool.Expose(t.Context(), tc.offers, append(tool.Reserved(), "given"))
			if diff := cmp.Diff(tc.want, sourcesAndNames(exposed)); diff != "" {
				t.Errorf("%s: -want +got:\n%s", tc.reason, diff)
			}
		})
	}
}

// TestNamesDoNotDependOnTheOrder shuffles servers whose tools have the same names.
func TestNamesDoNotDependOnTheOrder(t *testing.T) {
	fit := regexp.MustCompile(`^[A-Za-z_][A-Za-z0-9_-]{0,63}$`)
	random := rand.New(rand.NewPCG(1, 2))
	pick := func(choices ...string) string { return choices[random.IntN(len(choices))] }
	for range 300 {
		var offers []tool.Offer
		for _, s := range []string{"a", "b", "a_b", "a.b", strings.Repeat("long.", 12)} {
			var names []string
			for range 1 + random.IntN(5) {
				names = append(names, pick("", "a", "b", "s")+pick("_", ".", "", " ")+pick("s", "b_s", strings.Repeat("é", 70)))
			}
			offers = append(offers, server(s, names...))
		}
		offers = append(offers, agent("a", "a_s"), agent("b", "s"))
		names := func() map[string]string {
			all := map[string]string{}
			seen := map[string]bool{}
			for _, x := range tool.Expose(t.Context(), offers, tool.Reserved()) {
				if seen[x.Name] || !fit.MatchString(x.Name) {
					t.Fatalf("name %q is invalid, or used twice, for %v", x.Name, offers)
				}
				seen[x.Name] = true
				all[fmt.Sprint(x.Source)] = x.Name
			}
			return all
		}
		want := names()
		random.Shuffle(len(offers), func(i, j int) { offers[i], offers[j] = offers[j], offers[i] })
		if diff := cmp.Diff(want, names()); diff != "" {
			t.Fatalf("names in another order: -want +got:\n%s", diff)
		}
	}
}

// TestAServerCannotTakeAName checks a server that knows how names are made, and tries to get the names of other tools.
func TestAServerCannotTakeAName(t *testing.T) {
	victims := []tool.Offer{server("a", "s"), server("b", "s")}
	var wanted []string
	for range 4 {
		offers := append(slices.Clone(victims), server("evil", append([]string{"s", "a_s", "b_s"}, wanted...)...))
		seen := map[string]bool{}
		for _, x := range tool.Expose(t.Context(), offers, tool.Reserved()) {
			if seen[x.Name] {
				t.Fatalf("two tools have the name %q", x.Name)
			}
			seen[x.Name] = true
			if x.Source.Server != "evil" {
				wanted = append(wanted, x.Name)
			}
		}
	}
	if len(wanted) == 0 {
		t.Error("nothing was exposed at all")
	}
}

func TestAllowPatterns(t *testing.T) {
	for _, tc := range []struct {
		reason, pattern, name string
		want                  bool
	}{
		{"a name matches itself", "get", "get", true},
		{"a name does not match another name", "get", "gets", false},
		{"case matters", "get", "Get", false},
		{"'*' matches the empty text", "get*", "get", true},
		{"'*' matches any characters", "*", "a b/ü", true},
		{"'?' matches one character, not one byte", "g?t", "güt", true},
		{"'?' does not match the empty text", "get?", "get", false},
		{"a pattern may have several '*'", "*a*b?", "xaxbxaybz", true},
		{"several '*' may fail to match", "*a*b?c", "xaxbxaybz", false},
		{"other characters match themselves", "a[bc].{d}", "a[bc].{d}", true},
		{"other characters match nothing else", "a[bc]", "ab", false},
		{"an empty pattern matches only an empty name", "", "a", false},
		{"a name may contain '*' and '?'", "a?c", "a*c", true},
	} {
		got := tool.Expose(t.Context(), []tool.Offer{allowing(server("s", tc.name), tc.pattern)}, nil)
		if (len(got) == 1) != tc.want {
			t.Errorf("pattern %q and name %q match: %t, want %t: %s", tc.pattern, tc.name, !tc.want, tc.want, tc.reason)
		}
	}
	begin := time.Now()
	tool.Expose(t.Context(), []tool.Offer{allowing(server("s", strings.Repeat("a", 4000)), strings.Repeat("a*", 60)+"b")}, nil)
	if took := time.Since(begin); took > 10*time.Second {
		t.Errorf("a pattern with many stars took %s", took)
	}
}

func TestEntriesOfOneServer(t *testing.T) {
	strict := tool.Offer{Server: "s", Tools: bare("send", "find"), RequireApproval: []string{"se*"}, MaxCalls: 5}
	loose := tool.Offer{Server: "s", Tools: bare("send", "find"), MaxCalls: 2}
	other := tool.Offer{Server: "s", Tools: bare("send", "find"), Allow: []string{"nothing"}, RequireApproval: []string{"*"}, MaxCalls: 1}
	unbounded := server("s", "find", "send")
	for name, tc := range map[string]struct {
		reason   string
		offers   []tool.Offer
		approval bool
		maxCalls int
	}{
		"strict first": {
			"the strictest entry decides, and the lowest limit applies", []tool.Offer{strict, loose, unbounded}, true, 2,
		},
		"strict last": {"the strictest entry decides, in any order", []tool.Offer{unbounded, loose, strict}, true, 2},
		"other entry": {"an entry that does not allow the tool does not count", []tool.Offer{loose, other}, false, 2},
		"no limit":    {"without limits the tool has none", []tool.Offer{unbounded}, false, 0},
		"other server": {
			"entries of other servers do not count",
			[]tool.Offer{loose, {Server: "t", Tools: bare("x"), RequireApproval: []string{"*"}, MaxCalls: 1}},
			false, 2,
		},
		"tool's own settings": {
			"the tool's own settings are kept if they are stricter",
			[]tool.Offer{{
				Server: "s", Tools: []tool.Tool{{Tool: prompt.Tool{Name: "send"}, RequiresApproval: true, MaxCalls: 1}},
				MaxCalls: 3,
			}},
			true, 1,
		},
	} {
		t.Run(name, func(t *testing.T) {
			exposed := slices.DeleteFunc(tool.Expose(t.Context(), tc.offers, nil), func(x tool.Tool) bool { return x.Name != "send" })
			if len(exposed) != 1 {
				t.Fatalf("%d tools with the name send are exposed, want 1: %v", len(exposed), exposed)
			}
			if x := exposed[0]; x.RequiresApproval != tc.approval || x.MaxCalls != tc.maxCalls {
				t.Errorf("approval %t and at most %d calls, want %t and %d: %s",
					x.RequiresApproval, x.MaxCalls, tc.approval, tc.maxCalls, tc.reason)
			}
		})
	}
}

// TestExposeKeepsProperties checks that Expose keeps the known properties of a tool, and does not change its input.
func TestExposeKeepsProperties(t *testing.T) {
	offered := tool.Tool{
		Tool:   prompt.Tool{Name: "a.b", Description: "x\u202e", EndsTurn: true},
		Schema: json.RawMessage(`{"properties":{"n":{"type":"integer"}}}`),
		Effect: tool.Idempotent, Role: tool.WebSearch, Timeout: time.Second, RetryOnTimeout: true,
	}
	offers := []tool.Offer{{Server: "s", Tools: []tool.Tool{offered}}}
	before := fmt.Sprintf("%+v", offers)
	want := offered
	want.Name, want.Description, want.Schema = "a_b", "x", json.RawMessage(`{"properties":{"n":{"type":"integer"}},"type":"object"}`)
	want.Parameters = []prompt.Parameter{{Name: "n", Type: "integer"}}
	want.Source = tool.Source{Server: "s", Name: "a.b"}
	if diff := cmp.Diff([]tool.Tool{want}, tool.Expose(t.Context(), offers, nil)); diff != "" {
		t.Errorf("exposed tools: -want +got:\n%s", diff)
	}
	if after := fmt.Sprintf("%+v", offers); after != before {
		t.Errorf("the offers were changed: %s, before %s", after, before)
	}
}

func TestSplitContextTools(t *testing.T) {
	all := bare("a", "b", "c")
	all[1].Role = tool.ContextPack
	offered, packs := tool.SplitContextTools(all)
	if diff := cmp.Diff([][]tool.Tool{{all[0], all[2]}, {all[1]}}, [][]tool.Tool{offered, packs}); diff != "" {
		t.Errorf("offered tools and context packs: -want +got:\n%s", diff)
	}
}

func TestNewExposureSelectsTools(t *testing.T) {
	x := server("s", "a", "p1", "b", "p2", "p3", "c", "p4", "p5")
	for i := range x.Tools {
		if strings.HasPrefix(x.Tools[i].Name, "p") {
			x.Tools[i].Role = tool.ContextPack
		}
	}
	got := tool.NewExposure(t.Context(), []tool.Offer{x}, nil, tool.Selection{Most: 2})
	if diff := cmp.Diff([]string{"s/a a", "s/b b"}, sourcesAndNames(got.Tools)); diff != "" || got.LeftOut != 1 || got.Nonce != "" {
		t.Errorf("%d tools were left out, want one: -want +got:\n%s", got.LeftOut, diff)
	}
	if diff := cmp.Diff([]string{"s/p1 p1", "s/p2 p2", "s/p3 p3", "s/p4 p4"}, sourcesAndNames(got.ContextTools)); diff != "" {
		t.Errorf("context packs do not count as selected tools, and a Turn calls four: -want +got:\n%s", diff)
	}
}

func TestUnreachedServers(t *testing.T) {
	away := func(name string) tool.Offer { return tool.Offer{Server: name, Missing: true} }
	offers := []tool.Offer{away("z"), server("known", "a"), away("b"), away("z"), server("empty")}
	if diff := cmp.Diff([]string{"z", "b"}, tool.NewExposure(t.Context(), offers, nil, tool.Selection{Most: 9}).Missing); diff != "" {
		t.Errorf("missing servers, each once, without servers that have no tools: -want +got:\n%s", diff)
	}
	var many []tool.Offer
	for i := range 2 * tool.MaxMissing {
		many = append(many, away(fmt.Sprint(i)))
	}
	if got := tool.NewExposure(t.Context(), many, nil, tool.Selection{}).Missing; len(got) != tool.MaxMissing {
		t.Errorf("%d servers are named, want %d", len(got), tool.MaxMissing)
	}
}

func TestDescribeForPrompt(t *testing.T) {
	if got := tool.DescribeForPrompt(nil); got != nil {
		t.Errorf("DescribeForPrompt(nil) = %v, want nothing: there are no outputs to read", got)
	}
	got := tool.DescribeForPrompt(bare("a", "b"))
	if diff := cmp.Diff([]prompt.Tool{{Name: "a"}, {Name: "b"}, prompt.ReadArtifact()}, got); diff != "" {
		t.Errorf("DescribeForPrompt: -want +got:\n%s", diff)
	}
}
