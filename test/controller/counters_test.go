package controller_test

import (
	"bytes"
	"context"
	"time"

	. "github.com/onsi/ginkgo/v2"
	. "github.com/onsi/gomega"
	dto "github.com/prometheus/client_model/go"
	"github.com/prometheus/common/expfmt"
	"github.com/prometheus/common/model"
	eventsv1 "k8s.io/api/events/v1"
	"k8s.io/client-go/kubernetes"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/metrics"
)

// requests returns the number of requests with a verb for a resource of Capstan that the API server has answered.
// Status writes have the subresource "status". The API server counts a request after it has sent the response, so
// requests waits until two successive counts are equal.
func requests(ctx context.Context, verb, resource, subresource string) float64 {
	GinkgoHelper()
	count := countRequests(ctx, verb, resource, subresource)
	Eventually(func() bool {
		previous := count
		count = countRequests(ctx, verb, resource, subresource)
		return count == previous
	}).WithContext(ctx).WithPolling(settleInterval).Should(BeTrue(), "the requests must end")
	return count
}

// settleInterval is the time between two counts of requests.
const settleInterval = 200 * time.Millisecond

// countRequests returns the number of requests that the API server has counted so far.
func countRequests(ctx context.Context, verb, resource, subresource string) float64 {
	GinkgoHelper()
	clientset, err := kubernetes.NewForConfig(apiConfig)
	Expect(err).NotTo(HaveOccurred())
	text, err := clientset.RESTClient().Get().AbsPath("/metrics").Do(ctx).Raw()
	Expect(err).NotTo(HaveOccurred(), "the API server must serve its metrics")
	parser := expfmt.NewTextParser(model.UTF8Validation)
	families, err := parser.TextToMetricFamilies(bytes.NewReader(text))
	Expect(err).NotTo(HaveOccurred())
	return sum(families["apiserver_request_total"], map[string]string{
		"verb": verb, "resource": resource, "subresource": subresource,
	})
}

// reconciles returns the number of reconciles of one controller in this process.
func reconciles(controller string) float64 {
	GinkgoHelper()
	families, err := metrics.Registry.Gather()
	Expect(err).NotTo(HaveOccurred())
	for _, f := range families {
		if f.GetName() == "controller_runtime_reconcile_total" {
			return sum(f, map[string]string{"controller": controller})
		}
	}
	Fail("there is no metric of reconciles")
	return 0
}

// running returns the number of Turns that the executors of this process run, in all namespaces.
func running() float64 {
	GinkgoHelper()
	return gauge("capstan_turns_running")
}

// gauge returns the sum of all series of a gauge of this process.
func gauge(name string) (total float64) {
	GinkgoHelper()
	families, err := metrics.Registry.Gather()
	Expect(err).NotTo(HaveOccurred())
	for _, f := range families {
		if f.GetName() == name {
			for _, m := range f.GetMetric() {
				total += m.GetGauge().GetValue()
			}
			return total
		}
	}
	Fail("there is no metric " + name)
	return 0
}

func sum(family *dto.MetricFamily, labels map[string]string) float64 {
	total := 0.0
	for _, m := range family.GetMetric() {
		matching := 0
		for _, l := range m.GetLabel() {
			if want, ok := labels[l.GetName()]; ok && want == l.GetValue() {
				matching++
			}
		}
		if matching == len(labels) {
			total += m.GetCounter().GetValue()
		}
	}
	return total
}

// events returns "type reason" for each Event about an object, in any order.
func (s *testEnv) events(ctx context.Context, kind, name string) []string {
	GinkgoHelper()
	var list eventsv1.EventList
	Expect(apiClient.List(ctx, &list, client.InNamespace(s.namespace))).To(Succeed())
	var all []string
	for _, e := range list.Items {
		if e.Regarding.Kind == kind && e.Regarding.Name == name {
			all = append(all, e.Type+" "+e.Reason)
		}
	}
	return all
}
