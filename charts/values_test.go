package charts_test

import (
	"encoding/json"
	"os"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"go.yaml.in/yaml/v3"
)

// valuesFile returns the root mapping of values.yaml, including comments.
func valuesFile(t *testing.T) *yaml.Node {
	t.Helper()
	root, err := readValues()
	if err != nil {
		t.Fatal(err)
	}
	return root
}

// readValues is valuesFile for code that runs outside of a test.
func readValues() (*yaml.Node, error) {
	data, err := os.ReadFile("capstan/values.yaml")
	if err != nil {
		return nil, err
	}
	var document yaml.Node
	if err := yaml.Unmarshal(data, &document); err != nil {
		return nil, err
	}
	return document.Content[0], nil
}

// opaque lists the mappings whose keys belong to the user or to Kubernetes. walkValues does not visit their keys.
var opaque = map[string]bool{
	"resources": true, "executor.autoscaling.behavior": true, "metrics.dashboard.labels": true, "nodeSelector": true,
}

// walkValues calls visit for each value of a mapping and for the values below it.
func walkValues(prefix string, mapping *yaml.Node, visit func(path string, key, value *yaml.Node)) {
	for i := 0; i < len(mapping.Content); i += 2 {
		key, value := mapping.Content[i], mapping.Content[i+1]
		path := prefix + key.Value
		visit(path, key, value)
		if value.Kind == yaml.MappingNode && !opaque[path] {
			walkValues(path+".", value, visit)
		}
	}
}

// unsetValues returns the values of values.yaml that none of the settings sets, apart from mappings of other values. A
// setting has the form of helm --set.
func unsetValues(settings []string) ([]string, error) {
	root, err := readValues()
	if err != nil {
		return nil, err
	}
	var unset []string
	walkValues("", root, func(path string, _, value *yaml.Node) {
		if value.Kind == yaml.MappingNode && len(value.Content) > 0 && !opaque[path] {
			return
		}
		// Below a value are its own keys, as in podLabels.team, and its indices, as in extraArgs[0].
		sets := regexp.MustCompile(`(^|,)` + regexp.QuoteMeta(path) + `[=.[]`)
		if !slices.ContainsFunc(settings, sets.MatchString) {
			unset = append(unset, path)
		}
	})
	return unset, nil
}

func TestUnsetValues(t *testing.T) {
	all, err := unsetValues(nil)
	if err != nil || len(all) < 100 || slices.Contains(all, "image") || !slices.Contains(all, "image.tag") {
		t.Fatalf("the values are %v (%v), want all, and no groups of values", all, err)
	}
	for setting, sets := range map[string][]string{
		"replicas=2":                                 {"replicas"},
		"image.tag=main,log.level=debug":             {"image.tag", "log.level"},
		"podLabels.app\\.kubernetes\\.io/name=other": {"podLabels"},
		"resources.limits=null":                      {"resources"},
		"extraEnv[0].name=X,extraEnv[0].value=x":     {"extraEnv"},
		"watchNamespaces={replicas,log}":             {"watchNamespaces"},
		"executor.replicas=2":                        {"executor.replicas"},
		"limits.maxSteps=20":                         {"limits"},
	} {
		unset, err := unsetValues([]string{setting})
		if err != nil {
			t.Fatal(err)
		}
		want := slices.DeleteFunc(slices.Clone(all), func(path string) bool { return slices.Contains(sets, path) })
		if diff := cmp.Diff(want, unset); diff != "" {
			t.Errorf("values that %s does not set (-want +got):\n%s", setting, diff)
		}
	}
}

func TestEveryValueIsDocumented(t *testing.T) {
	readme, err := os.ReadFile("capstan/README.md")
	if err != nil {
		t.Fatal(err)
	}
	walkValues("", valuesFile(t), func(path string, key, _ *yaml.Node) {
		if key.HeadComment == "" {
			t.Errorf("value %s has no comment above it in values.yaml", path)
		}
		// hack/chart generates the table.
		if !strings.Contains(string(readme), "| `"+path+"` | ") {
			t.Errorf("README.md of the chart has no row for %s: run make generate", path)
		}
	})
}

// schema is the part of a JSON Schema that shows which names an object may have.
type schema struct {
	Type                 any               `json:"type"`
	Properties           map[string]schema `json:"properties"`
	AdditionalProperties any               `json:"additionalProperties"`
	Items                *schema           `json:"items"`
}

func TestSchemaIsStrictAndComplete(t *testing.T) {
	data, err := os.ReadFile("capstan/values.schema.json")
	if err != nil {
		t.Fatal(err)
	}
	var root schema
	if err := json.Unmarshal(data, &root); err != nil {
		t.Fatal(err)
	}
	checkStrict(t, "values", root)

	walkValues("", valuesFile(t), func(path string, _, _ *yaml.Node) {
		level := root
		for name := range strings.SplitSeq(path, ".") {
			next, ok := level.Properties[name]
			if !ok {
				t.Errorf("value %s is not in values.schema.json", path)
				return
			}
			level = next
		}
	})
}

// TestValuesOfDependingChart checks that a chart that depends on this one can switch it on and off by the usual
// condition, capstan.enabled. Helm gives this value to the chart, too.
func TestValuesOfDependingChart(t *testing.T) {
	if diff := cmp.Diff(renderChart(t), renderChart(t, "enabled=true")); diff != "" {
		t.Errorf("objects with enabled=true (-without +with):\n%s", diff)
	}
}

func checkStrict(t *testing.T, path string, s schema) {
	t.Helper()
	if len(s.Properties) > 0 && s.AdditionalProperties != false {
		t.Errorf("%s: additionalProperties = %v, want false: a misspelt name would be ignored", path, s.AdditionalProperties)
	}
	for name, property := range s.Properties {
		checkStrict(t, path+"."+name, property)
	}
	if s.Items != nil {
		checkStrict(t, path+"[]", *s.Items)
	}
}

func TestInvalidValuesAreRejected(t *testing.T) {
	tests := map[string]struct {
		values []string
		want   []string // the message must contain all of them
	}{
		"UnknownName":         {[]string{"replicaz=2"}, []string{"'replicaz' not allowed"}},
		"UnknownInnerName":    {[]string{"image.name=x"}, []string{"/image", "'name' not allowed"}},
		"WrongType":           {[]string{"replicas=two"}, []string{"/replicas", "want integer"}},
		"NegativeReplicas":    {[]string{"replicas=-1"}, []string{"/replicas", "minimum"}},
		"NamespacesNotAList":  {[]string{"watchNamespaces=helpdesk"}, []string{"/watchNamespaces", "want array"}},
		"NamespaceNotAName":   {[]string{"watchNamespaces={Help_Desk}"}, []string{"/watchNamespaces/0", "Help_Desk"}},
		"NamespaceTwice":      {[]string{"watchNamespaces={a,a}"}, []string{"/watchNamespaces"}},
		"LogLevel":            {[]string{"log.level=loud"}, []string{"/log/level", "'debug', 'info', 'error'"}},
		"LogFormat":           {[]string{"log.format=xml"}, []string{"/log/format", "'json', 'console'"}},
		"NegativeTurns":       {[]string{"maxConcurrentTurns=-1"}, []string{"/maxConcurrentTurns", "want 0"}},
		"ShareOfTurns":        {[]string{"maxRunningTurnsPerNamespace=120%"}, []string{"/maxRunningTurnsPerNamespace", "120%"}},
		"Digest":              {[]string{"image.digest=sha1:abc"}, []string{"/image/digest"}},
		"PullPolicy":          {[]string{"image.pullPolicy=Sometimes"}, []string{"/image/pullPolicy", "'IfNotPresent'"}},
		"Root":                {[]string{"runAsUser=0"}, []string{"/runAsUser", "want 1"}},
		"PrivilegedPort":      {[]string{"health.port=80"}, []string{"/health/port"}},
		"SharedVolume":        {[]string{"persistence.accessMode=ReadWriteMany"}, []string{"/persistence/accessMode", "'ReadWriteOnce'"}},
		"VolumeSize":          {[]string{"persistence.size=large"}, []string{"/persistence/size", "large"}},
		"ExtraArg":            {[]string{"extraArgs={verbose}"}, []string{"/extraArgs/0", "verbose"}},
		"MonitorInterval":     {[]string{"metrics.serviceMonitor.interval=often"}, []string{"/metrics/serviceMonitor/interval", "often"}},
		"ReplicasOnOneVolume": {[]string{"replicas=2"}, []string{"replicas must be at most 1", "persistence.enabled"}},
		"ReplicasNoLeader": {
			[]string{storeURL, "replicas=2", "leaderElection.enabled=false"},
			[]string{"leaderElection.enabled must be true", "replicas"},
		},
		"RollingNoLeader": {
			[]string{"persistence.enabled=false", "leaderElection.enabled=false"},
			[]string{"leaderElection.enabled must be true", "emptyDir"},
		},
		"SharedNoLeader": {
			[]string{storeURL, "leaderElection.enabled=false"},
			[]string{"leaderElection.enabled must be true", "store.url"},
		},
		"UnknownLimit":     {[]string{"limits.maxTurns=3"}, []string{"/limits", "'maxTurns' not allowed"}},
		"LimitOutOfBounds": {[]string{"limits.maxSteps=1000"}, []string{"/limits/maxSteps", "want 100"}},
		"AutoscalingWithoutSeparateExecutors": {
			[]string{"executor.autoscaling.enabled=true"},
			[]string{"executor.autoscaling.enabled needs executor.separate"},
		},
		"AutoscalingMinimumAboveMaximum": {
			[]string{
				storeURL,
				"executor.separate=true,executor.autoscaling.enabled=true," +
					"executor.autoscaling.kind=HPA,executor.autoscaling.minReplicas=11",
			},
			[]string{"minReplicas must be at most maxReplicas, got 11 and 10"},
		},
		"AutoscalingWithoutPrometheus": {
			[]string{storeURL, "executor.separate=true,executor.autoscaling.enabled=true"},
			[]string{"executor.autoscaling.prometheusAddress must be set"},
		},
		"ScrapedTwice": {
			[]string{"metrics.podMonitor.enabled=true,metrics.serviceMonitor.enabled=true"},
			[]string{"must not both be true"},
		},
		"DashboardWithoutMetrics": {
			[]string{"metrics.enabled=false,metrics.dashboard.enabled=true"},
			[]string{"metrics.dashboard.enabled needs metrics.enabled"},
		},
		"ExecutorsOfSQLite": {[]string{"executor.separate=true"}, []string{"executor.separate needs store.url"}},
		"Retention":         {[]string{"journalRetention=aDay"}, []string{"/journalRetention", "aDay"}},
		"Quota":             {[]string{"journalQuota.total=lots"}, []string{"/journalQuota/total", "lots"}},
		"NamespaceQuota":    {[]string{"journalQuota.perNamespace=-1Gi"}, []string{"/journalQuota/perNamespace", "-1Gi"}},
		"AlertsWithoutMetrics": {
			[]string{"metrics.enabled=false", "metrics.prometheusRule.enabled=true"},
			[]string{"prometheusRule.enabled needs metrics.enabled"},
		},
		"NoPrefix": {
			[]string{"connections.allowCIDRs={tools.example.com}"},
			[]string{"/connections/allowCIDRs/0", "tools.example.com"},
		},
		"SamePort":        {[]string{"metrics.port=8081"}, []string{"metrics.port and health.port must differ"}},
		"PlainReadPort":   {[]string{"metrics.port=8082"}, []string{"metrics.port must not be 8082", "127.0.0.1:8082"}},
		"PlainReadProbes": {[]string{"health.port=8082"}, []string{"health.port must not be 8082", "127.0.0.1:8082"}},
		"ReadAPIOfSeveralJournals": {
			[]string{"readAPI.enabled=true,readAPI.tlsSecret=x,replicas=2,persistence.enabled=false"},
			[]string{"readAPI.enabled with 2 replicas needs store.url"},
		},
		"PlainReadTLS": {
			[]string{"readAPI.enabled=true,readAPI.tlsSecret=x,readAPI.port=8082"},
			[]string{"readAPI.port must not be 8082", "127.0.0.1:8082"},
		},
		"ReadAPIFromWithoutNetworkPolicy": {
			[]string{"readAPI.enabled=true,readAPI.tlsSecret=x,readAPI.from[0].ipBlock.cidr=10.0.0.0/8,networkPolicy.enabled=false"},
			[]string{"readAPI.from needs networkPolicy.enabled", "set networkPolicy.enabled=true, or leave readAPI.from empty"},
		},
		"ReaderWithoutNamespace": {[]string{"metrics.readers[0].name=prometheus"}, []string{"namespace"}},
		"ReadersWithoutRoles": {
			[]string{"metrics.readers[0].name=p,metrics.readers[0].namespace=m", "rbac.create=false"},
			[]string{"metrics.readers needs metrics.enabled and rbac.create"},
		},
		"NoPortOfAPIServer": {[]string{"networkPolicy.apiServer.ports={}"}, []string{"/networkPolicy/apiServer/ports"}},
		"APIServerByName":   {[]string{"networkPolicy.apiServer.cidrs={kubernetes.default}"}, []string{"/networkPolicy/apiServer/cidrs"}},
		"ServiceMonitorWithoutMetrics": {
			[]string{"metrics.enabled=false", "metrics.serviceMonitor.enabled=true"},
			[]string{"serviceMonitor.enabled needs metrics.enabled"},
		},
		"NoAccount": {[]string{"serviceAccount.create=false"}, []string{"serviceAccount.name must be set"}},
		"BothBudgets": {
			[]string{"podDisruptionBudget.enabled=true", "podDisruptionBudget.minAvailable=1"},
			[]string{"podDisruptionBudget.minAvailable and podDisruptionBudget.maxUnavailable must not both be set"},
		},
	}
	for name, tc := range tests {
		t.Run(name, func(t *testing.T) {
			_, err := template(t.Context(), tc.values...)
			if err == nil {
				t.Fatalf("the chart accepts %v, want an error", tc.values)
			}
			for _, want := range tc.want {
				if !strings.Contains(err.Error(), want) {
					t.Errorf("message = %v, want %q in it", err, want)
				}
			}
		})
	}
}

// TestReadAPIPortCanBeReused checks that another setting may have the default port of the plain read API, if
// the plain read API listens elsewhere, or if that other setting is not in use.
func TestReadAPIPortCanBeReused(t *testing.T) {
	for _, values := range [][]string{
		{"metrics.enabled=false,metrics.port=8082"},
		{"readAPI.port=8082"},
		{"health.port=8082", "extraArgs={--read-bind-address=0}"},
		{"health.port=8082", "extraEnv[0].name=CAPSTAN_READ_BIND_ADDRESS,extraEnv[0].value=127.0.0.1:9082"},
	} {
		if _, err := template(t.Context(), values...); err != nil {
			t.Errorf("the chart rejects %v: %v", values, err)
		}
	}
}

func TestImageReference(t *testing.T) {
	digest := "sha256:" + strings.Repeat("0", 64)
	tests := map[string]struct {
		values []string
		want   string
	}{
		"Default": {nil, "capstan-dev/capstan:0.1.0"},
		"Registry": {
			[]string{"image.registry=registry.example.com:5000/team/"},
			"registry.example.com:5000/team/capstan-dev/capstan:0.1.0",
		},
		"RegistryOnIPv6": {[]string{"image.registry=[fd00::5]:5000"}, "[fd00::5]:5000/capstan-dev/capstan:0.1.0"},
		"Tag":            {[]string{"image.tag=main"}, "capstan-dev/capstan:main"},
		"Digest":         {[]string{"image.digest=" + digest}, "capstan-dev/capstan:0.1.0@" + digest},
	}
	for name, tc := range tests {
		t.Run(name, func(t *testing.T) {
			if _, manager := managerOf(t, renderChart(t, tc.values...)); manager.Image != tc.want {
				t.Errorf("image = %q, want %q", manager.Image, tc.want)
			}
		})
	}
}

func TestLint(t *testing.T) {
	for name, values := range map[string]string{
		"Defaults": "replicas=1",
		"All": "persistence.storageClassName=fast,metrics.serviceMonitor.enabled=true," +
			"podDisruptionBudget.enabled=true,watchNamespaces={a}",
	} {
		t.Run(name, func(t *testing.T) {
			if _, err := output(t.Context(), helmPath, "lint", "--strict", "--kube-version", kubeVersion, "--set", values,
				"capstan"); err != nil {
				t.Error(err)
			}
		})
	}
}
