package prepare_test

import (
	"encoding/json"
	"strings"
	"sync"
	"testing"
	"time"
	"unicode/utf8"

	"github.com/google/go-cmp/cmp"

	"github.com/capstan-dev/capstan/internal/runtime/canonical"
	"github.com/capstan-dev/capstan/internal/runtime/prepare"
	"github.com/capstan-dev/capstan/internal/runtime/prompt"
	"github.com/capstan-dev/capstan/internal/runtime/turncontext"
)

func TestSameInputSameBytes(t *testing.T) {
	want := asJSON(t, mustPrepare(t, everything()))
	shared := everything()
	if got := asJSON(t, mustPrepare(t, shared)); got != want {
		t.Fatalf("the same input gave other bytes: %s", cmp.Diff(want, got))
	}
	var group sync.WaitGroup
	for range 8 {
		group.Go(func() {
			for range 4 {
				p, err := prepare.Prepare(shared)
				if err != nil {
					t.Errorf("Prepare: %v", err)
					return
				}
				if data, err := json.MarshalIndent(p, "", "  "); err != nil || string(data) != want {
					t.Errorf("a shared input gave other bytes (error %v)", err)
				}
			}
		})
	}
	group.Wait()
	if diff := cmp.Diff(everything(), shared); diff != "" {
		t.Errorf("Prepare changed its input: -before +after:\n%s", diff)
	}
}

func TestMapOrderDoesNotMatter(t *testing.T) {
	names := []string{"a", "b", "c", "d", "e", "f", "g", "h"}
	build := func(order []string) string {
		return asJSON(t, mustPrepare(t, input(func(in *prepare.Input) {
			in.Turn.Parameters = map[string]string{}
			for _, name := range order {
				in.Turn.Parameters[name] = "value of " + name
			}
			for _, name := range names {
				in.Profile.Variables = append(in.Profile.Variables, prepare.Variable{Name: name})
				in.Profile.Identity.SystemPrompt += " {{ ." + name + " }}"
			}
		})))
	}
	want := build(names)
	for range 20 {
		if diff := cmp.Diff(want, build([]string{"h", "c", "a", "g", "b", "f", "e", "d"})); diff != "" {
			t.Fatalf("the same input gave other bytes: -want +got:\n%s", diff)
		}
	}
}

func TestMachineTimeZoneDoesNotMatter(t *testing.T) {
	want := asJSON(t, mustPrepare(t, everything()))
	local := time.Local
	t.Cleanup(func() { time.Local = local })
	for _, zone := range []string{"Asia/Tokyo", "America/Los_Angeles"} {
		loc, err := time.LoadLocation(zone)
		if err != nil {
			t.Fatal(err)
		}
		time.Local = loc
		t.Setenv("TZ", zone)
		t.Setenv("LANG", "de_DE.UTF-8")
		if diff := cmp.Diff(want, asJSON(t, mustPrepare(t, everything()))); diff != "" {
			t.Errorf("the prompt on a machine in %s: -want +got:\n%s", zone, diff)
		}
	}
}

// TestInputIsNotShared changes the input after the prompt was made. The prompt must not change.
func TestInputIsNotShared(t *testing.T) {
	in := everything()
	p := mustPrepare(t, in)
	want := asJSON(t, p)
	in.Profile.Tags[0], in.Tools[0].Name, in.Tools[0].Parameters[0].Name = "changed", "changed", "changed"
	in.Turn.Facts[0].Text, in.Turn.Session.Summary, in.Turn.Enrichments[0].ID = "changed", "changed", "changed"
	*in.Turn.Shaping.ResponseStyle.MaxAnswerChars, *in.Profile.Shaping.ResponseStyle.PreferMarkdown = 1, false
	if diff := cmp.Diff(want, asJSON(t, p)); diff != "" {
		t.Errorf("the prompt changed with its input: -frozen +now:\n%s", diff)
	}
}

func TestInvalidUTF8IsReplacedAndCounted(t *testing.T) {
	in := everything()
	in.Agent.Name, in.Agent.Description, in.Profile.Instructions = "a\xff", "\xffhelps", "Be\xff brief {{ .user }}."
	in.Profile.Tags, in.Turn.Parameters["user"] = []string{"\xff"}, "B\xffb"
	in.Turn.Message, in.Turn.Skill, in.Turn.History[0].Content = "What\xff\xff?", "\xff Act", "\xff"
	in.Turn.Shaping.Overlays[0] = turncontext.Overlay{ID: "\xff", Source: "\xff", Text: "Be\xff\xfe."}
	in.Turn.Shaping.Guardrails[0].Rule, in.Turn.Contributions[0] = "No\xff.", prompt.Contribution{Name: "c\xff", Text: "\xffx"}
	in.Turn.Facts[0], in.Turn.Memories[1].Text = turncontext.Fact{ID: "a\xff", Text: "\xfe\xfd", Source: "\xfc"}, "\xff"
	in.Turn.Enrichments[1].Title, in.Turn.Session.Summary, in.Turn.Session.ID = "\xff", "x\xff", "s\xff"
	in.Tools[0].Description = "Finds\xff."
	before := asJSON(t, in)
	p := mustPrepare(t, in)
	if p.Report.ReplacedBytes != 25 {
		t.Errorf("replacedBytes = %d, want 25", p.Report.ReplacedBytes)
	}
	if got := content(p, prepare.MessageUser); got != "What\uFFFD\uFFFD?" {
		t.Errorf("the message became %q, want %q: each byte is replaced", got, "What\uFFFD\uFFFD?")
	}
	for _, m := range p.Messages {
		if !utf8.ValidString(m.Content) {
			t.Errorf("%s is not UTF-8: %q", m.Name, m.Content)
		}
	}
	system := content(p, prepare.MessageSystemPrompt)
	if n := utf8.RuneCountInString(system); n != p.Report.Chars || canonical.Sum([]byte(system)) != p.Report.PromptHash {
		t.Errorf("the report says %d chars with hash %s, and the message has %d with another hash", p.Report.Chars, p.Report.PromptHash, n)
	}
	roundTrip(t, p)
	if asJSON(t, in) != before || in.Turn.Message != "What\xff\xff?" {
		t.Error("Prepare changed its input")
	}
}

func TestPreparedSurvivesJSON(t *testing.T) {
	for name, in := range map[string]prepare.Input{
		"least":      input(),
		"everything": everything(),
		"odd characters": input(withFacts(turncontext.Fact{ID: "a", Text: "x\u2028<&>"}), func(in *prepare.Input) {
			in.Profile.Tags, in.Profile.Variables = []string{"support", "de"}, []prepare.Variable{{Name: "tone"}}
			in.Turn.History = []prepare.HistoryMessage{{Role: "assistant", Content: "\x00\x1f🙂"}}
		}),
		"no sections": input(func(in *prepare.Input) { in.Profile.Sections = []string{} }),
		"mode None":   input(func(in *prepare.Input) { in.Turn.Mode = prompt.None }),
	} {
		t.Run(name, func(t *testing.T) { roundTrip(t, mustPrepare(t, in)) })
	}
}

func roundTrip(t *testing.T, p *prepare.Prepared) {
	t.Helper()
	data, err := json.Marshal(p)
	if err != nil {
		t.Fatal(err)
	}
	var back prepare.Prepared
	if err := json.Unmarshal(data, &back); err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(p, &back); diff != "" {
		t.Errorf("the prompt after a round trip through JSON: -frozen +read:\n%s", diff)
	}
}

// TestInputSurvivesJSON checks the JSON form of an input, which the journal keeps in case a fallback needs it.
func TestInputSurvivesJSON(t *testing.T) {
	empty := everything()
	empty.Profile.Sections = []string{}
	for name, in := range map[string]prepare.Input{"least": input(), "everything": everything(), "no sections": empty} {
		t.Run(name, func(t *testing.T) {
			data, err := json.Marshal(in)
			if err != nil {
				t.Fatal(err)
			}
			var back prepare.Input
			if err := json.Unmarshal(data, &back); err != nil {
				t.Fatal(err)
			}
			if diff := cmp.Diff(in, back); diff != "" {
				t.Errorf("the input after a round trip through JSON: -input +read:\n%s", diff)
			}
			if diff := cmp.Diff(asJSON(t, mustPrepare(t, in)), asJSON(t, mustPrepare(t, back))); diff != "" {
				t.Errorf("the same input after JSON gives another prompt: -before +after:\n%s", diff)
			}
		})
	}
}

// TestCheckInstructions checks that only faults are found that remain with every profile.
func TestCheckInstructions(t *testing.T) {
	for text, faulty := range map[string]bool{
		"": false, "You are {{ .Agent.Name }}.": false, "{{ .nobody }}": false, "{{ if .Session }}{{ .Session.Name }}{{ end }}": false,
		"{{ .Agent.Nome }}": true, "{{ .Session.Name }}": true, "{{ if .Session }}{{ lt .Session.Name 1 }}{{ end }}": true,
	} {
		err := prepare.CheckInstructions(prepare.Agent{Name: "desk", Instructions: text})
		if (err != nil) != faulty || faulty && !strings.HasPrefix(err.Error(), prepare.FieldAgentInstructions+":1:") {
			t.Errorf("CheckInstructions of %q: %v, want an error with a position: %t", text, err, faulty)
		}
	}
}

func TestSample(t *testing.T) {
	in := everything()
	in.Turn = prepare.Turn{Name: "any", Message: "any", Parameters: map[string]string{"user": "user"}}
	in.Tools = nil
	got, err := prepare.Sample(in.Agent, in.Profile, in.ManagerSkills, in.Model)
	if err != nil {
		t.Fatal(err)
	}
	if want := mustPrepare(t, in).Report; got.RenderHash != want.RenderHash || got.StableChars != want.StableChars {
		t.Errorf("the sample has renderHash %s, want %s, as for a Turn without parameters on the same model",
			got.RenderHash, want.RenderHash)
	}
	in.Profile.Instructions = "{{ .other }}"
	if _, err := prepare.Sample(in.Agent, in.Profile, nil, "small"); err == nil ||
		!strings.HasPrefix(err.Error(), prepare.FieldInstructions+":1:4: ") {
		t.Errorf("Sample: %v, want the position of the undeclared variable", err)
	}
	for text, want := range map[string]string{
		"{{ .Session.Name }}": "without a conversation", "{{ if .Session }}{{ .Session }}{{ end }}": "with a conversation",
		"{{ if .Session }}{{ if lt .Session.Name 1 }}{{ end }}{{ end }}": "with a conversation, when the template is executed",
	} {
		in.Profile.Instructions = text
		if _, err := prepare.Sample(in.Agent, in.Profile, nil, "small"); err == nil ||
			!strings.HasPrefix(err.Error(), prepare.FieldInstructions+":1:") {
			t.Errorf("Sample of %q: %v, want the position of the fault that occurs %s", text, err, want)
		}
	}
	if _, err := prepare.Sample(prepare.Agent{}, in.Profile, nil, "small"); err == nil {
		t.Error("Sample accepted an agent without a name, want an error")
	}
}
