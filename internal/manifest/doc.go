// Package manifest reads Capstan's objects from files, without a cluster. It treats a manifest as an API server
// would: it refuses unknown fields, fills in defaults, and checks the schema and the CEL rules of the embedded CRDs
// with the API server's own libraries.
package manifest
