package providers_test

import (
	"fmt"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"k8s.io/apimachinery/pkg/types"

	"github.com/capstan-dev/capstan/internal/pace"
	"github.com/capstan-dev/capstan/internal/providers"
	"github.com/capstan-dev/capstan/internal/runtime/model"
)

// TestOpenCircuits checks the report of open circuits, and that it can be read again.
func TestOpenCircuits(t *testing.T) {
	c := providers.NewCache(nil, nil, nil, nil)
	if text := c.OpenCircuits().Encode(); text != "" {
		t.Errorf("without requests the report is %q, want none", text)
	}
	p := c.Gated(object("http://model.test/v1"), pace.Caller{Namespace: "demo"},
		replies{err: &model.Error{Kind: model.Network, Message: "refused"}})
	for range 5 {
		for _, name := range []string{"n", "m"} {
			_, _ = p.Generate(t.Context(), &model.Request{Model: name})
		}
	}
	text := c.OpenCircuits().Encode()
	if want := `{"demo/main":["m","n"]}`; text != want {
		t.Errorf("the report is %s, want %s", text, want)
	}
	want := providers.Circuits{{Namespace: "demo", Name: "main"}: {"m", "n"}}
	if diff := cmp.Diff(want, providers.DecodeCircuits(text)); diff != "" {
		t.Errorf("decoded: -want +got:\n%s", diff)
	}
	for _, text := range []string{"", "{", `{"nameless":["m"]}`, `{"demo/main":[]}`, `["demo/main"]`} {
		if got := providers.DecodeCircuits(text); len(got) > 0 {
			t.Errorf("%s is read as %v, want nothing", text, got)
		}
	}
}

// TestReportOfCircuitsIsBounded checks that a report fits into an annotation.
func TestReportOfCircuitsIsBounded(t *testing.T) {
	many := providers.Circuits{}
	for i := range 1000 {
		key := types.NamespacedName{Namespace: strings.Repeat("n", 63), Name: fmt.Sprintf("%0253d", i)}
		for range 64 {
			many[key] = append(many[key], strings.Repeat("m", 256))
		}
	}
	if n := len(many.Encode()); n > 80<<10 {
		t.Errorf("a report has %d bytes, want at most 80 KiB", n)
	}
}

// TestNamespaceDoesNotHideOpenCircuitsOfAnother checks which ModelProviders a full report leaves out.
func TestNamespaceDoesNotHideOpenCircuitsOfAnother(t *testing.T) {
	many := providers.Circuits{}
	for i := range 60 {
		many[types.NamespacedName{Namespace: "a", Name: fmt.Sprintf("%02d", i)}] = []string{"m"}
	}
	for _, name := range []string{"first", "second"} {
		many[types.NamespacedName{Namespace: "z", Name: name}] = []string{"m"}
	}
	text := many.Encode()
	got := providers.DecodeCircuits(text)
	if len(got) != 50 {
		t.Errorf("the report has %d ModelProviders, want 50", len(got))
	}
	for _, key := range []types.NamespacedName{
		{Namespace: "z", Name: "first"},
		{Namespace: "z", Name: "second"},
		{Namespace: "a", Name: "00"},
		{Namespace: "a", Name: "47"},
	} {
		if _, ok := got[key]; !ok {
			t.Errorf("the report lacks %s", key)
		}
	}
	for range 10 {
		if again := many.Encode(); again != text {
			t.Fatalf("another report of the same circuits is %s, want %s", again, text)
		}
	}
}
