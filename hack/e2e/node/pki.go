package node

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"fmt"
	"math/big"
	"net"
	"time"
)

// certificateLife is longer than any run of the test.
const certificateLife = 24 * time.Hour

// identity describes a certificate of the cluster's authority. A certificate with names is for a server, and any other
// certificate is for a client.
type identity struct {
	file, name   string
	organization string
	names        []string
	addresses    []string
}

var identities = []identity{
	{
		file: "apiserver", name: "kube-apiserver", addresses: []string{"127.0.0.1", nodeIP, serviceIP},
		names: []string{"kubernetes", "kubernetes.default", "kubernetes.default.svc", "kubernetes.default.svc." + domain, "localhost"},
	},
	{
		file: "kubelet-server", name: "system:node:" + nodeName, organization: "system:nodes", names: []string{nodeName},
		addresses: []string{nodeIP},
	},
	{file: "apiserver-to-kubelet", name: "kube-apiserver-kubelet-client", organization: "system:masters"},
	{file: "admin", name: "admin", organization: "system:masters"},
	{file: "controller-manager", name: "system:kube-controller-manager"},
	{file: "scheduler", name: "system:kube-scheduler"},
	{file: "kubelet", name: "system:node:" + nodeName, organization: "system:nodes"},
	{file: "proxy", name: "system:kube-proxy"},
	server("read-api", "capstan-read"), server("read-api-next", "capstan-read"), server("metrics", "capstan-metrics"),
	{file: "ada", name: "ada", organization: "helpdesk"},
	{file: "grace", name: "grace", organization: "helpdesk-leads"},
}

// server returns the identity of a certificate for a server of Capstan. The certificate is valid for the name of its
// Service in the cluster and for the address of the node.
func server(file, service string) identity {
	return identity{file: file, name: service, names: []string{service + ".capstan-system.svc"}, addresses: []string{nodeIP}}
}

// kubeconfigs are the identities that talk to the API server: parts of the cluster, and two people.
var kubeconfigs = []string{"admin", "controller-manager", "scheduler", "kubelet", "proxy", "ada", "grace"}

// makePKI writes the authority, the certificates, the key of the ServiceAccounts and the kubeconfigs.
func (c *Cluster) makePKI() error {
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return err
	}
	template := &x509.Certificate{
		SerialNumber: big.NewInt(1), Subject: pkix.Name{CommonName: "capstan-e2e"},
		NotBefore: time.Now().Add(-time.Hour), NotAfter: time.Now().Add(certificateLife),
		IsCA: true, BasicConstraintsValid: true, KeyUsage: x509.KeyUsageCertSign | x509.KeyUsageCRLSign,
	}
	der, err := x509.CreateCertificate(rand.Reader, template, template, key.Public(), key)
	if err != nil {
		return fmt.Errorf("failed to create the authority: %w", err)
	}
	authority, err := x509.ParseCertificate(der)
	if err != nil {
		return err
	}
	if err := c.writePair("ca", der, key); err != nil {
		return err
	}
	for i, id := range identities {
		if err := c.issue(id, int64(i)+2, authority, key); err != nil {
			return fmt.Errorf("failed to create the certificate %s: %w", id.file, err)
		}
	}
	accounts, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return err
	}
	if err := c.writeKey("accounts", accounts); err != nil {
		return err
	}
	for _, name := range kubeconfigs {
		if err := c.writeKubeconfig(name); err != nil {
			return err
		}
	}
	return nil
}

func (c *Cluster) issue(id identity, serial int64, authority *x509.Certificate, signer *ecdsa.PrivateKey) error {
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return err
	}
	template := &x509.Certificate{
		SerialNumber: big.NewInt(serial), Subject: pkix.Name{CommonName: id.name},
		NotBefore: authority.NotBefore, NotAfter: authority.NotAfter,
		KeyUsage: x509.KeyUsageDigitalSignature, ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageClientAuth}, DNSNames: id.names,
	}
	if id.organization != "" {
		template.Subject.Organization = []string{id.organization}
	}
	for _, address := range id.addresses {
		template.IPAddresses = append(template.IPAddresses, net.ParseIP(address))
	}
	if len(id.names) > 0 {
		template.ExtKeyUsage = []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth}
	}
	der, err := x509.CreateCertificate(rand.Reader, template, authority, key.Public(), signer)
	if err != nil {
		return err
	}
	return c.writePair(id.file, der, key)
}

func (c *Cluster) writePair(name string, der []byte, key *ecdsa.PrivateKey) error {
	if _, err := c.write(string(pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: der})), "pki", name+".crt"); err != nil {
		return err
	}
	return c.writeKey(name, key)
}

func (c *Cluster) writeKey(name string, key *ecdsa.PrivateKey) error {
	der, err := x509.MarshalECPrivateKey(key) // the API server accepts the key of the ServiceAccounts only in this form
	if err != nil {
		return err
	}
	_, err = c.write(string(pem.EncodeToMemory(&pem.Block{Type: "EC PRIVATE KEY", Bytes: der})), "pki", name+".key")
	return err
}

func (c *Cluster) writeKubeconfig(name string) error {
	_, err := c.write(fmt.Sprintf(`apiVersion: v1
kind: Config
clusters:
- {name: e2e, cluster: {server: %q, certificate-authority: %q}}
users:
- {name: user, user: {client-certificate: %q, client-key: %q}}
contexts:
- {name: e2e, context: {cluster: e2e, user: user}}
current-context: e2e
`, apiServer, c.certificate("ca"), c.certificate(name), c.key(name)), name+".conf")
	return err
}

// Pair returns the paths of a certificate of the cluster's authority and of its key. The name read-api is the
// certificate of the read API, read-api-next the certificate that replaces it, and metrics that of the metrics.
func (c *Cluster) Pair(name string) (certificateFile, keyFile string) {
	return c.certificate(name), c.key(name)
}

func (c *Cluster) certificate(name string) string { return c.path("pki", name+".crt") }

func (c *Cluster) key(name string) string { return c.path("pki", name+".key") }

// Authority returns the path of the certificate of the cluster's authority.
func (c *Cluster) Authority() string { return c.certificate("ca") }

// KubeconfigOf returns the path of a person's kubeconfig, which has a client certificate: ada is in the group helpdesk,
// grace in helpdesk-leads. Neither has any permission before a test grants it.
func (c *Cluster) KubeconfigOf(person string) string { return c.path(person + ".conf") }
