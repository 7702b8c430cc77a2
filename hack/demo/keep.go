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
	// backgroundVariable marks the process that stays, started by the one in the terminal.
	backgroundVariable = "CAPSTAN_DEMO_BACKGROUND"

	// stopTimeout bounds the wait for a kept demo to stop; each of its parts is killed earlier than that.
	stopTimeout  = 2 * time.Minute
	pollInterval = 100 * time.Millisecond
)

// stop ends the demo that runs in the workspace, if any, and waits until all of it has stopped.
func (w workspace) stop(ctx context.Context, out io.Writer) error {
	ctx, cancel := context.WithTimeout(ctx, stopTimeout)
	defer cancel()
	ticker := time.NewTicker(pollInterval)
	defer ticker.Stop()
	asked := false
	for {
		release, busy, err := w.lock()
		if err != nil {
			return err
		}
		if !busy {
			release()
			message := "No demo is running."
			if asked {
				message = "The demo has stopped."
			}
			_, err := fmt.Fprintln(out, message)
			return err
		}
		if !asked {
			if asked, err = w.terminate(); err != nil {
				return err
			}
		}
		select {
		case <-ctx.Done():
			return fmt.Errorf("failed to see the demo stop: %w; its logs are in %s", ctx.Err(), w.path("logs"))
		case <-ticker.C:
		}
	}
}

// terminate asks the process that holds the lock to stop; ok is false while it has not said yet who it is.
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

// stay says how to use the demo, lets go of the terminal, and keeps everything running until a signal, or until one of
// the programs has ended.
func (d *demo) stay(ctx, signals context.Context) error {
	if err := d.workspace.write(state{PID: os.Getpid(), Kept: true, Kubeconfig: d.cluster.Kubeconfig}); err != nil {
		return err
	}
	d.sayKept()
	// The process in the terminal takes the end of this pipe as the sign that it may go. Standard error is a log.
	d.out = os.Stderr
	if err := os.Stdout.Close(); err != nil {
		return fmt.Errorf("failed to let go of the terminal: %w", err)
	}
	<-ctx.Done()
	if signals.Err() != nil {
		return nil //nolint:nilerr // because being asked to stop is how a kept demo ends
	}
	return context.Cause(ctx)
}

// runInBackground runs this program again in a session of its own, passes on what it prints, and returns when the demo
// has failed, or has succeeded and stays. A Ctrl-C until then stops all of it.
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
	// What a demo that was killed has said about itself must not pass for what this one says.
	if err := ignore(os.Remove(w.path("state.json")), fs.ErrNotExist); err != nil {
		return fmt.Errorf("failed to clear the demo's state: %w", err)
	}
	log, err := os.OpenFile(w.path("background.log"), os.O_CREATE|os.O_TRUNC|os.O_WRONLY, 0o600)
	if err != nil {
		return fmt.Errorf("failed to open the demo's own log: %w", err)
	}
	background := exec.CommandContext(context.WithoutCancel(ctx), self, args...) //nolint:gosec // this very program
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
	interrupted := context.AfterFunc(ctx, func() { _ = background.Process.Signal(syscall.SIGTERM) })
	defer interrupted()
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
