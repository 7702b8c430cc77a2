package prepare_test

import (
	"testing"
	"time"

	"github.com/capstan-dev/capstan/internal/runtime/prepare"
	"github.com/capstan-dev/capstan/internal/runtime/prompt"
	"github.com/capstan-dev/capstan/internal/runtime/turncontext"
)

// The digests in this file were computed by another implementation of JSON and SHA-256.

func TestContextHash(t *testing.T) {
	one := turncontext.Fact{ID: "f1", Text: "one", Source: "notes.md"}
	session := &turncontext.Session{
		State: "Active", Summary: "The parcel is late.", UnresolvedQuestions: []string{"Where is it?", "Who pays?"},
		Momentum: turncontext.Low,
	}
	for name, tc := range map[string]struct {
		reason string
		in     prepare.Input
		want   string
	}{
		"empty": {"the hash of {}", input(), "44136fa355b3678a"},
		"facts": {`the hash of {"facts":[{"id":"f1","source":"notes.md","text":"one"}]}`, input(withFacts(one)), "963106c7f7c40512"},
		"odd characters": {"only required escapes are used", input(withFacts(turncontext.Fact{
			ID: `f"1\`, Text: "<&>\u2028 ü🙂\n\t\x01\x7f",
		})), "9f79ec52d6c297ff"},
		"preferences": {"preferences are part of the hash", input(func(in *prepare.Input) {
			in.Turn.Preferences = []string{"a"}
		}), "c5db8c5e9dcde023"},
		"data": {`the hash of {"data":"{\"a\":1}"}`, input(func(in *prepare.Input) { in.Turn.Data = `{"a":1}` }), "8e757fd4b65669cd"},
		"session": {"the lines about the session in the message are part of the hash", input(func(in *prepare.Input) {
			in.Turn.Session = session
		}), "5f0da585a42c8728"},
		"id and subject": {"ID and subject are not part of the hash", input(func(in *prepare.Input) {
			s := *session
			s.ID, s.Subject = "s-1", "Order 1042"
			in.Turn.Session = &s
		}), "5f0da585a42c8728"},
		"only an id": {"a session with only ID and subject adds nothing to the message", input(func(in *prepare.Input) {
			in.Turn.Session = &turncontext.Session{ID: "s-1", Subject: "Order 1042", UnresolvedQuestions: []string{}}
		}), "44136fa355b3678a"},
		"everything": {"all five kinds of data, without enrichments that were dropped", everything(), "cbc68f24554ab0e4"},
		"not in the message context_pack": {"memories, contributions and history are in other messages", input(withFacts(one),
			func(in *prepare.Input) {
				in.Turn.Memories = []turncontext.Memory{{ID: "m", Text: "x"}}
				in.Turn.Enrichments = []turncontext.Enrichment{{ID: "e", Kind: "Other", Content: "x", Audience: "Product"}}
				in.Turn.Contributions = []prompt.Contribution{{Name: "c", Text: "x"}}
				in.Turn.History = []prepare.HistoryMessage{{Role: "user", Content: "x"}}
				in.Now, in.Turn.Message, in.Turn.Skill = at.Add(48*time.Hour), "Else", "Act."
			}), "963106c7f7c40512"},
	} {
		t.Run(name, func(t *testing.T) {
			if got := mustPrepare(t, tc.in).Report.ContextHash; got != tc.want {
				t.Errorf("contextHash is %s, want %s: %s", got, tc.want, tc.reason)
			}
		})
	}
}

func TestEnrichmentsOverTheCapDoNotCount(t *testing.T) {
	hash := func(n int) string {
		return mustPrepare(t, input(func(in *prepare.Input) { in.Turn.Enrichments = enrichments(n) })).Report.ContextHash
	}
	if hash(8) != hash(20) {
		t.Error("contextHash counts enrichments that were dropped")
	}
	if hash(7) == hash(8) {
		t.Error("contextHash does not count an enrichment that is shown")
	}
}

func TestPromptHashes(t *testing.T) {
	for name, tc := range map[string]struct{ prefix, suffix, render, whole string }{
		"odd characters": {
			"\"Quoted\" \\ <&>\u2028 ü🙂\n\t\x7f", "Now answer.",
			"0d7ac2fc7ed11195a999a6c664e7783fcb73f296aadae9ac6b7f13b34f876d09",
			"666cbdf4c269ac3dcb992405187953c18e26c63b65cde633acc9d7f25f6b7363",
		},
		"empty": {
			"", "",
			"63be7e41e020bc00ee1c7926929730c6f0a0b9c0c3d83427c76eb5acfba8dc67",
			"e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855",
		},
	} {
		t.Run(name, func(t *testing.T) {
			report := mustPrepare(t, input(func(in *prepare.Input) {
				in.Profile.StablePrefix, in.Profile.DynamicSuffix, in.Profile.Sections = tc.prefix, tc.suffix, []string{}
				if tc.prefix != "" {
					in.Profile.Sections = []string{"instructions"}
				}
			})).Report
			if report.RenderHash != tc.render || report.PromptHash != tc.whole {
				t.Errorf("renderHash %s and promptHash %s, want %s and %s", report.RenderHash, report.PromptHash, tc.render, tc.whole)
			}
		})
	}
}

func TestRenderHashCoversTheStablePart(t *testing.T) {
	base := mustPrepare(t, everything()).Report
	for name, change := range map[string]func(*prepare.Input){
		"name":          func(in *prepare.Input) { in.Turn.Name, in.Turn.Namespace = "second", "other" },
		"message":       func(in *prepare.Input) { in.Turn.Message = "Else." },
		"time":          func(in *prepare.Input) { in.Now = at.Add(30 * time.Hour) },
		"zone":          func(in *prepare.Input) { in.Now = at.In(time.FixedZone("X", 3600)) },
		"facts":         func(in *prepare.Input) { in.Turn.Facts = nil },
		"memories":      func(in *prepare.Input) { in.Turn.Memories = nil },
		"enrichments":   func(in *prepare.Input) { in.Turn.Enrichments = enrichments(8) },
		"preferences":   func(in *prepare.Input) { in.Turn.Preferences = nil },
		"data":          func(in *prepare.Input) { in.Turn.Data = `{"a":1}` },
		"session":       func(in *prepare.Input) { in.Turn.Session = &turncontext.Session{ID: "s-2", Subject: "Order 7"} },
		"no session":    func(in *prepare.Input) { in.Turn.Session = nil },
		"history":       func(in *prepare.Input) { in.Turn.History = nil },
		"skill":         func(in *prepare.Input) { in.Turn.Skill = "" },
		"contributions": func(in *prepare.Input) { in.Turn.Contributions = nil },
		"overlays":      func(in *prepare.Input) { in.Turn.Shaping.Overlays = nil },
		"guardrails":    func(in *prepare.Input) { in.Turn.Shaping.Guardrails = nil },
		"shaping":       func(in *prepare.Input) { in.Turn.Shaping.Mode, in.Turn.Shaping.Expression.Tone = "draft", "warm" },
		"provider":      func(in *prepare.Input) { in.Provider = "other" },
		"dynamic part": func(in *prepare.Input) {
			in.Profile.DynamicSuffix, in.Profile.Overlays, in.Profile.Contributions = "", nil, nil
		},
	} {
		t.Run("same for another "+name, func(t *testing.T) {
			in := everything()
			change(&in)
			if got := mustPrepare(t, in).Report; got.RenderHash != base.RenderHash || got.StableChars != base.StableChars {
				t.Errorf("the stable part changed with another %s: renderHash is %s with %d characters, want %s with %d", name,
					got.RenderHash, got.StableChars, base.RenderHash, base.StableChars)
			}
		})
	}
	for name, change := range map[string]func(*prepare.Input){
		"system prompt":       func(in *prepare.Input) { in.Profile.Identity.SystemPrompt += "!" },
		"developer prompt":    func(in *prepare.Input) { in.Profile.Identity.DeveloperPrompt += "!" },
		"assistant":           func(in *prepare.Input) { in.Profile.Identity.AssistantName = "Eve" },
		"instructions":        func(in *prepare.Input) { in.Profile.Instructions += "!" },
		"prefix":              func(in *prepare.Input) { in.Profile.StablePrefix += "!" },
		"behavior":            func(in *prepare.Input) { in.Profile.Behavior = new("") },
		"tools text":          func(in *prepare.Input) { in.Profile.ToolsText = new("") },
		"sections":            func(in *prepare.Input) { in.Profile.Sections = []string{"instructions"} },
		"default":             func(in *prepare.Input) { in.Profile.Variables[1].Default = "Shop" },
		"value":               func(in *prepare.Input) { in.Turn.Parameters["user"] = "Eve" },
		"mode":                func(in *prepare.Input) { in.Turn.Mode = prompt.Task },
		"description":         func(in *prepare.Input) { in.Agent.Description += "!" },
		"agent instructions":  func(in *prepare.Input) { in.Agent.Instructions += "!" },
		"thinking":            func(in *prepare.Input) { in.Agent.Thinking = prompt.ThinkingHigh },
		"loaded skill":        func(in *prepare.Input) { in.Profile.Skills[0].Content += "!" },
		"available skill":     func(in *prepare.Input) { in.Profile.Skills[1].Description += "!" },
		"manager's skill":     func(in *prepare.Input) { in.ManagerSkills[1].Name += "!" },
		"tool":                func(in *prepare.Input) { in.Tools[0].UseWhen += "!" },
		"parameter of a tool": func(in *prepare.Input) { in.Tools[0].Parameters[1].Default = nil },
		"model":               func(in *prepare.Input) { in.Model = "large" },
	} {
		t.Run("different for another "+name, func(t *testing.T) {
			in := everything()
			change(&in)
			if got := mustPrepare(t, in).Report; got.RenderHash == base.RenderHash {
				t.Errorf("renderHash stayed the same with another %s", name)
			}
		})
	}
}
