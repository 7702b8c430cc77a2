package controller_test

import (
	"context"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"sync/atomic"
	"time"

	. "github.com/onsi/ginkgo/v2"
	. "github.com/onsi/gomega"
	coordinationv1 "k8s.io/api/coordination/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/capstan-dev/capstan/api/v1alpha1"
	"github.com/capstan-dev/capstan/internal/executor"
	"github.com/capstan-dev/capstan/internal/manager"
	"github.com/capstan-dev/capstan/internal/scheduler"
	"github.com/capstan-dev/capstan/internal/store/sqlite"
)

var _ = Describe("The Lease of a lost executor", func() {
	It("is deleted within minutes, and a copy of its store that was restored later is still detected", func(ctx SpecContext) {
		s := newTestEnv(ctx, ``)
		// passed is how far the manager's clock is ahead.
		var passed atomic.Int64
		// touch lets the time pass for which a Lease is kept, and changes the Lease, so that the controller checks it
		// now. The manager counts the time from when it first saw the Lease, so one touch may come too early.
		touch := func(ctx context.Context, name string) error {
			passed.Add(int64(scheduler.LeaseRetention))
			var l coordinationv1.Lease
			if err := apiClient.Get(ctx, s.key(name), &l); err != nil {
				return err
			}
			metav1.SetMetaDataAnnotation(&l.ObjectMeta, "example.com/touched", time.Now().String())
			return apiClient.Update(ctx, &l)
		}
		restored := s.options(func(o *manager.Options) { o.ExecutorName = "restored" })
		copied, err := sqlite.Open(ctx, filepath.Join(restored.DataDir, "journal.db"))
		Expect(err).NotTo(HaveOccurred())
		state, err := copied.Mark(ctx, 0)
		Expect(err).NotTo(HaveOccurred())
		Expect(copied.Close()).To(Succeed())
		later := strconv.FormatInt(state.Position+10, 10)

		// The controller deletes only the version of a Lease that it has read. It needs time to read it and delete it
		// before the next change.
		const betweenTouches = 2 * time.Second
		const lost = executor.LeasePrefix + "lost"
		s.create(ctx, &coordinationv1.Lease{ObjectMeta: metav1.ObjectMeta{
			Name: lost, Labels: map[string]string{executor.LeaseLabel: executor.LeaseLabelValue},
			Annotations: map[string]string{executor.StoreAnnotation: state.ID, executor.PositionAnnotation: later},
		}})
		// The manager has another store, and the permissions of an installed manager.
		m := startAs(s.userWithoutConfigMaps(ctx), s.options(func(o *manager.Options) {
			o.Hooks.Clock = func() time.Time { return time.Now().Add(time.Duration(passed.Load())) }
		}))
		Eventually(m.logs.String).Should(ContainSubstring("Starting workers"))
		Eventually(touch).WithPolling(betweenTouches).WithContext(ctx).WithArguments(ctx, lost).
			Should(Satisfy(apierrors.IsNotFound))
		var kept coordinationv1.Lease
		Expect(apiClient.Get(ctx, s.key(executor.StoreLeaseName(state.ID)), &kept)).To(Succeed())
		Expect(kept.Annotations).To(HaveKeyWithValue(executor.PositionAnnotation, later))
		m.stop()

		m = start(restored)
		Eventually(m.logs.String).Should(ContainSubstring("it is at position " + strconv.FormatInt(state.Position, 10) +
			" and had reached " + later))
		Eventually(touch).WithPolling(betweenTouches).WithContext(ctx).WithArguments(ctx, kept.Name).
			Should(Satisfy(apierrors.IsNotFound), "the executor has reached the position now")
	}, SpecTimeout(2*patience))

	It("shows that an older copy of the store was restored while no manager ran", func(ctx SpecContext) {
		s := newTestEnv(ctx, `rules: [{}]`)
		m := s.run()
		s.create(ctx, s.basics()...)
		turns := newTurns(2)
		s.create(ctx, turns[0])
		s.awaitAll(ctx, 1, v1alpha1.TurnReasonCompleted)
		journal := filepath.Join(m.options.DataDir, "journal.db")
		m.stop()
		copied, err := os.ReadFile(journal)
		Expect(err).NotTo(HaveOccurred())

		m = start(m.options)
		s.create(ctx, turns[1])
		s.awaitAll(ctx, 2, v1alpha1.TurnReasonCompleted)
		m.stop()
		if strings.Contains(m.logs.String(), "Failed to release the lease") { // the API server was too slow
			m = start(m.options)
			Eventually(m.logs.String).Should(ContainSubstring("Starting workers"))
			m.stop()
		}
		var released coordinationv1.Lease
		Expect(apiClient.Get(ctx, s.key(executor.LeasePrefix+m.options.ExecutorName), &released)).To(Succeed())
		Expect(released.Spec.RenewTime).To(BeNil(), "the Lease is released")
		reached := released.Annotations[executor.PositionAnnotation]

		Expect(os.WriteFile(journal, copied, 0o600)).To(Succeed())
		m = start(m.options)
		Eventually(m.logs.String).Should(ContainSubstring("and had reached " + reached + ": an older copy of it was restored"))
		// A manager that stops earlier does not stop the goroutines of its Events.
		Eventually(m.logs.String).Should(ContainSubstring("Starting workers"))
	}, SpecTimeout(2*patience))
})
