package main

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"syscall"
	"time"

	"github.com/capstan-dev/capstan/hack/chaos/failpoint"
	"github.com/capstan-dev/capstan/test/harness"
)

const (
	// startPatience is the maximum time until a manager is ready, and stopPatience the maximum time until it stops.
	startPatience = 60 * time.Second
	stopPatience  = 30 * time.Second
	probeInterval = 50 * time.Millisecond
)

// managerSpec describes a manager process.
type managerSpec struct {
	// name is the name of the executor. namespace is the namespace of its Turns and its Leases.
	name, namespace string
	// roles are separated by commas. Empty means both roles.
	roles string
	// store is the URL of the store.
	store string
	// capacity is the number of slots.
	capacity int
	// point is where the process dies, and pause where it stops itself. Nil means never.
	point, pause *failpoint.Point
	// trace is the path of the file to which the process writes the trace of its effects. If it is empty, no trace is
	// written.
	trace string
}

// process is a manager that was started.
type process struct {
	spec  managerSpec
	log   string
	probe string
	cmd   *exec.Cmd
	// ready is closed when the process is ready for the first time, and done when it has exited. err is set before
	// done is closed.
	ready, done chan struct{}
	err         error
}

// startManager starts a manager. When the rig stops, it kills the manager. Processes of one name share a log file.
func (r *rig) startManager(ctx context.Context, spec managerSpec) (*process, error) {
	address, err := harness.FreeAddress(ctx)
	if err != nil {
		return nil, err
	}
	p := &process{
		spec: spec, log: filepath.Join(r.dir, "logs", spec.namespace+"-"+spec.name+".log"), probe: "http://" + address + "/readyz",
		ready: make(chan struct{}), done: make(chan struct{}),
	}
	out, err := os.OpenFile(p.log, os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o600)
	if err != nil {
		return nil, fmt.Errorf("failed to open the log of a manager: %w", err)
	}
	p.cmd = exec.CommandContext(context.WithoutCancel(ctx), r.manager,
		"--kubeconfig", r.cluster.Kubeconfig, "--namespace", spec.namespace, "--watch-namespaces", spec.namespace,
		"--executor-name", spec.name, "--max-concurrent-turns", strconv.Itoa(spec.capacity),
		"--metrics-bind-address", "0", "--read-bind-address", "0", "--health-probe-bind-address", address, "--shutdown-grace-seconds", "5",
		"--tool-allow-cidrs", "127.0.0.0/8,::1/128")
	if r.followUps { // memories of a user need a requester that counts as verified
		p.cmd.Args = append(p.cmd.Args, "--trust-requested-by", "--max-concurrent-evaluations", "32")
	}
	if spec.roles != "" {
		p.cmd.Args = append(p.cmd.Args, "--roles", spec.roles)
	}
	p.cmd.Env = append(os.Environ(), "CAPSTAN_STORE="+spec.store, "CAPSTAN_CHAOS_TRACE="+spec.trace)
	if spec.point != nil {
		p.cmd.Env = append(p.cmd.Env, "CAPSTAN_CRASH_AT="+spec.point.String())
	}
	if spec.pause != nil {
		p.cmd.Env = append(p.cmd.Env, "CAPSTAN_PAUSE_AT="+spec.pause.String())
	}
	p.cmd.Stdout, p.cmd.Stderr = out, out
	p.cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true} // a Ctrl-C in the terminal must only reach the test
	if err := errors.Join(p.cmd.Start(), out.Close()); err != nil {
		return nil, fmt.Errorf("failed to start %s: %w", r.manager, err)
	}
	go func() {
		p.err = p.cmd.Wait()
		close(p.done)
	}()
	go p.watch(context.WithoutCancel(ctx))
	r.harness.OnStop(func() error {
		p.kill()
		return nil
	})
	return p, nil
}

// watch closes ready when the process is ready.
func (p *process) watch(ctx context.Context) {
	client := &http.Client{Timeout: time.Second, Transport: &http.Transport{DisableKeepAlives: true}}
	ticker := time.NewTicker(probeInterval)
	defer ticker.Stop()
	for {
		select {
		case <-p.done:
			return
		case <-ticker.C:
		}
		if p.answers(ctx, client) {
			close(p.ready)
			return
		}
	}
}

func (p *process) answers(ctx context.Context, client *http.Client) bool {
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, p.probe, http.NoBody)
	if err != nil {
		return false
	}
	resp, err := client.Do(req)
	if err != nil {
		return false
	}
	return resp.Body.Close() == nil && resp.StatusCode == http.StatusOK
}

// waitReady returns when the process is ready.
func (p *process) waitReady(ctx context.Context) error {
	timer := time.NewTimer(startPatience)
	defer timer.Stop()
	select {
	case <-p.ready:
		return nil
	case <-p.done:
		return fmt.Errorf("manager %q exited before it was ready: %s", p.spec.name, p.describeExit())
	case <-timer.C:
		return fmt.Errorf("manager %q was not ready within %s; the end of %s:\n%s", p.spec.name, startPatience, p.log,
			harness.Tail(p.log, tailLines))
	case <-ctx.Done():
		return context.Cause(ctx)
	}
}

// kill kills the process with SIGKILL, even if it was paused, and returns the time of its death.
func (p *process) kill() kill {
	k := kill{From: time.Now()}
	_ = p.cmd.Process.Kill() // fails only for a process that has exited
	<-p.done
	k.To = time.Now()
	return k
}

// resume continues a process that was stopped.
func (p *process) resume() error { return p.cmd.Process.Signal(syscall.SIGCONT) }

// stopped reports whether the process was stopped by SIGSTOP, according to /proc.
func (p *process) stopped() bool {
	stat, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", p.cmd.Process.Pid))
	if err != nil {
		return false
	}
	// The format is PID (NAME) STATE ..., where the name may contain any character.
	rest := stat[bytes.LastIndexByte(stat, ')')+1:]
	return bytes.HasPrefix(bytes.TrimSpace(rest), []byte("T"))
}

// stop shuts the process down with SIGTERM, after it is ready. It returns an error if the process does not stop or
// fails.
func (p *process) stop() error {
	timer := time.NewTimer(stopPatience)
	defer timer.Stop()
	select { // SIGTERM would kill a process that is not ready
	case <-p.ready:
	case <-p.done:
	case <-timer.C:
		p.kill()
		return fmt.Errorf("manager %q was not ready within %s, so it could not be shut down", p.spec.name, stopPatience)
	}
	if err := p.cmd.Process.Signal(syscall.SIGTERM); err != nil && !errors.Is(err, os.ErrProcessDone) {
		return err
	}
	select {
	case <-p.done:
	case <-timer.C:
		p.kill()
		return fmt.Errorf("manager %q did not stop within %s of SIGTERM", p.spec.name, stopPatience)
	}
	if p.err != nil {
		return fmt.Errorf("manager %q exited with an error after SIGTERM: %s", p.spec.name, p.describeExit())
	}
	return nil
}

// killed reports whether SIGKILL ended the process. The process must have exited.
func (p *process) killed() bool {
	status, ok := p.cmd.ProcessState.Sys().(syscall.WaitStatus)
	return ok && status.Signaled() && status.Signal() == syscall.SIGKILL
}

// tailLines is the number of lines of a log that an error shows.
const tailLines = 5

// describeExit describes how the process exited.
func (p *process) describeExit() string {
	how := "exit status 0"
	if p.err != nil {
		how = p.err.Error()
	}
	return fmt.Sprintf("%s; the end of %s:\n%s", how, p.log, harness.Tail(p.log, tailLines))
}
