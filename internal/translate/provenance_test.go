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

// ids returns some, each of a text and a number.
func ids(n int, text string) []string {
	var all []string
	for i := range n {
		all = append(all, fmt.Sprintf("%s%d", text, i))
	}
	return all
}

func TestProvenance(t *testing.T) {
	long := strings.Repeat("x", 124)       // 128 with a number of up to 4 digits
	hostile := strings.Repeat("\x01", 124) // six times as long as JSON
	for name, tc := range map[string]struct {
		reason string
		in     turncontext.Provenance
		want   *v1alpha1.Provenance
	}{
		"none": {"no list, no provenance", turncontext.Provenance{UsedMemoryIDs: []string{}}, nil},
		"bounds": {"each list ends at its bound", turncontext.Provenance{
			UsedMemoryIDs: ids(11, "m"), DroppedMemoryIDs: ids(60, "n"), UsedEnrichmentIDs: ids(9, "e"), DroppedEnrichmentIDs: ids(60, "f"),
			UsedGuardrailIDs: ids(64, "g"), UsedOverlayIDs: ids(96, "o"),
		}, &v1alpha1.Provenance{
			UsedMemoryIDs: ids(10, "m"), DroppedMemoryIDs: ids(54, "n"), UsedEnrichmentIDs: ids(8, "e"), DroppedEnrichmentIDs: ids(56, "f"),
			UsedGuardrailIDs: ids(32, "g"), UsedOverlayIDs: ids(32, "o"),
		}},
		"bytes": {"all together at 8 KiB, what is used first", turncontext.Provenance{
			UsedMemoryIDs: ids(10, long), DroppedMemoryIDs: ids(54, long), UsedEnrichmentIDs: ids(8, long), UsedGuardrailIDs: ids(32, long), UsedOverlayIDs: ids(32, long),
		}, &v1alpha1.Provenance{
			UsedMemoryIDs: ids(10, long), UsedEnrichmentIDs: ids(8, long), UsedGuardrailIDs: ids(32, long), UsedOverlayIDs: ids(13, long),
		}},
		"hostile": {
			"a control character counts as JSON has it",
			turncontext.Provenance{UsedMemoryIDs: ids(10, hostile), DroppedMemoryIDs: ids(54, hostile)},
			&v1alpha1.Provenance{UsedMemoryIDs: ids(10, hostile)},
		},
	} {
		t.Run(name, func(t *testing.T) {
			got := translate.Report(&prepare.Report{Provenance: tc.in}, "", "", 0).Provenance
			if diff := cmp.Diff(tc.want, got); diff != "" {
				t.Errorf("%s: -want +got:\n%s", tc.reason, diff)
			}
			data, err := json.Marshal(got)
			if names := 160; err != nil || len(data) > 8<<10+names { // the names of the lists come on top
				t.Errorf("the provenance takes %d bytes of JSON (error %v), want at most 8 KiB of ids", len(data), err)
			}
		})
	}
}

func TestNoExpression(t *testing.T) {
	if got := translate.Report(&prepare.Report{}, "", "", 0).Expression; got != nil {
		t.Errorf("expression %+v, want none: nothing says how to speak", got)
	}
}
