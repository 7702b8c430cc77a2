// Package installation checks whether an installation works. The test of the Helm chart runs it. It reads objects from
// the API server and sends requests to the read API. It changes nothing.
package installation

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"io"
	"net/http"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/spf13/pflag"
	appsv1 "k8s.io/api/apps/v1"
	coordinationv1 "k8s.io/api/coordination/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"

	"github.com/capstan-dev/capstan/internal/executor"
	"github.com/capstan-dev/capstan/internal/manager"
)

const (
	// pollInterval is the time between two checks of a step that does not work yet.
	pollInterval = time.Second
	// checkTimeout limits the time of one check of one step.
	checkTimeout = 10 * time.Second
	// partOfCapstan selects the Deployments of all installations of Capstan.
	partOfCapstan = "app.kubernetes.io/part-of=capstan"
)

// Options says what to check.
type Options struct {
	// Namespace is the namespace of the Deployments and of the Leases.
	Namespace string
	// Deployments are the names of the Deployments, all of which must be ready.
	Deployments []string
	// LeaderElection means that a manager must hold the Lease of the leader.
	LeaderElection bool
	// ReadURL is the URL of the read API, https://HOST; empty if there is none.
	ReadURL string
	// Timeout limits the time of the whole test. It should be long enough for a manager that was just installed.
	Timeout time.Duration
}

// AddFlags adds a flag for each option.
func (o *Options) AddFlags(f *pflag.FlagSet) {
	f.StringVar(&o.Namespace, "namespace", "capstan-system", "namespace of the Deployments")
	f.StringSliceVar(&o.Deployments, "deployments", []string{"capstan"}, "names of the Deployments, separated by commas")
	f.BoolVar(&o.LeaderElection, "leader-elect", true, "whether the managers elect a leader; if so, a manager must hold its Lease")
	f.StringVar(&o.ReadURL, "read-url", "", "URL of the read API, https://HOST; if empty, it is not checked")
	f.DurationVar(&o.Timeout, "timeout", 2*time.Minute, "how long to wait until everything works")
}

// step is one part of the installation that must work. check returns a short description of its result.
type step struct {
	name  string
	check func(context.Context) (string, error)
}

// Check repeats each step until it works, and then writes a line about it to out. If a step does not work within the
// timeout, Check returns an error with the failed steps and their last errors. Its requests to the read API carry no
// credentials.
func Check(ctx context.Context, clients kubernetes.Interface, o Options, out io.Writer) error {
	ctx, cancel := context.WithTimeout(ctx, o.Timeout)
	defer cancel()
	left := steps(clients, o)
	for {
		var failing []step
		var errs error
		for _, s := range left {
			found, err := s.run(ctx)
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
			return fmt.Errorf("the installation did not work within %s: %w", o.Timeout, errs)
		case <-time.After(pollInterval):
		}
	}
}

// run checks the step once. The last check has its full checkTimeout even if the whole test times out before, so that
// its error names the fault and not the timeout.
func (s step) run(ctx context.Context) (string, error) {
	ctx, cancel := context.WithTimeoutCause(context.WithoutCancel(ctx), checkTimeout, fmt.Errorf("no answer within %s", checkTimeout))
	defer cancel()
	found, err := s.check(ctx)
	if err != nil && ctx.Err() != nil {
		return "", context.Cause(ctx)
	}
	return found, err
}

func steps(clients kubernetes.Interface, o Options) []step {
	all := []step{{"custom resource definitions", func(ctx context.Context) (string, error) {
		return "the API server serves every kind of capstan.dev", manager.CheckDefinitions(ctx, clients.Discovery())
	}}}
	all = append(all, step{"namespace", func(ctx context.Context) (string, error) { return checkNamespace(ctx, clients, o) }})
	for _, name := range o.Deployments {
		all = append(all, step{"Deployment " + name, func(ctx context.Context) (string, error) {
			return checkDeployment(ctx, clients, o.Namespace, name)
		}})
	}
	seen := renewals{}
	all = append(all, step{"executors", func(ctx context.Context) (string, error) {
		return seen.checkExecutors(ctx, clients, o.Namespace)
	}})
	if o.LeaderElection {
		all = append(all, step{"leader", func(ctx context.Context) (string, error) { return seen.checkLeader(ctx, clients, o.Namespace) }})
	}
	if o.ReadURL != "" {
		all = append(all, step{"read API", func(ctx context.Context) (string, error) {
			now := time.Now() //nolint:forbidigo // because clients check certificates by their own clock
			return checkReadAPI(ctx, o.ReadURL, now)
		}})
	}
	return all
}

// checkNamespace checks that no other installation of Capstan is in the namespace. The managers of both would use
// each other's Leases: only one of them would lead, and it would bind Turns to executors that do not see them. Helm
// rejects a second release in the namespace, but other tools that apply the objects of the chart do not.
func checkNamespace(ctx context.Context, clients kubernetes.Interface, o Options) (string, error) {
	all, err := clients.AppsV1().Deployments(o.Namespace).List(ctx, metav1.ListOptions{LabelSelector: partOfCapstan})
	switch {
	case apierrors.IsForbidden(err): // the Role of an earlier chart
		return "not checked for other installations, because of the missing permission to list Deployments", nil
	case err != nil:
		return "", err
	}
	for i := range all.Items {
		if name := all.Items[i].Name; !slices.Contains(o.Deployments, name) {
			return "", fmt.Errorf("another installation of Capstan is in namespace %s, with the Deployment %q: move one of the two "+
				"to another namespace", o.Namespace, name)
		}
	}
	return "no other installation of Capstan is in " + o.Namespace, nil
}

// checkDeployment checks that all Pods of a Deployment have its newest template and are ready.
func checkDeployment(ctx context.Context, clients kubernetes.Interface, namespace, name string) (string, error) {
	d, err := clients.AppsV1().Deployments(namespace).Get(ctx, name, metav1.GetOptions{})
	if err != nil {
		return "", err
	}
	return checkRollout(d)
}

func checkRollout(d *appsv1.Deployment) (string, error) {
	want := int32(1)
	if d.Spec.Replicas != nil {
		want = *d.Spec.Replicas
	}
	switch s := d.Status; {
	case want == 0:
		return "", errors.New("it is scaled to zero: no Pod runs")
	case s.ObservedGeneration < d.Generation:
		return "", errors.New("its controller has not observed the last change yet")
	case s.UpdatedReplicas < want || s.AvailableReplicas < want:
		return "", fmt.Errorf("%d of %d Pods have the newest template and %d are ready: see kubectl -n %s "+
			"describe pods, and the logs of the Pods",
			s.UpdatedReplicas, want, s.AvailableReplicas, d.Namespace)
	}
	return fmt.Sprintf("%d of %d Pods are ready", d.Status.AvailableReplicas, want), nil
}

// renewals maps the name of a Lease to the renewal time that was first seen. A holder that is alive renews its Lease.
// Because only renewal times are compared, the clocks of the nodes may differ.
type renewals map[string]metav1.MicroTime

// wasRenewed reports whether a Lease was renewed since it was first seen.
func (r renewals) wasRenewed(l *coordinationv1.Lease) bool {
	if l.Spec.RenewTime == nil || l.Spec.HolderIdentity == nil || *l.Spec.HolderIdentity == "" {
		return false
	}
	first, known := r[l.Name]
	if !known {
		r[l.Name] = *l.Spec.RenewTime
	}
	return known && !first.Equal(l.Spec.RenewTime)
}

// checkExecutors checks that at least one executor is alive and has slots for Turns.
func (r renewals) checkExecutors(ctx context.Context, clients kubernetes.Interface, namespace string) (string, error) {
	all, err := clients.CoordinationV1().Leases(namespace).List(ctx,
		metav1.ListOptions{LabelSelector: executor.LeaseLabel + "=" + executor.LeaseLabelValue})
	if err != nil {
		return "", err
	}
	executors := executor.LeasesOfExecutors(all.Items)
	var alive []string
	slots := 0
	for i := range executors {
		l := &executors[i]
		capacity, err := strconv.Atoi(l.Annotations[executor.CapacityAnnotation])
		if r.wasRenewed(l) && err == nil && capacity > 0 {
			alive, slots = append(alive, strings.TrimPrefix(l.Name, executor.LeasePrefix)), slots+capacity
		}
	}
	if len(alive) == 0 {
		return "", fmt.Errorf("none of %d executors in namespace %s renews its Lease and has slots: no Turn can run",
			len(executors), namespace)
	}
	return fmt.Sprintf("%s can run %d Turns at the same time", strings.Join(alive, ", "), slots), nil
}

// checkLeader checks that a manager holds the Lease of the leader.
func (r renewals) checkLeader(ctx context.Context, clients kubernetes.Interface, namespace string) (string, error) {
	l, err := clients.CoordinationV1().Leases(namespace).Get(ctx, manager.LeaderElectionID, metav1.GetOptions{})
	if err != nil {
		return "", err
	}
	if !r.wasRenewed(l) {
		return "", fmt.Errorf("no manager renews Lease %s in namespace %s: no Turn is bound", l.Name, namespace)
	}
	return "a manager leads", nil
}

// checkReadAPI requests a journal without credentials, so the read API must answer 401. Its certificate is for the host
// name that people use, which is unknown here. So only the validity period of the certificate is checked. The request
// contains nothing confidential.
func checkReadAPI(ctx context.Context, url string, now time.Time) (string, error) {
	transport := &http.Transport{TLSClientConfig: &tls.Config{
		MinVersion:         tls.VersionTLS12,
		InsecureSkipVerify: true, //nolint:gosec // because the request has no credentials, and the answer is not used
		VerifyConnection: func(s tls.ConnectionState) error {
			return checkValidity(s.PeerCertificates[0], now)
		},
	}}
	defer transport.CloseIdleConnections()
	request, err := http.NewRequestWithContext(ctx, http.MethodGet,
		strings.TrimSuffix(url, "/")+"/v1/namespaces/default/turns/none/journal", nil)
	if err != nil {
		return "", err
	}
	response, err := transport.RoundTrip(request)
	if err != nil {
		return "", err
	}
	defer func() { _ = response.Body.Close() }() // the body is not needed
	if response.StatusCode != http.StatusUnauthorized {
		return "", fmt.Errorf("%s answers a request without credentials with %s, want 401", url, response.Status)
	}
	return url + " answers, and requires credentials", nil
}

// checkValidity returns an error if a certificate is not valid now.
func checkValidity(c *x509.Certificate, now time.Time) error {
	if now.Before(c.NotBefore) || now.After(c.NotAfter) {
		return fmt.Errorf("its certificate is valid from %s to %s, and the time is %s: renew the Secret of readAPI.tlsSecret",
			c.NotBefore.UTC().Format(time.RFC3339), c.NotAfter.UTC().Format(time.RFC3339), now.UTC().Format(time.RFC3339))
	}
	return nil
}
