package main

import (
	"slices"
	"testing"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client/fake"

	"github.com/capstan-dev/capstan/api/v1alpha1"
)

// TestViolationsNameTheTurn checks that violations of lost journals have the name of the Turn, and its UID only if the
// phase does not know the Turn. The tools of the Turns only know UIDs.
func TestViolationsNameTheTurn(t *testing.T) {
	known := &v1alpha1.Turn{ObjectMeta: metav1.ObjectMeta{Namespace: "lost", Name: "first", UID: "uid-1"}}
	for name, check := range map[string]func(*lossPhase) error{
		"lost":     func(l *lossPhase) error { return l.check(t.Context(), "SIGKILL", nil, nil) },
		"restored": func(l *lossPhase) error { return l.checkRestored(t.Context(), "sqlite", nil, nil) },
	} {
		t.Run(name, func(t *testing.T) {
			tools := newToolServer(time.Millisecond)
			tools.done = map[effect]int{{"uid-1", "send", 1, 1}: 2, {"uid-2", "send", 1, 1}: 2}
			api := fake.NewClientBuilder().WithScheme(scheme).WithObjects(known).Build()
			l := &lossPhase{rig: &rig{api: api, tools: tools}, phase: "lost"}
			if err := check(l); err != nil {
				t.Fatal(err)
			}
			var got []string
			for _, v := range l.found {
				if v.Guarantee == calledOnce || v.Turn != "" {
					got = append(got, v.Turn)
				}
			}
			slices.Sort(got)
			if want := []string{"first", "uid-2"}; !slices.Equal(got, want) {
				t.Errorf("the violations %+v name the Turns %q, want %q", l.found, got, want)
			}
		})
	}
}
