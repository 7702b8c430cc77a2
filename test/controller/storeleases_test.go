package controller_test

import (
	"context"
	"path/filepath"
	"strconv"
	"sync/atomic"
	"time"

	. "github.com/onsi/ginkgo/v2"
	. "github.com/onsi/gomega"
	coordinationv1 "k8s.io/api/coordination/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/capstan-dev/capstan/internal/executor"
	"github.com/capstan-dev/capstan/internal/manager"
	"github.com/capstan-dev/capstan/internal/scheduler"
	"github.com/capstan-dev/capstan/internal/store/sqlite"
)

var _ = Describe("The Lease of a lost executor", func() {
	It("is deleted within minutes, and a copy of its store that was restored later is still detected", func(ctx SpecContext) {
		s := newTestEnv(ctx, ``)
		// touch changes a Lease, so that the controller checks it now.
		touch := func(ctx context.Context, name string) error {
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

		const lost = executor.LeasePrefix + "lost"
		s.create(ctx, &coordinationv1.Lease{ObjectMeta: metav1.ObjectMeta{
			Name: lost, Labels: map[string]string{executor.LeaseLabel: executor.LeaseLabelValue},
			Annotations: map[string]string{executor.StoreAnnotation: state.ID, executor.PositionAnnotation: later},
		}})
		// The manager has another store, and the permissions of an installed manager. Its clock is set forward to the
		// time at which the Lease may be deleted.
		var passed atomic.Int64
		m := startAs(s.userWithoutConfigMaps(ctx), s.options(func(o *manager.Options) {
			o.Hooks.Clock = func() time.Time { return time.Now().Add(time.Duration(passed.Load())) }
		}))
		Eventually(m.logs.String).Should(ContainSubstring("Starting workers"))
		passed.Store(int64(scheduler.LeaseRetention))
		Eventually(touch).WithContext(ctx).WithArguments(ctx, lost).Should(Satisfy(apierrors.IsNotFound))
		var kept coordinationv1.Lease
		Expect(apiClient.Get(ctx, s.key(executor.StoreLeaseName(state.ID)), &kept)).To(Succeed())
		Expect(kept.Annotations).To(HaveKeyWithValue(executor.PositionAnnotation, later))
		m.stop()

		m = start(restored)
		Eventually(m.logs.String).Should(ContainSubstring("it is at position " + strconv.FormatInt(state.Position, 10) +
			" and had reached " + later))
		Eventually(touch).WithContext(ctx).WithArguments(ctx, kept.Name).Should(Satisfy(apierrors.IsNotFound),
			"the executor has reached the position now")
	}, SpecTimeout(2*patience))
})
