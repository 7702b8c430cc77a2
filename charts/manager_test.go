package charts_test

import (
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/go-logr/logr/funcr"
	"k8s.io/client-go/rest"

	"github.com/capstan-dev/capstan/test/fakemodel/server"
	"github.com/capstan-dev/capstan/test/harness/harnesstest"
)

// TestManagerWorksWithPermissionsOfChart runs the manager under the name of the chart's ServiceAccount, against an API
// server that authorizes by RBAC. The manager must work with exactly the permissions that the chart grants.
func TestManagerWorksWithPermissionsOfChart(t *testing.T) {
	c := startCluster(t)
	_, modelURL := harnesstest.Model(t, server.Config{})
	c.run(t, kubectlPath, "apply", "-f", "../config/manager/namespace.yaml")
	manifest := quickstart(t, modelURL)

	for _, tc := range []struct {
		name      string
		values    []string
		watched   []string
		namespace string
	}{
		{name: "in all namespaces", namespace: "kube-public"},
		{name: "in one namespace", values: []string{"watchNamespaces={default}"}, watched: []string{"default"}, namespace: "default"},
	} {
		t.Run(tc.name, func(t *testing.T) {
			args := []string{"upgrade", "--install", "capstan", "capstan", "--namespace", "capstan-system"}
			for _, value := range tc.values {
				args = append(args, "--set", value)
			}
			c.run(t, helmPath, args...)
			refusals, readAddress := runManager(t, c.as("system:serviceaccount:capstan-system:capstan"), tc.watched)
			c.applyTurns(t, "--namespace", tc.namespace, "-f", manifest)
			c.run(t, kubectlPath, "wait", "--namespace", tc.namespace, "--for=condition=Succeeded", "turn/open-loops", "--timeout=60s")
			c.run(t, kubectlPath, "wait", "--namespace", tc.namespace, "--for=create", "events.events.k8s.io", "--all", "--timeout=30s")
			// A TTL of 0 expires immediately: the manager must delete the Turn.
			c.run(t, kubectlPath, "patch", "--namespace", tc.namespace, "turn/open-loops", "--type=merge", "-p",
				`{"spec":{"ttlSecondsAfterFinished":0}}`)
			c.run(t, kubectlPath, "wait", "--namespace", tc.namespace, "--for=delete", "turn/open-loops", "--timeout=30s")
			c.checkHelmTest(t, readAddress)
			for _, refusal := range refusals() {
				t.Errorf("the API server forbade a request of the manager: %s", refusal)
			}
		})
	}
}

// quickstart writes the manifests of the quickstart with the address of a model server, and returns their
// directory.
func quickstart(t *testing.T, baseURL string) string {
	t.Helper()
	files, err := filepath.Glob("../examples/quickstart/*.yaml")
	if err != nil || len(files) == 0 {
		t.Fatalf("no quickstart: %v", err)
	}
	dir := t.TempDir()
	for _, file := range files {
		data, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		text := strings.ReplaceAll(string(data), "http://127.0.0.1:8089/v1", baseURL)
		if err := os.WriteFile(filepath.Join(dir, filepath.Base(file)), []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	return dir
}

// as returns a client configuration for another user name.
func (c cluster) as(user string) *rest.Config {
	cfg := rest.CopyConfig(c.Config)
	cfg.Impersonate.UserName = user
	return cfg
}

// startTimeout bounds the time until a manager serves its read API, on a busy machine.
const startTimeout = 2 * time.Minute

// runManager runs a manager until the test ends. refusals returns the new log lines about requests that the API server
// has forbidden. readAddress is the address of the manager's read API.
func runManager(t *testing.T, cfg *rest.Config, watched []string) (refusals func() []string, readAddress string) {
	t.Helper()
	lines := make(chan string, 10_000)
	addresses := make(chan string, 1)
	serving := regexp.MustCompile(`"Serving journals".* "tls"="https://([^"]+)"`)
	log := funcr.New(func(_, args string) {
		if found := serving.FindStringSubmatch(args); found != nil {
			addresses <- found[1]
		}
		select {
		case lines <- args:
		default: // a test that logs more than this has failed in another way
		}
	}, funcr.Options{})
	certificateFile, keyFile := certificate(t)
	o := harnesstest.Options(t, "capstan-system")
	o.ExecutorName = "capstan-0" // checkHelmTest expects this name
	o.WatchNamespaces, o.LeaderElect = watched, true
	o.ReadTLSBindAddress, o.ReadTLSCertFile, o.ReadTLSKeyFile = "127.0.0.1:0", certificateFile, keyFile
	harnesstest.RunManager(t, cfg, o, log)
	select {
	case readAddress = <-addresses:
	case <-time.After(startTimeout):
		t.Fatalf("the manager does not serve the read API after %s", startTimeout)
	}
	return func() []string {
		var found []string
		for {
			select {
			case line := <-lines:
				if strings.Contains(line, "forbidden") {
					found = append(found, line)
				}
			default:
				return found
			}
		}
	}, readAddress
}
