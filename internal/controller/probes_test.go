package controller

import (
	"context"
	"fmt"
	"net"
	"sync/atomic"
	"testing"
	"time"

	"github.com/go-logr/logr"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/controller"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"
	"sigs.k8s.io/controller-runtime/pkg/source"

	"github.com/capstan-dev/capstan/api/v1alpha1"
	"github.com/capstan-dev/capstan/internal/fairqueue"
	"github.com/capstan-dev/capstan/internal/netpolicy"
)

// tarpit accepts connections and never answers.
type tarpit struct {
	net.Listener
	accepted atomic.Int32
}

func newTarpit(t *testing.T) *tarpit {
	t.Helper()
	listener, err := new(net.ListenConfig).Listen(t.Context(), "tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	p := &tarpit{Listener: listener}
	t.Cleanup(func() { _ = listener.Close() })
	go func() {
		for {
			connection, err := listener.Accept()
			if err != nil {
				return
			}
			p.accepted.Add(1)
			t.Cleanup(func() { _ = connection.Close() })
		}
	}()
	return p
}

// TestHangingServersDelayOnlyTheirNamespace checks that 600 servers of one namespace that never answer do not delay the
// check of a server of another namespace. It runs the controller as the manager does.
func TestHangingServersDelayOnlyTheirNamespace(t *testing.T) {
	d := newToolServerEnv(t, netpolicy.NewLocalPolicy())
	d.add("search", "Searches.", nil)
	p := newTarpit(t)
	const hanging = 600
	var requests []reconcile.Request
	for i := range hanging {
		s := &v1alpha1.ToolServer{
			ObjectMeta: metav1.ObjectMeta{Namespace: "tarpits", Name: fmt.Sprintf("tarpit-%d", i), Generation: 1},
			Spec: v1alpha1.ToolServerSpec{
				Type: v1alpha1.ToolServerTypeMCP, MCP: &v1alpha1.MCPEndpoint{URL: "http://" + p.Addr().String() + "/mcp"},
				ConnectTimeoutSeconds: 60,
			},
		}
		if err := d.Client.Create(t.Context(), s); err != nil {
			t.Fatal(err)
		}
		requests = append(requests, reconcile.Request{NamespacedName: client.ObjectKeyFromObject(s)})
	}
	options := probeOptions()
	options.Reconciler, options.Logger, options.SkipNameValidation = d.ToolServerReconciler, logr.Discard(), new(true)
	c, err := controller.NewUnmanaged("toolserver", options)
	if err != nil {
		t.Fatal(err)
	}
	queues := make(chan turnQueue, 1)
	if err := c.Watch(source.Func(func(_ context.Context, q turnQueue) error {
		queues <- q
		return nil
	})); err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan error, 1)
	go func() { ended <- c.Start(ctx) }()
	defer func() {
		cancel()
		if err := <-ended; err != nil {
			t.Error(err)
		}
	}()
	queue := <-queues
	for _, r := range requests {
		queue.Add(r)
	}
	await(t, "the tarpits to occupy all workers of their namespace", func() bool { return p.accepted.Load() >= probeWorkersOfNamespace })
	queue.Add(reconcile.Request{NamespacedName: client.ObjectKey{Namespace: "helpdesk", Name: "tickets"}})
	var s v1alpha1.ToolServer
	await(t, "the server of the other namespace to be ready", func() bool {
		if err := d.Client.Get(t.Context(), client.ObjectKey{Namespace: "helpdesk", Name: "tickets"}, &s); err != nil {
			t.Fatal(err)
		}
		return readinessOf(&s) == "True Ready: the server answers"
	})
	// No check of a tarpit has ended yet, because each takes a minute.
	if n := p.accepted.Load(); n != probeWorkersOfNamespace {
		t.Errorf("%d probes of one namespace are running, want %d", n, probeWorkersOfNamespace)
	}
}

// await waits until a condition holds.
func await(t *testing.T, what string, holds func() bool) {
	t.Helper()
	for deadline := time.Now().Add(20 * time.Second); !holds(); {
		if time.Now().After(deadline) {
			t.Fatalf("timed out waiting for %s", what)
		}
		<-time.After(5 * time.Millisecond)
	}
}

// TestRepeatedProbeOfHangingServerIsShort checks that a repeated check does not occupy a worker for all of
// connectTimeoutSeconds.
func TestRepeatedProbeOfHangingServerIsShort(t *testing.T) {
	p := newTarpit(t)
	d := newToolServerEnv(t, netpolicy.NewLocalPolicy(), func(s *v1alpha1.ToolServer) {
		s.Spec.MCP.URL, s.Spec.ConnectTimeoutSeconds = "http://"+p.Addr().String()+"/mcp", 60
		s.Status.Conditions = []metav1.Condition{{
			Type: v1alpha1.ConditionReady, Status: metav1.ConditionFalse, Reason: v1alpha1.ReasonEndpointUnreachable,
			Message: "no answer within 59s", ObservedGeneration: 1, LastTransitionTime: metav1.NewTime(now),
		}}
	})
	s, again := d.reconcileAfter(t, 8*time.Second)
	if got := readinessOf(s); got != "False EndpointUnreachable: no answer within 59s" || again.RequeueAfter != 8*time.Second {
		t.Errorf("got %q, requeued after %s; want the next check after 8s, the time for which the server has hung", got, again.RequeueAfter)
	}
	if again.Priority == nil || *again.Priority != fairqueue.Low {
		t.Errorf("the next probe has priority %v, want new objects to go before it", again.Priority)
	}
}
