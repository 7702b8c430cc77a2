package api_test

import (
	"bytes"
	"context"
	"io"
	"net/http"
	"strings"
	"time"

	. "github.com/onsi/ginkgo/v2"
	. "github.com/onsi/gomega"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/rest"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/capstan-dev/capstan/api/v1alpha1"
	"github.com/capstan-dev/capstan/internal/controller"
	"github.com/capstan-dev/capstan/internal/statuswriter"
)

// recordingTransport keeps the bodies of the last request to an API server and of its response.
type recordingTransport struct {
	http.RoundTripper
	sent, received string
}

// RoundTrip implements http.RoundTripper.
func (w *recordingTransport) RoundTrip(r *http.Request) (*http.Response, error) {
	if r.Body != nil {
		body, err := io.ReadAll(r.Body)
		if err != nil {
			return nil, err
		}
		w.sent, r.Body = string(body), io.NopCloser(bytes.NewReader(body))
	}
	response, err := w.RoundTripper.RoundTrip(r)
	if err != nil {
		return nil, err
	}
	body, err := io.ReadAll(response.Body)
	if err != nil {
		return nil, err
	}
	w.received, response.Body = string(body), io.NopCloser(bytes.NewReader(body))
	return response, nil
}

var _ = Describe("the status of a Turn", func() {
	const namespace, message = "default", "How long are refunds open?"
	var (
		seen   *recordingTransport
		writer client.Client
	)
	BeforeEach(func() {
		transport, err := rest.TransportFor(controlPlane.Config)
		Expect(err).NotTo(HaveOccurred())
		seen = &recordingTransport{RoundTripper: transport}
		writer, err = statuswriter.Client(apiClient, controlPlane.Config, &http.Client{Transport: seen})
		Expect(err).NotTo(HaveOccurred())
	})
	create := func(ctx context.Context, name string) *v1alpha1.Turn {
		GinkgoHelper()
		t := &v1alpha1.Turn{
			ObjectMeta: metav1.ObjectMeta{
				Namespace: namespace, Name: name, Labels: map[string]string{"team": "returns"},
				Annotations: map[string]string{"note": "urgent"},
			},
			Spec: v1alpha1.TurnSpec{AgentRef: v1alpha1.SharedReference{Name: "support"}, Message: message},
		}
		Expect(apiClient.Create(ctx, t)).To(Succeed())
		DeferCleanup(func(ctx SpecContext) {
			// A test may have deleted this Turn, or created another Turn with the same name.
			Expect(client.IgnoreNotFound(apiClient.Delete(ctx, t))).To(Succeed())
		})
		return t
	}
	answer := func(t *v1alpha1.Turn, text string) {
		at := metav1.NewMicroTime(time.Date(2026, 4, 9, 12, 0, 0, 123456000, time.UTC))
		t.Status.ObservedGeneration, t.Status.StartTime = 1, &at
		t.Status.Executor = &v1alpha1.ExecutorBinding{Name: "capstan-0", Epoch: 1}
		t.Status.Conditions = []metav1.Condition{{
			Type: v1alpha1.ConditionSucceeded, Status: metav1.ConditionTrue, Reason: v1alpha1.TurnReasonCompleted,
			LastTransitionTime: metav1.NewTime(at.Truncate(time.Second)),
		}}
		t.Status.Result = &v1alpha1.TurnResult{Text: text, Bytes: int64(len(text))}
	}
	stored := func(ctx context.Context, t *v1alpha1.Turn) *v1alpha1.Turn {
		GinkgoHelper()
		current := &v1alpha1.Turn{}
		Expect(apiClient.Get(ctx, client.ObjectKeyFromObject(t), current)).To(Succeed())
		return current
	}

	It("is written alone and leaves the rest unchanged, even if the writer has only a part of the Turn", func(ctx SpecContext) {
		t := create(ctx, "whole")
		mine := t.DeepCopy()
		answer(mine, "30 days")
		Expect(writer.Status().Update(ctx, mine)).To(Succeed())
		Expect(seen.sent).To(And(ContainSubstring("30 days"), Not(ContainSubstring(message)), Not(ContainSubstring("managedFields"))))
		Expect(seen.received).To(And(ContainSubstring("PartialObjectMetadata"), Not(ContainSubstring("30 days")),
			Not(ContainSubstring(message))))

		current := stored(ctx, t)
		Expect(mine.ResourceVersion).To(And(Equal(current.ResourceVersion), Not(Equal(t.ResourceVersion))))
		Expect(current.Spec).To(Equal(t.Spec))
		Expect(current.Labels).To(Equal(t.Labels))
		Expect(current.Annotations).To(Equal(t.Annotations))
		Expect(current.Status.Result).To(Equal(mine.Status.Result))
		Expect(current.Status.StartTime.Equal(mine.Status.StartTime)).To(BeTrue())

		controller.Strip(mine)
		mine.Status.Result.Text = "14 days"
		Expect(writer.Status().Update(ctx, mine)).To(Succeed(), "the resourceVersion must be that of the last write")
		current = stored(ctx, t)
		Expect(current.Status.Result.Text).To(Equal("14 days"))
		Expect(current.Spec.Message).To(Equal(message))
		Expect(current.Annotations).To(Equal(t.Annotations))
		Expect(apierrors.IsInvalid(apiClient.Update(ctx, mine))).To(BeTrue(), "a stripped Turn must not replace the whole one")
	})

	It("is rejected if it is invalid, as with any client", func(ctx SpecContext) {
		t := create(ctx, "refused")
		old := t.DeepCopy()
		answer(t, "30 days")
		Expect(writer.Status().Update(ctx, t)).To(Succeed())
		answer(old, "never")
		Expect(apierrors.IsConflict(writer.Status().Update(ctx, old))).To(BeTrue(), "another client has written meanwhile")

		invalid := t.DeepCopy()
		invalid.Status.StopReason = "Whatever"
		err := writer.Status().Update(ctx, invalid)
		Expect(apierrors.IsInvalid(err)).To(BeTrue(), "%v", err)
		Expect(err).To(MatchError(ContainSubstring("status.stopReason")))
		Expect(invalid.ResourceVersion).To(Equal(t.ResourceVersion), "nothing was written")

		last := t.DeepCopy()
		last.Status.Executor.Epoch = v1alpha1.MaxEpoch + 1
		err = writer.Status().Update(ctx, last)
		Expect(apierrors.IsInvalid(err)).To(BeTrue(), "%v", err)
		Expect(err).To(MatchError(ContainSubstring("status.executor.epoch")))
		last.Status.Executor.Epoch = v1alpha1.MaxEpoch
		Expect(writer.Status().Update(ctx, last)).To(Succeed())
		t = last

		large := t.DeepCopy()
		large.Status.Result.Text = strings.Repeat("x", 4<<20)
		Expect(apierrors.IsRequestEntityTooLargeError(writer.Status().Update(ctx, large))).To(BeTrue())

		Expect(apiClient.Delete(ctx, t)).To(Succeed())
		Expect(apierrors.IsNotFound(writer.Status().Update(ctx, t))).To(BeTrue())
		create(ctx, "refused")
		t.ResourceVersion = ""
		Expect(apierrors.IsConflict(writer.Status().Update(ctx, t))).To(BeTrue(), "it is another Turn with the same name")
		Expect(stored(ctx, t).Status.Result).To(BeNil())
	})

	It("is not written after its context has ended", func(ctx SpecContext) {
		t := create(ctx, "late")
		answer(t, "30 days")
		ended, cancel := context.WithCancel(ctx)
		cancel()
		Expect(writer.Status().Update(ended, t)).To(MatchError(context.Canceled))
	})
})
