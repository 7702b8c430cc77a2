// Package charts_test renders the chart and the manifests in config with the pinned tools. It checks their
// guarantees: least privilege, restricted Pod Security, strict values, and a single source for CRDs and roles.
package charts_test

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"

	admissionregistrationv1 "k8s.io/api/admissionregistration/v1"
	appsv1 "k8s.io/api/apps/v1"
	autoscalingv2 "k8s.io/api/autoscaling/v2"
	batchv1 "k8s.io/api/batch/v1"
	corev1 "k8s.io/api/core/v1"
	flowcontrolv1 "k8s.io/api/flowcontrol/v1"
	networkingv1 "k8s.io/api/networking/v1"
	policyv1 "k8s.io/api/policy/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/serializer"
	utilruntime "k8s.io/apimachinery/pkg/util/runtime"
	utilyaml "k8s.io/apimachinery/pkg/util/yaml"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/yaml"
)

// kubeVersion is the Kubernetes version for which charts are rendered if no API server is available.
const kubeVersion = "1.37.0"

// The programs that the tests run. TestMain sets them.
var (
	helmPath    string         // $HELM, or built from hack/tools/helm
	renderer    *chartRenderer // hack/tools/helm/render
	kubectlPath string         // from hack/controlplane, with the etcd and the kube-apiserver of the tests
)

func TestMain(m *testing.M) {
	code, err := withTools(context.Background(), m.Run)
	if err == nil && code == 0 && allTestsRan() {
		err = checkValuesAreSet()
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		code = 1
	}
	os.Exit(code)
}

// allTestsRan reports whether no flag selects some of the tests.
func allTestsRan() bool {
	for _, name := range []string{"test.run", "test.skip", "test.list"} {
		if flag.Lookup(name).Value.String() != "" {
			return false
		}
	}
	return true
}

// checkValuesAreSet returns an error if the tests have rendered the chart never with a certain value. It is not a test,
// because it needs the renderings of all tests.
func checkValuesAreSet() error {
	unset, err := unsetValues(settings.all)
	if err == nil && len(unset) > 0 {
		err = fmt.Errorf("no test renders the chart with these values of values.yaml: %s: test their effects, for example in "+
			"TestValuesOfPods or TestValuesOfObjects", strings.Join(unset, ", "))
	}
	return err
}

// settings collects the values with which tests have rendered the chart without an error, in the form of --set.
var settings struct {
	mu  sync.Mutex
	all []string
}

func collectSettings(values []string) {
	settings.mu.Lock()
	defer settings.mu.Unlock()
	settings.all = append(settings.all, values...)
}

// withTools gets the programs and calls run.
func withTools(ctx context.Context, run func() int) (code int, err error) {
	if helmPath = os.Getenv("HELM"); helmPath == "" {
		if helmPath, err = builtTool(ctx, "helm"); err != nil {
			return 0, fmt.Errorf("failed to build helm (set HELM to a program to use another): %w", err)
		}
	}
	program, err := builtTool(ctx, "render")
	if err != nil {
		return 0, fmt.Errorf("failed to build the renderer of charts: %w", err)
	}
	if renderer, err = startRenderer(ctx, program); err != nil {
		return 0, err
	}
	defer func() { err = errors.Join(err, renderer.stop()) }()
	assets, err := output(ctx, "bash", "../hack/controlplane/get.sh")
	if err != nil {
		return 0, fmt.Errorf("failed to get kubectl and the control plane: %w", err)
	}
	kubectlPath = filepath.Join(strings.TrimSpace(string(assets)), "kubectl")
	if err := os.Setenv("KUBEBUILDER_ASSETS", filepath.Dir(kubectlPath)); err != nil {
		return 0, fmt.Errorf("failed to set KUBEBUILDER_ASSETS: %w", err)
	}
	return run(), nil
}

// builtTool returns the path of a tool of hack/tools/helm in Go's build cache. The go command links the tool
// only if it has changed.
func builtTool(ctx context.Context, name string) (path string, err error) {
	out, err := output(ctx, "go", "-C", "../hack/tools/helm", "tool", "-n", name)
	return strings.TrimSpace(string(out)), err
}

// output runs a program and returns its standard output. The error contains the standard error.
func output(ctx context.Context, program string, args ...string) ([]byte, error) {
	var stdout, stderr bytes.Buffer
	cmd := exec.CommandContext(ctx, program, args...)
	cmd.Stdout, cmd.Stderr = &stdout, &stderr
	if err := cmd.Run(); err != nil {
		return stdout.Bytes(), fmt.Errorf("failed to run %s %s: %w: %s%s", filepath.Base(program),
			strings.Join(args, " "), err, &stderr, &stdout)
	}
	return stdout.Bytes(), nil
}

// chartRenderer renders charts like helm template, in one process, because helm takes longer to start than to render.
type chartRenderer struct {
	mu    sync.Mutex
	in    *json.Encoder
	out   *json.Decoder
	close func() error
	// known caches the answers by the earlier values.yaml and the values of their requests.
	known map[string]answer
}

// request and answer are the types of hack/tools/helm/render.
type request struct {
	Chart, Release, Namespace, KubeVersion, Earlier string
	Set                                             []string
}

type answer struct{ Manifest, Notes, Error string }

func startRenderer(ctx context.Context, program string) (*chartRenderer, error) {
	cmd := exec.CommandContext(ctx, program)
	cmd.Stderr = os.Stderr
	in, err := cmd.StdinPipe()
	if err != nil {
		return nil, err
	}
	out, err := cmd.StdoutPipe()
	if err != nil {
		return nil, err
	}
	if err := cmd.Start(); err != nil {
		return nil, fmt.Errorf("failed to start the renderer of charts: %w", err)
	}
	return &chartRenderer{
		in: json.NewEncoder(in), out: json.NewDecoder(out), known: map[string]answer{},
		close: func() error { return errors.Join(in.Close(), cmd.Wait()) },
	}, nil
}

func (r *chartRenderer) stop() error { return r.close() }

// template renders the chart as release capstan in namespace capstan-system, with values in the form of --set.
func template(_ context.Context, values ...string) ([]byte, error) {
	return templateOver("", values...)
}

// templateOver renders the chart over the text of the values.yaml of an earlier chart, like helm upgrade
// --reuse-values. If earlier is empty, the defaults of the chart itself apply.
func templateOver(earlier string, values ...string) ([]byte, error) {
	a, err := render("capstan-system", earlier, values...)
	return []byte(a.Manifest), err
}

// notesIn returns the NOTES of a release in a namespace.
func notesIn(t *testing.T, namespace string, values ...string) string {
	t.Helper()
	a, err := render(namespace, "", values...)
	if err != nil {
		t.Fatal(err)
	}
	return a.Notes
}

// render returns the manifest and the NOTES of the chart for release capstan in a namespace, like templateOver.
func render(namespace, earlier string, values ...string) (answer, error) {
	return renderRelease("capstan", namespace, earlier, values...)
}

// renderRelease is like render, for a release with any name. It renders the same values only once.
func renderRelease(release, namespace, earlier string, values ...string) (answer, error) {
	r := renderer
	r.mu.Lock()
	defer r.mu.Unlock()
	key := strings.Join(append([]string{release, namespace, earlier}, values...), "\x00")
	a, ok := r.known[key]
	if !ok {
		all := request{
			Chart: "capstan", Release: release, Namespace: namespace, KubeVersion: kubeVersion,
			Earlier: earlier, Set: values,
		}
		if err := errors.Join(r.in.Encode(all), r.out.Decode(&a)); err != nil {
			return answer{}, fmt.Errorf("failed to render: %w", err)
		}
		r.known[key] = a
	}
	if a.Error != "" {
		return answer{}, errors.New(a.Error)
	}
	collectSettings(values)
	return a, nil
}

// renderChart returns the objects of the chart with these values, without its hooks and CRDs.
func renderChart(t *testing.T, values ...string) []runtime.Object {
	t.Helper()
	return slices.DeleteFunc(renderWithoutCRDs(t, values...), isHook)
}

// renderCRDs returns the CRDs of the chart with these values.
func renderCRDs(t *testing.T, values ...string) []*apiextensionsv1.CustomResourceDefinition {
	t.Helper()
	manifest, err := template(t.Context(), values...)
	if err != nil {
		t.Fatal(err)
	}
	return every[*apiextensionsv1.CustomResourceDefinition](decode(t, manifest))
}

// renderHooks returns the objects of a Helm hook: pre-delete for helm uninstall, test for helm test.
func renderHooks(t *testing.T, event string, values ...string) []runtime.Object {
	t.Helper()
	return slices.DeleteFunc(renderWithoutCRDs(t, values...), func(o runtime.Object) bool {
		object, ok := o.(client.Object)
		return !ok || object.GetAnnotations()["helm.sh/hook"] != event
	})
}

// renderWithoutCRDs returns the objects of the chart with these values, including its hooks. It leaves out the CRDs:
// they take three quarters of the time of a rendering, and few values change them.
func renderWithoutCRDs(t *testing.T, values ...string) []runtime.Object {
	t.Helper()
	manifest, err := template(t.Context(), append([]string{"crds.install=false"}, values...)...)
	if err != nil {
		t.Fatal(err)
	}
	return decode(t, manifest)
}

func isHook(o runtime.Object) bool {
	object, ok := o.(client.Object)
	return ok && object.GetAnnotations()["helm.sh/hook"] != ""
}

// renderConfig returns the objects of config/default.
func renderConfig(t *testing.T) []runtime.Object {
	t.Helper()
	manifest, err := output(t.Context(), kubectlPath, "kustomize", "../config/default")
	if err != nil {
		t.Fatal(err)
	}
	return decode(t, manifest)
}

// decode decodes a manifest with several documents strictly: an unknown or duplicate field fails the test.
func decode(t *testing.T, manifest []byte) []runtime.Object {
	t.Helper()
	reader := utilyaml.NewYAMLReader(bufio.NewReader(bytes.NewReader(manifest)))
	var objects []runtime.Object
	for {
		document, err := reader.Read()
		if errors.Is(err, io.EOF) {
			return objects
		}
		if err != nil {
			t.Fatalf("failed to split the manifest: %v", err)
		}
		object, err := documents.object(document)
		if err != nil {
			t.Fatal(err)
		}
		if object != nil {
			objects = append(objects, object)
		}
	}
}

// documentCache decodes YAML documents, each distinct text once. Nearly all values render the same CRDs, and parsing
// YAML is the most expensive part of these tests.
type documentCache struct {
	mu      sync.Mutex
	known   map[string]runtime.Object
	decoder func() runtime.Decoder
}

var documents = documentCache{
	known: map[string]runtime.Object{},
	decoder: sync.OnceValue(func() runtime.Decoder {
		scheme := runtime.NewScheme()
		for _, add := range []func(*runtime.Scheme) error{
			admissionregistrationv1.AddToScheme, appsv1.AddToScheme, autoscalingv2.AddToScheme, batchv1.AddToScheme,
			corev1.AddToScheme, flowcontrolv1.AddToScheme, networkingv1.AddToScheme, policyv1.AddToScheme, rbacv1.AddToScheme,
			apiextensionsv1.AddToScheme,
		} {
			utilruntime.Must(add(scheme))
		}
		return serializer.NewCodecFactory(scheme, serializer.EnableStrict).UniversalDeserializer()
	}),
}

// object returns a new copy of the object in a document, or nil if the document is empty.
func (d *documentCache) object(text []byte) (runtime.Object, error) {
	d.mu.Lock()
	defer d.mu.Unlock()
	object, ok := d.known[string(text)]
	if !ok {
		var err error
		if object, err = decodeDocument(d.decoder(), text); err != nil {
			return nil, err
		}
		d.known[string(text)] = object
	}
	if object == nil {
		return nil, nil
	}
	return object.DeepCopyObject(), nil
}

func decodeDocument(decoder runtime.Decoder, text []byte) (runtime.Object, error) {
	var raw unstructured.Unstructured
	if err := yaml.UnmarshalStrict(text, &raw.Object); err != nil {
		return nil, fmt.Errorf("failed to read a document: %w\n%s", err, text)
	}
	if len(raw.Object) == 0 {
		return nil, nil
	}
	// The types of the Prometheus operator and of KEDA are not dependencies of this module.
	if slices.Contains([]string{"ServiceMonitor", "PodMonitor", "PrometheusRule", "ScaledObject"}, raw.GetKind()) {
		return &raw, nil
	}
	object, _, err := decoder.Decode(text, nil, nil)
	if err != nil {
		return nil, fmt.Errorf("failed to decode %s %q strictly: %w", raw.GetKind(), raw.GetName(), err)
	}
	return object, nil
}

// every returns the objects of one type, in the order of the manifest.
func every[T runtime.Object](objects []runtime.Object) []T {
	var found []T
	for _, object := range objects {
		if typed, ok := object.(T); ok {
			found = append(found, typed)
		}
	}
	return found
}

// one returns the only object of a type.
func one[T runtime.Object](t *testing.T, objects []runtime.Object) T {
	t.Helper()
	found := every[T](objects)
	if len(found) != 1 {
		t.Fatalf("got %d objects of type %T, want one", len(found), *new(T))
	}
	return found[0]
}
