package manifest

import (
	"testing"

	"github.com/google/go-cmp/cmp"
)

// TestNumbersThatDoNotFit checks the finding about a number that its field cannot hold, if no other finding is about
// the field.
func TestNumbersThatDoNotFit(t *testing.T) {
	api := finding{"<nil>", `Invalid value: "": Checked value must be of type integer with format int32 in spec.limits.maxSteps`}
	other := finding{"spec.message", "Required value"}
	want := []finding{{"spec.limits.maxSteps", "must be an integer that fits into 32 bits"}, other}
	if diff := cmp.Diff(want, withFields([]finding{api, other}), cmp.AllowUnexported(finding{})); diff != "" {
		t.Errorf("withFields: -want +got:\n%s", diff)
	}
}
