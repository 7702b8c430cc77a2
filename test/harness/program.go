package harness

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"os"
	"os/exec"
	"sync"
	"syscall"
	"time"
)

const (
	defaultStartTimeout = 30 * time.Second
	defaultStopTimeout  = 30 * time.Second
	probeInterval       = 50 * time.Millisecond
	probeTimeout        = 2 * time.Second
)

// Program describes a program to run and its readiness probe.
type Program struct {
	// Name is the name of the program in messages, and the name of its log file without the extension.
	Name string
	// Path is the path of the executable file.
	Path string
	// Args are the arguments of the program, without its name.
	Args []string
	// Env holds KEY=VALUE pairs in addition to this process's environment. Pass secrets here and not in Args, because
	// every user of the machine can see arguments.
	Env []string
	// Listen holds the host:port addresses on which the program will listen. They must be free before the start.
	Listen []string
	// ReadyURL is requested until it returns 200. If it is empty, the program is ready as soon as it runs.
	ReadyURL string
	// StartTimeout bounds the time until the program is ready. 0 means 30 s.
	StartTimeout time.Duration
	// StopTimeout is the time between SIGTERM and SIGKILL. 0 means 30 s.
	StopTimeout time.Duration
}

// Process is a program that was started.
type Process struct {
	// Log is the path of the file with its output.
	Log string

	program  Program
	cmd      *exec.Cmd
	stopOnce sync.Once
	stopping chan struct{} // closed when the process is about to be stopped
	done     chan struct{} // closed when the process has exited; err is set before
	err      error
}

// StartProgram starts a program and waits until it is ready. The program has a process group of its own, so that Ctrl-C
// in the terminal does not signal it; Stop does. StartProgram returns an error if an address is in use, or if the
// program cannot be run, exits early or is not ready in time. If the program exited or was not ready in time, the error
// includes the end of its log.
func (h *Harness) StartProgram(ctx context.Context, program Program) (*Process, error) {
	for _, address := range program.Listen {
		if err := checkFree(ctx, address); err != nil {
			return nil, fmt.Errorf("failed to start %s: %w", program.Name, err)
		}
	}
	log, err := h.openLog(program.Name)
	if err != nil {
		return nil, err
	}
	p := &Process{Log: log.Name(), program: program, stopping: make(chan struct{}), done: make(chan struct{})}
	// Cancelling the context must not kill the program: Stop ends it after the programs that depend on it.
	p.cmd = exec.CommandContext(context.WithoutCancel(ctx), program.Path, program.Args...)
	p.cmd.Env = append(os.Environ(), program.Env...)
	p.cmd.Stdout, p.cmd.Stderr = log, log
	p.cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	if err := errors.Join(p.cmd.Start(), log.Close()); err != nil {
		return nil, fmt.Errorf("failed to start %s: %w", program.Name, err)
	}
	go func() {
		p.err = p.cmd.Wait()
		close(p.done)
	}()
	h.push(p)

	if err := p.waitReady(ctx); err != nil {
		return nil, errors.Join(err, p.stop())
	}
	go p.watch(h.onExit)
	return p, nil
}

// PID returns the process ID.
func (p *Process) PID() int { return p.cmd.Process.Pid }

// Stop stops the process while the rest of its harness continues. It sends SIGTERM. If the process has not exited after
// StopTimeout, Stop sends SIGKILL and returns an error.
func (p *Process) Stop() error { return p.stop() }

func (p *Process) stop() error {
	var err error
	p.stopOnce.Do(func() {
		close(p.stopping)
		err = p.terminate()
	})
	return err
}

func (p *Process) terminate() error {
	if p.ended() || p.signal(syscall.SIGTERM) != nil {
		<-p.done // a process that cannot be signalled has exited
		return nil
	}
	timer := time.NewTimer(withDefault(p.program.StopTimeout, defaultStopTimeout))
	defer timer.Stop()
	select {
	case <-p.done:
		return nil
	case <-timer.C:
	}
	err := p.signal(syscall.SIGKILL)
	<-p.done
	return errors.Join(err, fmt.Errorf("%s did not stop within %s of SIGTERM and was killed%s",
		p.program.Name, withDefault(p.program.StopTimeout, defaultStopTimeout), withTail(p.Log)))
}

// signal sends a signal to the whole process group, including children of the program.
func (p *Process) signal(sig syscall.Signal) error {
	return syscall.Kill(-p.PID(), sig)
}

func (p *Process) ended() bool {
	select {
	case <-p.done:
		return true
	default:
		return false
	}
}

// watch calls report if the process exits without being stopped.
func (p *Process) watch(report func(error)) {
	select {
	case <-p.stopping:
	case <-p.done:
		select {
		case <-p.stopping: // both channels were closed: the process was stopped
		default:
			report(fmt.Errorf("%s exited unexpectedly (%s)%s", p.program.Name, p.exit(), withTail(p.Log)))
		}
	}
}

func (p *Process) exit() string {
	if p.err != nil {
		return p.err.Error()
	}
	return "exit status 0"
}

func (p *Process) waitReady(ctx context.Context) error {
	timeout := withDefault(p.program.StartTimeout, defaultStartTimeout)
	ctx, cancel := context.WithTimeoutCause(ctx, timeout, fmt.Errorf("no 200 from %s within %s", p.program.ReadyURL, timeout))
	defer cancel()
	ticker := time.NewTicker(probeInterval)
	defer ticker.Stop()
	client := &http.Client{Timeout: probeTimeout, Transport: &http.Transport{DisableKeepAlives: true}}
	for p.program.ReadyURL != "" && !answers(ctx, client, p.program.ReadyURL) {
		select {
		case <-p.done:
			return fmt.Errorf("failed to start %s: it exited before it was ready (%s)%s", p.program.Name, p.exit(), withTail(p.Log))
		case <-ctx.Done():
			return fmt.Errorf("failed to start %s: %w%s", p.program.Name, context.Cause(ctx), withTail(p.Log))
		case <-ticker.C:
		}
	}
	return nil
}

// answers reports whether a URL returns 200 now. Any other result counts as not ready.
func answers(ctx context.Context, client *http.Client, url string) bool {
	request, err := http.NewRequestWithContext(ctx, http.MethodGet, url, http.NoBody)
	if err != nil {
		return false
	}
	response, err := client.Do(request)
	if err != nil {
		return false
	}
	return response.Body.Close() == nil && response.StatusCode == http.StatusOK
}

func withDefault(d, otherwise time.Duration) time.Duration {
	if d == 0 {
		return otherwise
	}
	return d
}
