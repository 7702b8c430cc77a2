package hostile

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"os"
	"os/exec"
	"syscall"
)

// Remote is a Server in another process. If the server ran in the process that measures, its garbage and its
// thousands of streams would delay the measurement. The server's process has the lowest priority, because a real
// attacker uses other machines than the manager.
type Remote struct {
	Endpoints

	cmd *exec.Cmd
	// stdin keeps the process running. The process exits when stdin is closed, and so also when this process exits.
	stdin io.Closer
}

const (
	statsPath = "/stats"
	// lowestPriority is the highest niceness: the process gets little CPU time while other processes need it.
	lowestPriority = 19
)

// stats are the results of Server.Stats.
type stats struct {
	Requests  int64 `json:"requests"`
	SentBytes int64 `json:"sentBytes"`
}

// Start starts a program that must call Serve, and returns when its server is ready.
func Start(ctx context.Context, program string, args ...string) (r *Remote, err error) {
	r = &Remote{cmd: exec.CommandContext(ctx, program, args...)}
	r.cmd.Stderr = os.Stderr
	r.cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true} // a Ctrl-C in the terminal ends only this process, which closes r
	if r.stdin, err = r.cmd.StdinPipe(); err != nil {
		return nil, fmt.Errorf("failed to start the hostile server: %w", err)
	}
	out, err := r.cmd.StdoutPipe()
	if err == nil {
		err = r.cmd.Start()
	}
	if err != nil {
		return nil, fmt.Errorf("failed to start the hostile server: %w", err)
	}
	if err := json.NewDecoder(out).Decode(&r.Endpoints); err != nil {
		return nil, errors.Join(fmt.Errorf("failed to start the hostile server: %w", err), r.Close())
	}
	// The process has its own group, and so all its threads change, and the threads that these start.
	if err := syscall.Setpriority(syscall.PRIO_PGRP, r.cmd.Process.Pid, lowestPriority); err != nil {
		return nil, errors.Join(fmt.Errorf("failed to lower the priority of the hostile server: %w", err), r.Close())
	}
	return r, nil
}

// Serve serves the endpoints of a new Server until stdin ends. It writes their addresses to stdout.
func Serve(ctx context.Context, stdin io.Reader, stdout io.Writer) error {
	s, err := New(ctx)
	if err != nil {
		return err
	}
	if err = json.NewEncoder(stdout).Encode(s.Endpoints); err == nil {
		_, err = io.Copy(io.Discard, stdin)
	}
	return errors.Join(err, s.Close())
}

// Stats returns the number of requests so far, including connections to the tarpit, and the number of bytes in the
// bodies of the responses.
func (r *Remote) Stats(ctx context.Context) (requests, sentBytes int64, err error) {
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, r.URL+statsPath, http.NoBody)
	if err != nil {
		return 0, 0, err
	}
	resp, err := http.DefaultClient.Do(req)
	if err != nil {
		return 0, 0, fmt.Errorf("failed to read the statistics of the hostile server: %w", err)
	}
	defer resp.Body.Close() //nolint:errcheck // because it was only read
	var got stats
	if err := json.NewDecoder(resp.Body).Decode(&got); err != nil {
		return 0, 0, fmt.Errorf("failed to read the statistics of the hostile server: %w", err)
	}
	return got.Requests, got.SentBytes, nil
}

// Close stops the server, aborts all requests, and returns when the server's process has exited.
func (r *Remote) Close() error { return errors.Join(r.stdin.Close(), r.cmd.Wait()) }
