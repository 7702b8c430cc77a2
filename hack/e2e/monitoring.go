package main

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
)

const (
	// metricsCertificate is the Secret with the certificate of the metrics.
	metricsCertificate = "capstan-metrics"
	// reader is the ServiceAccount that may read the metrics, and stranger one that may not. Both are in the namespace
	// work.
	reader, stranger = "prometheus", "stranger"
	// otherKinds are the kinds whose objects the chart creates for other operators, and the autoscaler of Kubernetes.
	otherKinds = "podmonitors,servicemonitors,prometheusrules,scaledobjects,horizontalpodautoscalers"
	// monitoringGroup ends the names of those objects that are for the Prometheus operator, after their kind.
	monitoringGroup = ".monitoring.coreos.com/capstan"
)

// monitoredValues are values for a monitored installation: a PodMonitor and alerts, metrics with a certificate that
// clients can verify, a ServiceAccount that may read them, and a file of skills in a volume that the chart does not
// know.
var monitoredValues = []string{
	"metrics.podMonitor.enabled=true", "metrics.prometheusRule.enabled=true", "metrics.tlsSecret=" + metricsCertificate,
	"metrics.readers[0].name=" + reader + ",metrics.readers[0].namespace=" + work,
	"extraVolumes[0].name=files,extraVolumes[0].configMap.name=e2e-skills",
	"extraVolumeMounts[0].name=files,extraVolumeMounts[0].mountPath=/etc/e2e,extraVolumeMounts[0].readOnly=true",
	"extraArgs={--skills-file=/etc/e2e/skills.yaml}",
}

// installMonitored installs the chart with monitoredValues. It checks that helm creates the PodMonitor and the alerts,
// and that the manager has read the file in the volume: the skill in it changes the prompts of all Agents.
func (t *test) installMonitored(ctx context.Context) error {
	if err := errors.Join(t.replaceCertificate(ctx, metricsCertificate, "metrics"), t.apply(ctx, skillsManifest)); err != nil {
		return err
	}
	before, err := t.promptHash(ctx)
	if err != nil {
		return err
	}
	if before == "" {
		return errors.New("the Agent wiper has no hash of its prompt: this proves nothing")
	}
	if err := t.install(ctx, monitoredValues...); err != nil {
		return err
	}
	if err := t.checkOtherObjects(ctx, "podmonitor"+monitoringGroup, "prometheusrule"+monitoringGroup); err != nil {
		return err
	}
	return t.poll(ctx, patience, func(ctx context.Context) (bool, string, error) {
		now, err := t.promptHash(ctx)
		return now != "" && now != before, "the prompt of the Agent wiper does not list the skill in the volume of extraVolumes", err
	})
}

// promptHash returns the hash of the prompt of the Agent whose Turns wipe disks.
func (t *test) promptHash(ctx context.Context) (string, error) {
	return t.output(ctx, "", t.cluster.Kubectl, "-n", work, "get", "agent/wiper", "-o", "jsonpath={.status.promptRenderHash}")
}

// removeMonitored brings the release back to the chart's default values, without waiting for the manager. It checks
// that helm removes the PodMonitor and the alerts.
func (t *test) removeMonitored(ctx context.Context) error {
	return errors.Join(t.upgrade(ctx), t.checkOtherObjects(ctx))
}

// checkOtherObjects checks that the release has these objects of otherKinds, each as KIND.GROUP/NAME, and no others.
func (t *test) checkOtherObjects(ctx context.Context, want ...string) error {
	out, err := t.output(ctx, "", t.cluster.Kubectl, "-n", system, "get", otherKinds, "-o", "name")
	if err != nil {
		return err
	}
	got := strings.Fields(out)
	slices.Sort(got)
	slices.Sort(want)
	if !slices.Equal(got, want) {
		return fmt.Errorf("helm upgrade has created or left the objects %q, want %q", got, want)
	}
	return nil
}

// scrapeMetrics reads the metrics in Pods with two ServiceAccounts: the one in metrics.readers, and another one.
func (t *test) scrapeMetrics(ctx context.Context) error {
	for _, account := range []string{reader, stranger} {
		if err := t.apply(ctx, strings.ReplaceAll(scrapeManifest, "$NAME", account)); err != nil {
			return err
		}
	}
	for _, want := range []struct {
		account, status, body string
	}{
		{reader, "HTTP 200\n", "\ncapstan_turns_capacity "},
		{stranger, "HTTP 403\n", `user "system:serviceaccount:` + work + ":" + stranger + `" may not get /metrics`},
	} {
		pod := "pod/scrape-" + want.account
		waited := t.kubectl(ctx, "-n", work, "wait", pod, "--for=jsonpath={.status.phase}=Succeeded", "--timeout", patience.String())
		answer, err := t.output(ctx, "", t.cluster.Kubectl, "-n", work, "logs", pod)
		if waited != nil {
			return fmt.Errorf("%w; the log of %s is %q", errors.Join(waited, err), pod, answer)
		}
		if err != nil {
			return err
		}
		if !strings.HasPrefix(answer, want.status) || !strings.Contains(answer, want.body) {
			return fmt.Errorf("the ServiceAccount %s gets the metrics %q, want %q with %q", want.account, beginning(answer),
				want.status, want.body)
		}
	}
	return nil
}

// beginning returns the first lines of a long text.
func beginning(text string) string {
	const most = 5
	lines := strings.Split(text, "\n")
	return strings.Join(lines[:min(most, len(lines))], "\n")
}

// scaleExecutors turns both kinds of autoscalers on, one after the other. Then it brings the release back to the
// chart's default values, which have none.
func scaleExecutors(ctx context.Context, t *test) error {
	return errors.Join(t.turnAutoscalersOn(ctx), t.install(ctx), t.checkOtherObjects(ctx))
}

// turnAutoscalersOn changes the release of the round postgres to an autoscaler of Kubernetes with a ServiceMonitor, and
// then to one of KEDA without. It checks the objects that helm creates and removes.
func (t *test) turnAutoscalersOn(ctx context.Context) error {
	for _, step := range []struct {
		values, want []string
	}{
		{
			[]string{"executor.autoscaling.kind=HPA", "metrics.serviceMonitor.enabled=true"},
			[]string{"horizontalpodautoscaler.autoscaling/capstan-executor", "servicemonitor" + monitoringGroup},
		},
		{
			[]string{"executor.autoscaling.kind=KEDA", "executor.autoscaling.prometheusAddress=http://prometheus.monitoring:9090"},
			[]string{"scaledobject.keda.sh/capstan-executor"},
		},
	} {
		values := append(t.postgresValues(), "executor.autoscaling.enabled=true")
		if err := t.upgrade(ctx, append(values, step.values...)...); err != nil {
			return err
		}
		if err := t.checkOtherObjects(ctx, step.want...); err != nil {
			return err
		}
	}
	return nil
}
