package main

import (
	"context"
	"maps"
	"slices"
	"sync"
	"time"
)

// slowestDecision is the maximum delay of a decision about a call.
const slowestDecision = time.Second

// random runs many Turns while the test kills the manager and stops the API server and the store, all at random
// instants.
func (r *rig) random(ctx context.Context) (*phaseReport, error) {
	const phase = "random"
	store, err := r.storeOf(ctx, phase)
	if err != nil {
		return nil, err
	}
	ctx, fail := context.WithCancelCause(ctx)
	defer fail(nil)
	k := &keeper{rig: r, spec: managerSpec{name: "manager", namespace: phase, store: store.url(), capacity: 20}}
	d := &outageMaker{rig: r, store: store, rand: r.fork(), ways: map[string]int{}}
	l := &loader{rig: r, phase: phase, total: r.options.turns, kills: r.kills, killed: &k.atWork}
	killRand := r.fork()

	done := func() bool { return d.enough() && int(k.atWork.Load()) >= r.kills }
	stopOutages := runInBackground(ctx, fail, d.run)
	stopAll := runInBackground(ctx, fail, k.run, func(ctx context.Context) error { return l.feed(ctx, done) },
		r.newApprover(phase, slowestDecision).run,
		func(ctx context.Context) error {
			k.killRepeatedly(ctx, killRand, l)
			return nil
		})
	err = l.await(ctx, done)
	stopOutages() // so that the manager can shut down
	stopAll()
	if cause := context.Cause(ctx); cause != nil {
		err = cause
	}
	if err != nil {
		return nil, err
	}
	e, err := r.collect(ctx, phase, store, k.kills)
	if err != nil {
		return nil, err
	}
	p := newPhaseReport(e)
	p.add("kills of a running manager", int(k.atWork.Load()))
	p.add("kills of a starting manager", len(k.kills)-int(k.atWork.Load()))
	p.add("failed starts of the manager during outages", k.checkExits(p, d))
	for _, how := range slices.Sorted(maps.Keys(d.ways)) {
		p.add(how, d.ways[how])
	}
	if r.options.turns >= len(mixed) {
		p.checkFeatures()
	}
	p.checked(livingProcess)
	return p, nil
}

// runInBackground runs functions in the background until stop is called. stop waits until they have returned. If a
// function fails, it calls fail with the error.
func runInBackground(ctx context.Context, fail context.CancelCauseFunc, all ...func(context.Context) error) (stop func()) {
	ctx, cancel := context.WithCancel(ctx)
	var running sync.WaitGroup
	for _, do := range all {
		running.Go(func() {
			if err := do(ctx); err != nil {
				fail(err)
			}
		})
	}
	return func() {
		cancel()
		running.Wait()
	}
}
