package main

import (
	"context"
	"fmt"
	"time"

	"github.com/capstan-dev/capstan/api/v1alpha1"
	"github.com/capstan-dev/capstan/hack/chaos/failpoint"
)

// pointPatience is the maximum time until a manager has died at its point, and then the time until its Turn has
// finished.
const pointPatience = 45 * time.Second

// pointResult is a row of the report.
type pointResult struct {
	Point string `json:"point"`
	// Resumes and UnknownOutcomes are taken from the status of the Turn.
	Resumes         int32 `json:"resumes"`
	UnknownOutcomes int32 `json:"unknownOutcomes"`
	ModelRequests   int32 `json:"modelRequests"`
}

// points kills the manager between any two effects, each time in a new Turn.
func (r *rig) points(ctx context.Context) (*phaseReport, error) {
	const phase = "points"
	store, err := r.storeOf(ctx, phase)
	if err != nil {
		return nil, err
	}
	ctx, fail := context.WithCancelCause(ctx)
	defer fail(nil)
	defer runInBackground(ctx, fail, r.newApprover(phase, 0).run)()
	// Each manager finishes the Turn of the previous point. Then it waits for the next Turn and dies in that Turn.
	all := r.scenarios()
	var deaths []failpoint.Point
	for _, s := range all {
		deaths = append(deaths, s.points...)
	}
	var kills []kill
	start := func() (*process, error) {
		spec := managerSpec{name: "manager", namespace: phase, store: store.url(), capacity: 10}
		if len(deaths) > 0 {
			spec.point = &deaths[0]
			deaths = deaths[1:]
		}
		return r.startManager(ctx, spec)
	}
	p, err := start()
	if err != nil {
		return nil, err
	}
	var rows []pointResult
	for i, s := range all {
		if err := r.createTurn(ctx, phase, s.name, s.plan, i); err != nil {
			return nil, err
		}
		for _, point := range s.points {
			if err := waitForDeath(ctx, p, point); err != nil {
				return nil, err
			}
			now := time.Now()
			kills = append(kills, kill{now, now})
			if p, err = start(); err != nil {
				return nil, err
			}
		}
		t, err := r.awaitFinish(ctx, phase, s.name, p)
		if err != nil {
			return nil, err
		}
		rows = append(rows, rowOf(s, t))
		if (i+1)%10 == 0 {
			r.logf("points: %d of %d", i+1, len(all))
		}
	}
	if err := p.stop(); err != nil {
		return nil, err
	}
	e, err := r.collect(ctx, phase, store, kills)
	if err != nil {
		return nil, err
	}
	report := newPhaseReport(e)
	report.checkFeatures()
	report.add("crash points", len(all))
	report.add("manager died at a point", len(kills))
	report.Points = rows
	return report, nil
}

func rowOf(s scenario, t *v1alpha1.Turn) pointResult {
	row := pointResult{Point: s.points[0].Name()}
	for _, p := range s.points[1:] {
		row.Point += ", then " + p.Name()
	}
	if c := t.Status.Steps; c != nil {
		row.Resumes, row.UnknownOutcomes, row.ModelRequests = c.Resumes, c.UnknownOutcomes, c.ModelRequests
	}
	return row
}

// waitForDeath waits until a manager has died at its point.
func waitForDeath(ctx context.Context, p *process, point failpoint.Point) error {
	timer := time.NewTimer(pointPatience)
	defer timer.Stop()
	select {
	case <-p.done:
		if !p.killed() {
			return fmt.Errorf("the manager exited before it reached %s: %s", point, p.describeExit())
		}
		return nil
	case <-timer.C:
		return fmt.Errorf("the manager did not reach %s within %s: the Turn does not have this effect, or not so often; see %s", point,
			pointPatience, p.log)
	case <-ctx.Done():
		return context.Cause(ctx)
	}
}

// awaitFinish waits until a Turn has finished.
func (r *rig) awaitFinish(ctx context.Context, phase, name string, p *process) (*v1alpha1.Turn, error) {
	//nolint:staticcheck // because Turn is the name of a kind
	late := fmt.Errorf("Turn %q has not finished within %s; see %s", name, pointPatience, p.log)
	bounded, cancel := context.WithTimeoutCause(ctx, pointPatience, late)
	defer cancel()
	for {
		t, err := r.turn(bounded, phase, name)
		switch {
		case bounded.Err() != nil:
			return nil, context.Cause(bounded)
		case err != nil:
			return nil, err
		case t.IsFinished():
			return t, nil
		case isClosed(p.done):
			return nil, fmt.Errorf("the manager exited before Turn %q finished: %s", name, p.describeExit())
		}
		pause(bounded, probeInterval)
	}
}
