package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"os/exec"
	"syscall"
	"time"
)

const (
	// backgroundVariable marks the background process that the process in the terminal has started.
	backgroundVariable = "CAPSTAN_DEMO_BACKGROUND"

	// stopTimeout is the maximum time to wait until a kept demo has stopped. It is longer than the time after which the
	// demo kills its programs.
	stopTimeout  = 2 * time.Minute
	pollInterval = 100 * time.Millisecond
)

// stop stops the demo that runs in the workspace, if there is one, and waits for its end.
func (w workspace) stop(ctx context.Context, out io.Writer) error {
	ctx, cancel := context.WithTimeout(ctx, stopTimeout)
	defer cancel()
	ticker := time.NewTicker(pollInterval)
	defer ticker.Stop()
	signalled := false
	for {
		release, busy, err := w.lock()
		if err != nil {
			return err
		}
		if !busy {
			release()
			message := "No demo is running."
			if signalled {
				message = "The demo has stopped."
			}
			_, err := fmt.Fprintln(out, message)
			return err
		}
		if !signalled {
			if signalled, err = w.terminate(); err != nil {
				return err
			}
		}
		select {
		case <-ctx.Done():
			return fmt.Errorf("gave up waiting until the demo stops: %w; its logs are in %s", ctx.Err(), w.path("logs"))
		case <-ticker.C:
		}
	}
}

// terminate sends SIGTERM to the process that holds the lock. ok is false until that process has written its PID.
func (w workspace) terminate() (ok bool, err error) {
	s, err := w.read()
	if err != nil || s.PID == 0 {
		return false, err
	}
	if err := ignore(syscall.Kill(s.PID, syscall.SIGTERM), syscall.ESRCH); err != nil {
		return false, fmt.Errorf("failed to stop the demo, process %d: %w", s.PID, err)
	}
	return true, nil
}

// keepRunning prints how to use the demo and closes the terminal's pipe. It returns when a signal arrives or a program
// exits.
func (d *demo) keepRunning(ctx, signals context.Context) error {
	if err := d.workspace.write(state{PID: os.Getpid(), Kept: true, Kubeconfig: d.cluster.Kubeconfig}); err != nil {
		return err
	}
	d.printUsage()
	// When this pipe is closed, the process in the terminal exits. Standard error is a log.
	d.out = os.Stderr
	if err := os.Stdout.Close(); err != nil {
		return fmt.Errorf("failed to close the terminal's pipe: %w", err)
	}
	<-ctx.Done()
	if signals.Err() != nil {
		return nil //nolint:nilerr // because a kept demo normally ends by a signal
	}
	return context.Cause(ctx)
}

// runInBackground runs this program again in another process session and copies its output. It returns when the demo
// has failed, or has succeeded and keeps running. Until then, Ctrl-C stops the demo.
func (w workspace) runInBackground(ctx context.Context, args []string, out io.Writer) error {
	self, err := os.Executable()
	if err != nil {
		return fmt.Errorf("failed to find this program's own file: %w", err)
	}
	release, busy, err := w.lock()
	if err != nil {
		return err
	}
	if busy {
		return w.explainBusy()
	}
	defer release()
	// Remove the state of an earlier demo that was killed, so that it is not taken for the state of this demo.
	if err := ignore(os.Remove(w.path("state.json")), fs.ErrNotExist); err != nil {
		return fmt.Errorf("failed to clear the demo's state: %w", err)
	}
	log, err := os.OpenFile(w.path("background.log"), os.O_CREATE|os.O_TRUNC|os.O_WRONLY, 0o600)
	if err != nil {
		return fmt.Errorf("failed to open the demo's own log: %w", err)
	}
	background := exec.CommandContext(context.WithoutCancel(ctx), self, args...) //nolint:gosec // because it starts its own program
	background.Env = append(os.Environ(), backgroundVariable+"=1")
	background.SysProcAttr = &syscall.SysProcAttr{Setsid: true}
	background.Stderr = log
	printed, err := background.StdoutPipe()
	if err != nil {
		return fmt.Errorf("failed to make a pipe: %w", err)
	}
	release()
	if err := errors.Join(background.Start(), log.Close()); err != nil {
		return fmt.Errorf("failed to start the demo in the background: %w", err)
	}
	stopForwarding := context.AfterFunc(ctx, func() { _ = background.Process.Signal(syscall.SIGTERM) })
	defer stopForwarding()
	if _, err := io.Copy(out, printed); err != nil {
		return fmt.Errorf("failed to show the demo's progress: %w", err)
	}
	if s, err := w.read(); err == nil && s.Kept && ctx.Err() == nil {
		return background.Process.Release()
	}
	if err := background.Wait(); err != nil {
		return shownError{fmt.Errorf("the demo failed: %w", err)}
	}
	return nil
}
