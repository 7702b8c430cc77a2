package translate

import (
	"fmt"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/capstan-dev/capstan/api/v1alpha1"
	"github.com/capstan-dev/capstan/internal/runtime/citation"
	"github.com/capstan-dev/capstan/internal/runtime/finalize"
)

func TestCitationsOf(t *testing.T) {
	page := citation.Page{Title: "Returns", URL: "https://shop.example/returns"}
	for name, tc := range map[string]struct {
		record finalize.Record
		want   *v1alpha1.Citations
	}{
		"none":  {finalize.Record{}, nil},
		"local": {finalize.Record{Citations: []string{"a.md"}}, &v1alpha1.Citations{Local: []string{"a.md"}}},
		"both": {
			finalize.Record{Citations: []string{"a.md"}, WebCitations: []citation.Page{page}},
			&v1alpha1.Citations{Local: []string{"a.md"}, Web: []v1alpha1.WebCitation{{Title: page.Title, URL: page.URL}}},
		},
	} {
		if diff := cmp.Diff(tc.want, citationsOf(&tc.record)); diff != "" {
			t.Errorf("%s (-want +got):\n%s", name, diff)
		}
	}
}

// TestCitationsAreBounded checks that sources which exceed the bound are left out: first the last web pages, then the
// last local sources.
func TestCitationsAreBounded(t *testing.T) {
	var r finalize.Record
	for i := range citation.Max {
		r.Citations = append(r.Citations, fmt.Sprintf("%d%s", i, strings.Repeat("\U0001F680", 300)))
		r.WebCitations = append(r.WebCitations, citation.Page{URL: fmt.Sprintf("https://shop.example/%d%s", i, strings.Repeat("x", 1000))})
	}
	got := citationsOf(&r)
	if len(got.Local) != citation.Max || len(got.Web) != 6 || got.Web[0].URL != r.WebCitations[0].URL {
		t.Errorf("%d local sources and %d pages, want 8 and the first 6", len(got.Local), len(got.Web))
	}
	for i := range r.Citations {
		r.Citations[i] = fmt.Sprintf("%d%s", i, strings.Repeat("\U0001F680", 511))
	}
	if got := citationsOf(&r); len(got.Local) != 7 || len(got.Web) != 0 {
		t.Errorf("%d local sources and %d pages, want 7 and none", len(got.Local), len(got.Web))
	}
}
