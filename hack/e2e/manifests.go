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
)
