package main

import (
	"context"
	"fmt"
	"math/rand/v2"
	"sync"
	"time"
)

const (
	// Between two outages there is some time, and each takes some.
	soonestOutage, latestOutage   = 2 * time.Second, 5 * time.Second
	shortestOutage, longestOutage = 1500 * time.Millisecond, 4 * time.Second
	// aftermath is how long after an outage a manager may still end for it.
	aftermath = 5 * time.Second
)

// disturber stops the API server and the store for a while, again and again.
type disturber struct {
	*rig
	store journalStore
	rand  *rand.Rand

	mu       sync.Mutex
	ways     map[string]int
	outages  []kill // from the beginning of each to its end
	api, own int    // how often the API server and the store were stopped
}

// run disturbs until ctx ends.
func (d *disturber) run(ctx context.Context) error {
	for i := 0; pause(ctx, between(d.rand, soonestOutage, latestOutage)); i++ {
		from, takes := time.Now(), between(d.rand, shortestOutage, longestOutage)
		away := d.apiServerDown
		switch i % 4 { // the store every other time, and the API server in two ways
		case 1, 3:
			away = d.store.outage
		case 2:
			away = d.apiServerPaused
		}
		how, err := away(ctx, takes)
		if err != nil {
			return fmt.Errorf("failed to bring a server back after an outage: %w", err)
		}
		d.say("random: %s for %s", how, time.Since(from).Round(100*time.Millisecond))
		d.note(how, i%2 == 1, kill{from, time.Now()})
	}
	return nil
}

func (d *disturber) apiServerDown(ctx context.Context, takes time.Duration) (string, error) {
	restart, err := d.cluster.KillAPIServer()
	if err != nil {
		return "", err
	}
	pause(context.WithoutCancel(ctx), takes)
	return "API server killed", restart()
}

func (d *disturber) apiServerPaused(ctx context.Context, takes time.Duration) (string, error) {
	resume, err := d.cluster.PauseAPIServer()
	if err != nil {
		return "", err
	}
	pause(context.WithoutCancel(ctx), takes)
	return "API server paused", resume()
}

func (d *disturber) note(how string, own bool, outage kill) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.ways[how]++
	d.outages = append(d.outages, outage)
	if own {
		d.own++
	} else {
		d.api++
	}
}

// enough says whether each was stopped as often as it is to be.
func (d *disturber) enough() bool {
	d.mu.Lock()
	defer d.mu.Unlock()
	return min(d.api, d.own) >= d.options.outages
}

// explains says whether a process may have ended then for want of a server.
func (d *disturber) explains(at time.Time) bool {
	for _, o := range d.outages {
		if !at.Before(o.From) && at.Before(o.To.Add(aftermath)) {
			return true
		}
	}
	return false
}
