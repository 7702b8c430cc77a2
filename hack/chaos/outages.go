package main

import (
	"context"
	"fmt"
	"math/rand/v2"
	"sync"
	"time"
)

const (
	// The minimum and the maximum of the time between two outages, and of the duration of an outage.
	soonestOutage, latestOutage   = 2 * time.Second, 5 * time.Second
	shortestOutage, longestOutage = 1500 * time.Millisecond, 4 * time.Second
	// aftermath is the time after an outage in which a manager may still exit because of the outage.
	aftermath = 5 * time.Second
)

// outageMaker stops the API server and the store for short times until the phase ends.
type outageMaker struct {
	*rig
	store journalStore
	rand  *rand.Rand

	mu      sync.Mutex
	ways    map[string]int // the number of outages, by description
	outages []kill         // from the beginning to the end of each outage
	// apiOutages and storeOutages count the outages of the API server and of the store.
	apiOutages, storeOutages int
}

// run causes outages until ctx ends.
func (d *outageMaker) run(ctx context.Context) error {
	for i := 0; pause(ctx, between(d.rand, soonestOutage, latestOutage)); i++ {
		from, takes := time.Now(), between(d.rand, shortestOutage, longestOutage)
		cause := d.apiServerDown
		switch i % 4 { // the store every second time, and the API server in two ways
		case 1, 3:
			cause = d.store.outage
		case 2:
			cause = d.apiServerPaused
		}
		how, err := cause(ctx, takes)
		if err != nil {
			return fmt.Errorf("failed to bring a server back after an outage: %w", err)
		}
		d.logf("random: %s for %s", how, time.Since(from).Round(100*time.Millisecond))
		d.note(how, i%2 == 1, kill{from, time.Now()})
	}
	return nil
}

func (d *outageMaker) apiServerDown(ctx context.Context, takes time.Duration) (string, error) {
	restart, err := d.cluster.KillAPIServer()
	if err != nil {
		return "", err
	}
	pause(context.WithoutCancel(ctx), takes)
	return "API server killed", restart()
}

func (d *outageMaker) apiServerPaused(ctx context.Context, takes time.Duration) (string, error) {
	resume, err := d.cluster.PauseAPIServer(context.WithoutCancel(ctx))
	if err != nil {
		return "", err
	}
	pause(context.WithoutCancel(ctx), takes)
	return "API server paused", resume()
}

func (d *outageMaker) note(how string, ofStore bool, outage kill) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.ways[how]++
	d.outages = append(d.outages, outage)
	if ofStore {
		d.storeOutages++
	} else {
		d.apiOutages++
	}
}

// enough reports whether the API server and the store were each stopped as often as --outages requires.
func (d *outageMaker) enough() bool {
	d.mu.Lock()
	defer d.mu.Unlock()
	return min(d.apiOutages, d.storeOutages) >= d.options.outages
}

// explains reports whether a process that exited at this time may have exited because of an outage.
func (d *outageMaker) explains(at time.Time) bool {
	for _, o := range d.outages {
		if !at.Before(o.From) && at.Before(o.To.Add(aftermath)) {
			return true
		}
	}
	return false
}
