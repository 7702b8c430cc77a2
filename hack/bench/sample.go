package main

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"maps"
	"slices"
	"strings"
	"time"

	dto "github.com/prometheus/client_model/go"
	"github.com/prometheus/common/expfmt"
	"github.com/prometheus/common/model"
	"github.com/prometheus/procfs"
	"k8s.io/apimachinery/pkg/util/wait"

	"github.com/capstan-dev/capstan/api/v1alpha1"
)

const (
	// requestsMetric is kube-apiserver's counter of answered requests.
	requestsMetric = "apiserver_request_total"
	// serverCPUMetric is kube-apiserver's own CPU time, in seconds.
	serverCPUMetric = "process_cpu_seconds_total"

	// settleInterval is the time without writes after which the work counts as done. It is needed because the manager
	// writes the Events about a Turn after the Turn has ended.
	settleInterval = time.Second
	settleTimeout  = 30 * time.Second
)

// mutating lists the verbs of requestsMetric that write.
var mutating = []string{"POST", "PUT", "PATCH", "APPLY", "DELETE", "DELETECOLLECTION"}

// writes counts write requests to the API server by verb and resource, such as "PUT turns/status". For requests that
// the API server refused, the name ends with the HTTP status.
type writes map[string]float64

// sample holds the values of all counters at one point in time.
type sample struct {
	counters
	uses          []use // the resource usage of each program of the contender, in the order of its members
	modelRequests int64
}

// counters holds the counters of kube-apiserver.
type counters struct {
	writes    writes
	leases    float64       // writes of Leases, which depend on the time and not on the number of Turns
	serverCPU time.Duration // the CPU time of kube-apiserver
}

// use is the resource usage of a process so far.
type use struct {
	cpu        time.Duration
	memory     uint64 // the resident memory, in bytes
	peakMemory uint64 // the peak of the resident memory, in bytes
	anonymous  uint64 // the anonymous resident memory (without file-backed pages), in bytes
}

// sampleAfterWrites waits until the writes to the API server have stopped, and takes a sample.
func (b *bench) sampleAfterWrites(ctx context.Context, t team) (sample, error) {
	var last counters
	err := wait.PollUntilContextTimeout(ctx, b.settle, settleTimeout, true, func(ctx context.Context) (bool, error) {
		text, err := b.turns.Get().AbsPath("/metrics").Do(ctx).Raw()
		if err != nil {
			return false, fmt.Errorf("failed to read the API server's metrics: %w", err)
		}
		current, err := parseCounters(bytes.NewReader(text))
		if err != nil {
			return false, err
		}
		same := last.writes != nil && maps.Equal(last.writes, current.writes)
		last = current
		return same, nil
	})
	if err != nil {
		return sample{}, fmt.Errorf("gave up waiting for the end of all writes: %w", err)
	}
	s := sample{counters: last, modelRequests: b.model.Stats().Requests}
	for _, p := range t {
		u, err := useOf(p.PID())
		if err != nil {
			return sample{}, err
		}
		s.uses = append(s.uses, u)
	}
	return s, nil
}

// parseCounters reads metrics in Prometheus' text format.
func parseCounters(text io.Reader) (counters, error) {
	families, err := parseMetrics(text, requestsMetric, serverCPUMetric)
	if err != nil {
		return counters{}, fmt.Errorf("the API server's metrics: %w", err)
	}
	found := counters{writes: writes{}}
	for _, metric := range families[serverCPUMetric].GetMetric() {
		found.serverCPU += time.Duration(metric.GetCounter().GetValue() * float64(time.Second))
	}
	for _, metric := range families[requestsMetric].GetMetric() {
		labels := make(map[string]string, len(metric.GetLabel()))
		for _, pair := range metric.GetLabel() {
			labels[pair.GetName()] = pair.GetValue()
		}
		switch count := metric.GetCounter().GetValue(); {
		case !slices.Contains(mutating, labels["verb"]) || strings.HasSuffix(labels["resource"], "reviews"):
			// Access reviews are POST requests that write nothing.
		case labels["resource"] == "leases":
			found.leases += count
		default:
			found.writes[writeName(labels)] += count
		}
	}
	return found, nil
}

// parseMetrics parses metrics in Prometheus' text format. It returns an error if one of the names is missing.
func parseMetrics(text io.Reader, names ...string) (map[string]*dto.MetricFamily, error) {
	parser := expfmt.NewTextParser(model.UTF8Validation)
	families, err := parser.TextToMetricFamilies(text)
	if err != nil {
		return nil, fmt.Errorf("failed to parse: %w", err)
	}
	for _, name := range names {
		if families[name] == nil {
			return nil, fmt.Errorf("failed to find %s", name)
		}
	}
	return families, nil
}

func writeName(labels map[string]string) string {
	name := labels["verb"] + " " + labels["resource"]
	if group := labels["group"]; group != "" && group != v1alpha1.GroupVersion.Group && group != minimalVersion.Group {
		name += "." + group
	}
	if labels["subresource"] != "" {
		name += "/" + labels["subresource"]
	}
	if code := labels["code"]; !strings.HasPrefix(code, "2") {
		name += " " + code
	}
	return name
}

// minus returns the writes that were made after an earlier count.
func (w writes) minus(earlier writes) writes {
	difference := writes{}
	for name, count := range w {
		if d := count - earlier[name]; d > 0 {
			difference[name] = d
		}
	}
	return difference
}

// useOf returns the resource usage of a process so far.
func useOf(pid int) (use, error) {
	process, err := procfs.NewProc(pid)
	if err != nil {
		return use{}, fmt.Errorf("failed to read process %d, which requires Linux: %w", pid, err)
	}
	stat, err := process.Stat()
	if err != nil {
		return use{}, fmt.Errorf("failed to read the CPU time of process %d: %w", pid, err)
	}
	status, err := process.NewStatus()
	if err != nil {
		return use{}, fmt.Errorf("failed to read the memory of process %d: %w", pid, err)
	}
	return use{
		cpu: time.Duration(stat.CPUTime() * float64(time.Second)), memory: status.VmRSS, peakMemory: status.VmHWM,
		anonymous: status.RssAnon,
	}, nil
}
