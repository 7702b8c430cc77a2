// Package manifest reads Capstan's objects from files, without a cluster. A manifest gets the same treatment that an API
// server would give it: unknown fields are refused, defaults are filled in, and the schema and the CEL rules of the
// embedded CRDs are checked, by the API server's own libraries.
package manifest
