package netpolicy

import (
	"fmt"
	"regexp"
	"strings"
)

// reserved matches the headers that no tenant may set, in lower case and with hyphens. The schema of headers has
// the same expression.
var reserved = regexp.MustCompile(`^(authorization|cookie2?|set-cookie2?|host|proxy-.*|` +
	`connection|keep-alive|te|trailer|transfer-encoding|upgrade|` +
	`expect|content-(length|type|encoding)|accept-encoding|forwarded|via|` +
	`x-forwarded(-.*)?|x-real-ip|x-client-ip|x-cluster-client-ip|true-client-ip|` +
	`cf-connecting-ip|x-original-.*|x-rewrite-url|x-envoy-.*|x-remote-.*|impersonate-.*)$`)

// CheckHeader returns an error if the author of an object must not set this header. It refuses headers of the
// connection and the message, of identities, and of the origin of a request, because a server behind a proxy may trust
// them as if the proxy had set them. The schema rejects them as well, but not in objects that are older than that rule.
func CheckHeader(name string) error {
	if reserved.MatchString(strings.ReplaceAll(strings.ToLower(name), "_", "-")) {
		return fmt.Errorf("header %q must not be set: remove it from headers", name)
	}
	return nil
}
