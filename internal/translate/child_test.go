package translate_test

import (
	"encoding/json"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/shopspring/decimal"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/validation"

	"github.com/capstan-dev/capstan/api/v1alpha1"
	"github.com/capstan-dev/capstan/internal/runtime/model"
	"github.com/capstan-dev/capstan/internal/runtime/tool"
	"github.com/capstan-dev/capstan/internal/translate"
)

func callOf(change ...func(*translate.ChildCall)) translate.ChildCall {
	c := translate.ChildCall{
		Parent: &v1alpha1.Turn{
			ObjectMeta: metav1.ObjectMeta{Namespace: "demo", Name: "parent", UID: "u"},
			Spec: v1alpha1.TurnSpec{
				RequestedBy: &v1alpha1.Requester{Username: "ada"}, Depth: new(int32(1)), WebMode: v1alpha1.WebModeOn,
				Limits: &v1alpha1.Limits{MaxDepth: new(int32(2))},
			},
		},
		Caller: &v1alpha1.Agent{Spec: v1alpha1.AgentSpec{Limits: &v1alpha1.Limits{ApprovalTimeoutSeconds: new(int32(60))}}},
		Agent:  "helper", Step: 2, CallID: "call-1", Task: "Look it up.", Left: tool.Left{Time: 1500 * time.Millisecond}, Descendants: 5,
	}
	for _, f := range change {
		f(&c)
	}
	return c
}

func TestChild(t *testing.T) {
	got, err := translate.Child(callOf(func(c *translate.ChildCall) {
		c.Context, c.Left.Tokens, c.Left.Cost = "It is blue.", new(int64(100)), new(decimal.RequireFromString("0.5"))
	}))
	want := &v1alpha1.Turn{
		ObjectMeta: metav1.ObjectMeta{
			Namespace: "demo", Name: "-", Labels: map[string]string{"capstan.dev/parent": "parent"},
			OwnerReferences: []metav1.OwnerReference{{
				APIVersion: "capstan.dev/v1alpha1", Kind: "Turn", Name: "parent", UID: "u", Controller: new(true),
				BlockOwnerDeletion: new(false),
			}},
		},
		Spec: v1alpha1.TurnSpec{
			AgentRef: v1alpha1.SharedReference{Name: "helper"}, RequestedBy: &v1alpha1.Requester{Username: "ada"},
			Message: "Look it up.\n\nContext:\nIt is blue.", Depth: new(int32(2)), WebMode: v1alpha1.WebModeOn,
			Limits: &v1alpha1.Limits{
				TimeoutSeconds: new(int32(1)), StartingDeadlineSeconds: new(int32(1)), MaxTokens: new(int64(100)), MaxCost: new("0.5"),
				MaxDepth: new(int32(2)), ApprovalTimeoutSeconds: new(int32(60)), MaxDescendants: new(int32(4)),
			},
		},
	}
	if err != nil {
		t.Fatal(err)
	}
	if !strings.HasPrefix(got.Name, "parent-") {
		t.Errorf("name %q does not begin with the name of the parent", got.Name)
	}
	want.Name = got.Name
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("-want +got:\n%s", diff)
	}
}

func TestChildNameIsUniqueToItsCall(t *testing.T) {
	name := func(change ...func(*translate.ChildCall)) string {
		got, err := translate.Child(callOf(change...))
		if err != nil {
			t.Fatal(err)
		}
		return got.Name
	}
	seen := map[string]string{}
	for reason, change := range map[string]func(*translate.ChildCall){
		"a call":                    func(*translate.ChildCall) {},
		"another id":                func(c *translate.ChildCall) { c.CallID = "call-2" },
		"another step":              func(c *translate.ChildCall) { c.Step = 3 },
		"another Turn of that name": func(c *translate.ChildCall) { c.Parent.UID = "v" },
		"a name that is too long":   func(c *translate.ChildCall) { c.Parent.Name = strings.Repeat("long", 60) },
		"a name that is cut at a dash": func(
			c *translate.ChildCall,
		) {
			c.Parent.Name = strings.Repeat("x", 45) + "-." + strings.Repeat("y", 30)
		},
		"an id that is hostile": func(c *translate.ChildCall) { c.CallID = "../\x00 /" },
	} {
		got := name(change)
		if again := name(change, func(c *translate.ChildCall) { c.Left.Time, c.Task = time.Hour, "Other words." }); again != got {
			t.Errorf("%s: the repeated call has the name %q, want %q", reason, again, got)
		}
		if other, ok := seen[got]; ok {
			t.Errorf("%s has the same name as %s", reason, other)
		}
		seen[got] = reason
		if wrong := validation.IsDNS1123Subdomain(got); len(wrong) > 0 || len(got) > 63 {
			t.Errorf("%s: %q is not a valid name of an object (%v), or has more than 63 characters", reason, got, wrong)
		}
		child, err := translate.Child(callOf(change))
		if err != nil {
			t.Fatal(err)
		}
		if wrong := validation.IsValidLabelValue(child.Labels[translate.ParentLabel]); len(wrong) > 0 {
			t.Errorf("%s: label: %v", reason, wrong)
		}
	}
}

func TestChildRefusesInvalidArguments(t *testing.T) {
	const (
		tooLong      = "task and context together must have at most 32752 characters: shorten them"
		tooManyBytes = "task and context together are too long as JSON, where a character takes up to 6 bytes: shorten them"
	)
	for name, tc := range map[string]struct{ task, context, want string }{
		"blank":              {" \n", "", "task must not be blank: describe the task"},
		"nothing":            {"", "It is blue.", "task must not be blank: describe the task"},
		"U+0000":             {"a\x00b", "", "task and context must not contain the character U+0000"},
		"too long":           {"x", strings.Repeat("x", 32768), tooLong},
		"too many bytes":     {strings.Repeat("\x01", 20000), "", tooManyBytes},
		"4-byte characters":  {"x", strings.Repeat("\U0001F680", 30000), tooManyBytes},
		"escaped characters": {strings.Repeat("<a>", 10000), "", tooManyBytes},
		"the bound":          {strings.Repeat("x", 32752), "", ""},
	} {
		t.Run(name, func(t *testing.T) {
			_, err := translate.Child(callOf(func(c *translate.ChildCall) { c.Task, c.Context = tc.task, tc.context }))
			if tc.want == "" {
				if err != nil {
					t.Errorf("error %v, want none", err)
				}
				return
			}
			if e := tool.AsError(err); e.Class != tool.InvalidArguments || e.Message != tc.want {
				t.Errorf("%s: %q, want invalid_arguments: %q", e.Class, e.Message, tc.want)
			}
		})
	}
}

// TestChildOfRefusesUnknownArguments checks that a call is refused if it has an argument that the sub-agent would not
// receive, because that argument may restrict the call. With argumentValidation Off, no gate has checked the arguments.
func TestChildOfRefusesUnknownArguments(t *testing.T) {
	call := callOf(func(*translate.ChildCall) {})
	for arguments, tc := range map[string]struct {
		attempt int
		ok      bool
	}{
		`{"task":"Close it."}`:                              {1, true},
		`{"task":"Close it.","context":"It is blue."}`:      {1, true},
		`{"task":"Close it.","dry_run":true}`:               {1, false},
		`{"task":"Close it.","context":"x","options":{}}`:   {1, false},
		`{"task":"Close it.","dry_run":true,"context":"x"}`: {2, true}, // an earlier version may have created its Turn
	} {
		_, err := translate.ChildOf(call.Parent, call.Caller, "researcher", tool.Call{
			Step: 1, CallID: "c", Attempt: tc.attempt, Arguments: json.RawMessage(arguments), Left: call.Left,
		})
		if tc.ok != (err == nil) || err != nil && tool.AsError(err).Class != tool.InvalidArguments {
			t.Errorf("a call with %s, attempt %d: %v, want success: %t", arguments, tc.attempt, err, tc.ok)
		}
	}
}

func TestChildLimitsAreWithinTheSchema(t *testing.T) {
	for name, tc := range map[string]struct {
		reason  string
		left    tool.Left
		seconds int32
		tokens  int64
		cost    string
	}{
		"nothing": {"the lowest limits of the schema", tool.Left{Tokens: new(int64(0)), Cost: new(decimal.Zero)}, 1, 1, "0.0000000001"},
		"negative": {
			"the lowest limits of the schema",
			tool.Left{Time: -time.Hour, Tokens: new(int64(-5)), Cost: new(decimal.NewFromInt(-1))},
			1, 1, "0.0000000001",
		},
		"too much": {"nine tenths of the parent's time limit, and the highest limits of the schema", tool.Left{
			Time:   1000 * time.Hour,
			Tokens: new(int64(1 << 50)), Cost: new(decimal.New(1, 20)),
		}, 54, 1e9, "999999999999.9999999999"},
		"digits": {"the cost has at most ten digits after the point", tool.Left{
			Time: time.Minute, Tokens: new(int64(7)),
			Cost: new(decimal.RequireFromString("0.123456789012")),
		}, 54, 7, "0.123456789"},
	} {
		t.Run(name, func(t *testing.T) {
			got, err := translate.Child(callOf(func(c *translate.ChildCall) { c.Left = tc.left }))
			if err != nil {
				t.Fatal(err)
			}
			l := got.Spec.Limits
			if *l.TimeoutSeconds != tc.seconds || *l.StartingDeadlineSeconds != tc.seconds || *l.MaxTokens != tc.tokens ||
				*l.MaxCost != tc.cost {
				t.Errorf("%d s, %d s, %d tokens, cost %s; want %d s, %d tokens, cost %s: %s",
					*l.TimeoutSeconds, *l.StartingDeadlineSeconds, *l.MaxTokens, *l.MaxCost, tc.seconds, tc.tokens, tc.cost, tc.reason)
			}
		})
	}
}

func TestSameChild(t *testing.T) {
	c := callOf(func(c *translate.ChildCall) {
		l := c.Parent.Spec.Limits
		l.TimeoutSeconds, l.MaxTokens, l.MaxCost = new(int32(10)), new(int64(100)), new("1.5")
		c.Left.Tokens, c.Left.Cost = new(int64(50)), new(decimal.RequireFromString("0.5"))
	})
	wanted, err := translate.Child(c)
	if err != nil {
		t.Fatal(err)
	}
	for name, tc := range map[string]struct {
		reason string
		change func(*v1alpha1.Turn)
		want   bool
	}{
		"itself": {"nothing has changed", func(*v1alpha1.Turn) {}, true},
		"stored": {
			"defaults were set for execution and citations, and people may change desiredState and ttlSecondsAfterFinished",
			func(t *v1alpha1.Turn) {
				t.Spec.Execution, t.Spec.Citations = v1alpha1.ExecutionRun, v1alpha1.CitationsShow
				t.Spec.DesiredState, t.Spec.TTLSecondsAfterFinished = v1alpha1.DesiredStateSuspended, new(int32(86400))
			}, true,
		},
		"other limits": {"more was left when it was created, and the Agent's limit was lowered since", func(t *v1alpha1.Turn) {
			t.Spec.Limits.TimeoutSeconds, t.Spec.Limits.StartingDeadlineSeconds, t.Spec.Limits.ApprovalTimeoutSeconds = new(int32(9)),
				new(int32(9)), new(int32(90))
			t.Spec.Limits.MaxTokens, t.Spec.Limits.MaxCost = new(int64(100)), new("1.50")
		}, true},
		"no limits":   {"each child has limits", func(t *v1alpha1.Turn) { t.Spec.Limits = nil }, false},
		"more tokens": {"more than the parent's limit", func(t *v1alpha1.Turn) { t.Spec.Limits.MaxTokens = new(int64(101)) }, false},
		"any tokens":  {"the parent has a limit", func(t *v1alpha1.Turn) { t.Spec.Limits.MaxTokens = nil }, false},
		"more cost":   {"more than the parent's limit", func(t *v1alpha1.Turn) { t.Spec.Limits.MaxCost = new("1.51") }, false},
		"more time": {"more than the parent's limit", func(t *v1alpha1.Turn) {
			t.Spec.Limits.TimeoutSeconds, t.Spec.Limits.StartingDeadlineSeconds = new(int32(11)), new(int32(11))
		}, false},
		"more depth": {"more than the parent's limit", func(t *v1alpha1.Turn) { t.Spec.Limits.MaxDepth = new(int32(3)) }, false},
		"more descendants": {
			"more than the call has reserved", func(t *v1alpha1.Turn) { t.Spec.Limits.MaxDescendants = new(int32(5)) }, false,
		},
		"any descendants": {"the call has reserved a number", func(t *v1alpha1.Turn) { t.Spec.Limits.MaxDescendants = nil }, false},
		"a further limit": {"no call sets this limit", func(t *v1alpha1.Turn) { t.Spec.Limits.MaxToolCalls = new(int32(3)) }, false},
		"another depth":   {"it could call more sub-agents", func(t *v1alpha1.Turn) { t.Spec.Depth = new(int32(0)) }, false},
		"another web mode": {
			"a child has the web mode of its parent", func(t *v1alpha1.Turn) { t.Spec.WebMode = v1alpha1.WebModeOff }, false,
		},
		"a history": {
			"a call sets no history",
			func(t *v1alpha1.Turn) { t.Spec.History = []v1alpha1.HistoryMessage{{Role: "User", Content: "x"}} }, false,
		},
		"a context": {"a call sets no context", func(t *v1alpha1.Turn) { t.Spec.Context = &v1alpha1.TurnContext{} }, false},
		"a Session": {
			"a call sets no Session",
			func(t *v1alpha1.Turn) { t.Spec.SessionRef = &v1alpha1.ObjectReference{Name: "s"} }, false,
		},
		"another execution": {"it asks no model", func(t *v1alpha1.Turn) { t.Spec.Execution = v1alpha1.ExecutionPrepareOnly }, false},
		"no owner":          {"a user may have created it", func(t *v1alpha1.Turn) { t.OwnerReferences = nil }, false},
		"another owner":     {"another Turn has created it", func(t *v1alpha1.Turn) { t.OwnerReferences[0].UID = "v" }, false},
		"another agent": {
			"a user may have copied the name and the owner", func(t *v1alpha1.Turn) { t.Spec.AgentRef.Name = "evil" }, false,
		},
		"another message": {"a user may have copied the name and the owner", func(t *v1alpha1.Turn) { t.Spec.Message = "evil" }, false},
	} {
		t.Run(name, func(t *testing.T) {
			found := wanted.DeepCopy()
			tc.change(found)
			if got := translate.SameChild(found, wanted, c.Parent); got != tc.want {
				t.Errorf("SameChild = %t, want %t: %s", got, tc.want, tc.reason)
			}
		})
	}
}

func TestSubAgentUsage(t *testing.T) {
	usage := func(in, out int64, amount, currency string) *v1alpha1.Usage {
		u := &v1alpha1.Usage{InputTokens: in, OutputTokens: out, TotalTokens: in + out, ReasoningTokens: 1, CacheReadTokens: 2}
		if amount != "" {
			u.Cost = &v1alpha1.Cost{Amount: amount, Currency: currency}
		}
		return u
	}
	partly := func(in, out int64, known string) *v1alpha1.Usage {
		u := usage(in, out, "", "")
		u.CostUnknown, u.KnownCost = true, known
		return u
	}
	for name, tc := range map[string]struct {
		reason    string
		own, subs *v1alpha1.Usage
		usage     model.Usage
		cost      string
		known     string
	}{
		"nothing": {"the Turn asked no model", nil, nil, model.Usage{}, "", ""},
		"own usage": {
			"the usage is that of the status", usage(10, 5, "0.5", "USD"), nil,
			model.Usage{InputTokens: 10, OutputTokens: 5, ReasoningTokens: 1, CacheReadTokens: 2},
			"0.5 USD", "",
		},
		"with sub-agents": {
			"the usage of the sub-agents is added", usage(10, 5, "0.5", "USD"), usage(1, 1, "0.25", "USD"),
			model.Usage{InputTokens: 11, OutputTokens: 6, ReasoningTokens: 2, CacheReadTokens: 4},
			"0.75 USD", "",
		},
		"part unknown": {
			"the sum of the known parts is not the whole cost", usage(10, 5, "0.5", "USD"), usage(1, 1, "", ""),
			model.Usage{InputTokens: 11, OutputTokens: 6, ReasoningTokens: 2, CacheReadTokens: 4},
			"", "0.5",
		},
		"own unknown": {
			"the known part counts", usage(10, 5, "", ""), usage(1, 1, "0.25", "EUR"),
			model.Usage{InputTokens: 11, OutputTokens: 6, ReasoningTokens: 2, CacheReadTokens: 4},
			"", "0.25",
		},
		"parts known": {
			"a status has the known part of an unknown cost", partly(10, 5, "0.5"), partly(1, 1, "0.25"),
			model.Usage{InputTokens: 11, OutputTokens: 6, ReasoningTokens: 2, CacheReadTokens: 4},
			"", "0.75",
		},
		"all unknown": {
			"no part is known", usage(10, 5, "", ""), nil,
			model.Usage{InputTokens: 10, OutputTokens: 5, ReasoningTokens: 1, CacheReadTokens: 2},
			"", "",
		},
		"sub-agents without a request": {
			"a cost of no tokens is not unknown", usage(10, 5, "0.5", "USD"), &v1alpha1.Usage{},
			model.Usage{InputTokens: 10, OutputTokens: 5, ReasoningTokens: 1, CacheReadTokens: 2},
			"0.5 USD", "",
		},
		"two currencies": {
			"the whole cost has no currency", usage(10, 5, "0.5", "USD"), usage(1, 1, "0.25", "EUR"),
			model.Usage{InputTokens: 11, OutputTokens: 6, ReasoningTokens: 2, CacheReadTokens: 4},
			"", "0.75",
		},
	} {
		t.Run(name, func(t *testing.T) {
			got := translate.SubAgentUsage(&v1alpha1.Turn{
				ObjectMeta: metav1.ObjectMeta{Name: "child"},
				Status:     v1alpha1.TurnStatus{Usage: tc.own, SubAgentUsage: tc.subs},
			})
			cost := ""
			if got.Cost != nil {
				cost = got.Cost.Amount.String() + " " + got.Cost.Currency
			}
			known := ""
			if got.Known != nil {
				known = got.Known.String()
			}
			if got.Turn != "child" || got.Usage != tc.usage || cost != tc.cost || known != tc.known {
				t.Errorf("%+v, cost %q, known %q; want %+v, cost %q, known %q: %s", got, cost, known, tc.usage, tc.cost,
					tc.known, tc.reason)
			}
		})
	}
}

// TestDescendants checks that the number is nil if it is unknown.
func TestDescendants(t *testing.T) {
	recorded := []metav1.Condition{{Type: v1alpha1.ConditionFinalized, Status: metav1.ConditionTrue}}
	for name, tc := range map[string]struct {
		reason string
		status v1alpha1.TurnStatus
		want   *int
	}{
		"none": {"the child counts", v1alpha1.TurnStatus{Conditions: recorded, Executor: &v1alpha1.ExecutorBinding{Epoch: 1}}, new(1)},
		"some": {
			"the child and the Turns below it count",
			v1alpha1.TurnStatus{Conditions: recorded, Executor: &v1alpha1.ExecutorBinding{Epoch: 3}, Descendants: 4},
			new(5),
		},
		"never bound": {"it created no Turn", v1alpha1.TurnStatus{}, new(1)},
		"no record":   {"it ran, and its journal was not read", v1alpha1.TurnStatus{Executor: &v1alpha1.ExecutorBinding{Epoch: 1}}, nil},
		"interrupted": {"its journal may be lost", v1alpha1.TurnStatus{
			Conditions: recorded,
			StopReason: v1alpha1.StopInterrupted, Executor: &v1alpha1.ExecutorBinding{Epoch: 1},
		}, nil},
	} {
		t.Run(name, func(t *testing.T) {
			if diff := cmp.Diff(tc.want, translate.Descendants(&v1alpha1.Turn{Status: tc.status})); diff != "" {
				t.Errorf("%s: -want +got:\n%s", tc.reason, diff)
			}
		})
	}
}

// TestChildOfOlderCall checks that the child has no maxDescendants if its call, which an older version began, has
// reserved no number.
func TestChildOfOlderCall(t *testing.T) {
	got, err := translate.Child(callOf(func(c *translate.ChildCall) { c.Descendants = 0 }))
	if err != nil || got.Spec.Limits.MaxDescendants != nil {
		t.Errorf("limits %+v, error %v; want no maxDescendants", got.Spec.Limits, err)
	}
}
