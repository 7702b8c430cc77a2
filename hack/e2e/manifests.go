package main

import _ "embed"

var (
	// storageManifest contains the default StorageClass and one volume on the node.
	//go:embed manifests/storage.yaml
	storageManifest string
	// serversManifest contains the models and the tool servers.
	//go:embed manifests/servers.yaml
	serversManifest string
	// wipeManifest contains the Agent whose Turns wipe disks, and the objects that it needs.
	//go:embed manifests/wipe.yaml
	wipeManifest string
	// wrongKeyManifest contains a ModelProvider and its Secret, with the key $KEY.
	//go:embed manifests/wrongkey.yaml
	wrongKeyManifest string
	// wrongPathManifest contains a ToolServer whose URL has the path $PATH.
	//go:embed manifests/wrongpath.yaml
	wrongPathManifest string
	// otherKindsManifest contains the kinds of other operators for which the chart creates objects.
	//go:embed manifests/otherkinds.yaml
	otherKindsManifest string
	// skillsManifest contains a ConfigMap with skills.
	//go:embed manifests/skills.yaml
	skillsManifest string
	// scrapeManifest contains a Pod that requests the metrics as the ServiceAccount $NAME.
	//go:embed manifests/scrape.yaml
	scrapeManifest string
)
