// Command render renders charts like helm template, but many times in one process, so that the tests of the chart
// need not start helm for each set of values. It reads requests from standard input, one JSON object per line. It
// answers each with a JSON object on standard output.
package main

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"strings"

	"helm.sh/helm/v3/pkg/action"
	"helm.sh/helm/v3/pkg/chart/loader"
	"helm.sh/helm/v3/pkg/chartutil"
	"helm.sh/helm/v3/pkg/strvals"
	"sigs.k8s.io/yaml"
)

// Request is a chart to render, as release Release in namespace Namespace for Kubernetes version KubeVersion.
type Request struct {
	Chart, Release, Namespace, KubeVersion string
	// Set holds values in the form of helm --set.
	Set []string
	// Earlier is the values.yaml of an earlier chart, to imitate helm upgrade --reuse-values: the defaults of this
	// chart are then ignored. Earlier is empty for an installation.
	Earlier string
}

// Answer is the rendered manifest, including hooks, and the notes; or the error.
type Answer struct{ Manifest, Notes, Error string }

func main() {
	in, out := json.NewDecoder(os.Stdin), json.NewEncoder(os.Stdout)
	for {
		var r Request
		err := in.Decode(&r)
		if errors.Is(err, io.EOF) {
			return
		}
		var a Answer
		if err == nil {
			a, err = render(r)
		}
		if err != nil {
			a.Error = err.Error()
		}
		if err := out.Encode(a); err != nil {
			fmt.Fprintln(os.Stderr, "render:", err)
			os.Exit(1)
		}
	}
}

func render(r Request) (Answer, error) {
	c, err := loader.Load(r.Chart)
	if err != nil {
		return Answer{}, err
	}
	if r.Earlier != "" {
		c.Values = map[string]any{}
		if err := yaml.Unmarshal([]byte(r.Earlier), &c.Values); err != nil {
			return Answer{}, err
		}
	}
	values := map[string]any{}
	for _, set := range r.Set {
		if err := strvals.ParseInto(set, values); err != nil {
			return Answer{}, err
		}
	}
	install := action.NewInstall(new(action.Configuration))
	install.DryRun, install.ClientOnly, install.Replace = true, true, true
	install.ReleaseName, install.Namespace = r.Release, r.Namespace
	if install.KubeVersion, err = chartutil.ParseKubeVersion(r.KubeVersion); err != nil {
		return Answer{}, err
	}
	release, err := install.Run(c, values)
	if err != nil {
		return Answer{}, err
	}
	all := []string{release.Manifest}
	for _, hook := range release.Hooks {
		all = append(all, hook.Manifest)
	}
	return Answer{Manifest: strings.Join(all, "\n---\n"), Notes: release.Info.Notes}, nil
}
