package main

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"encoding/pem"
	"errors"
	"fmt"
	"math/big"
	"net"
	"os"
	"path/filepath"
	"strings"

	"sigs.k8s.io/yaml"

	"github.com/capstan-dev/capstan/hack/e2e/node"
)

const (
	// teamNamespace is the namespace of the team, which has the Agents of examples/tools.
	teamNamespace = "examples"
	// teamTurn is the Turn that a member of the team creates.
	teamTurn = "printer-of-ada"
	// accessPage is the page whose commands give a team access.
	accessPage = "docs/access.md"
	// readSecret is the Secret with the certificate of the read API.
	readSecret = "capstan-read"
)

// team follows docs/access.md for two people with client certificates who have no permissions in the manager's
// namespace. Ada, of the group helpdesk, creates a Turn. Grace, of helpdesk-leads, reads the journal and approves the
// call at the read API. Then the certificate of the read API is replaced, which must not need a restart.
func (t *test) team(ctx context.Context) error {
	page, err := os.ReadFile(filepath.Join(t.options.root, accessPage))
	if err != nil {
		return err
	}
	for _, heading := range []string{"A team in three commands", "With a client certificate"} {
		commands, err := pageCommands(accessPage, string(page), heading)
		if err != nil {
			return err
		}
		// The page uses another namespace than this test.
		script := strings.NewReplacer("-n helpdesk ", "-n "+teamNamespace+" ", "-n helpdesk\n", "-n "+teamNamespace+"\n",
			"helpdesk:", teamNamespace+":").Replace(commands)
		if _, err := t.output(ctx, "", "bash", "-euo", "pipefail", "-c",
			"export PATH="+filepath.Dir(t.cluster.Kubectl)+":$PATH\n"+script); err != nil {
			return fmt.Errorf("failed to follow %s: %w", accessPage, err)
		}
	}
	if err := t.replaceCertificate(ctx, readSecret, "read-api"); err != nil {
		return err
	}
	if err := t.install(ctx, "readAPI.enabled=true", "readAPI.tlsSecret="+readSecret, "readAPI.service.type=NodePort"); err != nil {
		return err
	}
	port, err := t.output(ctx, "", t.cluster.Kubectl, "-n", system, "get", "service/capstan-read", "-o",
		"jsonpath={.spec.ports[0].nodePort}")
	if err != nil {
		return err
	}
	address := net.JoinHostPort(node.Address, port)
	if err := t.askAndApprove(ctx, "https://"+address); err != nil {
		return err
	}
	if err := t.rotate(ctx, address); err != nil {
		return err
	}
	if err := t.missingNamespace(ctx); err != nil {
		return err
	}
	if err := t.kubectl(ctx, "-n", system, "delete", "secret", readSecret); err != nil {
		return err
	}
	return t.install(ctx)
}

// pageCommands returns the first block of commands below a heading of a page. name is the name of the page.
func pageCommands(name, page, heading string) (string, error) {
	_, section, _ := strings.Cut(page, "\n## "+heading+"\n")
	section, _, _ = strings.Cut(section, "\n## ")
	_, block, found := strings.Cut(section, "\n```sh\n")
	commands, _, closed := strings.Cut(block, "```")
	if !found || !closed {
		return "", fmt.Errorf("%s has no commands below %q", name, heading)
	}
	return commands, nil
}

// askAndApprove lets Ada ask for a call that requires approval, and Grace approve it at the read API.
func (t *test) askAndApprove(ctx context.Context, server string) error {
	manifest, err := os.ReadFile(filepath.Join(t.options.root, "examples/tools/turn.yaml"))
	if err != nil {
		return err
	}
	var turn map[string]any
	if err := yaml.Unmarshal(manifest, &turn); err != nil {
		return err
	}
	turn["metadata"] = map[string]any{"name": teamTurn, "namespace": teamNamespace}
	if manifest, err = yaml.Marshal(turn); err != nil {
		return err
	}
	ada, grace := t.cluster.KubeconfigOf("ada"), t.cluster.KubeconfigOf("grace")
	capstan := filepath.Join(t.options.programs, "capstan")
	reads := []string{"-n", teamNamespace, "--server", server, "--server-ca-file", t.cluster.Authority()}
	wait := []string{"-n", teamNamespace, "wait", "turn/" + teamTurn, "--timeout", patience.String()}
	if _, err := t.outputAs(ctx, ada, string(manifest), t.cluster.Kubectl, "create", "-f", "-"); err != nil {
		return err
	}
	if _, err := t.outputAs(ctx, ada, "", t.cluster.Kubectl, append(wait, "--for=jsonpath={.status.pendingApprovals}")...); err != nil {
		return err
	}
	for _, denied := range []struct {
		name, kubeconfig string
		args             []string
	}{
		{"Ada reads the journal", ada, append([]string{"logs", teamTurn}, reads...)},
		{"Ada approves her call", ada, append([]string{"approve", teamTurn, "-y", "--without-arguments"}, reads...)},
		{"Grace forwards to a Pod", grace, []string{"logs", teamTurn, "-n", teamNamespace}},
	} {
		out, err := t.outputAs(ctx, denied.kubeconfig, "", capstan, denied.args...)
		if err == nil || !strings.Contains(err.Error(), "forbidden") {
			//nolint:errorlint // because err may be nil
			return fmt.Errorf("%s: error %v, output %q; want an error with \"forbidden\"", denied.name, err, out)
		}
		t.say("Denied: %s: %s", denied.name, lastLine(err.Error()))
	}
	journal, err := t.outputAs(ctx, grace, "", capstan, append([]string{"logs", teamTurn}, reads...)...)
	if err != nil {
		return err
	}
	if !strings.Contains(journal, "close_ticket") {
		return fmt.Errorf("the journal that Grace reads does not contain the call of close_ticket: %s", journal)
	}
	approved, err := t.outputAs(ctx, grace, "", capstan, append([]string{"approve", teamTurn, "-y"}, reads...)...)
	if err != nil {
		return err
	}
	t.say("Grace: %s", lastLine(approved))
	if _, err := t.outputAs(ctx, ada, "", t.cluster.Kubectl, append(wait, "--for=condition=Succeeded")...); err != nil {
		return err
	}
	by, err := t.output(ctx, "", t.cluster.Kubectl, "-n", teamNamespace, "get", "toolapprovals", "-o",
		`jsonpath={.items[?(@.spec.turnRef.name=="`+teamTurn+`")].spec.decidedBy}`)
	if err == nil && by != "grace" {
		err = fmt.Errorf("the call was decided by %q, want grace", by)
	}
	return err
}

// replaceCertificate writes a certificate into a Secret, as cert-manager does when it renews one. name is the name of
// the pair of the certificate and its key.
func (t *test) replaceCertificate(ctx context.Context, secret, name string) error {
	certificateFile, keyFile := t.cluster.Pair(name)
	manifest, err := t.output(ctx, "", t.cluster.Kubectl, "-n", system, "create", "secret", "tls", secret,
		"--cert="+certificateFile, "--key="+keyFile, "--dry-run=client", "-o", "yaml")
	if err != nil {
		return err
	}
	return t.apply(ctx, manifest)
}

// rotate replaces the certificate, and waits until the read API presents the new certificate. The kubelet writes it
// to the Pod's volume within about a minute. The Pod must stay the same and must not restart.
func (t *test) rotate(ctx context.Context, address string) error {
	const pods = "jsonpath={range .items[*]}{.metadata.name} {.status.containerStatuses[0].restartCount}{end}"
	query := []string{"-n", system, "get", "pods", "-l", managerPods, "-o", pods}
	before, err := t.output(ctx, "", t.cluster.Kubectl, query...)
	if err != nil {
		return err
	}
	if err := t.replaceCertificate(ctx, readSecret, "read-api-next"); err != nil {
		return err
	}
	file, _ := t.cluster.Pair("read-api-next")
	want, err := readCertificate(file)
	if err != nil {
		return err
	}
	if err := t.poll(ctx, 2*patience, func(ctx context.Context) (bool, string, error) {
		serial, err := t.presented(ctx, address)
		return err == nil && serial.Cmp(want.SerialNumber) == 0, "the read API still presents the old certificate", err
	}); err != nil {
		return err
	}
	after, err := t.output(ctx, "", t.cluster.Kubectl, query...)
	if err == nil && after != before {
		err = fmt.Errorf("the Pod and its restarts were %q before the certificate was replaced, and are %q", before, after)
	}
	return err
}

// presented returns the serial number of the certificate that a server presents. The cluster's authority must have
// issued the certificate.
func (t *test) presented(ctx context.Context, address string) (*big.Int, error) {
	authority, err := readCertificate(t.cluster.Authority())
	if err != nil {
		return nil, err
	}
	roots := x509.NewCertPool()
	roots.AddCert(authority)
	dialer := tls.Dialer{Config: &tls.Config{RootCAs: roots, MinVersion: tls.VersionTLS12}}
	connection, err := dialer.DialContext(ctx, "tcp", address)
	if err != nil {
		return nil, err
	}
	defer func() { _ = connection.Close() }() // nothing was sent
	secure := connection.(*tls.Conn)          //nolint:forcetypeassert // because a tls.Dialer returns nothing else
	return secure.ConnectionState().PeerCertificates[0].SerialNumber, nil
}

func readCertificate(file string) (*x509.Certificate, error) {
	certificate, err := os.ReadFile(file)
	if err != nil {
		return nil, err
	}
	block, _ := pem.Decode(certificate)
	if block == nil {
		return nil, fmt.Errorf("%s has no certificate", file)
	}
	return x509.ParseCertificate(block.Bytes)
}

// missingNamespace checks that helm rejects a namespace of watchNamespaces that does not exist, and names it.
func (t *test) missingNamespace(ctx context.Context) error {
	err := t.upgrade(ctx, "watchNamespaces={nowhere}")
	if err == nil {
		return errors.New("helm upgrade accepts a namespace that does not exist, want an error")
	}
	if !strings.Contains(err.Error(), `watchNamespaces: namespace "nowhere" does not exist: create it first`) {
		return fmt.Errorf("helm upgrade must name the namespace that does not exist: %w", err)
	}
	t.say("Denied: %s", lastLine(err.Error()))
	return nil
}

func lastLine(text string) string {
	lines := strings.Split(strings.TrimSpace(text), "\n")
	return lines[len(lines)-1]
}
