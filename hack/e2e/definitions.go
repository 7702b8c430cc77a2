package main

import (
	"bufio"
	"context"
	"fmt"
	"io"
	"net/http"
	"regexp"
	"strings"
	"time"
)

const (
	// removedDefinition is the custom resource definition that missingDefinition removes. This cluster has no Budgets,
	// so nothing else is lost.
	removedDefinition = "budgets.capstan.dev"
	// definitionMissing is how the manager reports that it is missing.
	definitionMissing = "the cluster does not have the custom resource definitions " + removedDefinition +
		": install them with the chart (crds.install) or with make install"
	// healthPort is the port of the probes in the chart's default values.
	healthPort = "8081"
)

// missingDefinition removes a custom resource definition while the manager runs with monitoredValues. The manager must
// not be ready, and its readiness probe must say why. A new Pod must not become ready either. When helm upgrade has
// installed the definition again, this Pod must become ready.
func (t *test) missingDefinition(ctx context.Context) error {
	lost, err := t.output(ctx, "", t.cluster.Kubectl, "get", removedDefinition, "-A", "-o", "name")
	if err != nil {
		return err
	}
	if lost != "" {
		return fmt.Errorf("the removal of %s would delete %s", removedDefinition, strings.Join(strings.Fields(lost), ", "))
	}
	old, err := t.managerPod(ctx)
	if err != nil {
		return err
	}
	if err := t.removeDefinition(ctx, old); err != nil {
		return err
	}
	if err := t.kubectl(ctx, "-n", system, "delete", "pod", old, "--timeout", patience.String()); err != nil {
		return err
	}
	if err := t.poll(ctx, patience, func(ctx context.Context) (bool, string, error) {
		log, err := t.output(ctx, "", t.cluster.Kubectl, "-n", system, "logs", "-l", managerPods, "--tail=-1")
		return strings.Contains(log, "Waiting for the custom resource definitions") && strings.Contains(log, definitionMissing),
			fmt.Sprintf("the log of the new manager is %s, want %q", log, definitionMissing), err
	}); err != nil {
		return err
	}
	waiting, err := t.managerPod(ctx)
	if err != nil {
		return err
	}
	ready, err := t.output(ctx, "", t.cluster.Kubectl, "-n", system, "get", "pod", waiting, "-o",
		`jsonpath={.status.conditions[?(@.type=="Ready")].status}`)
	if err != nil {
		return err
	}
	if ready != "False" {
		return fmt.Errorf("the condition Ready of a Pod that waits for a definition is %q, want False", ready)
	}
	if err := t.upgrade(ctx, monitoredValues...); err != nil {
		return err
	}
	if err := t.ready(ctx); err != nil {
		return err
	}
	after, err := t.managerPod(ctx)
	if err == nil && after != waiting {
		err = fmt.Errorf("the Pod %s is ready, want %s, which has waited for the definition", after, waiting)
	}
	return err
}

// removeDefinition removes the definition, and waits until the readiness probe of a manager's Pod reports that.
func (t *test) removeDefinition(ctx context.Context, pod string) error {
	address, stop, err := t.forwardProbes(ctx, pod)
	if err != nil {
		return err
	}
	defer stop()
	if status, text, err := get(ctx, "http://"+address+"/readyz/crds"); err != nil || status != http.StatusOK {
		//nolint:errorlint // because err may be nil
		return fmt.Errorf("with all definitions, /readyz/crds answers %d %q (%v), want 200", status, text, err)
	}
	if err := t.kubectl(ctx, "delete", "customresourcedefinition", removedDefinition, "--timeout", patience.String()); err != nil {
		return err
	}
	return t.poll(ctx, patience, func(ctx context.Context) (bool, string, error) {
		reason, text, err := get(ctx, "http://"+address+"/readyz/crds")
		if err != nil {
			return false, "", err
		}
		ready, _, err := get(ctx, "http://"+address+"/readyz")
		failed := reason == http.StatusInternalServerError && ready == http.StatusInternalServerError
		return failed && strings.Contains(text, definitionMissing),
			fmt.Sprintf("without %s, /readyz answers %d, and /readyz/crds %d %q; want 500 and %q", removedDefinition, ready,
				reason, text, definitionMissing), err
	})
}

// managerPod returns the name of the manager's only Pod.
func (t *test) managerPod(ctx context.Context) (string, error) {
	out, err := t.output(ctx, "", t.cluster.Kubectl, "-n", system, "get", "pods", "-l", managerPods, "-o",
		"jsonpath={.items[*].metadata.name}")
	if pods := strings.Fields(out); err == nil && len(pods) != 1 {
		err = fmt.Errorf("the manager has the Pods %q, want one", pods)
	}
	return out, err
}

// forwarded finds the local port in the first line of kubectl port-forward.
var forwarded = regexp.MustCompile(`^Forwarding from (127\.0\.0\.1:\d+) -> `)

// forwardProbes forwards a free port of 127.0.0.1 to the port of a Pod's probes, and returns its address. The caller
// must call stop.
func (t *test) forwardProbes(ctx context.Context, pod string) (address string, stop func(), err error) {
	ctx, cancel := context.WithCancel(ctx)
	cmd := t.command(ctx, t.cluster.Kubeconfig, t.cluster.Kubectl, "-n", system, "port-forward", "--address=127.0.0.1",
		"pod/"+pod, ":"+healthPort)
	var stderr strings.Builder
	cmd.Stderr = &stderr
	stdout, err := cmd.StdoutPipe()
	if err == nil {
		err = cmd.Start()
	}
	if err != nil {
		cancel()
		return "", nil, err
	}
	lines := bufio.NewReader(stdout)
	unanswered := time.AfterFunc(patience, cancel) // so that kubectl ends, and with it its output
	line, _ := lines.ReadString('\n')              // without a line, there is no address
	unanswered.Stop()
	go func() { _, _ = io.Copy(io.Discard, lines) }() // kubectl prints a line for each connection
	stop = func() {
		cancel()
		_ = cmd.Wait() // it was killed
	}
	found := forwarded.FindStringSubmatch(line)
	if found == nil {
		stop()
		return "", nil, fmt.Errorf("kubectl port-forward to Pod %s prints no address: %q", pod, line+stderr.String())
	}
	return found[1], stop, nil
}

// get returns the status and the body of the answer to a request.
func get(ctx context.Context, url string) (status int, body string, err error) {
	ctx, cancel := context.WithTimeout(ctx, 10*time.Second)
	defer cancel()
	request, err := http.NewRequestWithContext(ctx, http.MethodGet, url, http.NoBody)
	if err != nil {
		return 0, "", err
	}
	response, err := http.DefaultClient.Do(request)
	if err != nil {
		return 0, "", err
	}
	defer func() { _ = response.Body.Close() }() // the body was read
	text, err := io.ReadAll(response.Body)
	return response.StatusCode, string(text), err
}
