package controller_test

import (
	"context"
	"fmt"
	"strings"

	. "github.com/onsi/ginkgo/v2"
	. "github.com/onsi/gomega"
	apierrors "k8s.io/apimachinery/pkg/api/errors"

	"github.com/capstan-dev/capstan/api/v1alpha1"
	"github.com/capstan-dev/capstan/internal/manager"
	"github.com/capstan-dev/capstan/internal/writeerror"
)

// pad adds labels to a Turn until etcd refuses one more, so that no other change of the Turn fits.
func (s *testEnv) pad(ctx context.Context, name string) {
	GinkgoHelper()
	t := s.turn(ctx, name)
	add := func(labels int, prefix string) {
		for {
			bigger := t.DeepCopy()
			if bigger.Labels == nil {
				bigger.Labels = map[string]string{}
			}
			for range labels {
				bigger.Labels[fmt.Sprintf("%s%d", prefix, len(bigger.Labels))] = ""
			}
			err := apiClient.Update(ctx, bigger)
			switch {
			case writeerror.IsTooLarge(err):
				return
			case apierrors.IsConflict(err): // the executor wrote the progress of the run
				t = s.turn(ctx, name)
				continue
			}
			Expect(err).NotTo(HaveOccurred())
			t = bigger
			return
		}
	}
	// A few writes are enough, because each number of labels is a sum of powers of two.
	for labels := 4096; labels > 0; labels /= 2 {
		add(labels, strings.Repeat("x", 200)+"."+strings.Repeat("x", 40)+"/")
	}
	for labels := 64; labels > 0; labels /= 2 {
		add(labels, "")
	}
}

var _ = Describe("A Turn that is too large for etcd", func() {
	It("because of its metadata, ends before it runs", func(ctx SpecContext) {
		s := newTestEnv(ctx, ``)
		s.run()
		s.create(ctx, s.basics()...)
		s.create(ctx, newTurn("padded", func(t *v1alpha1.Turn) {
			t.Labels = map[string]string{}
			for i := range 3000 {
				t.Labels[fmt.Sprintf("%s/%d", strings.Repeat("x", 200), i)] = ""
			}
		}))
		t := s.awaitState(ctx, "padded", v1alpha1.TurnReasonInvalidSpec)
		Expect(message(t)).To(MatchRegexp(`^metadata is \d+ bytes and must be at most 524288: remove labels, `))
		Expect(s.fake.Stats().Requests).To(BeZero())
	}, SpecTimeout(patience))

	It("while it runs, leaves its slot to others, and ends with its answer when it is smaller", func(ctx SpecContext) {
		s := newTestEnv(ctx, ``)
		s.run(func(o *manager.Options) { o.MaxConcurrentTurns = 1 })
		s.create(ctx, s.basics()...)
		release := s.hold()
		patient := limited(v1alpha1.Limits{TimeoutSeconds: new(int32(600))}) // padding takes long on a busy machine
		s.create(ctx, newTurn("padded", patient))
		s.awaitHeld(ctx, 1)
		s.pad(ctx, "padded")
		s.create(ctx, newTurn("next", patient))
		s.awaitState(ctx, "next", v1alpha1.TurnReasonQueued)
		release()
		Eventually(s.events).WithArguments(ctx, "Turn", "padded").Should(ContainElement("Warning StatusRejected"))
		s.awaitState(ctx, "next", v1alpha1.TurnReasonCompleted)
		Expect(s.turn(ctx, "padded").StateReason()).To(Equal(v1alpha1.TurnReasonRunning))

		change(ctx, s, "padded", &v1alpha1.Turn{}, func(t *v1alpha1.Turn) { t.Labels = nil })
		t := s.awaitState(ctx, "padded", v1alpha1.TurnReasonCompleted)
		Expect(t.Status.Result.Text).NotTo(BeEmpty())
		Expect(s.fake.Stats().Requests).To(BeEquivalentTo(2), "one for each Turn")
	}, SpecTimeout(4*patience))
})
