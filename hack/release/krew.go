package main

import (
	"sigs.k8s.io/yaml"
)

// krewFile is the name of the kubectl plugin's manifest in krew's index.
const krewFile = "krew.yaml"

// krewPlugin is a manifest of krew's version v1alpha2.
type krewPlugin struct {
	APIVersion string `json:"apiVersion"`
	Kind       string `json:"kind"`
	Metadata   struct {
		Name string `json:"name"`
	} `json:"metadata"`
	Spec krewSpec `json:"spec"`
}

type krewSpec struct {
	Version          string         `json:"version"`
	Homepage         string         `json:"homepage"`
	ShortDescription string         `json:"shortDescription"`
	Description      string         `json:"description"`
	Platforms        []krewPlatform `json:"platforms"`
}

type krewPlatform struct {
	Selector krewSelector `json:"selector"`
	URI      string       `json:"uri"`
	SHA256   string       `json:"sha256"`
	Bin      string       `json:"bin"`
	Files    []krewMove   `json:"files"`
}

type krewSelector struct {
	MatchLabels map[string]string `json:"matchLabels"`
}

// krewMove selects a file of the archive and the directory in which it is installed.
type krewMove struct {
	From string `json:"from"`
	To   string `json:"to"`
}

func newKrewPlatform(p platform, uri string, archive []byte) krewPlatform {
	bin := "capstan" + p.executable()
	return krewPlatform{
		Selector: krewSelector{map[string]string{"os": p.os, "arch": p.arch}}, URI: uri, SHA256: hexSum(archive), Bin: bin,
		Files: []krewMove{{bin, "."}, {"LICENSE", "."}},
	}
}

func krewManifest(version string, platforms []krewPlatform) ([]byte, error) {
	var p krewPlugin
	p.APIVersion, p.Kind, p.Metadata.Name = "krew.googlecontainertools.github.com/v1alpha2", "Plugin", "capstan"
	p.Spec = krewSpec{
		Version: "v" + version, Homepage: source, ShortDescription: "Show, approve and cancel Turns of LLM agents",
		Description: `capstan works with Capstan, which runs LLM agents on Kubernetes one Turn at a time.
It shows what a Turn did and does (kubectl capstan logs), decides about calls of tools that need
approval (kubectl capstan approve, deny), and cancels Turns. Without a cluster, it shows the exact
prompt of a Turn (kubectl capstan render) and runs it (kubectl capstan run).
`,
		Platforms: platforms,
	}
	return yaml.Marshal(p)
}
