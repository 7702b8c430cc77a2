// Package manifest reads Capstan's objects from files, without a cluster. It processes a manifest as an API server
// does: it rejects unknown fields, fills in defaults, and checks the schema and the CEL rules of the embedded CRDs with
// the API server's own libraries.
package manifest
