package providers_test

import (
	"fmt"
	"slices"
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

// TestReportOfCircuitsIsBounded checks that a report fits into an annotation, also with names for which JSON needs
// several bytes for each character, and that such names in one namespace do not hide the circuits of another one.
func TestReportOfCircuitsIsBounded(t *testing.T) {
	for name, tc := range map[string]struct {
		model string
		// fits is true if the name of the model is short enough to be reported.
		fits bool
	}{
		"ASCII":                    {strings.Repeat("m", 256), true},
		"characters of HTML":       {strings.Repeat("<", 256), false},
		"control characters":       {strings.Repeat("\x01", 256), false},
		"characters of four bytes": {strings.Repeat("\U0001F916", 256), true},
		"quotes":                   {strings.Repeat(`"`, 256), true},
	} {
		t.Run(name, func(t *testing.T) {
			many := providers.Circuits{{Namespace: "z", Name: "main"}: {"model"}}
			for i := range 1000 {
				key := types.NamespacedName{Namespace: strings.Repeat("n", 63), Name: fmt.Sprintf("%0253d", i)}
				for range 64 {
					many[key] = append(many[key], tc.model)
				}
			}
			text := many.Encode()
			if n := len(text); n > 80<<10 {
				t.Errorf("a report has %d bytes, want at most 80 KiB", n)
			}
			got := providers.DecodeCircuits(text)
			if models := got[types.NamespacedName{Namespace: "z", Name: "main"}]; !slices.Equal(models, []string{"model"}) {
				t.Errorf("the report has the models %q of another namespace, want its model", models)
			}
			for key, models := range got {
				if key.Namespace != "z" && models[0] != tc.model {
					t.Fatalf("the report has the model %q, want whole names", models[0])
				}
			}
			if reported := len(got) > 1; reported != tc.fits {
				t.Errorf("the long names are reported: %t, want %t", reported, tc.fits)
			}
		})
	}
}

// TestLongNameDoesNotHideOpenCircuits checks that a report leaves out a name that is too long, but not the names after
// it.
func TestLongNameDoesNotHideOpenCircuits(t *testing.T) {
	key := types.NamespacedName{Namespace: "demo", Name: "main"}
	got := providers.DecodeCircuits(providers.Circuits{key: {strings.Repeat("<", 256), "a", "b"}}.Encode())
	if diff := cmp.Diff(providers.Circuits{key: {"a", "b"}}, got); diff != "" {
		t.Errorf("the report: -want +got:\n%s", diff)
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
