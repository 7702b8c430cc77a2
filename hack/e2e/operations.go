package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/capstan-dev/capstan/api/v1alpha1"
	"github.com/capstan-dev/capstan/internal/executor"
	"github.com/capstan-dev/capstan/internal/scheduler"
)

const (
	// limitedSeconds is the ceiling of the time limit of Turns while operations checks the value limits. A call of the
	// Turn limited takes far longer.
	limitedSeconds, limitedCall = 5, 60
	// limited is the name of the Turn that reaches this ceiling.
	limited = "limited"
	// waitingLong is the name of a Turn that waits for an Agent that does not exist, and startingSeconds its starting
	// deadline.
	waitingLong, startingSeconds = "waiting-long", 6
	// leasesTimeout limits the wait until the Leases of executors that are gone are deleted, and leasesInterval is the
	// time between two reads of them.
	leasesTimeout  = scheduler.LeaseRetention + time.Minute
	leasesInterval = 5 * time.Second
)

// operations checks what an operator of a real cluster relies on: an upgrade that keeps the values of the previous
// chart, the ceilings of limits, the columns of kubectl get, monitors and metrics, volumes of the manager, Events, the
// roles of people, a manager without a definition, and the deletion of the Leases of executors that are gone.
func (t *test) operations(ctx context.Context) error {
	t.say("Upgrading from the previous chart with --reuse-values, with a ceiling for time limits")
	err := t.reuseValues(ctx)
	if err == nil {
		err = t.limitedTurn(ctx)
	}
	t.say("Installing the chart with a PodMonitor, alerts, a reader of the metrics and a file of skills in extraVolumes")
	if err := errors.Join(err, t.installMonitored(ctx)); err != nil {
		return err
	}
	t.say("Reading the metrics in the cluster as a reader of metrics.readers and as a stranger")
	errs := t.scrapeMetrics(ctx)
	t.say("Reading the Events of a ModelProvider whose key is refused, of a ToolServer with a wrong path and of a Turn that waits " +
		"long, and the rights of users with the roles view and edit")
	errs = errors.Join(errs, t.brokenEvents(ctx), t.aggregatedRoles(ctx))
	t.say("Removing the definition %s from under the manager, and installing it again", removedDefinition)
	errs = errors.Join(errs, t.missingDefinition(ctx), t.removeMonitored(ctx))
	if !t.options.leases {
		return errs
	}
	t.say("Waiting until the Leases of executors that are gone are deleted, after %s", scheduler.LeaseRetention)
	return errors.Join(errs, t.ready(ctx), t.deletedLeases(ctx))
}

// reuseValues installs the previous chart with values, and upgrades the release with --reuse-values, which passes none
// of the new defaults. The manager must become ready, with these values. The previous chart starts the image of this
// version, because the test is about the chart.
func (t *test) reuseValues(ctx context.Context) error {
	version, err := appVersion(filepath.Join(t.options.root, "charts/capstan/Chart.yaml"))
	if err != nil {
		return err
	}
	if err := t.upgradeTo(ctx, t.previous("chart"), "image.tag="+version, "log.level=debug",
		fmt.Sprintf("limits.timeoutSeconds=%d", limitedSeconds)); err != nil {
		return err
	}
	if err := t.helm(ctx, "upgrade", "capstan", t.chart, "--namespace", system, "--reuse-values"); err != nil {
		return err
	}
	if err := t.ready(ctx); err != nil {
		return err
	}
	args, err := t.output(ctx, "", t.cluster.Kubectl, "-n", system, "get", "deployment/capstan", "-o",
		"jsonpath={.spec.template.spec.containers[0].args}")
	if err != nil {
		return err
	}
	for _, want := range []string{"--log-level=debug", fmt.Sprintf("--limits=timeoutSeconds=%d", limitedSeconds)} {
		if !strings.Contains(args, strconv.Quote(want)) {
			return fmt.Errorf("after helm upgrade --reuse-values the arguments of the manager are %s, want %s among them", args, want)
		}
	}
	return nil
}

// limitedTurn checks that a Turn whose Agent allows more time ends at the ceiling of the release, and that an Event
// and kubectl get say so.
func (t *test) limitedTurn(ctx context.Context) error {
	if err := t.kubectl(ctx, "-n", work, "wait", "agent/wiper", "toolserver/wiper", "--for=condition=Ready", "--timeout",
		patience.String()); err != nil {
		return err
	}
	turn := &v1alpha1.Turn{ObjectMeta: metav1.ObjectMeta{Namespace: work, Name: limited}}
	turn.Spec.AgentRef.Name = "wiper"
	turn.Spec.Message = fmt.Sprintf("Wipe disk=%s seconds=%d", limited, limitedCall)
	if err := t.api.Create(ctx, turn); err != nil {
		return fmt.Errorf("failed to create Turn %s: %w", limited, err)
	}
	if err := t.kubectl(ctx, "-n", work, "wait", "turn/"+limited, "--for=jsonpath={.status.completionTime}", "--timeout",
		patience.String()); err != nil {
		return err
	}
	if err := t.api.Get(ctx, client.ObjectKeyFromObject(turn), turn); err != nil {
		return err
	}
	limit := fmt.Sprintf("time limit of %ds", limitedSeconds)
	if turn.StateReason() != v1alpha1.TurnReasonDeadlineExceeded || !strings.Contains(message(turn), limit) {
		return fmt.Errorf("with limits.timeoutSeconds=%d the Turn ended as %s: %s; want %s with %q", limitedSeconds,
			turn.StateReason(), message(turn), v1alpha1.TurnReasonDeadlineExceeded, limit)
	}
	return errors.Join(t.awaitEvents(ctx, "Turn", limited, event{"Warning", v1alpha1.EventFailed, limit}), t.columns(ctx, turn))
}

// columns checks that kubectl get shows the Agent and the state of a Turn that has ended, and with -o wide its message.
func (t *test) columns(ctx context.Context, turn *v1alpha1.Turn) error {
	for _, table := range []struct {
		args []string
		want map[string]string
	}{
		{nil, map[string]string{"NAME": turn.Name, "AGENT": turn.Spec.AgentRef.Name, "STATE": turn.StateReason()}},
		{[]string{"-o", "wide"}, map[string]string{"STATE": turn.StateReason(), "MESSAGE": message(turn)}},
	} {
		out, err := t.output(ctx, "", t.cluster.Kubectl,
			append([]string{"-n", turn.Namespace, "get", "turns", "--field-selector=metadata.name=" + turn.Name}, table.args...)...)
		if err != nil {
			return err
		}
		for column, want := range table.want {
			if got, err := cell(out, column); err != nil || got != want {
				//nolint:errorlint // because err may be nil
				return fmt.Errorf("kubectl get turns %v shows %q in the column %s (%v), want %q", table.args, got, column, err, want)
			}
		}
	}
	return nil
}

// word finds the headers of a table that kubectl prints. Each is one word.
var word = regexp.MustCompile(`\S+`)

// cell returns the text in a column of the only row of a table that kubectl prints.
func cell(table, column string) (string, error) {
	lines := strings.Split(strings.TrimSpace(table), "\n")
	if len(lines) != 2 {
		return "", fmt.Errorf("the table has %d lines, want a header and one row: %q", len(lines), table)
	}
	// kubectl aligns the columns by characters, not by bytes.
	row := []rune(lines[1])
	headers := word.FindAllStringIndex(lines[0], -1)
	for i, at := range headers {
		if lines[0][at[0]:at[1]] != column {
			continue
		}
		end := len(row)
		if i+1 < len(headers) {
			end = min(end, headers[i+1][0])
		}
		return strings.TrimSpace(string(row[min(at[0], end):end])), nil
	}
	return "", fmt.Errorf("the table has no column %s: %q", column, lines[0])
}

// event is the type and the reason of an Event, and a part of its message.
type event struct{ kind, reason, message string }

// events returns the Events about an object, the oldest first. A repeated Event is one object.
func (t *test) events(ctx context.Context, kind, name string) ([]event, error) {
	out, err := t.output(ctx, "", t.cluster.Kubectl, "-n", work, "get", "events", "--sort-by=.metadata.creationTimestamp",
		"--field-selector", "involvedObject.kind="+kind+",involvedObject.name="+name, "-o", "json")
	if err != nil {
		return nil, err
	}
	return readEvents(out)
}

// readEvents reads a list of Events. An Event that was emitted more than once is an error.
func readEvents(list string) ([]event, error) {
	var found struct {
		Items []struct {
			Type, Reason, Message string
			Count                 int
			Series                *struct{ Count int }
		}
	}
	if err := json.Unmarshal([]byte(list), &found); err != nil {
		return nil, fmt.Errorf("failed to read Events: %w", err)
	}
	all := make([]event, 0, len(found.Items))
	for _, e := range found.Items {
		if e.Count > 1 || e.Series != nil {
			return nil, fmt.Errorf("the Event %s was emitted more than once: %s", e.Reason, e.Message)
		}
		all = append(all, event{e.Type, e.Reason, e.Message})
	}
	return all, nil
}

// awaitEvents waits until there are exactly these Events about an object, in this order. Earlier Events with another
// reason than the first do not count: for example, the DNS of a new Pod may not answer at once.
func (t *test) awaitEvents(ctx context.Context, kind, name string, want ...event) error {
	return t.poll(ctx, patience, func(ctx context.Context) (bool, string, error) {
		got, err := t.events(ctx, kind, name)
		if i := slices.IndexFunc(got, func(e event) bool { return e.reason == want[0].reason }); i > 0 {
			got = got[i:]
		}
		return slices.EqualFunc(got, want, func(got, want event) bool {
			return got.kind == want.kind && got.reason == want.reason && strings.Contains(got.message, want.message)
		}), fmt.Sprintf("the Events of %s %s are %v, want %v", kind, name, got, want), err
	})
}

// brokenEvents checks that a ModelProvider whose key is refused and a ToolServer with a wrong path get one Event each,
// although several probes fail, and one more when they are correct. It also checks the Events of a Turn that waits
// long.
func (t *test) brokenEvents(ctx context.Context) error {
	waits := &v1alpha1.Turn{ObjectMeta: metav1.ObjectMeta{Namespace: work, Name: waitingLong}}
	waits.Spec.AgentRef.Name = "missing"
	waits.Spec.Message = "Wipe disk=none seconds=0"
	waits.Spec.Limits = &v1alpha1.Limits{StartingDeadlineSeconds: new(int32(startingSeconds))}
	if err := t.api.Create(ctx, waits); err != nil {
		return fmt.Errorf("failed to create Turn %s: %w", waitingLong, err)
	}
	apply := func(key, path string) error {
		return errors.Join(t.apply(ctx, strings.ReplaceAll(wrongKeyManifest, "$KEY", key)),
			t.apply(ctx, strings.ReplaceAll(wrongPathManifest, "$PATH", path)))
	}
	if err := apply("wrong", "/nothing"); err != nil {
		return err
	}
	const provider, server = "wrong-key", "wrong-path"
	refused, err := t.awaitBroken(ctx, "ModelProvider", provider, event{"Warning", v1alpha1.ReasonCredentialsRejected, "HTTP 401"})
	if err != nil {
		return err
	}
	missed, err := t.awaitBroken(ctx, "ToolServer", server, event{"Warning", v1alpha1.ReasonProtocolError, "HTTP 404"})
	if err != nil {
		return err
	}
	// The model also answers the probes of its other ModelProvider, but far more rarely.
	before, err := t.modelLists(ctx)
	if err != nil {
		return err
	}
	if err := t.poll(ctx, patience, func(ctx context.Context) (bool, string, error) {
		now, err := t.modelLists(ctx)
		return now >= before+4, fmt.Sprintf("%d probes since the first Event, want 4", now-before), err
	}); err != nil {
		return err
	}
	if err := t.awaitEvents(ctx, "ModelProvider", provider, refused); err != nil {
		return err
	}
	if err := t.awaitEvents(ctx, "ToolServer", server, missed); err != nil {
		return err
	}
	if err := apply("demo-key", "/mcp"); err != nil {
		return err
	}
	answers := event{"Normal", v1alpha1.ReasonReady, "the endpoint answers"}
	if err := t.awaitEvents(ctx, "ModelProvider", provider, refused, answers); err != nil {
		return err
	}
	if err := t.awaitEvents(ctx, "ToolServer", server, missed, event{"Normal", v1alpha1.ReasonReady, ""}); err != nil {
		return err
	}
	return t.awaitEvents(ctx, "Turn", waitingLong,
		event{"Warning", v1alpha1.EventWaitingLong, `is still WaitingForAgent: Agent "missing" does not exist`},
		event{"Warning", v1alpha1.EventFailed, ""})
}

// awaitBroken waits until an object that is not ready has exactly one Event, and checks that the Event has the message
// of the object's condition Ready. It returns the Event with the whole message.
func (t *test) awaitBroken(ctx context.Context, kind, name string, want event) (event, error) {
	if err := t.awaitEvents(ctx, kind, name, want); err != nil {
		return event{}, err
	}
	shown, err := t.output(ctx, "", t.cluster.Kubectl, "-n", work, "get", kind, name, "-o",
		`jsonpath={.status.conditions[?(@.type=="Ready")].message}`)
	if err != nil {
		return event{}, err
	}
	if !strings.Contains(shown, want.message) {
		return event{}, fmt.Errorf("%s %s has the message %q, want %q in it", kind, name, shown, want.message)
	}
	want.message = shown
	return want, t.awaitEvents(ctx, kind, name, want)
}

// modelLists returns how often the model was asked for its list of models, which is what a probe does.
func (t *test) modelLists(ctx context.Context) (int64, error) {
	out, err := t.output(ctx, "", t.cluster.Kubectl, "get", "--raw",
		"/api/v1/namespaces/wipes/services/wipe-model:8089/proxy/_fake/stats")
	if err != nil {
		return 0, err
	}
	var stats struct {
		ModelLists int64 `json:"modelLists"`
	}
	if err := json.Unmarshal([]byte(out), &stats); err != nil {
		return 0, fmt.Errorf("failed to read the statistics of the model: %w", err)
	}
	return stats.ModelLists, nil
}

// aggregatedRoles checks which rights users have who are bound to the cluster's own roles view and edit in a namespace.
func (t *test) aggregatedRoles(ctx context.Context) error {
	for _, role := range []string{"view", "edit"} {
		if err := t.kubectl(ctx, "-n", work, "create", "rolebinding", "e2e-"+role, "--clusterrole="+role, "--user=e2e-"+role); err != nil {
			return err
		}
	}
	for _, right := range []struct {
		role, verb, resource string
		want                 string
	}{
		{"view", "list", "turns.capstan.dev", "yes"},
		{"view", "get", "budgets.capstan.dev", "yes"},
		{"view", "create", "turns.capstan.dev", "no"},
		{"view", "get", "turns.capstan.dev/log", "no"},
		{"edit", "create", "turns.capstan.dev", "yes"},
		{"edit", "update", "agents.capstan.dev", "yes"},
		{"edit", "create", "toolapprovals.capstan.dev", "no"},
		{"edit", "get", "turns.capstan.dev/log", "no"},
		{"edit", "create", "budgets.capstan.dev", "no"},
	} {
		// The controller manager of the cluster aggregates the roles within a second or so.
		if err := t.poll(ctx, patience, func(ctx context.Context) (bool, string, error) {
			resource, subresource, _ := strings.Cut(right.resource, "/")
			// The command also fails if the answer is no.
			got, err := t.output(ctx, "", t.cluster.Kubectl, "auth", "can-i", right.verb, resource, "--subresource="+subresource,
				"-n", work, "--as=e2e-"+right.role)
			if got = strings.TrimSpace(got); got == "" {
				return false, "", err
			}
			return got == right.want, fmt.Sprintf("a user with the role %s may %s %s: %q, want %s", right.role, right.verb,
				right.resource, got, right.want), nil
		}); err != nil {
			return err
		}
	}
	return nil
}

// deletedLeases waits until all executors with a Lease have a Pod. The installations before have left Leases of Pods
// that are gone. The manager that runs now deletes each of them after the retention time, which begins anew with each
// manager.
func (t *test) deletedLeases(ctx context.Context) error {
	gone, err := t.leasesWithoutPod(ctx)
	if err != nil {
		return err
	}
	if len(gone) == 0 {
		return errors.New("no Lease belongs to an executor that is gone: this proves nothing")
	}
	return pollEvery(ctx, leasesInterval, leasesTimeout, func(ctx context.Context) (bool, string, error) {
		left, err := t.leasesWithoutPod(ctx)
		return len(left) == 0, fmt.Sprintf("the Leases of the executors %v remain, of %d at first", left, len(gone)), err
	})
}

// leasesWithoutPod returns the names of the executors that have a Lease and no Pod.
func (t *test) leasesWithoutPod(ctx context.Context) ([]string, error) {
	names := func(kind, label string) ([]string, error) {
		out, err := t.output(ctx, "", t.cluster.Kubectl, "-n", system, "get", kind, "-l", label, "-o",
			"jsonpath={.items[*].metadata.name}")
		return strings.Fields(out), err
	}
	leases, err := names("leases", executor.LeaseLabel+"="+executor.LeaseLabelValue)
	if err != nil {
		return nil, err
	}
	pods, err := names("pods", "app.kubernetes.io/name=capstan")
	return executorsWithoutPod(leases, pods), err
}

// executorsWithoutPod returns the executors of Leases that are not in pods. Leases of stores belong to no executor.
func executorsWithoutPod(leases, pods []string) []string {
	var gone []string
	for _, lease := range leases {
		if name, ok := strings.CutPrefix(lease, executor.LeasePrefix); ok && !slices.Contains(pods, name) {
			gone = append(gone, name)
		}
	}
	return gone
}
