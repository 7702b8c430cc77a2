package node

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"time"
)

// containersPatience is the maximum time until the killed containers have stopped.
const containersPatience = 10 * time.Second

// Down stops everything that Up has started, in this process or an earlier one, and restores the settings of the
// host. It keeps the logs. Down may be called at any time and repeatedly. It stops only processes of the cluster.
func (c *Cluster) Down(ctx context.Context) error {
	if _, err := os.Stat(c.path()); errors.Is(err, os.ErrNotExist) {
		return nil
	}
	errs := c.stop("kubelet") // otherwise the kubelet would restart the containers
	networks := c.killContainers(ctx)
	for _, name := range []string{"kube-proxy", "kube-scheduler", "kube-controller-manager", "kube-apiserver", "etcd", "containerd"} {
		errs = errors.Join(errs, c.stop(name))
	}
	errs = errors.Join(errs, c.endShims())
	for _, path := range networks {
		_ = syscall.Unmount(path, syscall.MNT_DETACH)
		_ = os.Remove(path)
	}
	if errs = errors.Join(errs, c.restoreHost(ctx)); errs != nil {
		return errs // keep the state, so that a later call can try again
	}
	return os.RemoveAll(c.path())
}

// killContainers removes all containers of the cluster and returns the files of their network namespaces.
func (c *Cluster) killContainers(ctx context.Context) (networks []string) {
	if c.processes()["containerd"] == 0 {
		return nil
	}
	list := func(kind string) []string {
		out, err := c.ctr(ctx, kind, "ls", "-q")
		if err != nil {
			return nil
		}
		return strings.Fields(out)
	}
	for _, id := range list("containers") {
		spec, _ := c.ctr(ctx, "containers", "info", "--spec", id)
		for part := range strings.SplitSeq(spec, `"`) {
			if strings.HasPrefix(part, "/") && strings.Contains(part, "/netns/cni-") && !slices.Contains(networks, part) {
				networks = append(networks, part)
			}
		}
	}
	for _, id := range list("tasks") {
		_, _ = c.ctr(ctx, "tasks", "kill", "--all", "--signal", "SIGKILL", id)
	}
	for deadline := time.Now().Add(containersPatience); time.Now().Before(deadline); time.Sleep(pollInterval) {
		if out, err := c.ctr(ctx, "tasks", "ls"); err != nil || !strings.Contains(out, "RUNNING") {
			break
		}
	}
	for _, id := range list("tasks") {
		_, _ = c.ctr(ctx, "tasks", "rm", "--force", id)
	}
	for _, id := range list("containers") {
		_, _ = c.ctr(ctx, "containers", "rm", id)
	}
	return networks
}

// endShims ends the shims of the cluster's containerd, which are designed to outlive containerd.
func (c *Cluster) endShims() (errs error) {
	directories, _ := filepath.Glob("/proc/[0-9]*")
	for _, directory := range directories {
		pid, err := strconv.Atoi(filepath.Base(directory))
		if err != nil {
			continue
		}
		if args := arguments(pid); strings.Contains(args, "containerd-shim-runc-v2") && strings.Contains(args, c.socket()) {
			errs = errors.Join(errs, end(pid))
		}
	}
	return errs
}

// unmount removes the mounts of Pods and containers below the state directory.
func (c *Cluster) unmount() (errs error) {
	data, err := os.ReadFile("/proc/self/mountinfo")
	if err != nil {
		return err
	}
	var mounts []string
	for line := range strings.Lines(string(data)) {
		if fields := strings.Fields(line); len(fields) > 4 && strings.HasPrefix(fields[4], c.path()+"/") {
			mounts = append(mounts, fields[4])
		}
	}
	slices.Sort(mounts)
	for _, mount := range slices.Backward(mounts) {
		if err := syscall.Unmount(mount, 0); err != nil {
			errs = errors.Join(errs, syscall.Unmount(mount, syscall.MNT_DETACH))
		}
	}
	return errs
}
