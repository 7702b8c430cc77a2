package translate_test

import (
	"context"
	"errors"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/capstan-dev/capstan/api/v1alpha1"
	"github.com/capstan-dev/capstan/internal/runtime/invalid"
	"github.com/capstan-dev/capstan/internal/runtime/prepare"
	"github.com/capstan-dev/capstan/internal/runtime/prompt"
	"github.com/capstan-dev/capstan/internal/runtime/turncontext"
	"github.com/capstan-dev/capstan/internal/translate"
)

var errAPI = errors.New("the API server is unreachable")

// configMaps returns texts of the ConfigMap "texts", and errAPI for the ConfigMap "unreachable".
func configMaps(_ context.Context, ref v1alpha1.ConfigMapKeyReference) (string, error) {
	var data map[string]string
	switch ref.Name {
	case "texts":
		data = map[string]string{
			"a": "text of a", "empty": "", "blank": " \n\u200b", "nul": "a\x00b", "long": strings.Repeat("ü", 32769),
			"longest": strings.Repeat("ü", 65536), "longer": strings.Repeat("ü", 65537),
		}
	case "unreachable":
		return "", errAPI
	}
	return translate.ConfigMapValue(ref, data)
}

func ref(name, key string) v1alpha1.ConfigMapKeyReference {
	return v1alpha1.ConfigMapKeyReference{Name: name, Key: key}
}

// from returns a source that is a key of the ConfigMap "texts".
func from(key string) *v1alpha1.ContentSource {
	return &v1alpha1.ContentSource{ConfigMapKeyRef: ref("texts", key)}
}

// minimal returns objects with the required fields only.
func minimal() translate.Objects {
	return translate.Objects{
		Turn:  &v1alpha1.Turn{ObjectMeta: metav1.ObjectMeta{Name: "first", Namespace: "demo"}, Spec: v1alpha1.TurnSpec{Message: "What?"}},
		Agent: &v1alpha1.Agent{ObjectMeta: metav1.ObjectMeta{Name: "helper"}},
		Profile: &v1alpha1.PromptProfile{
			ObjectMeta: metav1.ObjectMeta{Name: "support", Generation: 4},
			Spec:       v1alpha1.PromptProfileSpec{ID: "i", Version: "1.0.0", Instructions: "Be brief."},
		},
		// ConfigMaps is nil, because these objects refer to none.
	}
}

func TestPreparationOfMinimalObjects(t *testing.T) {
	got, err := translate.Preparation(t.Context(), minimal(), now)
	if err != nil {
		t.Fatal(err)
	}
	want := prepare.Input{
		Agent: prepare.Agent{Name: "helper", MaxMemories: 10},
		Profile: prepare.Profile{
			Name: "support", ID: "i", Version: "1.0.0", Generation: 4,
			Identity: &turncontext.Identity{}, Instructions: "Be brief.",
		},
		Turn: prepare.Turn{Name: "first", Namespace: "demo", Message: "What?", Parameters: map[string]string{}},
		Now:  now,
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("-want +got:\n%s", diff)
	}
	if _, err := prepare.Prepare(got); err != nil {
		t.Errorf("Prepare: %v, want messages from minimal objects", err)
	}
}

func TestPreparation(t *testing.T) {
	berlin, err := time.LoadLocation("Europe/Berlin")
	if err != nil {
		t.Fatal(err)
	}
	skill := prepare.Skill{Key: "m", Content: "shared"}
	for name, tc := range map[string]struct {
		reason string
		change func(*translate.Objects)
		want   func(*prepare.Input)
	}{
		"zone": {
			"Now is in the Agent's time zone", func(o *translate.Objects) { o.Agent.Spec.TimeZone = "Europe/Berlin" },
			func(in *prepare.Input) { in.Now = now.In(berlin) },
		},
		"no memory": {
			"0 is different from an absent number",
			func(o *translate.Objects) { o.Agent.Spec.Memory = &v1alpha1.AgentMemory{MaxItems: new(int32(0))} },
			func(in *prepare.Input) { in.Agent.MaxMemories = 0 },
		},
		"memory without a number": {
			"the default is 10",
			func(o *translate.Objects) { o.Agent.Spec.Memory = &v1alpha1.AgentMemory{} }, func(*prepare.Input) {},
		},
		"no sections": {"an empty list is different from an absent list", func(
			o *translate.Objects,
		) {
			o.Profile.Spec.Sections = []string{}
		}, func(in *prepare.Input) { in.Profile.Sections = []string{} }},
		"empty override": {
			"an empty text is different from an absent text",
			func(o *translate.Objects) { o.Profile.Spec.Overrides = &v1alpha1.Overrides{Tools: new("")} }, func(
				in *prepare.Input,
			) {
				in.Profile.ToolsText = new("")
			},
		},
		"trust": {"untrusted is the default everywhere", func(o *translate.Objects) {
			o.Profile.Spec.Variables = []v1alpha1.Variable{
				{Name: "a"},
				{Name: "b", Trust: v1alpha1.TrustTrusted, Default: new("c")},
				{Name: "d", Trust: v1alpha1.TrustUntrusted, Required: true},
			}
			o.Turn.Spec.Context = &v1alpha1.TurnContext{Contributions: []v1alpha1.Contribution{
				{Name: "x", Text: new("")},
				{Name: "y", Text: new("t"), Trust: v1alpha1.TrustTrusted},
			}}
		}, func(in *prepare.Input) {
			in.Profile.Variables = []prepare.Variable{{Name: "a"}, {Name: "b", Default: "c", Trusted: true}, {Name: "d", Required: true}}
			in.Turn.Contributions = []prompt.Contribution{{Name: "x"}, {Name: "y", Text: "t", Trusted: true}}
		}},
		"roles": {"a message is the user's or the model's", func(o *translate.Objects) {
			o.Turn.Spec.History = []v1alpha1.HistoryMessage{
				{Role: v1alpha1.HistoryRoleUser, Content: "Hi"},
				{Role: v1alpha1.HistoryRoleAssistant, Content: "Hello"},
			}
		}, func(in *prepare.Input) {
			in.Turn.History = []prepare.HistoryMessage{{Role: "user", Content: "Hi"}, {Role: "assistant", Content: "Hello"}}
		}},
		"relevance": {"an absent relevance is 0", func(o *translate.Objects) {
			o.Turn.Spec.Context = &v1alpha1.TurnContext{
				Memories: []v1alpha1.Memory{{ID: "a", Text: "x", Relevance: new("0.25")}, {ID: "b", Text: "y"}},
			}
		}, func(in *prepare.Input) {
			in.Turn.Memories = []turncontext.Memory{{ID: "a", Text: "x", Relevance: 0.25}, {ID: "b", Text: "y"}}
		}},
		"guardrails": {"guardrails of a Turn and of a profile are added to shaping", func(o *translate.Objects) {
			o.Turn.Spec.Guardrails = []v1alpha1.Guardrail{{ID: "t", Rule: "x", Kind: v1alpha1.GuardrailTone}}
			o.Profile.Spec.Guardrails = []v1alpha1.Guardrail{{ID: "p", Rule: "y", Priority: v1alpha1.LevelHigh}}
		}, func(in *prepare.Input) {
			in.Turn.Shaping.Guardrails = []turncontext.Guardrail{{ID: "t", Rule: "x", Kind: "ToneConstraint"}}
			in.Profile.Guardrails = []turncontext.Guardrail{{ID: "p", Rule: "y", Priority: turncontext.High}}
		}},
		"manager's skills": {
			"they are passed on", func(o *translate.Objects) { o.ManagerSkills = []prepare.Skill{skill} },
			func(in *prepare.Input) { in.ManagerSkills = []prepare.Skill{skill} },
		},
		"data": {"the same data always has the same bytes", func(o *translate.Objects) {
			data := apiextensionsv1.JSON{Raw: []byte(`{"b": 1.50, "a": {"d": "\u202e", "c": []}}`)}
			o.Turn.Spec.Context = &v1alpha1.TurnContext{Data: &data}
		}, func(in *prepare.Input) { in.Turn.Data = `{"a":{"c":[],"d":"` + "\u202e" + `"},"b":1.50}` }},
		"ConfigMaps": {"a text may be in a ConfigMap", func(o *translate.Objects) {
			o.ConfigMaps = configMaps
			o.Profile.Spec.Skills = []v1alpha1.Skill{
				{Key: "s", ContentFrom: &v1alpha1.ContentSource{ConfigMapKeyRef: ref("texts", "a")}},
				{Key: "own", Content: new("c")},
			}
			o.Profile.Spec.Contributions = []v1alpha1.Contribution{{Name: "p", ConfigMapKeyRef: new(ref("texts", "longest"))}}
			o.Agent.Spec.Contributions = []v1alpha1.Contribution{
				{Name: "a", ConfigMapKeyRef: new(ref("texts", "empty")), MaxChars: new(int32(7))},
			}
			o.Profile.Spec.Instructions, o.Profile.Spec.InstructionsFrom = "", from("longest")
			o.Profile.Spec.Identity = &v1alpha1.Identity{SystemPromptFrom: from("a")}
			o.Agent.Spec.InstructionsFrom = from("a")
			o.Turn.Spec.Message, o.Turn.Spec.MessageFrom = "", from("a")
			o.Turn.Spec.Parameters = []v1alpha1.Parameter{{Name: "x", Value: new("v")}, {Name: "y", ValueFrom: from("empty")}}
			o.Turn.Spec.Context = &v1alpha1.TurnContext{
				Contributions: []v1alpha1.Contribution{{Name: "t", ConfigMapKeyRef: new(ref("texts", "a"))}},
			}
		}, func(in *prepare.Input) {
			in.Profile.Skills = []prepare.Skill{
				{Key: "s", Content: "text of a", From: `key "a" of ConfigMap "texts"`},
				{Key: "own", Content: "c"},
			}
			in.Profile.Contributions = []prompt.Contribution{{Name: "p", Text: strings.Repeat("ü", 65536)}}
			in.Agent.Contributions = []prompt.Contribution{{Name: "a", MaxChars: 7}}
			const source = `key "a" of ConfigMap "texts"`
			in.Profile.Instructions, in.Profile.InstructionsFrom = strings.Repeat("ü", 65536), `key "longest" of ConfigMap "texts"`
			in.Profile.Identity.SystemPrompt, in.Profile.SystemPromptFrom = "text of a", source
			in.Agent.Instructions, in.Agent.InstructionsFrom = "text of a", source
			in.Turn.Message, in.Turn.Parameters = "text of a", map[string]string{"x": "v", "y": ""}
			in.Turn.Contributions = []prompt.Contribution{{Name: "t", Text: "text of a"}}
		}},
	} {
		t.Run(name, func(t *testing.T) {
			want, err := translate.Preparation(t.Context(), minimal(), now)
			if err != nil {
				t.Fatal(err)
			}
			tc.want(&want)
			o := minimal()
			tc.change(&o)
			got, err := translate.Preparation(t.Context(), o, now)
			if err != nil {
				t.Fatal(err)
			}
			if diff := cmp.Diff(want, got); diff != "" {
				t.Errorf("%s: -want +got:\n%s", tc.reason, diff)
			}
			if got.Now.Location().String() != want.Now.Location().String() {
				t.Errorf("Now is in %s, want %s", got.Now.Location(), want.Now.Location())
			}
		})
	}
}

func TestPreparationErrors(t *testing.T) {
	skill := func(r v1alpha1.ConfigMapKeyReference) func(*translate.Objects) {
		return func(o *translate.Objects) {
			o.Profile.Spec.Skills = []v1alpha1.Skill{
				{Key: "own", Content: new("c")},
				{Key: "s", ContentFrom: &v1alpha1.ContentSource{ConfigMapKeyRef: r}},
			}
		}
	}
	withData := func(data string) func(*translate.Objects) {
		return func(o *translate.Objects) {
			o.Turn.Spec.Context = &v1alpha1.TurnContext{Data: &apiextensionsv1.JSON{Raw: []byte(data)}}
		}
	}
	withMessage := func(key string) func(*translate.Objects) {
		return func(o *translate.Objects) { o.Turn.Spec.Message, o.Turn.Spec.MessageFrom = "", from(key) }
	}
	contribution := []v1alpha1.Contribution{{Name: "a", Text: new("x")}, {Name: "b", ConfigMapKeyRef: new(ref("texts", "none"))}}
	const noKey = `[1].configMapKeyRef: ConfigMap "texts" has no key "none" in its data: add it, or correct the key`
	for name, tc := range map[string]struct {
		reason string
		change func(*translate.Objects)
		ends   bool // whether the error ends the Turn
		want   string
	}{
		"no ConfigMap": {
			"the error names the ConfigMap and says what to do", skill(ref("none", "a")), true,
			`PromptProfile spec.skills[1].contentFrom.configMapKeyRef: ConfigMap "none" does not exist: create it, or correct the name`,
		},
		"no key": {
			"the error names the key and says what to do", skill(ref("texts", "none")), true,
			`PromptProfile spec.skills[1].contentFrom.configMapKeyRef: ConfigMap "texts" has no key "none" in ` +
				`its data: add it, or correct the key`,
		},
		"too long": {
			"the schema has the same bound, in characters", skill(ref("texts", "longer")), true,
			`PromptProfile spec.skills[1].contentFrom.configMapKeyRef: key "longer" of ConfigMap "texts" has ` +
				`65537 characters but may have at most 65536: shorten it`,
		},
		"unreadable": {
			"a failed read is temporary and does not end a Turn", skill(ref("unreachable", "a")), false,
			`failed to read ConfigMap "unreachable" for PromptProfile spec.skills[1].contentFrom.configMapKeyRef: ` +
				`the API server is unreachable`,
		},
		"a list as data": {
			"data must be an object", withData(`[1]`), true,
			"Turn spec.context.data: must be a JSON object: put the value into a field of an object",
		},
		"much data": {
			"a large text should be an attachment", withData(`{"a": "` + strings.Repeat("x", 65536) + `"}`), true,
			"Turn spec.context.data: has 65544 bytes of JSON but may have at most 65536: shorten it, or attach it as application/json",
		},
		"system prompt": {
			"the error names the field of the source", func(o *translate.Objects) {
				o.Profile.Spec.Identity = &v1alpha1.Identity{SystemPromptFrom: from("none")}
			}, true,
			`PromptProfile spec.identity.systemPromptFrom.configMapKeyRef: ConfigMap "texts" has no key "none" in its data: ` +
				`add it, or correct the key`,
		},
		"long instructions": {
			"the schema has the same bound", func(o *translate.Objects) {
				o.Profile.Spec.Instructions, o.Profile.Spec.InstructionsFrom = "", from("longer")
			}, true,
			`PromptProfile spec.instructionsFrom.configMapKeyRef: key "longer" of ConfigMap "texts" has 65537 characters but may have ` +
				`at most 65536: shorten it`,
		},
		"instructions of the Agent": {
			"the error names the Agent's field", func(o *translate.Objects) { o.Agent.Spec.InstructionsFrom = from("none") }, true,
			`Agent spec.instructionsFrom.configMapKeyRef: ConfigMap "texts" has no key "none" in its data: add it, or correct the key`,
		},
		"blank message": {
			"the schema rejects such a text in the Turn", withMessage("blank"), true,
			`Turn spec.messageFrom.configMapKeyRef: key "blank" of ConfigMap "texts" must not be blank: write the message into it`,
		},
		"NUL in the message": {
			"the schema rejects such a text in the Turn", withMessage("nul"), true,
			`Turn spec.messageFrom.configMapKeyRef: key "nul" of ConfigMap "texts" must not contain the character U+0000: remove it`,
		},
		"long message": {
			"the schema rejects such a text in the Turn",
			withMessage("long"), true, `Turn spec.messageFrom.configMapKeyRef: key "long" of ConfigMap "texts" has 32769 ` +
				`characters but may have at most 32768: shorten it`,
		},
		"long value": {
			"the schema rejects such a value in the Turn", func(o *translate.Objects) {
				o.Turn.Spec.Parameters = []v1alpha1.Parameter{{Name: "a", Value: new("")}, {Name: "b", ValueFrom: from("long")}}
			}, true, `Turn spec.parameters[1].valueFrom.configMapKeyRef: key "long" of ConfigMap "texts" has 32769 characters but ` +
				`may have at most 4096: shorten it`,
		},
		"of the profile": {
			"the error names the profile's field",
			func(o *translate.Objects) { o.Profile.Spec.Contributions = contribution }, true, "PromptProfile spec.contributions" + noKey,
		},
		"of the agent": {
			"the error names the Agent's field", func(o *translate.Objects) { o.Agent.Spec.Contributions = contribution },
			true, "Agent spec.contributions" + noKey,
		},
		"of the Turn": {
			"the error names the Turn's field",
			func(o *translate.Objects) { o.Turn.Spec.Context = &v1alpha1.TurnContext{Contributions: contribution} }, true,
			"Turn spec.context.contributions" + noKey,
		},
		"zone": {
			"the time zone does not exist", func(o *translate.Objects) { o.Agent.Spec.TimeZone = "Mars/Olympus" }, true,
			`Agent spec.timeZone: "Mars/Olympus" is not an IANA time zone: use a name such as Europe/Berlin or UTC`,
		},
		"relevance": {"the text is not a number", func(o *translate.Objects) {
			o.Turn.Spec.Context = &v1alpha1.TurnContext{Memories: []v1alpha1.Memory{{ID: "a"}, {ID: "b", Relevance: new("much")}}}
		}, true, `Turn spec.context.memories[1].relevance: "much" must be a decimal from 0 to 1`},
		"below 0": {"a number out of its bounds", func(o *translate.Objects) {
			o.Turn.Spec.Context = &v1alpha1.TurnContext{Memories: []v1alpha1.Memory{{ID: "b", Relevance: new("-0.5")}}}
		}, true, `Turn spec.context.memories[0].relevance: "-0.5" must be a decimal from 0 to 1`},
		"no number": {"JSON has no NaN", func(o *translate.Objects) {
			o.Turn.Spec.Context = &v1alpha1.TurnContext{Memories: []v1alpha1.Memory{{ID: "b", Relevance: new("NaN")}}}
		}, true, `Turn spec.context.memories[0].relevance: "NaN" must be a decimal from 0 to 1`},
		"size": {"the spec leaves no room for a status", func(o *translate.Objects) {
			o.Turn.Spec.History = []v1alpha1.HistoryMessage{{Content: strings.Repeat("x", v1alpha1.MaxSpecBytes)}}
		}, true, "Turn spec: spec is "},
	} {
		t.Run(name, func(t *testing.T) {
			o := minimal()
			o.ConfigMaps = configMaps
			tc.change(&o)
			_, err := translate.Preparation(t.Context(), o, now)
			if err == nil || !strings.HasPrefix(err.Error(), tc.want) {
				t.Fatalf("Preparation: %v, want %q: %s", err, tc.want, tc.reason)
			}
			if _, ends := errors.AsType[*invalid.Error](err); ends != tc.ends || errors.Is(err, errAPI) == tc.ends {
				t.Errorf("the error %v ends the Turn: %t, want %t: %s", err, ends, tc.ends, tc.reason)
			}
		})
	}
}
