package main

import (
	"context"
	"math/rand/v2"
	"sync"
	"sync/atomic"
	"time"
)

const (
	// A manager is killed within these times of being ready; one in six is killed while it starts.
	soonestKill, latestKill = 100 * time.Millisecond, 2500 * time.Millisecond
	latestStartKill         = 1500 * time.Millisecond
	startKillsOneIn         = 6
	// restartPause is the time in which a process that ended is started again.
	restartPause = 300 * time.Millisecond
)

// keeper keeps a manager running, under one name, as a kubelet does.
type keeper struct {
	*rig
	spec managerSpec
	// atWork is how often it was killed when it had been ready.
	atWork atomic.Int64

	mu      sync.Mutex
	current *process
	kills   []kill
	// exits are ends that were no kills.
	exits []exit
}

// exit is the end of a process that ended by itself; ready says that it had been at work.
type exit struct {
	at    time.Time
	ready bool
	how   string
}

// run keeps a manager running until ctx ends, and then asks it to stop.
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
			k.exits = append(k.exits, exit{time.Now(), isClosed(p.ready), p.exit()})
			k.mu.Unlock()
		}
		pause(ctx, restartPause)
		if isClosed(ctx.Done()) {
			return nil
		}
	}
}

// killing kills the manager again and again, as often as it is to be, and each time while there are Turns to be run.
func (k *keeper) killing(ctx context.Context, r *rand.Rand, l *loader) {
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
			k.strike(p)
			continue
		}
		select {
		case <-p.ready:
			pause(ctx, between(r, soonestKill, latestKill))
			k.strike(p)
		case <-p.done:
		case <-ctx.Done():
		}
	}
}

// strike kills the manager, unless it has ended.
func (k *keeper) strike(p *process) {
	if isClosed(p.done) {
		return
	}
	ready := isClosed(p.ready)
	at := p.kill()
	if !p.killed() {
		return // it was faster
	}
	k.mu.Lock()
	k.kills = append(k.kills, at)
	k.mu.Unlock()
	if ready {
		k.say("random: killed the manager, %d of %d", k.atWork.Add(1), k.rig.kills)
	}
}

// judge counts the ends that were no kills. A manager may end when it cannot start for want of a server; one that is at work
// waits for it.
func (k *keeper) judge(p *phaseReport, d *disturber) int {
	for _, e := range k.exits {
		if e.ready || !d.explains(e.at) {
			p.wrong(livingProcess, "at %s the manager ended by itself: %s", e.at.Format("15:04:05.000"), e.how)
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
