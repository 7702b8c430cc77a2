// Package installation says whether an installation works: the test of the Helm chart. It reads what the API server shows and asks the read
// API for an answer. It changes nothing.
package installation

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"io"
	"net/http"
	"strconv"
	"strings"
	"time"

	"github.com/spf13/pflag"
	appsv1 "k8s.io/api/apps/v1"
	coordinationv1 "k8s.io/api/coordination/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"

	"github.com/capstan-dev/capstan/internal/executor"
	"github.com/capstan-dev/capstan/internal/manager"
)

const (
	// pollInterval is the time between two looks at what does not work yet.
	pollInterval = time.Second
	// lookTimeout bounds one look.
	lookTimeout = 10 * time.Second
)

// Options say what to look at.
type Options struct {
	// Namespace of the Deployments and of the Leases.
	Namespace string
	// Deployments are their names; each must be ready.
	Deployments []string
	// LeaderElection says that a manager must hold the Lease of the leader.
	LeaderElection bool
	// ReadURL is that of the read API, https://HOST; empty if there is none.
	ReadURL string
	// Timeout bounds the whole test. A manager may have just been installed.
	Timeout time.Duration
}

// AddFlags adds a flag for each option.
func (o *Options) AddFlags(f *pflag.FlagSet) {
	f.StringVar(&o.Namespace, "namespace", "capstan-system", "namespace of the Deployments")
	f.StringSliceVar(&o.Deployments, "deployments", []string{"capstan"}, "names of the Deployments, separated by commas")
	f.BoolVar(&o.LeaderElection, "leader-elect", true, "whether the managers elect a leader, which must be there")
	f.StringVar(&o.ReadURL, "read-url", "", "URL of the read API, https://HOST; empty: do not ask it")
	f.DurationVar(&o.Timeout, "timeout", 2*time.Minute, "how long to wait for all of it")
}

// step is one thing that must work. look returns in a few words what it has found.
type step struct {
	name string
	look func(context.Context) (string, error)
}

// Check looks until all works, and writes a line to out for each thing that does. When the time is over it returns an error that says what does not
// work and what the last look has found. Its requests carry no credentials to the read API.
func Check(ctx context.Context, clients kubernetes.Interface, o Options, out io.Writer) error {
	ctx, cancel := context.WithTimeout(ctx, o.Timeout)
	defer cancel()
	left := steps(clients, o)
	for {
		var failing []step
		var errs error
		for _, s := range left {
			found, err := s.try(ctx)
			if err != nil {
				failing, errs = append(failing, s), errors.Join(errs, fmt.Errorf("%s: %w", s.name, err))
				continue
			}
			if _, err := fmt.Fprintf(out, "ok: %s: %s\n", s.name, found); err != nil {
				return err
			}
		}
		if left = failing; len(left) == 0 {
			return nil
		}
		select {
		case <-ctx.Done():
			return fmt.Errorf("the installation does not work within %s: %w", o.Timeout, errs)
		case <-time.After(pollInterval):
		}
	}
}

// try looks once. The last look may go on for as long as any, so that it says what is wrong, and not that the time is over.
func (s step) try(ctx context.Context) (string, error) {
	ctx, cancel := context.WithTimeoutCause(context.WithoutCancel(ctx), lookTimeout, fmt.Errorf("no answer within %s", lookTimeout))
	defer cancel()
	found, err := s.look(ctx)
	if err != nil && ctx.Err() != nil {
		return "", context.Cause(ctx)
	}
	return found, err
}

func steps(clients kubernetes.Interface, o Options) []step {
	all := []step{{"custom resource definitions", func(ctx context.Context) (string, error) {
		return "the API server serves every kind of capstan.dev", manager.CheckDefinitions(ctx, clients.Discovery())
	}}}
	for _, name := range o.Deployments {
		all = append(all, step{"Deployment " + name, func(ctx context.Context) (string, error) {
			return deployment(ctx, clients, o.Namespace, name)
		}})
	}
	seen := renewals{}
	all = append(all, step{"executors", func(ctx context.Context) (string, error) { return seen.executors(ctx, clients, o.Namespace) }})
	if o.LeaderElection {
		all = append(all, step{"leader", func(ctx context.Context) (string, error) { return seen.leader(ctx, clients, o.Namespace) }})
	}
	if o.ReadURL != "" {
		all = append(all, step{"read API", func(ctx context.Context) (string, error) { return readAPI(ctx, o.ReadURL, time.Now()) }}) //nolint:forbidigo // because certificates are judged by the clock of who connects
	}
	return all
}

// deployment looks whether all Pods of a Deployment are those of its newest template, and ready.
func deployment(ctx context.Context, clients kubernetes.Interface, namespace, name string) (string, error) {
	d, err := clients.AppsV1().Deployments(namespace).Get(ctx, name, metav1.GetOptions{})
	if err != nil {
		return "", err
	}
	return judge(d)
}

func judge(d *appsv1.Deployment) (string, error) {
	want := int32(1)
	if d.Spec.Replicas != nil {
		want = *d.Spec.Replicas
	}
	switch s := d.Status; {
	case want == 0:
		return "", errors.New("it is scaled to zero: no Pod runs")
	case s.ObservedGeneration < d.Generation:
		return "", errors.New("its controller has not seen the last change yet")
	case s.UpdatedReplicas < want || s.AvailableReplicas < want:
		return "", fmt.Errorf("%d of %d Pods are of the newest template and %d are ready: kubectl -n %s describe pods, and their logs, say why",
			s.UpdatedReplicas, want, s.AvailableReplicas, d.Namespace)
	}
	return fmt.Sprintf("%d of %d Pods are ready", d.Status.AvailableReplicas, want), nil
}

// renewals are the times at which Leases were renewed, as they were seen first, by name. A holder that lives renews its Lease: that takes no clock
// that is the same on all nodes.
type renewals map[string]metav1.MicroTime

// goesOn reports whether a Lease was renewed since it was seen first.
func (r renewals) goesOn(l *coordinationv1.Lease) bool {
	if l.Spec.RenewTime == nil || l.Spec.HolderIdentity == nil || *l.Spec.HolderIdentity == "" {
		return false
	}
	before, known := r[l.Name]
	if !known {
		r[l.Name] = *l.Spec.RenewTime
	}
	return known && !before.Equal(l.Spec.RenewTime)
}

// executors looks whether one lives and takes Turns.
func (r renewals) executors(ctx context.Context, clients kubernetes.Interface, namespace string) (string, error) {
	all, err := clients.CoordinationV1().Leases(namespace).List(ctx, metav1.ListOptions{LabelSelector: executor.LeaseLabel + "=" + executor.LeaseLabelValue})
	if err != nil {
		return "", err
	}
	var alive []string
	places := 0
	for i := range all.Items {
		l := &all.Items[i]
		capacity, err := strconv.Atoi(l.Annotations[executor.CapacityAnnotation])
		if r.goesOn(l) && err == nil && capacity > 0 {
			alive, places = append(alive, strings.TrimPrefix(l.Name, executor.LeasePrefix)), places+capacity
		}
	}
	if len(alive) == 0 {
		return "", fmt.Errorf("none of %d renews its Lease in namespace %s and takes Turns: no Turn can run", len(all.Items), namespace)
	}
	return fmt.Sprintf("%s can run %d Turns at once", strings.Join(alive, ", "), places), nil
}

// leader looks whether a manager holds the Lease of the leader.
func (r renewals) leader(ctx context.Context, clients kubernetes.Interface, namespace string) (string, error) {
	l, err := clients.CoordinationV1().Leases(namespace).Get(ctx, manager.LeaderElectionID, metav1.GetOptions{})
	if err != nil {
		return "", err
	}
	if !r.goesOn(l) {
		return "", fmt.Errorf("no manager renews Lease %s in namespace %s: no Turn is bound", l.Name, namespace)
	}
	return "a manager leads", nil
}

// readAPI asks for a journal without credentials, which the read API must refuse as such. The certificate is of the name by which people reach it,
// which is not known here: no more than its time is judged, and nothing is sent that must not be read.
func readAPI(ctx context.Context, url string, now time.Time) (string, error) {
	transport := &http.Transport{TLSClientConfig: &tls.Config{
		MinVersion:         tls.VersionTLS12,
		InsecureSkipVerify: true, //nolint:gosec // because nothing is sent but the request for a journal that nobody may have
		VerifyConnection: func(s tls.ConnectionState) error {
			return inTime(s.PeerCertificates[0], now)
		},
	}}
	defer transport.CloseIdleConnections()
	request, err := http.NewRequestWithContext(ctx, http.MethodGet, strings.TrimSuffix(url, "/")+"/v1/namespaces/default/turns/none/journal", nil)
	if err != nil {
		return "", err
	}
	response, err := transport.RoundTrip(request)
	if err != nil {
		return "", err
	}
	defer func() { _ = response.Body.Close() }() // nothing is read of it
	if response.StatusCode != http.StatusUnauthorized {
		return "", fmt.Errorf("%s answers a request without credentials with %s, want 401", url, response.Status)
	}
	return url + " answers, and asks for credentials", nil
}

// inTime returns an error if a certificate does not hold now.
func inTime(c *x509.Certificate, now time.Time) error {
	if now.Before(c.NotBefore) || now.After(c.NotAfter) {
		return fmt.Errorf("its certificate holds from %s to %s, and now is %s: renew the Secret of readAPI.tlsSecret",
			c.NotBefore.UTC().Format(time.RFC3339), c.NotAfter.UTC().Format(time.RFC3339), now.UTC().Format(time.RFC3339))
	}
	return nil
}
