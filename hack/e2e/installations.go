package main

import (
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/go-logr/logr"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"

	"github.com/capstan-dev/capstan/api/v1alpha1"
	"github.com/capstan-dev/capstan/hack/e2e/node"
	"github.com/capstan-dev/capstan/internal/approvals"
	"github.com/capstan-dev/capstan/internal/runtime/journal"
	"github.com/capstan-dev/capstan/internal/store/postgres/postgrestest"
)

const (
	// postgresPort is the port of PostgreSQL at the address of the node.
	postgresPort = 15432
	// turnsWaiting is the number of Turns that wait for an approval while the release is removed.
	turnsWaiting = 3
	// turnFourEyes is the number of the one among them whose Agent has approval.forbidRequester, and fourEyesRequester
	// is the user who creates it.
	turnFourEyes, fourEyesRequester = 2, "ada"
	// waiting is the value of the label "round" of these Turns.
	waiting = "waiting"
)

// setBudget installs a PodDisruptionBudget and waits until it allows the eviction of the one Pod.
func setBudget(ctx context.Context, t *test) error {
	if err := t.install(ctx, "podDisruptionBudget.enabled=true"); err != nil {
		return err
	}
	return t.kubectl(ctx, "-n", system, "wait", "poddisruptionbudget/capstan",
		"--for=jsonpath={.status.disruptionsAllowed}=1", "--timeout", patience.String())
}

// drain evicts the manager from the only node, checks that its Turns were handed back, and makes the node
// schedulable again. The Pods of models and tools are not evicted, because a tool server counts the wiped disks in
// memory.
func drain(ctx context.Context, t *test, r *result) error {
	err := t.kubectl(ctx, "drain", node.Name, "--pod-selector=app.kubernetes.io/name=capstan", "--delete-emptydir-data",
		"--timeout", patience.String())
	if err == nil {
		err = t.checkHandedBack(ctx, r)
	}
	r.Disturbed = time.Now() // so the durations begin when a new Pod may start
	return errors.Join(err, t.kubectl(ctx, "uncordon", node.Name))
}

// upgradeToPrevious runs helm upgrade with the chart and the manager of the previous version.
func (t *test) upgradeToPrevious(ctx context.Context) error {
	return t.upgradeTo(ctx, t.previous("chart"), "image.registry=e2e.local", "image.repository=previous", "image.tag=v1")
}

// installPrevious installs the previous version with an empty journal: it may not know the schema of the current one.
func installPrevious(ctx context.Context, t *test) error {
	if err := t.helm(ctx, "uninstall", "capstan", "--namespace", system); err != nil {
		return err
	}
	volume := filepath.Join(t.cluster.Volumes(), "journal")
	files, err := os.ReadDir(volume)
	for _, file := range files {
		err = errors.Join(err, os.RemoveAll(filepath.Join(volume, file.Name())))
	}
	if err = errors.Join(err, t.upgradeToPrevious(ctx)); err != nil {
		return err
	}
	return t.ready(ctx)
}

// goBack upgrades the release to the previous version. If that version does not know the schema of the journal, its
// manager must say so and leave the Turns alone, and the current version is installed again.
func goBack(ctx context.Context, t *test, r *result) error {
	if err := t.upgradeToPrevious(ctx); err != nil {
		return err
	}
	newer, err := t.hasNewerSchema()
	if err != nil || !newer {
		return err
	}
	err = t.poll(ctx, patience, func(ctx context.Context) (bool, string, error) {
		log, err := t.output(ctx, "", t.cluster.Kubectl, "-n", system, "logs", "-l", managerPods, "--tail=-1")
		return strings.Contains(log, journal.ErrNewer.Error()), "no previous manager has refused the newer journal", err
	})
	if err == nil {
		err = t.checkHandedBack(ctx, r)
	}
	r.Disturbed = time.Now() // so the durations begin when a manager that knows the journal may start
	return errors.Join(err, t.upgrade(ctx))
}

// hasNewerSchema reports whether the schema of the journal has changed since the previous version, whose manager cannot
// use a journal with the newer schema.
func (t *test) hasNewerSchema() (bool, error) {
	previous, err := os.ReadFile(t.previous("migrations"))
	if err != nil {
		return false, err
	}
	current, err := os.ReadDir(filepath.Join(t.options.root, "internal/store/sqlite/migrations"))
	return len(current) != len(strings.Fields(string(previous))), err
}

// previous returns a path below the output of previous.sh.
func (t *test) previous(name string) string {
	return filepath.Join(t.options.programs, "previous", name)
}

// installNamespaced installs the chart for one namespace with a read API. It checks the manager's permissions and
// runs the chart's test. It also creates the Turn "beyond" in another namespace, which the manager must not touch.
func installNamespaced(ctx context.Context, t *test) error {
	if err := t.replaceCertificate(ctx, readSecret, "read-api"); err != nil {
		return err
	}
	if err := t.install(ctx, "watchNamespaces={"+work+"}", "readAPI.enabled=true", "readAPI.tlsSecret="+readSecret); err != nil {
		return err
	}
	if err := t.helmTest(ctx, "ok: read API: https://capstan-read.capstan-system.svc answers"); err != nil {
		return err
	}
	for namespace, want := range map[string]string{work: "yes", "examples": "no"} {
		// The command fails if the answer is no.
		if got, _ := t.output(ctx, "", t.cluster.Kubectl, "auth", "can-i", "list", "turns.capstan.dev", "-n", namespace,
			"--as=system:serviceaccount:"+system+":capstan"); strings.TrimSpace(got) != want {
			return fmt.Errorf("the manager may list the Turns of namespace %s: %q, want %s", namespace, got, want)
		}
	}
	beyond := &v1alpha1.Turn{ObjectMeta: metav1.ObjectMeta{Namespace: "examples", Name: "beyond"}}
	beyond.Spec.AgentRef.Name = "helpdesk"
	beyond.Spec.Message = "Which tickets are open?"
	return t.api.Create(ctx, beyond)
}

// widenToAllNamespaces checks that no manager has touched the Turn "beyond". Then it installs the chart for all
// namespaces again, and waits until the manager has run that Turn to its end.
func widenToAllNamespaces(ctx context.Context, t *test) error {
	status, err := t.output(ctx, "", t.cluster.Kubectl, "-n", "examples", "get", "turn/beyond", "-o",
		"jsonpath={.status.conditions}{.status.executor}")
	if err != nil {
		return err
	}
	if status != "" {
		return fmt.Errorf("the Turn of a namespace that is not served has the status %s, want none", status)
	}
	if err := t.install(ctx); err != nil {
		return err
	}
	return t.kubectl(ctx, "-n", "examples", "wait", "turn/beyond", "--for=jsonpath={.status.completionTime}", "--timeout",
		patience.String())
}

// installPostgres starts a PostgreSQL outside the cluster. It installs the chart with the journal in that database
// and with two executors.
func installPostgres(ctx context.Context, t *test) error {
	access := filepath.Join(t.cluster.Volumes(), "pg_hba.conf")
	rules := "local all all scram-sha-256\nhost all all 10.244.0.0/24 scram-sha-256\n"
	if err := os.WriteFile(access, []byte(rules), 0o644); err != nil { //nolint:gosec // because PostgreSQL runs as another user
		return err
	}
	var err error
	if t.database, err = postgrestest.Start(ctx, t.options.postgres, "fsync=off", "listen_addresses="+node.Address,
		"port="+strconv.Itoa(postgresPort), "hba_file="+access); err != nil {
		return err
	}
	_, password := t.database.Login()
	secret := fmt.Sprintf("apiVersion: v1\nkind: Secret\nmetadata: {name: capstan-store, namespace: %s}\nstringData: {password: %s}\n",
		system, password)
	if err := t.apply(ctx, secret); err != nil {
		return err
	}
	return t.install(ctx, append(t.postgresValues(), "executor.replicas=2")...)
}

// postgresValues returns the values of separate executors with the journal in the database that installPostgres has
// started.
func (t *test) postgresValues() []string {
	user, _ := t.database.Login()
	return []string{
		fmt.Sprintf("store.url=postgres://%s@%s/postgres?sslmode=disable", user,
			net.JoinHostPort(node.Address, strconv.Itoa(postgresPort))),
		"store.passwordSecret.name=capstan-store", "executor.separate=true",
	}
}

// startWaiting installs the chart and creates Turns whose call requires approval. It returns when all of them wait for
// the approval.
func startWaiting(ctx context.Context, t *test) error {
	if err := t.install(ctx); err != nil {
		return err
	}
	if err := t.awaitRequesterPolicy(ctx); err != nil {
		return err
	}
	// The approver must be another user than the requester, and the administrator of the cluster approves.
	asRequester := rest.CopyConfig(t.config)
	asRequester.Impersonate = rest.ImpersonationConfig{UserName: fourEyesRequester, Groups: []string{"system:masters"}}
	requester, err := clientOf(asRequester)
	if err != nil {
		return err
	}
	for i := range turnsWaiting {
		name := fmt.Sprintf("%s-%d", waiting, i)
		turn := &v1alpha1.Turn{ObjectMeta: metav1.ObjectMeta{Namespace: work, Name: name, Labels: map[string]string{"round": waiting}}}
		creator := t.api
		turn.Spec.AgentRef.Name = "careful-wiper"
		if i == turnFourEyes {
			creator, turn.Spec.AgentRef.Name = requester, "four-eyes-wiper"
		}
		turn.Spec.Message = fmt.Sprintf("Wipe disk=%s seconds=0", name)
		if err := creator.Create(ctx, turn); err != nil {
			return fmt.Errorf("failed to create Turn %s: %w", name, err)
		}
		if i == turnFourEyes && turn.Requester() != fourEyesRequester {
			return fmt.Errorf("the Turn %s has the requester %q, want %s", name, turn.Requester(), fourEyesRequester)
		}
	}
	return t.poll(ctx, patience, func(ctx context.Context) (bool, string, error) {
		err := t.checkWaiting(ctx)
		return err == nil, "", err
	})
}

// checkWaiting returns an error unless each Turn of startWaiting waits for the approval of one call.
func (t *test) checkWaiting(ctx context.Context) error {
	turns, err := t.turns(ctx, waiting)
	if err != nil {
		return err
	}
	if len(turns) != turnsWaiting {
		return fmt.Errorf("there are %d Turns with the label round=%s, want %d", len(turns), waiting, turnsWaiting)
	}
	for i := range turns {
		if turn := &turns[i]; turn.IsFinished() || len(turn.Status.PendingApprovals) != 1 {
			return fmt.Errorf("the Turn %s waits for the approval of %d calls, want 1; its message is %q",
				turn.Name, len(turn.Status.PendingApprovals), message(turn))
		}
	}
	return nil
}

// awaitRequesterPolicy waits until the requester of a new Turn counts: see awaitPolicy.
func (t *test) awaitRequesterPolicy(ctx context.Context) error {
	clients, err := kubernetes.NewForConfig(t.config)
	if err != nil {
		return err
	}
	policy := approvals.NewRequesterPolicy("capstan-system-capstan-requesters", clients.AdmissionregistrationV1(), time.Now, logr.Discard())
	return t.poll(ctx, patience, func(ctx context.Context) (bool, string, error) {
		why, err := policy.CheckRequester(ctx, time.Now())
		return why == "", why, err
	})
}

// awaitPolicy waits until Capstan uses ToolApprovals. Capstan ignores ToolApprovals that are created in the first
// seconds after the installation of the policy, because the API server may not have checked them.
func (t *test) awaitPolicy(ctx context.Context) error {
	out, err := t.output(ctx, "", t.cluster.Kubectl, "get", "validatingadmissionpolicy/capstan-system-capstan-toolapprovals",
		"validatingadmissionpolicybinding/capstan-system-capstan-toolapprovals", "-o", "jsonpath={.items[*].metadata.creationTimestamp}")
	if err != nil {
		return err
	}
	for created := range strings.FieldsSeq(out) {
		at, err := time.Parse(time.RFC3339, created)
		if err != nil {
			return fmt.Errorf("failed to read when the policy of ToolApprovals was created: %w", err)
		}
		if err := t.poll(ctx, patience, func(context.Context) (bool, string, error) {
			return time.Since(at) > approvals.PolicySettleTime+time.Second, "the policy of ToolApprovals is new", nil
		}); err != nil {
			return err
		}
	}
	return nil
}

// approveWaiting checks that the Turns still wait in the new release, approves their calls, and checks that each
// call was made once. For the Turn whose Agent has approval.forbidRequester, this requires that the requester from
// before helm uninstall still counts.
func approveWaiting(ctx context.Context, t *test) error {
	if err := t.checkWaiting(ctx); err != nil {
		return err
	}
	wiped, err := t.wiped(ctx, waiting)
	if err != nil {
		return err
	}
	if len(wiped) > 0 {
		return fmt.Errorf("disks were wiped before the approval: %v", wiped)
	}
	if err := t.awaitPolicy(ctx); err != nil {
		return err
	}
	for i := range turnsWaiting {
		name := fmt.Sprintf("%s-%d", waiting, i)
		if _, err := t.output(ctx, "", filepath.Join(t.options.programs, "capstan"), "approve", name, "--namespace", work,
			"-y", "--without-arguments"); err != nil {
			return err
		}
	}
	var turns []v1alpha1.Turn
	if err := t.poll(ctx, patience, func(ctx context.Context) (bool, string, error) {
		var err error
		turns, err = t.turns(ctx, waiting)
		return !slices.ContainsFunc(turns, func(turn v1alpha1.Turn) bool { return !turn.IsFinished() }),
			"approved Turns have not finished", err
	}); err != nil {
		return err
	}
	if wiped, err = t.wiped(ctx, waiting); err != nil {
		return err
	}
	for i := range turns {
		if turn := &turns[i]; turn.StateReason() != v1alpha1.TurnReasonCompleted || wiped[turn.Name] != 1 {
			return fmt.Errorf("the Turn %s ended as %s and wiped its disk %d times after its approval, want Completed and once: %s",
				turn.Name, turn.StateReason(), wiped[turn.Name], message(turn))
		}
	}
	return nil
}
