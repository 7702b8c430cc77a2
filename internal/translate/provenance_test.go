package translate_test

import (
	"encoding/json"
	"fmt"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/capstan-dev/capstan/api/v1alpha1"
	"github.com/capstan-dev/capstan/internal/runtime/prepare"
	"github.com/capstan-dev/capstan/internal/runtime/turncontext"
	"github.com/capstan-dev/capstan/internal/translate"
)

// ids returns n IDs, each of which is the text followed by a number.
func ids(n int, text string) []string {
	var all []string
	for i := range n {
		all = append(all, fmt.Sprintf("%s%d", text, i))
	}
	return all
}

func TestProvenance(t *testing.T) {
	long := strings.Repeat("ü", 62)       // with a number of two digits: 64 characters, 126 bytes
	hostile := strings.Repeat("\x01", 62) // JSON needs six bytes for each character
	for name, tc := range map[string]struct {
		reason string
		in     turncontext.Provenance
		want   *v1alpha1.Provenance
	}{
		"none": {"empty lists are left out", turncontext.Provenance{UsedMemoryIDs: []string{}}, nil},
		"all": {"lists within the bounds are complete", turncontext.Provenance{
			UsedMemoryIDs: ids(10, "m"), DroppedMemoryIDs: ids(54, "n"), UsedEnrichmentIDs: ids(8, "e"), DroppedEnrichmentIDs: ids(56, "f"),
			UsedGuardrailIDs: ids(64, "g"), UsedOverlayIDs: ids(96, "o"),
		}, &v1alpha1.Provenance{
			UsedMemoryIDs: ids(10, "m"), DroppedMemoryIDs: ids(54, "n"), UsedEnrichmentIDs: ids(8, "e"), DroppedEnrichmentIDs: ids(56, "f"),
			UsedGuardrailIDs: ids(64, "g"), UsedOverlayIDs: ids(96, "o"),
		}},
		"bounds": {"no list exceeds its schema, and truncated reports a cut", turncontext.Provenance{
			UsedMemoryIDs: ids(11, "m"), DroppedMemoryIDs: ids(65, "n"), UsedEnrichmentIDs: ids(9, "e"), DroppedEnrichmentIDs: ids(65, "f"),
			UsedGuardrailIDs: ids(65, "g"), UsedOverlayIDs: ids(97, "o"),
		}, &v1alpha1.Provenance{
			UsedMemoryIDs: ids(10, "m"), DroppedMemoryIDs: ids(64, "n"), UsedEnrichmentIDs: ids(8, "e"), DroppedEnrichmentIDs: ids(64, "f"),
			UsedGuardrailIDs: ids(64, "g"), UsedOverlayIDs: ids(96, "o"), Truncated: true,
		}},
		"bytes": {"20 KiB in total, with the IDs in the prompt first", turncontext.Provenance{
			UsedGuardrailIDs: ids(64, long), UsedOverlayIDs: ids(96, long), UsedMemoryIDs: ids(10, long), DroppedMemoryIDs: ids(54, long),
		}, &v1alpha1.Provenance{
			UsedGuardrailIDs: ids(64, long), UsedOverlayIDs: ids(94, long), Truncated: true,
		}},
		"hostile": {
			"a control character counts with its length in JSON",
			turncontext.Provenance{UsedMemoryIDs: ids(10, hostile), DroppedMemoryIDs: ids(54, hostile)},
			&v1alpha1.Provenance{UsedMemoryIDs: ids(10, hostile), DroppedMemoryIDs: ids(44, hostile), Truncated: true},
		},
	} {
		t.Run(name, func(t *testing.T) {
			got := translate.PreparationStatus(&prepare.Report{Provenance: tc.in}, "", "", 0).Provenance
			if diff := cmp.Diff(tc.want, got); diff != "" {
				t.Errorf("%s: -want +got:\n%s", tc.reason, diff)
			}
			data, err := json.Marshal(got)
			if names := 180; err != nil || len(data) > 20<<10+names { // maxProvenanceBytes does not count the names of the lists
				t.Errorf("the provenance takes %d bytes of JSON (error %v), want at most 20 KiB of ids", len(data), err)
			}
		})
	}
}

// TestToneFitsTheStatus checks a tone to which a redaction has added characters.
func TestToneFitsTheStatus(t *testing.T) {
	report := &prepare.Report{Expression: turncontext.Expression{Tone: strings.Repeat("ü", 200)}}
	if got := translate.PreparationStatus(report, "", "", 0).Expression.Tone; got != strings.Repeat("ü", 128) {
		t.Errorf("the tone has %d characters, want the first 128, which the schema allows", len([]rune(got)))
	}
}

func TestReportWithoutExpression(t *testing.T) {
	if got := translate.PreparationStatus(&prepare.Report{}, "", "", 0).Expression; got != nil {
		t.Errorf("expression %+v, want nil", got)
	}
}
