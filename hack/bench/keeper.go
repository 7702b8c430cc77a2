package main

import (
	"context"
	"fmt"
	"net/http"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"time"

	"k8s.io/apimachinery/pkg/util/wait"

	"github.com/capstan-dev/capstan/test/harness"
)

const (
	// restartPause is the time after which a process that has exited is restarted.
	restartPause = time.Second
	// sampleInterval is the time between two samples of the memory.
	sampleInterval = 100 * time.Millisecond
	// pollInterval is the time between two readiness probes.
	pollInterval = 50 * time.Millisecond
)

// keeper keeps a program running, as a kubelet does, and counts how often the program exited unexpectedly.
type keeper struct {
	dir     string // the logs are in dir/logs
	program harness.Program
	ready   string // URL of the readiness probe
	logf    func(format string, args ...any)

	again chan chan struct{} // receives requests for a restart, which does not count as an unexpected exit
	stop  context.CancelFunc
	done  chan struct{}

	mu     sync.Mutex
	starts int
	begun  time.Time // the time of the last start
	exits  int       // unexpected exits
	peak   peaks
	pid    int // 0 while no process is running
}

// keep starts a program and keeps it running until close is called. It writes one log for each start to dir/logs.
// ready is a URL that returns 200 when the program is ready.
func keep(ctx context.Context, dir string, program harness.Program, ready string, logf func(string, ...any)) *keeper {
	ctx, stop := context.WithCancel(ctx)
	k := &keeper{
		dir: dir, program: program, ready: ready, logf: logf, again: make(chan chan struct{}), stop: stop,
		done: make(chan struct{}),
	}
	go k.run(ctx)
	go k.sample(ctx)
	return k
}

// keepMember starts a program whose data are in the directory data, keeps it running, and waits until it is ready. The
// logs are in dir/logs.
func (b *bench) keepMember(ctx context.Context, m member, dir, data string) (k *keeper, metricsURL string, err error) {
	s := site{kubeconfig: b.cluster.Kubeconfig, dir: data}
	for _, address := range []*string{&s.probes, &s.metrics} {
		if *address, err = harness.FreeAddress(ctx); err != nil {
			return nil, "", err
		}
	}
	path, args := m.cgroup.command(m.path, m.args(s))
	k = keep(ctx, dir, harness.Program{
		Name: m.name, Path: path, Args: args, Env: m.env, Listen: []string{s.probes, s.metrics}, StopTimeout: managerStop,
	}, "http://"+s.probes+m.ready, b.logf)
	if err := k.waitReady(ctx, readyPatience); err != nil {
		k.close()
		return nil, "", err
	}
	return k, "http://" + s.metrics + "/metrics", nil
}

// close stops the program and returns when it has exited.
func (k *keeper) close() {
	k.stop()
	<-k.done
}

// restart stops the program, which does not count as an unexpected exit, and returns when the old process has exited.
// The next process may not have started yet.
func (k *keeper) restart(ctx context.Context) error {
	stopped := make(chan struct{})
	select {
	case k.again <- stopped:
	case <-ctx.Done():
		return context.Cause(ctx)
	}
	select {
	case <-stopped:
		return nil
	case <-ctx.Done():
		return context.Cause(ctx)
	}
}

func (k *keeper) run(ctx context.Context) {
	defer close(k.done)
	for ctx.Err() == nil {
		k.runOnce(ctx)
	}
}

// runOnce runs the program until it exits, or until it is stopped.
func (k *keeper) runOnce(ctx context.Context) {
	exited := make(chan error, 1)
	s := harness.New(k.dir, func(err error) { exited <- err })
	k.mu.Lock()
	k.starts++
	k.begun = time.Now()
	program := k.program
	program.Name = fmt.Sprintf("%s-%d", program.Name, k.starts)
	k.mu.Unlock()
	process, err := s.StartProgram(ctx, program)
	if err != nil {
		k.countExit(ctx, err)
		return
	}
	k.setPID(process.PID())
	select {
	case err := <-exited:
		k.countExit(ctx, err)
	case stopped := <-k.again:
		k.stopProgram(s)
		close(stopped)
	case <-ctx.Done():
		k.stopProgram(s)
	}
}

func (k *keeper) stopProgram(s *harness.Harness) {
	k.setPID(0)
	if err := s.Stop(); err != nil {
		k.logf("%v", err) // the measurement continues, even if the process had to be killed
	}
}

// countExit counts an unexpected exit and waits for restartPause.
func (k *keeper) countExit(ctx context.Context, err error) {
	k.mu.Lock()
	k.exits++
	k.pid = 0
	k.mu.Unlock()
	message, _, _ := strings.Cut(err.Error(), "\n") // the rest is in the log
	k.logf("%s", message)
	timer := time.NewTimer(restartPause)
	defer timer.Stop()
	select {
	case <-timer.C:
	case <-ctx.Done():
	}
}

// setPID stores the ID of the running process, or 0 if none is running.
func (k *keeper) setPID(pid int) {
	k.mu.Lock()
	defer k.mu.Unlock()
	k.pid = pid
}

// sample records the peaks of the memory at intervals, because they cannot be read after the process has exited.
func (k *keeper) sample(ctx context.Context) {
	ticker := time.NewTicker(sampleInterval)
	defer ticker.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-ticker.C:
		}
		k.mu.Lock()
		pid := k.pid
		k.mu.Unlock()
		if pid == 0 {
			continue
		}
		if u, err := useOf(pid); err == nil { // an error means that the process has exited
			k.mu.Lock()
			k.peak.resident = max(k.peak.resident, u.peakMemory)
			k.peak.anonymous = max(k.peak.anonymous, u.anonymous)
			k.mu.Unlock()
		}
	}
}

// kill sends SIGKILL to the running process. The keeper counts an unexpected exit and starts the program again.
func (k *keeper) kill() error {
	k.mu.Lock()
	defer k.mu.Unlock()
	if k.pid == 0 {
		return fmt.Errorf("failed to kill %s: it is not running", k.program.Name)
	}
	return syscall.Kill(k.pid, syscall.SIGKILL)
}

// use returns the resource usage of the running process so far.
func (k *keeper) use() (use, error) {
	k.mu.Lock()
	defer k.mu.Unlock()
	return useOf(k.pid)
}

// lastStart returns the time of the last start.
func (k *keeper) lastStart() time.Time {
	k.mu.Lock()
	defer k.mu.Unlock()
	return k.begun
}

// peaks holds the highest memory of any process of a keeper, in bytes.
type peaks struct {
	resident  uint64
	anonymous uint64 // the highest sampled anonymous memory (without file-backed pages)
}

// counts returns the number of unexpected exits and the peaks of the memory.
func (k *keeper) counts() (exits int, peak peaks) {
	k.mu.Lock()
	defer k.mu.Unlock()
	return k.exits, k.peak
}

// waitReady waits until the program is ready, and returns an error after the timeout.
func (k *keeper) waitReady(ctx context.Context, timeout time.Duration) error {
	client := &http.Client{Timeout: time.Second, Transport: &http.Transport{DisableKeepAlives: true}}
	err := wait.PollUntilContextTimeout(ctx, pollInterval, timeout, true, func(ctx context.Context) (bool, error) {
		request, err := http.NewRequestWithContext(ctx, http.MethodGet, k.ready, http.NoBody)
		if err != nil {
			return false, err
		}
		response, err := client.Do(request)
		if err != nil {
			return false, nil //nolint:nilerr // because it is not ready yet
		}
		return response.Body.Close() == nil && response.StatusCode == http.StatusOK, nil
	})
	if err != nil {
		return fmt.Errorf("%s was not ready within %s, see %s: %w", k.program.Name, timeout, filepath.Join(k.dir, "logs"), err)
	}
	return nil
}
