package translate_test

import (
	"context"
	"fmt"
	"runtime"
	"strings"
	"testing"

	"github.com/capstan-dev/capstan/api/v1alpha1"
	"github.com/capstan-dev/capstan/internal/fairgate/fairgatetest"
	"github.com/capstan-dev/capstan/internal/memory/memorytest"
	"github.com/capstan-dev/capstan/internal/redact"
	"github.com/capstan-dev/capstan/internal/translate"
)

// withRule returns an Agent with a large redaction rule that ends with a text.
func withRule(end string) *v1alpha1.Agent {
	a := &v1alpha1.Agent{}
	a.Spec.Redaction = &v1alpha1.AgentRedaction{Patterns: []v1alpha1.RedactionPattern{{
		Name: "large", Pattern: strings.Repeat(`\pL`, 40) + end,
	}}}
	return a
}

// TestRunningTurnsShareRules checks that the Turns of an Agent share its compiled rules, so that a hundred of them take
// no more memory than a few.
func TestRunningTurnsShareRules(t *testing.T) {
	const turns, most = 100, 2 << 20
	held := make([]*redact.TurnRedactor, turns)
	before := memorytest.Heap()
	for i := range held {
		var err error
		if held[i], err = translate.Redaction(t.Context(), withRule("shared"), nil); err != nil {
			t.Fatal(err)
		}
	}
	if kept := int(memorytest.Heap() - before); kept > most {
		t.Errorf("%d Turns keep %d bytes, want at most %d", turns, kept, most)
	}
	word := strings.Repeat("x", 40)
	for i, r := range held {
		if got, want := r.Redact(fmt.Sprint(i, word, "shared")), fmt.Sprint(i, "[redacted:large]"); got != want {
			t.Fatalf("Redact = %q, want %q", got, want)
		}
	}
	other, err := translate.Redaction(t.Context(), withRule("other"), nil)
	if err != nil {
		t.Fatal(err)
	}
	if got := other.Redact(word + "other"); got != "[redacted:large]" {
		t.Errorf("the rules of another Agent return %q", got)
	}
	for i, r := range held { // each Turn counts its own matches
		if got := r.Take()["large"]; got != 1 {
			t.Fatalf("Turn %d counts %d matches, want 1", i, got)
		}
	}
}

// TestCompilationOfRulesTakesTurns checks that rules wait for their turn at the processors, unless another Turn holds
// them.
func TestCompilationOfRulesTakesTurns(t *testing.T) {
	var held *redact.Rules
	compile := func(ctx context.Context) {
		rules, err := translate.Rules(ctx, withRule("turns"))
		if err != nil {
			t.Error(err)
		}
		held = rules
	}
	if !fairgatetest.Waits(t, compile) {
		t.Error("the first compilation does not wait")
	}
	if fairgatetest.Waits(t, compile) {
		t.Error("rules that are held already wait again")
	}
	runtime.KeepAlive(held)
}
