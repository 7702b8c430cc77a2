package translate

import (
	"fmt"
	"strings"

	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/capstan-dev/capstan/api/v1alpha1"
)

// Summary returns one line about a Turn that has ended: its reason, strategy, usage and time. The line contains no
// text of the Turn.
func Summary(t *v1alpha1.Turn) string {
	s := t.StateReason()
	if d := t.Status.Decision; d != nil {
		s += fmt.Sprintf(", strategy %s", d.Strategy)
	}
	if u := t.Status.Usage; u != nil {
		s += fmt.Sprintf(", %d tokens", u.TotalTokens)
		if u.Estimated {
			s += " (partly estimated)"
		}
		if u.Cost != nil {
			s += fmt.Sprintf(", cost %s %s", u.Cost.Amount, u.Cost.Currency)
		}
	}
	if ms := t.Status.DurationMilliseconds; ms != nil {
		s += fmt.Sprintf(", %.1f s", float64(*ms)/1000)
	}
	return s
}

// maxNoteBytes bounds the note of an Event: the API server accepts 1 KiB.
const maxNoteBytes = 1000

// Note shortens the note of an Event to the length that the API server accepts.
func Note(text string) string {
	if len(text) > maxNoteBytes {
		text = strings.ToValidUTF8(text[:maxNoteBytes], "") + "..."
	}
	return text
}

// EndNote returns the note of the Event at the end of a Turn: its summary and, if the Turn failed, its message.
func EndNote(t *v1alpha1.Turn) string {
	said := Summary(t)
	c := meta.FindStatusCondition(t.Status.Conditions, v1alpha1.ConditionSucceeded)
	if c != nil && c.Status == metav1.ConditionFalse && c.Reason != v1alpha1.TurnReasonCancelled && c.Message != "" {
		said += ": " + c.Message
	}
	return Note(said)
}
