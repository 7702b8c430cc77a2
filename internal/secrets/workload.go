package secrets

import (
	"errors"
	"fmt"
	"io"
	"os"
	"strings"

	"k8s.io/apimachinery/pkg/util/validation"
)

// The flags of the manager by which the operator of a cluster offers tokens of workload identities.
const (
	// WorkloadTokensFlag names the tokens, and the hosts to which they may be sent.
	WorkloadTokensFlag = "workload-tokens"
	// WorkloadTokenDirFlag names the directory of their files.
	WorkloadTokenDirFlag = "workload-token-dir"
)

// WorkloadTokens are files with tokens of workload identities, which another program renews. They identify this process
// and not the author of an object. So only the operator of the cluster offers them, each to one namespace and for
// certain hosts, and objects name them without a path. The zero value has no tokens. It is nil outside of a cluster.
type WorkloadTokens struct {
	dir string
	// hosts are the hosts of each token, as in AllowedHosts, by NAMESPACE/NAME.
	hosts map[string]string
}

// ParseWorkloadTokens returns the tokens of a directory. The token NAME of a namespace is in the file
// DIR/NAMESPACE/NAME. Each entry is NAMESPACE/NAME=HOST, with a host as in AllowedHosts. A token with several hosts has
// several entries. The error names the first invalid entry.
func ParseWorkloadTokens(dir string, entries []string) (*WorkloadTokens, error) {
	w := &WorkloadTokens{dir: dir, hosts: map[string]string{}}
	for _, entry := range entries {
		name, host, _ := strings.Cut(strings.TrimSpace(entry), "=")
		namespace, short, _ := strings.Cut(name, "/")
		invalid := append(validation.IsDNS1123Label(namespace), validation.IsDNS1123Label(short)...)
		if len(invalid) > 0 || strings.Trim(host, " */:.") == "" {
			return nil, fmt.Errorf("--%s: %q must be NAMESPACE/NAME=HOST, such as helpdesk/gateway=https://llm.example.com",
				WorkloadTokensFlag, entry)
		}
		if w.hosts[name] != "" {
			host = w.hosts[name] + "," + host
		}
		w.hosts[name] = host
	}
	return w, nil
}

// Read returns a token of a namespace for requests to a URL. It returns an *Error if the token is not offered to the
// namespace, is not for this host, or cannot be read.
func (w *WorkloadTokens) Read(namespace, name, to string) (string, error) {
	key := namespace + "/" + name
	var hosts string
	if w != nil {
		hosts = w.hosts[key]
	}
	switch {
	case w == nil:
		return "", &Error{Reason: fmt.Sprintf("the workload token %q cannot be used, because only the manager in a cluster has "+
			"such tokens: set credentialsRef instead", name)}
	case hosts == "":
		return "", &Error{Reason: fmt.Sprintf("there is no workload token %q for namespace %q: the operator of the "+
			"cluster can add %s to the manager's --%s", name, namespace, key, WorkloadTokensFlag)}
	case !allows(hosts, to):
		return "", &Error{Kind: OtherHost, Reason: fmt.Sprintf("the workload token %q of namespace %q must not be sent "+
			"to %s: the manager's --%s does not name the host", name, namespace, to, WorkloadTokensFlag)}
	}
	token, err := w.readFile(key)
	if err != nil {
		return "", &Error{Reason: fmt.Sprintf("the file of the workload token %q of namespace %q %s", name, namespace, err)}
	}
	return token, nil
}

// readFile returns the content of a file in the directory, without surrounding white space. A link that leads out of
// the directory is an error.
func (w *WorkloadTokens) readFile(path string) (string, error) {
	root, err := os.OpenRoot(w.dir)
	if err != nil {
		return "", fmt.Errorf("cannot be read: the directory of the manager's --%s does not exist", WorkloadTokenDirFlag)
	}
	defer root.Close() //nolint:errcheck // because nothing was written
	file, err := root.Open(path)
	if err != nil {
		return "", errors.New("cannot be read: the operator of the cluster must mount it")
	}
	defer file.Close() //nolint:errcheck // because nothing was written
	data, err := io.ReadAll(io.LimitReader(file, MaxCredential+1))
	token := strings.TrimSpace(string(data))
	switch {
	case err != nil:
		return "", errors.New("cannot be read: the operator of the cluster must mount it")
	case token == "":
		return "", errors.New("is empty: it must contain a token")
	case len(data) > MaxCredential || !isHeaderValue(token):
		return "", fmt.Errorf("has no valid token: a token has at most %d characters, all of them printable ASCII", MaxCredential)
	}
	return token, nil
}
