package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/capstan-dev/capstan/api/v1alpha1"
)

const (
	// turnsPerRound is the number of Turns in a round. Each makes one destructive call.
	turnsPerRound = 30
	// enoughCalls is the number of calls that must have arrived before the manager is disturbed. At that time, some
	// Turns are in a call and others have not made their call.
	enoughCalls = turnsPerRound / 3
	// takeOver is the maximum time from the loss of a manager until one of its Turns is bound to another manager, if
	// the new container starts within promptStart. If the container starts later, the delay is added.
	takeOver, promptStart = 15 * time.Second, 2 * time.Second
	// grace is the time in seconds for which a stopping Pod lets calls continue. If calls take up to longCall
	// seconds, some of them are interrupted.
	grace, longCall = 25, 40
)

// round is one way to disturb a manager whose Turns make calls.
type round struct {
	name, what string
	// seconds returns the duration of a Turn's call, by the number of the Turn.
	seconds func(number int) int
	// prepare brings the release into the state for the disturbance. If it is nil, the release is already in that
	// state.
	prepare func(context.Context, *test) error
	// disturb disturbs the manager. If no other manager starts by itself, disturb also installs the next one.
	disturb func(context.Context, *test, *result) error
	// after runs when all Turns of the round have ended. It checks the state, changes the release, or does both. The
	// next round may depend on that change. If it is nil, nothing follows the end of the Turns.
	after func(context.Context, *test) error
	// lost is true if the journal does not survive. abrupt is true if the manager has no time to shut down. one is true
	// if only the executor with the most Turns is disturbed.
	lost, abrupt, one bool
}

var rounds = []round{
	{name: "delete", what: "the Pod is deleted", seconds: upTo(longCall), disturb: deletePod()},
	{name: "force", what: "the Pod is force-deleted", seconds: upTo(8), abrupt: true, disturb: deletePod("--grace-period=0", "--force")},
	{
		name: "upgrade", what: "helm upgrade --set log.level=debug", seconds: upTo(longCall),
		disturb: func(ctx context.Context, t *test, _ *result) error {
			return t.upgrade(ctx, "log.level=debug")
		},
	},
	{name: "drain", what: "the node is drained, with a PodDisruptionBudget", seconds: upTo(longCall), prepare: setBudget, disturb: drain},
	{
		name: "forward", what: "helm upgrade from the previous chart and manager", seconds: upTo(longCall),
		prepare: installPrevious, disturb: func(ctx context.Context, t *test, _ *result) error {
			return t.upgrade(ctx)
		},
	},
	{
		name: "back", what: "helm upgrade to the previous chart and manager", seconds: upTo(longCall),
		prepare: installDefaults, disturb: goBack, after: installDefaults,
	},
	{
		name: "uninstall", what: "helm uninstall, then install again", seconds: upTo(60), prepare: startWaiting,
		disturb: uninstall, after: approveWaiting,
	},
	{
		name: "namespaced", what: "the Pod is force-deleted, with watchNamespaces and a read API", seconds: upTo(8), abrupt: true,
		prepare: installNamespaced, disturb: deletePod("--grace-period=0", "--force"), after: widenToAllNamespaces,
	},
	{
		name: "postgres", what: "one of two executors is force-deleted, journal in PostgreSQL", seconds: upTo(8), abrupt: true, one: true,
		prepare: installPostgres, disturb: func(ctx context.Context, t *test, r *result) error {
			return t.kubectl(ctx, "-n", system, "delete", "pod", r.Victim, "--wait=false", "--grace-period=0", "--force")
		}, after: scaleExecutors,
	},
	{
		name: "emptydir", what: "the Pod is deleted, journal on an emptyDir", seconds: upTo(60), lost: true,
		prepare: func(ctx context.Context, t *test) error {
			return t.install(ctx, "persistence.enabled=false", "shutdownGraceSeconds=5")
		},
		disturb: deletePod(),
	},
}

// selectRounds returns the rounds with these names, which are separated by commas, in the order in which they run.
// Without names, it returns all rounds.
func selectRounds(names string) ([]round, error) {
	if names == "" {
		return rounds, nil
	}
	wanted := strings.Split(names, ",")
	var selected []round
	for _, r := range rounds {
		if slices.Contains(wanted, r.name) {
			selected = append(selected, r)
		}
	}
	for _, name := range wanted {
		if !slices.ContainsFunc(rounds, func(r round) bool { return r.name == name }) {
			known := make([]string, 0, len(rounds))
			for _, r := range rounds {
				known = append(known, r.name)
			}
			return nil, fmt.Errorf("--rounds: there is no round %q, only %s", name, strings.Join(known, ", "))
		}
	}
	return selected, nil
}

// installDefaults brings the release back to the chart's default values.
func installDefaults(ctx context.Context, t *test) error { return t.install(ctx) }

// upTo spreads the durations of the calls between 2 seconds and a maximum.
func upTo(most int) func(int) int {
	return func(number int) int { return 2 + number*(most-2)/(turnsPerRound-1) }
}

func deletePod(args ...string) func(context.Context, *test, *result) error {
	return func(ctx context.Context, t *test, _ *result) error {
		return t.kubectl(ctx, append([]string{
			"-n", system, "delete", "pod", "-l", managerPods, "--wait=false",
		}, args...)...)
	}
}

// uninstall removes the release and checks that its Turns were handed back and its volume remains. Then it installs
// the release again.
func uninstall(ctx context.Context, t *test, r *result) error {
	if err := t.helm(ctx, "uninstall", "capstan", "--namespace", system); err != nil {
		return err
	}
	if err := t.checkHandedBack(ctx, r); err != nil {
		return err
	}
	if err := t.checkWaiting(ctx); err != nil {
		r.fail("after helm uninstall: %v", err)
	}
	left, err := t.output(ctx, "", t.cluster.Kubectl, "-n", system, "get",
		"deployments,pods,jobs,serviceaccounts,roles,rolebindings", "-l", "app.kubernetes.io/part-of=capstan", "-o", "name")
	if err != nil {
		return err
	}
	if left != "" {
		r.fail("helm uninstall has left %s, want nothing", strings.Join(strings.Fields(left), ", "))
	}
	if err := t.kubectl(ctx, "-n", system, "get", "pvc", "capstan-data"); err != nil {
		r.fail("helm uninstall has deleted the journal: %v", err)
	}
	r.Disturbed = time.Now() // so the durations begin when the chart is installed again
	return t.upgrade(ctx)
}

// checkHandedBack checks that unfinished Turns are bound to no executor while no manager runs.
func (t *test) checkHandedBack(ctx context.Context, r *result) error {
	turns, err := t.turns(ctx, r.round.name)
	if err != nil {
		return err
	}
	for i := range turns {
		turn := &turns[i]
		if turn.IsFinished() {
			continue
		}
		r.HandedBack++
		if turn.BoundTo() != "" || turn.StateReason() != v1alpha1.TurnReasonPending {
			r.fail("Turn %s is bound to %q with the message %q when no executor is left, want it handed back", turn.Name,
				turn.BoundTo(), message(turn))
		}
	}
	if r.HandedBack == 0 {
		r.fail("all Turns had finished when no executor was left: this proves nothing")
	}
	return nil
}

// round runs one round and adds its result.
func (t *test) round(ctx context.Context, r round) error {
	t.say("Round %s: %s while %d Turns wipe a disk each", r.name, r.what, turnsPerRound)
	if r.prepare != nil {
		if err := r.prepare(ctx, t); err != nil {
			return err
		}
	}
	t.results = append(t.results, result{round: r, Ends: map[string]int{}})
	outcome := &t.results[len(t.results)-1]
	for i := range turnsPerRound {
		if err := t.createTurn(ctx, r, i); err != nil {
			return err
		}
	}
	if err := t.awaitCalls(ctx, r.name); err != nil {
		return err
	}
	before, err := t.turns(ctx, r.name)
	if err != nil {
		return err
	}
	old := map[string]string{}
	for i := range before {
		if name := before[i].BoundTo(); name != "" && !before[i].IsFinished() {
			old[before[i].Name] = name
		}
	}
	if len(old) == 0 {
		return errors.New("no Turn is in flight: this proves nothing")
	}
	if r.one {
		if outcome.Victim = chooseVictim(old); outcome.Victim == "" {
			return errors.New("all Turns in flight are bound to the same executor, want Turns on both: this proves nothing")
		}
	}
	outcome.InFlight = len(old)
	outcome.Disturbed = time.Now()
	if err := r.disturb(ctx, t, outcome); err != nil {
		return err
	}
	if err := t.awaitTakeOver(ctx, outcome, old); err != nil {
		return err
	}
	if err := t.awaitEnd(ctx, outcome); err != nil {
		return err
	}
	if err := t.ready(ctx); err != nil {
		return err
	}
	if r.after != nil {
		if err := r.after(ctx, t); err != nil {
			outcome.fail("afterwards: %v", err)
		}
	}
	if len(outcome.Failures) > 0 {
		return errors.New(strings.Join(outcome.Failures, "; "))
	}
	return nil
}

// chooseVictim returns the executor with the most Turns, and removes the Turns of the other executors from old. If
// fewer than two executors have Turns, chooseVictim returns an empty string.
func chooseVictim(old map[string]string) string {
	turns := map[string]int{}
	for _, executor := range old {
		turns[executor]++
	}
	if len(turns) < 2 {
		return "" // the round would not show that the Turns of the other executor continue
	}
	victim := ""
	for _, executor := range slices.Sorted(maps.Keys(turns)) {
		if victim == "" || turns[executor] > turns[victim] {
			victim = executor
		}
	}
	maps.DeleteFunc(old, func(_, executor string) bool { return executor != victim })
	return victim
}

func (t *test) createTurn(ctx context.Context, r round, number int) error {
	name := fmt.Sprintf("%s-%02d", r.name, number)
	turn := &v1alpha1.Turn{ObjectMeta: metav1.ObjectMeta{Namespace: work, Name: name, Labels: map[string]string{"round": r.name}}}
	turn.Spec.AgentRef.Name = "wiper"
	turn.Spec.Message = fmt.Sprintf("Wipe disk=%s seconds=%d", name, r.seconds(number))
	if err := t.api.Create(ctx, turn); err != nil {
		return fmt.Errorf("failed to create Turn %s: %w", name, err)
	}
	return nil
}

// turns returns the Turns of a round.
func (t *test) turns(ctx context.Context, round string) ([]v1alpha1.Turn, error) {
	var list v1alpha1.TurnList
	err := t.api.List(ctx, &list, client.InNamespace(work), client.MatchingLabels{"round": round})
	return list.Items, err
}

// wiped returns how often each disk of a round was wiped.
func (t *test) wiped(ctx context.Context, round string) (map[string]int, error) {
	out, err := t.output(ctx, "", t.cluster.Kubectl, "get", "--raw", "/api/v1/namespaces/wipes/services/wiper:8090/proxy/wiped")
	if err != nil {
		return nil, err
	}
	var counts struct {
		Wiped map[string]int `json:"wiped"`
	}
	if err := json.Unmarshal([]byte(out), &counts); err != nil {
		return nil, fmt.Errorf("failed to read the counts of the tool server: %w", err)
	}
	for disk := range counts.Wiped {
		if !strings.HasPrefix(disk, round+"-") {
			delete(counts.Wiped, disk)
		}
	}
	return counts.Wiped, nil
}

// awaitCalls waits until enough calls have arrived.
func (t *test) awaitCalls(ctx context.Context, round string) error {
	return t.poll(ctx, patience, func(ctx context.Context) (bool, string, error) {
		wiped, err := t.wiped(ctx, round)
		return len(wiped) >= enoughCalls, fmt.Sprintf("%d calls have arrived, want %d", len(wiped), enoughCalls), err
	})
}

// awaitTakeOver waits until each unfinished Turn is bound, and not to its old executor. It also records the times. At
// least one Turn must be bound to another executor, or have ended there.
func (t *test) awaitTakeOver(ctx context.Context, r *result, old map[string]string) error {
	first := ""
	pods := slices.Compact(slices.Sorted(maps.Values(old)))
	err := t.poll(ctx, patience, func(ctx context.Context) (bool, string, error) {
		if r.Gone == 0 {
			existing, err := t.output(ctx, "", t.cluster.Kubectl,
				append([]string{"-n", system, "get", "pods", "--ignore-not-found", "-o", "name"}, pods...)...)
			if err != nil {
				return false, "", err
			}
			if existing == "" {
				r.Gone = time.Since(r.Disturbed)
			}
		}
		turns, err := t.turns(ctx, r.round.name)
		left := 0
		for i := range turns {
			turn := &turns[i]
			// Not BoundTo: between two polls, an executor that lacks a journal takes over a Turn and ends it.
			name := ""
			if turn.Status.Executor != nil {
				name = turn.Status.Executor.Name
			}
			switch {
			case name == old[turn.Name], name == "":
				if !turn.IsFinished() {
					left++
				}
			case old[turn.Name] != "" && first == "":
				first, r.First = name, time.Since(r.Disturbed)
			}
		}
		return left == 0, fmt.Sprintf("%d Turns wait for another executor", left), err
	})
	r.All = time.Since(r.Disturbed)
	if err != nil {
		return err
	}
	if first == "" {
		return errors.New("no Turn has moved to another executor: this proves nothing")
	}
	started, err := t.started(ctx, first)
	r.Started = max(0, started.Sub(r.Disturbed)) // another executor may have been running before
	r.checkTakeOver()
	return err
}

// started returns the start time of a manager's container, in whole seconds. The name of an executor is its Pod's
// name.
func (t *test) started(ctx context.Context, pod string) (time.Time, error) {
	out, err := t.output(ctx, "", t.cluster.Kubectl, "-n", system, "get", "pod", pod, "-o",
		"jsonpath={.status.containerStatuses[0].state.running.startedAt}")
	if err != nil {
		return time.Time{}, err
	}
	at, err := time.Parse(time.RFC3339, out)
	if err != nil {
		return time.Time{}, fmt.Errorf("failed to read when the container of Pod %s was started: %w", pod, err)
	}
	return at, nil
}

// awaitEnd waits until all Turns of a round have finished, and checks them.
func (t *test) awaitEnd(ctx context.Context, r *result) error {
	var turns []v1alpha1.Turn
	err := t.poll(ctx, 2*patience, func(ctx context.Context) (bool, string, error) {
		var err error
		turns, err = t.turns(ctx, r.round.name)
		left := 0
		for i := range turns {
			if !turns[i].IsFinished() {
				left++
			}
		}
		return left == 0, fmt.Sprintf("%d Turns have not finished", left), err
	})
	if err != nil {
		return err
	}
	wiped, err := t.wiped(ctx, r.round.name)
	if err != nil {
		return err
	}
	r.check(turns, wiped)
	return nil
}
