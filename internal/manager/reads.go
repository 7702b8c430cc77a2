package manager

import (
	"context"
	"net"
	"os"
	"strings"

	"github.com/capstan-dev/capstan/internal/readapi"
)

// addReads adds the read API, on every replica. It returns the annotations that publish its address in the Lease of
// the executor.
func (p *parts) addReads(ctx context.Context) (annotations map[string]string, err error) {
	o := p.options
	annotations = map[string]string{readapi.AddressAnnotation: "", readapi.PortAnnotation: ""}
	none := func(address string) bool { return address == "" || address == "0" }
	if none(o.ReadBindAddress) && none(o.ReadTLSBindAddress) {
		return annotations, nil
	}
	p.reads, err = readapi.Listen(ctx, readapi.Options{
		Address: o.ReadBindAddress, TLSAddress: o.ReadTLSBindAddress, CertFile: o.ReadTLSCertFile, KeyFile: o.ReadTLSKeyFile,
		Journal: p.store, Records: p.store, Memories: p.store,
		Credentials: p.credentials, Turns: p.manager.GetAPIReader(), Access: p.access,
		RolePrefix: o.RolePrefix, Now: p.now, Log: p.log.WithName("read-api"),
	})
	if err != nil {
		return nil, err
	}
	url := p.reads.URL()
	if host, ok := strings.CutPrefix(url, "http://"); ok { // a forwarded port leads to the loopback interface of the Pod
		if _, port, err := net.SplitHostPort(host); err == nil && inPod() {
			annotations[readapi.PortAnnotation] = port
		} else {
			annotations[readapi.AddressAnnotation] = url
		}
	}
	return annotations, p.manager.Add(p.reads)
}

// inPod reports whether this process runs in a Pod.
func inPod() bool {
	_, ok := os.LookupEnv("KUBERNETES_SERVICE_HOST")
	return ok
}

// closeReads closes the listener of the read API, even if it has never served.
func (p *parts) closeReads() {
	if p.reads != nil {
		_ = p.reads.Close() // already closed if the server has run
	}
}
