package main

import _ "embed"

var (
	// storageManifest has the default StorageClass, and one volume on the node.
	//go:embed manifests/storage.yaml
	storageManifest string
	// serversManifest has the models and the tool servers.
	//go:embed manifests/servers.yaml
	serversManifest string
	// wipeManifest has the Agent whose Turns wipe disks, and all that it needs.
	//go:embed manifests/wipe.yaml
	wipeManifest string
)
