package turncontext_test

import (
	"fmt"
	"slices"
	"testing"

	"github.com/google/go-cmp/cmp"

	tc "github.com/capstan-dev/capstan/internal/runtime/turncontext"
)

// memories returns a memory for each relevance, named m0, m1 and so on.
func memories(relevances ...float64) []tc.Memory {
	var all []tc.Memory
	for i, r := range relevances {
		all = append(all, tc.Memory{ID: fmt.Sprintf("m%d", i), Text: fmt.Sprintf("memory %d", i), Relevance: r})
	}
	return all
}

// enrichments returns an enrichment for each importance, named e0, e1 and so on.
func enrichments(importances ...tc.Level) []tc.Enrichment {
	var all []tc.Enrichment
	for i, l := range importances {
		all = append(all, tc.Enrichment{ID: fmt.Sprintf("e%d", i), Kind: "Other", Content: "x", Importance: l})
	}
	return all
}

func TestTheMostRelevantMemoriesAreUsed(t *testing.T) {
	thirteen := memories(0, .1, .2, .3, .4, 0, .1, .2, .3, .4, 0, .1, .2)
	for name, c := range map[string]struct {
		reason        string
		candidates    []tc.Memory
		most          int
		used, dropped []string
	}{
		"none": {"the lists are never nil", nil, 10, []string{}, []string{}},
		"thirteen": {
			"the most relevant memories come first, equal ones in the given order, at most 10", thirteen, 10,
			[]string{"m4", "m9", "m3", "m8", "m2", "m7", "m12", "m1", "m6", "m11"},
			[]string{"m0", "m5", "m10"},
		},
		"three": {
			"an agent may ask for fewer memories", thirteen, 3,
			[]string{"m4", "m9", "m3"},
			[]string{"m8", "m2", "m7", "m12", "m1", "m6", "m11", "m0", "m5", "m10"},
		},
		"zero":     {"an agent may ask for no memories", memories(.5, 1), 0, []string{}, []string{"m1", "m0"}},
		"negative": {"a negative number means none", memories(.5, 1), -1, []string{}, []string{"m1", "m0"}},
		"more than ten": {
			"there are never more than 10 memories", thirteen, 64,
			[]string{"m4", "m9", "m3", "m8", "m2", "m7", "m12", "m1", "m6", "m11"},
			[]string{"m0", "m5", "m10"},
		},
		"absent relevance": {"a missing relevance is 0, so the order stays", memories(0, 0, 0), 2, []string{"m0", "m1"}, []string{"m2"}},
		"last is best":     {"the most relevant memory may be the last one", memories(0, 0, 1), 10, []string{"m2", "m0", "m1"}, []string{}},
		"equal IDs": {
			"IDs are not compared",
			[]tc.Memory{{ID: "x", Text: "one"}, {ID: "x", Text: "two"}},
			10,
			[]string{"x", "x"},
			[]string{},
		},
	} {
		t.Run(name, func(t *testing.T) {
			given := slices.Clone(c.candidates)
			got, shown := tc.Assemble(tc.Input{Memories: given, MaxMemories: c.most})
			if diff := cmp.Diff([][]string{c.used, c.dropped},
				[][]string{got.Provenance.UsedMemoryIDs, got.Provenance.DroppedMemoryIDs}); diff != "" {
				t.Errorf("used and dropped: %s: -want +got:\n%s", c.reason, diff)
			}
			if diff := cmp.Diff(c.candidates, given); diff != "" {
				t.Errorf("the candidates must stay as they were given: -want +got:\n%s", diff)
			}
			checkShown(t, "memory", c.used, c.dropped, got, len(shown.Memories))
		})
	}
}

// checkShown checks that the context, the blocks and the dropped items agree with the provenance.
func checkShown(t *testing.T, kind string, used, dropped []string, got tc.Assembly, shown int) {
	t.Helper()
	blocks, out := []string{}, []string{}
	for _, b := range got.Blocks {
		blocks = append(blocks, b.ID)
	}
	for _, d := range got.Dropped {
		if d.Kind == kind {
			out = append(out, d.ID)
		}
	}
	want := []string{}
	for _, id := range used {
		want = append(want, kind+"-"+id)
	}
	if diff := cmp.Diff([][]string{want, dropped}, [][]string{blocks, out}); diff != "" || shown != len(used) {
		t.Errorf("the model receives %d of %d; blocks and dropped items: -want +got:\n%s", shown, len(used), diff)
	}
}

func TestTheMostImportantEnrichmentsAreUsed(t *testing.T) {
	product := func(list []tc.Enrichment, at ...int) []tc.Enrichment {
		for _, i := range at {
			list[i].Audience = "Product"
		}
		return list
	}
	for name, c := range map[string]struct {
		reason        string
		candidates    []tc.Enrichment
		used, dropped []string
	}{
		"none": {"the lists are never nil", nil, []string{}, []string{}},
		"eleven": {
			"the order is High, then Medium and missing ones in the given order, then Low, at most 8",
			enrichments("Low", "High", "", "Medium", "Low", "High", "", "Medium", "", "Low", "High"),
			[]string{"e1", "e5", "e10", "e2", "e3", "e6", "e7", "e8"},
			[]string{"e0", "e4", "e9"},
		},
		"product": {
			"an enrichment for the product never reaches the model", product(enrichments("High", "Low"), 0),
			[]string{"e1"},
			[]string{"e0"},
		},
		"both": {
			"enrichments over the limit are dropped first, in sorted order, then excluded enrichments in the given order",
			product(enrichments("High", "Low", "High", "", "", "", "", "", "", "", "", "High", ""), 0, 11),
			[]string{"e2", "e3", "e4", "e5", "e6", "e7", "e8", "e9"},
			[]string{"e10", "e12", "e1", "e0", "e11"},
		},
		"all excluded": {
			"all enrichments may be for the product", product(enrichments("High", ""), 0, 1),
			[]string{},
			[]string{"e0", "e1"},
		},
		"other audiences": {
			"the model receives enrichments for any other audience, and the value is case-sensitive",
			[]tc.Enrichment{
				{ID: "a", Content: "x", Audience: "Assistant"},
				{ID: "m", Content: "x", Audience: "Mixed"},
				{ID: "p", Content: "x", Audience: "product"},
				{ID: "n", Content: "x"},
			},
			[]string{"a", "m", "p", "n"},
			[]string{},
		},
	} {
		t.Run(name, func(t *testing.T) {
			given := slices.Clone(c.candidates)
			got, shown := tc.Assemble(tc.Input{Enrichments: given})
			if diff := cmp.Diff([][]string{c.used, c.dropped},
				[][]string{got.Provenance.UsedEnrichmentIDs, got.Provenance.DroppedEnrichmentIDs}); diff != "" {
				t.Errorf("used and dropped: %s: -want +got:\n%s", c.reason, diff)
			}
			if diff := cmp.Diff(c.candidates, given); diff != "" {
				t.Errorf("the candidates must stay as they were given: -want +got:\n%s", diff)
			}
			checkShown(t, "enrichment", c.used, c.dropped, got, len(shown.Enrichments))
		})
	}
}

func TestEqualCandidatesKeepTheirOrder(t *testing.T) {
	levels := []tc.Level{tc.Medium, tc.Low, "", tc.High}
	var relevances []float64
	var importances []tc.Level
	for i := range 64 { // enough to show a sort that is not stable
		relevances = append(relevances, float64(i%2)/2)
		importances = append(importances, levels[i%4])
	}
	got, _ := tc.Assemble(tc.Input{Memories: memories(relevances...), MaxMemories: 10, Enrichments: enrichments(importances...)})
	var byRelevance, byImportance []string
	for rest := range 2 {
		for i := 1 - rest; i < 64; i += 2 {
			byRelevance = append(byRelevance, fmt.Sprintf("m%d", i))
		}
	}
	for _, class := range [][]int{{3}, {0, 2}, {1}} {
		for i := range 64 {
			if slices.Contains(class, i%4) {
				byImportance = append(byImportance, fmt.Sprintf("e%d", i))
			}
		}
	}
	p := got.Provenance
	if diff := cmp.Diff(byRelevance, slices.Concat(p.UsedMemoryIDs, p.DroppedMemoryIDs)); diff != "" {
		t.Errorf("memories of equal relevance must keep their order: -want +got:\n%s", diff)
	}
	if diff := cmp.Diff(byImportance, slices.Concat(p.UsedEnrichmentIDs, p.DroppedEnrichmentIDs)); diff != "" {
		t.Errorf("enrichments of equal importance must keep their order: -want +got:\n%s", diff)
	}
}

func TestDroppedItemsHaveAReason(t *testing.T) {
	in := tc.Input{
		Memories: append(memories(1, 0), tc.Memory{ID: "m2", Text: " \u200b", Relevance: 1}), MaxMemories: 1,
		Facts: []tc.Fact{{ID: "f0", Text: "\ufeff"}, {ID: "f1", Text: "x"}}, Preferences: []string{" ", "y"},
		Enrichments: append(enrichments("", "", "", "", "", "", "", "", "Low"),
			tc.Enrichment{ID: "p", Audience: "Product"}, tc.Enrichment{ID: "b", Content: "\n"}),
		Profile: tc.Layer{
			Overlays:   []tc.Overlay{overlay("o1", ""), {ID: "o2", Text: " "}},
			Guardrails: []tc.Guardrail{{ID: "g1", Rule: "\n"}, {ID: "g2", Rule: "Rule."}},
		},
		Turn: tc.Layer{
			Overlays:   []tc.Overlay{{ID: "o3", Text: ""}, overlay("o4", tc.High)},
			Guardrails: []tc.Guardrail{{ID: "g3", Rule: "Rule.", Priority: tc.High}},
		},
	}
	got, _ := tc.Assemble(in)
	dropped := []tc.Dropped{
		{Kind: "memory", ID: "m1", Reason: "over the cap"},
		{Kind: "memory", ID: "m2", Reason: "it is blank"},
		{Kind: "enrichment", ID: "e8", Reason: "over the cap"},
		{Kind: "enrichment", ID: "p", Reason: "its audience is Product"},
		{Kind: "enrichment", ID: "b", Reason: "it is blank"},
		{Kind: "fact", ID: "f0", Reason: "it is blank"},
		{Kind: "preference", ID: " ", Reason: "it is blank"},
		{Kind: "overlay", ID: "o2", Reason: "it renders blank"},
		{Kind: "overlay", ID: "o3", Reason: "it renders blank"},
		{Kind: "guardrail", ID: "g1", Reason: "it renders blank"},
	}
	if diff := cmp.Diff(dropped, got.Dropped); diff != "" {
		t.Errorf("dropped: -want +got:\n%s", diff)
	}
	if diff := cmp.Diff([][]string{{"o1", "o4"}, {"g2", "g3"}},
		[][]string{got.Provenance.UsedOverlayIDs, got.Provenance.UsedGuardrailIDs}); diff != "" {
		t.Errorf("used overlays and guardrails, in the given order: -want +got:\n%s", diff)
	}

	const reason = "the prompt has no section turn_instructions"
	without, before := got.WithoutInstructions(reason, 1), len(got.Dropped)
	dropped = append(dropped, tc.Dropped{Kind: "overlay", ID: "o1", Reason: reason}, tc.Dropped{Kind: "overlay", ID: "o4", Reason: reason},
		tc.Dropped{Kind: "guardrail", ID: "g3", Reason: reason})
	if diff := cmp.Diff(dropped, without.Dropped); diff != "" {
		t.Errorf("dropped without a section for instructions: -want +got:\n%s", diff)
	}
	if diff := cmp.Diff([][]string{{}, {"g2"}},
		[][]string{without.Provenance.UsedOverlayIDs, without.Provenance.UsedGuardrailIDs}); diff != "" {
		t.Errorf("used overlays and guardrails, only the profile's guardrail: -want +got:\n%s", diff)
	}
	if len(got.Dropped) != before || len(got.Provenance.UsedOverlayIDs) != 2 || len(got.Provenance.UsedGuardrailIDs) != 2 {
		t.Errorf("WithoutInstructions has changed its assembly: %+v", got)
	}
}
