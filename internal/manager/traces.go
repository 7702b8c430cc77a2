package manager

import (
	"sync"
	"time"

	"github.com/go-logr/logr"
)

// exportFailed is the log message of an error of the exporter of traces.
const exportFailed = "Failed to export traces; Turns are not affected"

// errorInterval is the minimum time between two log lines about errors of the exporter of traces.
const errorInterval = time.Minute

// rareErrors logs errors of the exporter of traces, at most one in each errorInterval: if the collector is unreachable,
// every batch fails. It is safe for concurrent use.
type rareErrors struct {
	log  logr.Logger
	mu   sync.Mutex
	last time.Time
}

// add logs an error, unless it comes too soon after the last one that was logged.
func (r *rareErrors) add(err error) {
	now := time.Now()
	r.mu.Lock()
	defer r.mu.Unlock()
	if !r.last.IsZero() && now.Sub(r.last) < errorInterval {
		return
	}
	r.last = now
	r.log.Error(err, exportFailed)
}
