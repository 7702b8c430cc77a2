package main

import (
	"context"
	"maps"
	"slices"
	"sync"
	"time"
)

// slowestDecision is the longest that people take to decide about a call.
const slowestDecision = time.Second

// random runs many Turns while the manager is killed, and the API server and the store are stopped, all at random instants.
func (r *rig) random(ctx context.Context) (*phaseReport, error) {
	const phase = "random"
	store, err := r.storeOf(ctx, phase)
	if err != nil {
		return nil, err
	}
	ctx, fail := context.WithCancelCause(ctx)
	defer fail(nil)
	k := &keeper{rig: r, spec: managerSpec{name: "manager", phase: phase, store: store.url(), capacity: 20}}
	d := &disturber{rig: r, store: store, rand: r.fork(), ways: map[string]int{}}
	l := &loader{rig: r, phase: phase, most: r.options.turns, kills: r.kills, killed: &k.atWork}
	killing := r.fork()

	done := func() bool { return d.enough() && int(k.atWork.Load()) >= r.kills }
	stopOutages := beside(ctx, fail, d.run)
	stopAll := beside(ctx, fail, k.run, func(ctx context.Context) error { return l.feed(ctx, done) },
		r.newApprover(phase, slowestDecision).run,
		func(ctx context.Context) error {
			k.killing(ctx, killing, l)
			return nil
		})
	err = l.await(ctx, done)
	stopOutages() // so that the manager can stop in order
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
	p.add("manager killed at work", int(k.atWork.Load()))
	p.add("manager killed while it started", len(k.kills)-int(k.atWork.Load()))
	p.add("manager could not start for want of its servers", k.judge(p, d))
	for _, how := range slices.Sorted(maps.Keys(d.ways)) {
		p.add(how, d.ways[how])
	}
	if r.options.turns >= len(mixed) {
		p.mixes()
	}
	p.checked(livingProcess)
	return p, nil
}

// beside runs functions beside what follows, until stop is called, which waits for their end. The first that fails ends all.
func beside(ctx context.Context, fail context.CancelCauseFunc, all ...func(context.Context) error) (stop func()) {
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
