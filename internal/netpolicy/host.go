package netpolicy

import (
	"fmt"
	"strings"

	"golang.org/x/net/idna"
)

// ASCIIHost returns a host in lower case and in the form to which net/http connects. A host with other characters than
// ASCII can stand for an address or for another name: "１０.0.0.1" stands for 10.0.0.1, and "a。example" for a.example.
// So hosts must be compared and checked in this form.
func ASCIIHost(host string) (string, error) {
	if isASCII(host) {
		return strings.ToLower(host), nil // net/http does not convert such a host, either
	}
	ascii, err := idna.Lookup.ToASCII(host)
	if err != nil {
		return "", fmt.Errorf("%q is not a valid host name: %w", host, err)
	}
	return strings.ToLower(ascii), nil
}

func isASCII(s string) bool { return !strings.ContainsFunc(s, func(r rune) bool { return r > 0x7f }) }
