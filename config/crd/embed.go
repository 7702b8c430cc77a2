// Package crd holds the generated CustomResourceDefinitions, so that programs and tests use the same schemas that a
// cluster gets.
package crd

import "embed"

// Bases holds the generated CustomResourceDefinitions, one YAML file per kind, in the folder "bases".
//
//go:embed bases/*.yaml
var Bases embed.FS
