// Package drain stops the Pods of Deployments and waits until they are gone. helm uninstall uses it before it removes
// the permissions that these Pods need to hand their Turns back.
package drain

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/go-logr/logr"
	"github.com/spf13/pflag"
	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/wait"
	"k8s.io/client-go/kubernetes"
)

const (
	// pollInterval is the time between two checks of the Pods.
	pollInterval = time.Second
	// maxForbidden is how many checks in a row the API server may forbid, one each pollInterval. The permissions are
	// created just before the Pod that runs this command, and an API server may load them a moment later.
	maxForbidden = 15
)

// Options name the Deployments to stop.
type Options struct {
	// Namespace is the namespace of the Deployments.
	Namespace string
	// Deployments are the names of the Deployments. A Deployment that does not exist counts as stopped.
	Deployments []string
	// Timeout bounds the whole drain. It must be longer than the Pods' termination grace period.
	Timeout time.Duration
}

// AddFlags adds a flag for each option.
func (o *Options) AddFlags(f *pflag.FlagSet) {
	f.StringVar(&o.Namespace, "namespace", "capstan-system", "namespace of the Deployments")
	f.StringSliceVar(&o.Deployments, "deployments", []string{"capstan"}, "names of the Deployments, separated by commas")
	f.DurationVar(&o.Timeout, "timeout", 70*time.Second,
		"how long to wait for the Pods; must be longer than their termination grace period")
}

// Run scales the Deployments to zero and waits until all of their Pods are gone. It tries again after errors of the API
// server, unless the API server forbids maxForbidden checks in a row. After the timeout it returns an error that names
// the remaining Pods as last seen, or the last error of the API server if no check has succeeded.
func Run(ctx context.Context, clients kubernetes.Interface, o Options, log logr.Logger) error {
	ctx, cancel := context.WithTimeout(ctx, o.Timeout)
	defer cancel()
	d := &drainer{clients: clients, namespace: o.Namespace, log: log}
	var stopped, seen bool
	var left []string
	var failure error
	forbidden := 0 // the last checks, without a break, that were forbidden
	err := wait.PollUntilContextCancel(ctx, pollInterval, true, func(ctx context.Context) (bool, error) {
		none, pods, err := d.scaleDown(ctx, o.Deployments)
		if !apierrors.IsForbidden(err) {
			forbidden = 0
		} else if forbidden++; forbidden == 1 {
			log.Info("The API server forbids a request, trying again", "for", (maxForbidden * pollInterval).String(),
				"cause", err.Error())
		}
		switch {
		case forbidden > maxForbidden:
			return false, err
		case err == nil:
			stopped, left, failure, seen = none, pods, nil, true
		case !seen:
			failure = err // if a check succeeded, report its result instead: the last one may fail because of the timeout
		}
		return stopped, nil
	})
	switch {
	case err == nil:
		log.Info("All Pods have stopped", "deployments", o.Deployments)
		return nil
	case !errors.Is(err, context.DeadlineExceeded):
		return err
	case failure != nil:
		return fmt.Errorf("failed to see the Pods of %s stop within %s: %w", strings.Join(o.Deployments, ", "), o.Timeout, failure)
	}
	if len(left) == 0 {
		return fmt.Errorf("the cluster has not confirmed within %s that it creates no more Pods of %s in namespace %s: check "+
			"kube-controller-manager, or remove the release without waiting: helm uninstall --no-hooks",
			o.Timeout, strings.Join(o.Deployments, ", "), o.Namespace)
	}
	return fmt.Errorf("these Pods in namespace %s have not stopped within %s: %s; delete them, or remove the "+
		"release without waiting for them: helm uninstall --no-hooks",
		o.Namespace, o.Timeout, strings.Join(left, ", "))
}

type drainer struct {
	clients   kubernetes.Interface
	namespace string
	log       logr.Logger
}

// scaleDown scales the Deployments to zero that are not scaled yet. stopped is true once no Pods are left and none will
// be created. left are the names of the remaining Pods.
func (d *drainer) scaleDown(ctx context.Context, deployments []string) (stopped bool, left []string, err error) {
	stopped = true
	for _, name := range deployments {
		none, pods, err := d.stop(ctx, name)
		if err != nil {
			return false, left, err
		}
		stopped = stopped && none
		left = append(left, pods...)
	}
	return stopped, left, nil
}

// stop scales one Deployment to zero and returns the names of its Pods. none is true once the Deployment has no
// Pods and will not create any.
func (d *drainer) stop(ctx context.Context, name string) (none bool, pods []string, err error) {
	deployment, err := d.clients.AppsV1().Deployments(d.namespace).Get(ctx, name, metav1.GetOptions{})
	if apierrors.IsNotFound(err) {
		return true, nil, nil
	}
	if err != nil {
		return false, nil, fmt.Errorf("failed to get Deployment %q: %w", name, err)
	}
	scaled := deployment.Spec.Replicas != nil && *deployment.Spec.Replicas == 0
	if !scaled {
		d.log.Info("Scaling to zero", "deployment", name)
		_, err := d.clients.AppsV1().Deployments(d.namespace).Patch(ctx, name, types.MergePatchType,
			[]byte(`{"spec":{"replicas":0}}`), metav1.PatchOptions{}, "scale")
		if err != nil {
			return false, nil, fmt.Errorf("failed to scale Deployment %q to zero: %w", name, err)
		}
	}
	if pods, err = d.pods(ctx, deployment); err != nil {
		return false, nil, err
	}
	// The Deployment's controller must have seen the change; otherwise it may still create a Pod.
	seen := scaled && deployment.Status.ObservedGeneration >= deployment.Generation && deployment.Status.Replicas == 0
	return seen && len(pods) == 0, pods, nil
}

// pods returns the names of a Deployment's Pods whose containers may still run.
func (d *drainer) pods(ctx context.Context, deployment *appsv1.Deployment) ([]string, error) {
	selector, err := metav1.LabelSelectorAsSelector(deployment.Spec.Selector)
	if err != nil {
		return nil, fmt.Errorf("failed to read the selector of Deployment %q: %w", deployment.Name, err)
	}
	list, err := d.clients.CoreV1().Pods(d.namespace).List(ctx, metav1.ListOptions{LabelSelector: selector.String()})
	if err != nil {
		return nil, fmt.Errorf("failed to list the Pods of Deployment %q: %w", deployment.Name, err)
	}
	var names []string
	for i := range list.Items {
		ended := []corev1.PodPhase{corev1.PodSucceeded, corev1.PodFailed}
		if p := &list.Items[i]; !slices.Contains(ended, p.Status.Phase) {
			names = append(names, p.Name)
		}
	}
	return names, nil
}
