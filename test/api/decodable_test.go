package api_test

import (
	. "github.com/onsi/ginkgo/v2"
	. "github.com/onsi/gomega"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/capstan-dev/capstan/api/v1alpha1"
)

// One object with a time that the manager cannot decode stops the watch of its kind in all namespaces, also after a
// restart: the list of all objects fails. The format date-time of a schema allows such times.
var _ = Describe("A status that a manager could not decode", func() {
	const condition = `{"conditions": [{"type": "A", "status": "True", "reason": "B", "message": "", "lastTransitionTime": "`
	var object *v1alpha1.Turn
	BeforeEach(func(ctx SpecContext) {
		object = &v1alpha1.Turn{
			ObjectMeta: metav1.ObjectMeta{GenerateName: "time-", Namespace: "default"},
			Spec:       v1alpha1.TurnSpec{AgentRef: v1alpha1.SharedReference{Name: "a"}, Message: "m"},
		}
		Expect(apiClient.Create(ctx, object)).To(Succeed())
		DeferCleanup(func(ctx SpecContext) { Expect(apiClient.Delete(ctx, object)).To(Succeed()) })
	})
	write := func(ctx SpecContext, status string) error {
		raw := &unstructured.Unstructured{} // decodes everything
		raw.SetGroupVersionKind(v1alpha1.GroupVersion.WithKind("Turn"))
		raw.SetNamespace(object.Namespace)
		raw.SetName(object.Name)
		return apiClient.Status().Patch(ctx, raw, client.RawPatch(types.MergePatchType, []byte(`{"status": `+status+`}`)))
	}

	DescribeTable("is refused", func(ctx SpecContext, status string) {
		Expect(write(ctx, status)).To(Satisfy(apierrors.IsInvalid))
		Expect(apiClient.Get(ctx, client.ObjectKeyFromObject(object), object)).To(Succeed())
	},
		Entry("no microseconds", `{"startTime": "2026-01-01T00:00:00Z"}`),
		Entry("milliseconds", `{"completionTime": "2026-01-01T00:00:00.500Z"}`),
		Entry("small letters", `{"parkedTime": "2026-01-01t00:00:00.000000z"}`),
		Entry("a zone beyond a day", `{"startTime": "2026-01-01T00:00:00.000000+29:00"}`),
		Entry("text after the time", `{"startTime": "2026-01-01T00:00:00.000000ZT"}`),
		Entry("a condition with small letters", condition+`2026-01-01t00:00:00z"}]}`),
		Entry("a condition with a zone beyond a day", condition+`2026-01-01T00:00:00+29:00"}]}`),
		Entry("a condition with text after the time", condition+`2026-01-01T00:00:00ZT"}]}`),
	)

	DescribeTable("differs from one that it decodes", func(ctx SpecContext, status string) {
		Expect(write(ctx, status)).To(Succeed())
		Expect(apiClient.Get(ctx, client.ObjectKeyFromObject(object), object)).To(Succeed())
	},
		Entry("microseconds", `{"startTime": "2026-01-01T00:00:00.000000Z"}`),
		Entry("a zone", `{"startTime": "2026-01-01T00:00:00.123456-07:30"}`),
		Entry("a condition", condition+`2026-01-01T00:00:00Z"}]}`),
		Entry("a condition with a zone and a part of a second", condition+`2026-01-01T00:00:00.5+14:00"}]}`),
	)
})
