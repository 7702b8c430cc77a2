package main

import (
	"context"
	"math/rand/v2"
	"sync"
	"sync/atomic"
	"time"
)

const (
	// A manager is killed between soonestKill and latestKill after it is ready. One in startKillsOneIn kills does not
	// wait until the manager is ready: it comes at most latestStartKill after the test has seen the process.
	soonestKill, latestKill = 100 * time.Millisecond, 2500 * time.Millisecond
	latestStartKill         = 1500 * time.Millisecond
	startKillsOneIn         = 6
	// restartPause is the time after which a process that has exited is started again.
	restartPause = 300 * time.Millisecond
)

// keeper keeps one manager running, under one name, as a kubelet does.
type keeper struct {
	*rig
	spec managerSpec
	// atWork counts the kills of a manager that was ready.
	atWork atomic.Int64

	mu      sync.Mutex
	current *process
	kills   []kill
	// exits lists the exits of processes that were not killed.
	exits []exit
}

// exit is the exit of a process that was not killed. ready reports whether the process had become ready before.
type exit struct {
	at    time.Time
	ready bool
	how   string
}

// run keeps a manager running until ctx ends, and then shuts it down.
func (k *keeper) run(ctx context.Context) error {
	for {
		p, err := k.startManager(ctx, k.spec)
		if err != nil {
			return err
		}
		k.mu.Lock()
		k.current = p
		k.mu.Unlock()
		select {
		case <-p.done:
		case <-ctx.Done():
			return p.stop()
		}
		if !p.killed() {
			k.mu.Lock()
			k.exits = append(k.exits, exit{time.Now(), isClosed(p.ready), p.describeExit()})
			k.mu.Unlock()
		}
		pause(ctx, restartPause)
		if isClosed(ctx.Done()) {
			return nil
		}
	}
}

// killRepeatedly kills the manager until it has been killed --kills times while it was ready. It kills only while there
// are unfinished Turns.
func (k *keeper) killRepeatedly(ctx context.Context, r *rand.Rand, l *loader) {
	for ctx.Err() == nil && k.atWork.Load() < int64(k.rig.kills) {
		k.mu.Lock()
		p := k.current
		k.mu.Unlock()
		if p == nil || isClosed(p.done) || l.unfinished.Load() == 0 {
			pause(ctx, probeInterval)
			continue
		}
		if r.IntN(startKillsOneIn) == 0 {
			pause(ctx, between(r, 0, latestStartKill))
			k.kill(p)
			continue
		}
		select {
		case <-p.ready:
			pause(ctx, between(r, soonestKill, latestKill))
			k.kill(p)
		case <-p.done:
		case <-ctx.Done():
		}
	}
}

// kill kills the manager, unless it has exited.
func (k *keeper) kill(p *process) {
	if isClosed(p.done) {
		return
	}
	ready := isClosed(p.ready)
	at := p.kill()
	if !p.killed() {
		return // the process exited before the signal arrived
	}
	k.mu.Lock()
	k.kills = append(k.kills, at)
	k.mu.Unlock()
	if ready {
		k.logf("random: killed the manager, %d of %d", k.atWork.Add(1), k.rig.kills)
	}
}

// checkExits records a violation for each exit that neither a kill nor an outage explains. A manager may exit if it
// cannot start during an outage. A manager that is ready must wait for the server instead. checkExits
// returns the number of exits.
func (k *keeper) checkExits(p *phaseReport, d *outageMaker) int {
	for _, e := range k.exits {
		if e.ready || !d.explains(e.at) {
			p.wrong(livingProcess, "at %s the manager exited without a kill: %s", e.at.Format("15:04:05.000"), e.how)
		}
	}
	return len(k.exits)
}

func isClosed(c <-chan struct{}) bool {
	select {
	case <-c:
		return true
	default:
		return false
	}
}
