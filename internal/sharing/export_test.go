package sharing

// MaxNamespaces is maxNamespaces, for tests.
const MaxNamespaces = maxNamespaces
