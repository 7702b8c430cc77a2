package netpolicy

import (
	"fmt"
	"regexp"
	"strings"
)

// reserved matches the headers that no tenant sets, in lower case and with hyphens. The schema of headers has the same expression.
var reserved = regexp.MustCompile(`^(authorization|cookie2?|set-cookie2?|host|proxy-.*|connection|keep-alive|te|trailer|transfer-encoding|upgrade|expect|content-(length|type|encoding)|accept-encoding|forwarded|via|x-forwarded(-.*)?|x-real-ip|x-client-ip|x-cluster-client-ip|true-client-ip|cf-connecting-ip|x-original-.*|x-rewrite-url|x-envoy-.*|x-remote-.*|impersonate-.*)$`)

// CheckHeader returns an error for the name of a header that the author of an object must not set: those of the connection and of the
// message, of identities, and of where a request comes from. A server behind a proxy may take them for the proxy's word. The schema refuses
// them too, but not in objects from before it did.
func CheckHeader(name string) error {
	if reserved.MatchString(strings.ReplaceAll(strings.ToLower(name), "_", "-")) {
		return fmt.Errorf("header %q must not be set: remove it from headers", name)
	}
	return nil
}
