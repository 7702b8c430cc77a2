package main

import (
	"context"
	"errors"
	"fmt"
	"path/filepath"
	"time"

	"k8s.io/apimachinery/pkg/api/meta"
	"k8s.io/apimachinery/pkg/util/wait"

	"github.com/capstan-dev/capstan/api/v1alpha1"
)

const (
	// agentsTimeout is the maximum time until all Agents are ready.
	agentsTimeout = 5 * time.Minute
	// crowdDeadline is startingDeadlineSeconds of the Turns. It is long, so that a Turn that waits long for a slot
	// counts as slow instead of ending at its deadline.
	crowdDeadline = 3600
)

// measureCrowd measures a small manager that serves many namespaces. The Turns of all namespaces are created at the
// same time.
func (b *bench) measureCrowd(ctx context.Context, small member) (_ *CrowdReport, err error) {
	model, url, err := b.serveModel(ctx, b.scale.latency)
	if err != nil {
		return nil, err
	}
	crowd := *b
	crowd.model, crowd.latency = model, b.scale.latency
	tenants := make([]string, b.scale.namespaces)
	for i := range tenants {
		tenants[i] = fmt.Sprintf("tenant-%d", i)
		if err := b.createAll(ctx, objects(tenants[i], url, b.scale.latency)); err != nil {
			return nil, err
		}
	}
	dir := filepath.Join(b.dir, "scale", partNamespaces)
	k, _, err := b.keepMember(ctx, small, dir, filepath.Join(dir, "data"))
	if err != nil {
		return nil, err
	}
	r, err := crowd.runCrowd(ctx, tenants, small.cgroup, k)
	k.close()
	if err != nil {
		return nil, err
	}
	if r.Journal, err = journalUse(ctx, filepath.Join(dir, "data")); err != nil {
		return nil, err
	}
	errs := make([]error, 0, len(tenants))
	for _, tenant := range tenants {
		errs = append(errs, cleanNamespace(ctx, b.api, tenant))
	}
	return r, errors.Join(errs...)
}

// runCrowd creates the Turns of all namespaces and waits until they have ended. The Agents of the namespaces must use
// the model server b.model, because the report counts its requests.
func (b *bench) runCrowd(ctx context.Context, tenants []string, group *controlGroup, k *keeper) (*CrowdReport, error) {
	if err := b.waitForAgents(ctx, len(tenants)); err != nil {
		return nil, err
	}
	before, err := b.sampleAfterWrites(ctx, nil)
	if err != nil {
		return nil, err
	}
	idle, err := k.use()
	if err != nil {
		return nil, err
	}
	turns := len(tenants) * b.scale.turns
	b.logf("scale: %d Turns of %d namespaces at the same time", turns, len(tenants))
	result, err := b.burstOf(ctx, turns, func(i int) *v1alpha1.Turn {
		turn := newTurn(fmt.Sprintf("crowd-%d", i), b.payload)
		turn.Namespace = tenants[i%len(tenants)]
		turn.Spec.Limits = &v1alpha1.Limits{StartingDeadlineSeconds: new(int32(crowdDeadline))}
		return turn
	})
	if err != nil {
		return nil, err
	}
	after, err := b.sampleAfterWrites(ctx, nil)
	if err != nil {
		return nil, err
	}
	r := newCrowdReport(result, before, after, b)
	r.Namespaces, r.PeakInFlight, r.IdleMiB = len(tenants), int(b.model.Stats().PeakInFlight), mebibytes(idle.memory)
	var peak peaks
	r.Restarts, peak = k.counts()
	r.PeakMiB, r.PeakAnonymousMiB = mebibytes(peak.resident), mebibytes(peak.anonymous)
	last, err := k.use()
	if err != nil {
		return nil, fmt.Errorf("the manager is not running at the end, after %d restarts: %w", r.Restarts, err)
	}
	r.CPUPerTurn = milliseconds(last.cpu-idle.cpu) / float64(turns) // meaningless if the manager has restarted
	if r.OutOfMemoryKills, err = group.kills(); err != nil {
		return nil, err
	}
	b.logf("scale: all ended after %.0f s: %d restarts, %d model requests, %d Turns failed with %v, peak %s MiB", r.WallSeconds,
		r.Restarts, r.ModelRequests, sumOf(r.FailedTurns), r.FailedTurns, number(r.PeakMiB))
	periods, throttled, err := group.throttled()
	r.ThrottledPercent = 100 * quotient(float64(throttled), float64(periods))
	return r, err
}

// waitForAgents waits until this number of Agents is ready. It counts the Agents of all namespaces but bench, which has
// the Agents of most other phases.
func (b *bench) waitForAgents(ctx context.Context, want int) error {
	ready := 0
	err := wait.PollUntilContextTimeout(ctx, b.settle, agentsTimeout, true, func(ctx context.Context) (bool, error) {
		var agents v1alpha1.AgentList
		if err := b.api.List(ctx, &agents); err != nil {
			return false, err
		}
		ready = 0
		for i := range agents.Items {
			a := &agents.Items[i]
			if a.Namespace != namespace && meta.IsStatusConditionTrue(a.Status.Conditions, v1alpha1.ConditionReady) {
				ready++
			}
		}
		return ready == want, nil
	})
	if err != nil {
		return fmt.Errorf("gave up waiting for the Agents, %d of %d are ready: %w", ready, want, err)
	}
	return nil
}
