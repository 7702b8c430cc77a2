package charts_test

import (
	"cmp"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	appsv1 "k8s.io/api/apps/v1"
	"sigs.k8s.io/yaml"

	"github.com/capstan-dev/capstan/test/fakemodel/server"
	"github.com/capstan-dev/capstan/test/harness/harnesstest"
)

// firstAnswer returns the commands of NOTES for a first answer.
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

// servedExample copies examples/cluster to a new directory with the layout of a repository. The servers of the example
// run in this process, because this cluster has no Pods.
func servedExample(t *testing.T) string {
	t.Helper()
	dir := filepath.Join("examples", "cluster")
	data, err := os.ReadFile(filepath.Join("..", dir, "servers", "model.yaml"))
	if err != nil {
		t.Fatal(err)
	}
	var rules struct {
		Data map[string]string `json:"data"`
	}
	first, _, _ := strings.Cut(strings.TrimPrefix(string(data), "---\n"), "\n---\n")
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
	_, modelURL := harnesstest.Model(t, config)
	_, toolsURL := harnesstest.Tickets(t)
	root := t.TempDir()
	if err := os.CopyFS(filepath.Join(root, dir), os.DirFS(filepath.Join("..", dir))); err != nil {
		t.Fatal(err)
	}
	localURLs := strings.NewReplacer("http://example-model.default:8089/v1", modelURL, "http://example-tickets.default:8090/mcp", toolsURL)
	for _, name := range []string{"modelprovider.yaml", "toolserver.yaml"} {
		file := filepath.Join(root, dir, name)
		data, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(file, []byte(localURLs.Replace(string(data))), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	return root
}

// TestServersOfExampleRunAsAnyUser checks that the Pods of the example name no user: on OpenShift, each namespace has
// users of its own. The image has a numeric user, for other clusters.
func TestServersOfExampleRunAsAnyUser(t *testing.T) {
	for _, name := range []string{"model.yaml", "tickets.yaml"} {
		data, err := os.ReadFile(filepath.Join("..", "examples", "cluster", "servers", name))
		if err != nil {
			t.Fatal(err)
		}
		pod := one[*appsv1.Deployment](t, decode(t, data)).Spec.Template.Spec
		if pod.SecurityContext.RunAsUser != nil || pod.Containers[0].SecurityContext.RunAsUser != nil {
			t.Errorf("%s names the user of its Pods", name)
		}
		if nonRoot := pod.SecurityContext.RunAsNonRoot; nonRoot == nil || !*nonRoot {
			t.Errorf("%s lets its Pods run as root", name)
		}
	}
}

// TestNotesLeadToFirstAnswer runs the commands of NOTES literally, while a manager runs with the permissions of the
// chart. make e2e does the same with the servers as Pods.
func TestNotesLeadToFirstAnswer(t *testing.T) {
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
		"kubectl -n default apply -f examples/cluster/servers",
		"kubectl -n default wait deployment/example-model deployment/example-tickets --for=condition=Available --timeout=5m",
		"kubectl -n default apply -f examples/cluster",
		`kubectl -n default wait turn/first-answer --for=jsonpath='{.status.completionTime}' --timeout=5m ` +
			`-o jsonpath='{.status.conditions[?(@.type=="Succeeded")].message}{"\n"}{.status.result.text}{"\n"}'`,
	}
	if !slices.Equal(commands, want) {
		t.Fatalf("the commands of NOTES are %q, want four after helm install: %q", commands, want)
	}
	runManager(t, c.as("system:serviceaccount:capstan-system:capstan"), nil)
	var shown string
	for i, command := range commands {
		if i == 1 { // no controller creates Pods here: the test replaces the controller of the Deployments
			// On a real cluster, minReadySeconds makes kubectl wait until the API server has read the new schemas;
			// here, the dry run below waits for that. make e2e runs the commands on a real cluster.
			if seconds := c.run(t, kubectlPath, "-n", "default", "get", "deployment", "example-model", "-o",
				"jsonpath={.spec.minReadySeconds}"); seconds != "10" {
				t.Errorf("minReadySeconds of example-model is %q, want 10", seconds)
			}
			c.applyTurns(t, "--dry-run=server", "-n", "default", "-f", filepath.Join(root, "examples/cluster/turn.yaml"))
			for _, name := range []string{"example-model", "example-tickets"} {
				c.run(t, kubectlPath, "-n", "default", "patch", "deployment", name, "--subresource=status", "--type=merge", "-p",
					`{"status": {"conditions": [{"type": "Available", "status": "True"}]}}`)
			}
		}
		shown = c.shellIn(t, root, command)
	}
	if !strings.Contains(shown, "I looked for it. Ticket 1042 is open: Printer on floor 3 jams") {
		t.Errorf("the last command shows %q, want the answer with ticket 1042", shown)
	}

	t.Run("Failure", func(t *testing.T) {
		c.run(t, kubectlPath, "-n", "default", "delete", "turn", "first-answer")
		c.shellIn(t, root, `sed 's/^  message:/  desiredState: Cancelled\n  message:/' `+
			`examples/cluster/turn.yaml | kubectl -n default create -f -`)
		if shown := c.shellIn(t, root, commands[3]); !strings.Contains(strings.ToLower(shown), "cancel") {
			t.Errorf("after a failed Turn, the last command shows %q, want the cause", shown)
		}
	})

	t.Run("Removal", func(t *testing.T) {
		c.shellIn(t, root, "kubectl -n default delete -R -f examples/cluster")
		kinds := "configmaps,deployments,services,secrets,agents,promptprofiles,modelproviders,toolservers,turns"
		left := c.run(t, kubectlPath, "-n", "default", "get", kinds, "-o", "name")
		if strings.Contains(left, "example") || strings.Contains(left, "first-answer") {
			t.Errorf("the command that removes the example leaves %q", left)
		}
	})

	t.Run("OtherNamespace", func(t *testing.T) {
		c.run(t, kubectlPath, "create", "namespace", "team")
		commands := firstAnswer(t, install("watchNamespaces={team}"))
		if len(commands) != 4 {
			t.Fatalf("the commands of NOTES are %q, want four", commands)
		}
		c.shellIn(t, "..", commands[0])
		c.shellIn(t, "..", commands[2])
		url := c.run(t, kubectlPath, "-n", "team", "get", "modelprovider/example", "toolserver/example", "-o",
			"jsonpath={.items[*].spec['baseURL','mcp']}")
		if !strings.Contains(url, "http://example-model.team:8089/v1") || !strings.Contains(url, "http://example-tickets.team:8090/mcp") {
			t.Errorf("the addresses are %q, want Services of the namespace", url)
		}
	})

	// The page about installation shows the commands for an image in a registry.
	t.Run("OtherImage", func(t *testing.T) {
		commands := firstAnswer(t, install("image.registry=registry.example.com", "image.repository=capstan", "image.tag=0.1.0"))
		page, err := os.ReadFile("../docs/install.md")
		if err != nil {
			t.Fatal(err)
		}
		helm := "```sh\nhelm upgrade --install capstan charts/capstan --namespace capstan-system --create-namespace \\\n" +
			"  --set image.registry=registry.example.com --set image.repository=capstan --set image.tag=0.1.0\n"
		if shown := helm + strings.Join(commands, "\n") + "\n```"; !strings.Contains(string(page), shown) {
			t.Errorf("docs/install.md does not show the commands of NOTES after the helm command:\n%s", shown)
		}
		readme, err := os.ReadFile("../README.md")
		if err != nil {
			t.Fatal(err)
		}
		if !strings.Contains(string(readme), helm+"```") {
			t.Errorf("README.md does not show the helm command of docs/install.md:\n%s", helm)
		}
		c.shellIn(t, "..", commands[0])
		image := c.run(t, kubectlPath, "-n", "default", "get", "deployments", "-o",
			"jsonpath={.items[*].spec.template.spec.containers[*].image}")
		if want := "registry.example.com/capstan-examples:0.1.0 registry.example.com/capstan-examples:0.1.0"; image != want {
			t.Errorf("the images are %q, want those of the manager's repository: %q", image, want)
		}
	})
}

// TestNotesMatchRelease checks that NOTES name only roles, Services and values that this release has, and that
// they leave out nothing that it needs.
func TestNotesMatchRelease(t *testing.T) {
	const (
		reader        = "capstan-system-capstan-metrics-reader"
		authorization = "metrics.podMonitor.authorization"
		authority     = "Secret x (ca.crt)"
		address       = "--server https://"
		pull          = "patch serviceaccount default"
		elsewhere     = "need --manager-namespace"
		whoami        = "kubectl auth whoami"
		uninstall     = "helm uninstall"
		egress        = "networkPolicy.egress must allow connections to the Pods of the example:"
	)
	for name, tc := range map[string]struct {
		values        []string
		want, wantNot []string
		namespace     string // default capstan-system
	}{
		"Default": {
			want:    []string{"metrics.readers", reader},
			wantNot: []string{authorization, address, pull, elsewhere, whoami, egress, uninstall},
		},
		"Readers": {values: []string{"metrics.readers[0].name=p,metrics.readers[0].namespace=m"}, wantNot: []string{reader}},
		"NoRoles": {
			values:  []string{"rbac.create=false"},
			want:    []string{"a ClusterRole with the verb get for the path /metrics"},
			wantNot: []string{"metrics.readers", reader},
		},
		"NoMetrics":    {values: []string{"rbac.create=false,metrics.enabled=false"}, wantNot: []string{"/metrics", reader}},
		"Unauthorized": {values: []string{"metrics.podMonitor.enabled=true"}, want: []string{"WARNING", authorization}},
		"Authorized": {
			values: []string{
				"metrics.podMonitor.enabled=true,metrics.podMonitor.authorization.credentials.name=x," +
					"metrics.podMonitor.authorization.credentials.key=token",
			},
			wantNot: []string{authorization},
		},
		"Authority": {
			values: []string{"metrics.serviceMonitor.enabled=true,metrics.tlsSecret=x"}, want: []string{authority},
		},
		"OwnTLSConfig": {
			values: []string{
				"metrics.podMonitor.enabled=true,metrics.tlsSecret=x,metrics.podMonitor.tlsConfig.insecureSkipVerify=true",
			},
			wantNot: []string{authority},
		},
		"ReadAPI": {
			values: []string{"readAPI.enabled=true,readAPI.tlsSecret=x"},
			want:   []string{address, "get service capstan-read", "capstan logs"},
		},
		"PullSecret": {
			values: []string{"imagePullSecrets[0].name=registry,imagePullSecrets[1].name=mirror", "watchNamespaces={team}"},
			want: []string{
				`kubectl -n team patch serviceaccount default -p '{"imagePullSecrets":[{"name":"registry"},{"name":"mirror"}]}'`,
			},
		},
		"RegistryOnIPv6": { // without quotes, YAML reads the image as a list
			values: []string{"image.registry=[fd00::5]:5000"},
			want:   []string{`|image: "[fd00::5]:5000/capstan-dev/capstan-examples:0.1.0"|`},
		},
		"Elsewhere": {namespace: "agents", want: []string{elsewhere + " agents", "helm test capstan --namespace agents"}},
		"ElsewhereWithReadAPI": {
			namespace: "agents", values: []string{"readAPI.enabled=true,readAPI.tlsSecret=x"}, want: []string{address},
			wantNot: []string{elsewhere},
		},
		// The Job of helm uninstall may take 90 s more than the Pods, and Helm waits 300 s by default.
		"GraceWithinTimeout": {values: []string{"terminationGracePeriodSeconds=210"}, wantNot: []string{uninstall}},
		"LongGrace": {
			values: []string{"terminationGracePeriodSeconds=211"},
			want:   []string{"may wait 301 seconds", uninstall + " capstan --namespace capstan-system --timeout 331s"},
		},
		"LongShutdownGrace": {
			values: []string{"shutdownGraceSeconds=500"}, want: []string{"may wait 700 seconds", "--timeout 730s"},
		},
		"LongGraceWithoutJob": {
			values: []string{"terminationGracePeriodSeconds=600,uninstall.drain=false"}, wantNot: []string{uninstall},
		},
		"RequesterRequired": {values: []string{"requesterPolicy.required=true"}, want: []string{whoami}},
		"Egress": {
			values: []string{"networkPolicy.enabled=true,networkPolicy.egress[0].ports[0].port=443", "watchNamespaces={team}"},
			want:   []string{egress + " TCP ports 8089 and 8090 in namespace team."},
		},
	} {
		t.Run(name, func(t *testing.T) {
			notes := notesIn(t, cmp.Or(tc.namespace, "capstan-system"), tc.values...)
			for _, text := range tc.want {
				if !strings.Contains(notes, text) {
					t.Errorf("NOTES do not contain %q:\n%s", text, notes)
				}
			}
			for _, text := range tc.wantNot {
				if strings.Contains(notes, text) {
					t.Errorf("NOTES contain %q:\n%s", text, notes)
				}
			}
			if n := len(firstAnswer(t, notes)); n != 4 {
				t.Errorf("NOTES lead to a first answer by %d commands, want 4:\n%s", n, notes)
			}
		})
	}
}
