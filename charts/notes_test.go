package charts_test

import (
	"io"
	"log/slog"
	"net/http/httptest"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"sigs.k8s.io/yaml"

	"github.com/capstan-dev/capstan/hack/fakemodel/server"
	"github.com/capstan-dev/capstan/hack/toolserver/tickets"
)

// firstAnswer returns the commands of NOTES that lead to a first answer.
func firstAnswer(t *testing.T, notes string) []string {
	t.Helper()
	var commands []string
	_, paragraph, _ := strings.Cut(notes, "For a first answer")
	for line := range strings.Lines(paragraph) {
		if command, ok := strings.CutPrefix(line, "   "); ok {
			commands = append(commands, strings.TrimSpace(command))
		} else if len(commands) > 0 && strings.TrimSpace(line) != "" {
			break // the next paragraph
		}
	}
	return commands
}

// servedExample copies examples/cluster to the folder of a repository. Its servers run here instead of in Pods, which this cluster has not.
func servedExample(t *testing.T) string {
	t.Helper()
	files, err := filepath.Glob("../examples/cluster/*.yaml")
	if err != nil || len(files) == 0 {
		t.Fatalf("no example: %v", err)
	}
	var manifests []string
	for _, file := range files {
		data, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		manifests = append(manifests, string(data))
	}
	var rules struct {
		Data map[string]string `json:"data"`
	}
	servers := slices.IndexFunc(files, func(f string) bool { return filepath.Base(f) == "servers.yaml" })
	first, _, _ := strings.Cut(strings.TrimPrefix(manifests[servers], "---\n"), "\n---\n")
	if err := yaml.Unmarshal([]byte(first), &rules); err != nil {
		t.Fatal(err)
	}
	path := filepath.Join(t.TempDir(), "rules.yaml")
	if err := os.WriteFile(path, []byte(rules.Data["rules.yaml"]), 0o600); err != nil {
		t.Fatal(err)
	}
	config, err := server.LoadConfig(path)
	if err != nil {
		t.Fatal(err)
	}
	fake, err := server.New(config)
	if err != nil {
		t.Fatal(err)
	}
	desk, err := tickets.NewDesk(nil)
	if err != nil {
		t.Fatal(err)
	}
	model, tools := httptest.NewServer(fake), httptest.NewServer(tickets.Handler(desk, slog.New(slog.NewTextHandler(io.Discard, nil))))
	t.Cleanup(func() {
		fake.Close()
		model.Close()
		tools.CloseClientConnections()
		tools.Close()
	})
	root := t.TempDir()
	folder := filepath.Join(root, "examples", "cluster")
	if err := os.MkdirAll(folder, 0o750); err != nil {
		t.Fatal(err)
	}
	here := strings.NewReplacer("http://example-model.capstan-example:8089", model.URL, "http://example-tickets.capstan-example:8090", tools.URL)
	for i, file := range files {
		if err := os.WriteFile(filepath.Join(folder, filepath.Base(file)), []byte(here.Replace(manifests[i])), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	return root
}

// TestNotesLeadToAFirstAnswer follows NOTES word by word, with the manager's rights. In make e2e the servers run as Pods as well.
func TestNotesLeadToAFirstAnswer(t *testing.T) {
	c := startCluster(t)
	c.run(t, kubectlPath, "create", "namespace", "capstan-system")
	install := func(values ...string) string {
		args := []string{"upgrade", "--install", "capstan", "capstan", "--namespace", "capstan-system"}
		for _, value := range values {
			args = append(args, "--set", value)
		}
		return c.run(t, helmPath, args...)
	}
	root := servedExample(t)
	commands := firstAnswer(t, install())
	want := []string{
		"kubectl create namespace capstan-example",
		"kubectl -n capstan-example apply -f examples/cluster",
		"kubectl -n capstan-example wait turn/first-answer --for=jsonpath='{.status.completionTime}' --timeout=5m",
		"kubectl -n capstan-example get turn first-answer -o wide",
	}
	if !slices.Equal(commands, want) {
		t.Fatalf("the commands of NOTES are %q, want four after helm install: %q", commands, want)
	}
	runManager(t, c.as(t, "system:serviceaccount:capstan-system:capstan"), nil)
	var shown string
	for _, command := range commands {
		shown = c.shellIn(t, root, command)
	}
	if !regexp.MustCompile(`first-answer +example +Completed .*I looked for it\. Ticket 1042 is open: Printer on floor 3 jams`).MatchString(shown) {
		t.Errorf("the last command shows %q, want the answer with ticket 1042", shown)
	}

	t.Run("Failure", func(t *testing.T) {
		c.run(t, kubectlPath, "-n", "capstan-example", "delete", "turn", "first-answer")
		c.shellIn(t, root, `sed 's/^  message:/  desiredState: Cancelled\n  message:/' examples/cluster/turn.yaml | kubectl -n capstan-example create -f -`)
		c.shellIn(t, root, commands[2])
		if shown := c.shellIn(t, root, commands[3]); !strings.Contains(shown, "Cancelled") {
			t.Errorf("after a Turn that has failed the last command shows %q, want its reason", shown)
		}
	})

	t.Run("OtherRelease", func(t *testing.T) {
		commands := firstAnswer(t, install("watchNamespaces={default}", "image.registry=registry.example.com:5000", "image.repository=team/capstan", "image.tag=1.2.3"))
		if len(commands) != 3 {
			t.Fatalf("the commands of NOTES are %q, want three: the namespace is there", commands)
		}
		c.shellIn(t, root, commands[0])
		image := c.run(t, kubectlPath, "-n", "default", "get", "deployments", "-o", "jsonpath={.items[*].spec.template.spec.containers[*].image}")
		if want := "registry.example.com:5000/team/capstan-examples:1.2.3 registry.example.com:5000/team/capstan-examples:1.2.3"; image != want {
			t.Errorf("the images are %q, want those beside the manager's: %q", image, want)
		}
		original, err := filepath.Abs("..")
		if err != nil {
			t.Fatal(err)
		}
		c.shellIn(t, original, commands[0])
		url := c.run(t, kubectlPath, "-n", "default", "get", "modelprovider/example", "toolserver/example", "-o", "jsonpath={.items[*].spec['baseURL','mcp']}")
		if !strings.Contains(url, "http://example-model.default:8089/v1") || !strings.Contains(url, "http://example-tickets.default:8090/mcp") {
			t.Errorf("the addresses are %q, want Services of the namespace", url)
		}
	})
}
