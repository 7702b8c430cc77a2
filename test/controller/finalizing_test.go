package controller_test

import (
	"fmt"
	"sync"

	. "github.com/onsi/ginkgo/v2"
	. "github.com/onsi/gomega"

	"github.com/capstan-dev/capstan/api/v1alpha1"
	"github.com/capstan-dev/capstan/internal/manager"
)

// faultyStep delays one of the steps that finalize a Turn, and then makes this step fail, once.
type faultyStep struct {
	mu   sync.Mutex
	next string
	// reached is closed when the step begins. The step then calls the function from fail.
	reached chan struct{}
	fail    chan func() error
	// seen are the names of all steps.
	seen map[string]bool
}

// begin is called before each step.
func (f *faultyStep) begin(step string) error {
	f.mu.Lock()
	f.seen[step] = true
	if step != f.next {
		f.mu.Unlock()
		return nil
	}
	f.next = ""
	close(f.reached)
	f.mu.Unlock()
	return (<-f.fail)()
}

// arm chooses the step, and returns the channel that is closed when a Turn has reached it.
func (f *faultyStep) arm(step string) <-chan struct{} {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.next, f.reached = step, make(chan struct{})
	return f.reached
}

var _ = Describe("A step that finalizes a Turn", func() {
	steps := []string{
		"citations", "policies", "undo", "sources", "artifacts", "redactions", "tools", "requests", "usage", "cost", "decision",
		"record", "tasks", "session history",
	}

	DescribeTable("can fail without failing the Turn, and delays no other Turn", func(ctx SpecContext, fault func() error, says string) {
		f := &faultyStep{fail: make(chan func() error), seen: map[string]bool{}}
		DeferCleanup(func() { close(f.fail) })
		s := newTestEnv(ctx, ``)
		s.run(func(o *manager.Options) { o.Hooks.Finalizing = f.begin })
		s.create(ctx, s.basics()...)
		s.create(ctx, newSession())
		for i, step := range steps {
			reached := f.arm(step)
			slow, other := fmt.Sprintf("slow-%d", i), fmt.Sprintf("other-%d", i)
			s.create(ctx, newTurn(slow, inSession))
			Eventually(reached).WithContext(ctx).Should(BeClosed(), step)
			s.create(ctx, newTurn(other))
			Expect(finalizedReason(s.awaitState(ctx, other, v1alpha1.TurnReasonCompleted))).To(Equal("True Finalized"), step)
			Expect(s.turn(ctx, slow).IsFinished()).To(BeFalse(), step)
			f.fail <- fault
			t := s.awaitState(ctx, slow, v1alpha1.TurnReasonCompleted)
			Expect(finalizedReason(t)).To(Equal("False PartiallyFinalized"), step)
			Expect(finalizedMessage(t)).To(HavePrefix("these steps failed: "+step+": "+says), step)
			Expect(t.Status.Result).To(HaveField("Text", ContainSubstring(slow)), "the answer is valid")
		}
		for step := range f.seen {
			Expect(steps).To(ContainElement(step))
		}
	},
		Entry("with an error", func() error { return fmt.Errorf("out of order") }, "out of order", SpecTimeout(3*patience)),
		Entry("with a panic", func() error { panic("a part of the conversation") }, "a bug in Capstan, in controller_test.",
			SpecTimeout(3*patience)),
	)
})
