package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/capstan-dev/capstan/internal/store/postgres"
	"github.com/capstan-dev/capstan/internal/store/postgres/postgrestest"
)

// pair is a primary with a synchronous standby. Managers reach both by one URL.
type pair struct{ primary, standby *postgrestest.Server }

// startPair starts the primary and the standby. They stop together with the rig.
func (r *rig) startPair(ctx context.Context) (*pair, error) {
	bin, err := postgresPrograms()
	if err != nil {
		return nil, err
	}
	ctx = context.WithoutCancel(ctx)
	p := &pair{}
	r.harness.OnStop(p.close)
	if p.primary, err = postgrestest.Start(ctx, bin, "fsync=off", "full_page_writes=off"); err != nil {
		return nil, fmt.Errorf("failed to start PostgreSQL: %w", err)
	}
	if p.standby, err = p.primary.Standby(ctx); err != nil {
		return nil, fmt.Errorf("failed to start a standby of PostgreSQL: %w", err)
	}
	return p, configure(ctx, p.primary, "ALTER SYSTEM SET synchronous_standby_names = '*'")
}

func (p *pair) close() error {
	var all []error
	for _, s := range []*postgrestest.Server{p.standby, p.primary} {
		if s != nil {
			all = append(all, s.Close())
		}
	}
	return errors.Join(all...)
}

func (p *pair) url() string { return p.primary.Both(p.standby, "postgres") }

func (p *pair) open(ctx context.Context) (keptJournal, error) { return postgres.Open(ctx, p.url()) }

// outage causes a failover. The primary rejects writes and keeps its connections; after the duration d the standby is
// promoted. A pair can fail over only once.
func (p *pair) outage(ctx context.Context, d time.Duration) (string, error) {
	ctx = context.WithoutCancel(ctx)
	if err := configure(ctx, p.primary, "ALTER SYSTEM SET default_transaction_read_only = on"); err != nil {
		return "", err
	}
	pause(ctx, d)
	return "PostgreSQL failed over, with its connections kept", p.standby.Promote(ctx)
}

// configure changes a setting of a server for all its connections.
func configure(ctx context.Context, s *postgrestest.Server, statement string) (err error) {
	conn, err := pgx.Connect(ctx, s.URL("postgres"))
	if err != nil {
		return fmt.Errorf("failed to connect to PostgreSQL: %w", err)
	}
	defer func() { err = errors.Join(err, conn.Close(ctx)) }()
	for _, sql := range []string{statement, "SELECT pg_reload_conf()"} {
		if _, err := conn.Exec(ctx, sql); err != nil {
			return fmt.Errorf("failed to execute %q: %w", sql, err)
		}
	}
	return nil
}

func postgresPrograms() (string, error) {
	bin := os.Getenv(postgresVariable)
	if bin == "" {
		return "", fmt.Errorf("failed to find PostgreSQL: %s is not set; run through make, or set it to the "+
			"directory that hack/postgres/get.sh prints", postgresVariable)
	}
	return bin, nil
}

// failover fails the database over while Turns are running. No process is killed, so each Turn must end as if there
// had been no failover.
func (r *rig) failover(ctx context.Context) (*phaseReport, error) {
	const phase = "failover"
	store, err := r.startPair(ctx)
	if err != nil {
		return nil, err
	}
	m, err := r.startManager(ctx, managerSpec{name: "manager", namespace: phase, store: store.url(), capacity: 100})
	if err != nil {
		return nil, err
	}
	ctx, fail := context.WithCancelCause(ctx)
	defer fail(nil)
	defer runInBackground(ctx, fail, r.newApprover(phase, slowestDecision).run)()
	for i := range r.executorTurns {
		if err := r.createTurn(ctx, phase, fmt.Sprintf("turn-%03d", i), lasting[i%len(lasting)], i); err != nil {
			return nil, err
		}
	}
	if err := r.awaitCalls(ctx, r.executorTurns/2); err != nil {
		return nil, err
	}
	begun := time.Now()
	how, err := store.outage(ctx, between(r.source, shortestOutage, longestOutage))
	if err != nil {
		return nil, fmt.Errorf("failed to fail over: %w", err)
	}
	r.logf("failover: %s", how)
	before := r.tools.effectCount()
	over := time.Now()
	if err := r.awaitCalls(ctx, before+1); err != nil {
		return nil, err
	}
	recovered := time.Since(over)
	if err := r.awaitAllFinished(ctx, phase); err != nil {
		return nil, err
	}
	if err := m.stop(); err != nil {
		return nil, err
	}
	e, err := r.collect(ctx, phase, store, nil)
	if err != nil {
		return nil, err
	}
	p := newPhaseReport(e)
	p.add("time without a primary", over.Sub(begun).Round(100*time.Millisecond))
	p.add("time from the failover to the next side effect", recovered.Round(100*time.Millisecond))
	return p, nil
}

// awaitCalls waits until the tool server has received n different side effects.
func (r *rig) awaitCalls(ctx context.Context, n int) error {
	ctx, cancel := context.WithTimeoutCause(ctx, lossPatience, fmt.Errorf("timed out after %s", lossPatience))
	defer cancel()
	for r.tools.effectCount() < n {
		if !pause(ctx, probeInterval) {
			return fmt.Errorf("gave up waiting for %d tool calls: %d were made: %w", n, r.tools.effectCount(), context.Cause(ctx))
		}
	}
	return nil
}
