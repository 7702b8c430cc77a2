package netpolicy

import (
	"net/netip"
	"slices"
)

// builtIn are the rules that apply even if the operator sets no flag. They allow all addresses except special ones,
// such as those of the machine itself, and those of the metadata services, from which machines in a cloud get
// credentials. Each address of a metadata service has its own rule: the longest prefix decides, so no shorter prefix of
// the operator allows the address.
var builtIn = []rule{
	{"0.0.0.0/0", "an address like any other", true},
	{"::/0", "an address like any other", true},
	{"0.0.0.0/8", "an address of \"this network\" (RFC 791)", false},
	{"0.0.0.0/32", unspecified, false},
	{"127.0.0.0/8", loopback, false},
	{"169.254.0.0/16", "a link-local address", false},
	{"224.0.0.0/4", "a multicast address", false},
	{"255.255.255.255/32", "the broadcast address", false},
	{"::/96", "an IPv4-compatible address, a form that RFC 4291 deprecates", false},
	{"::/128", unspecified, false},
	{"::1/128", loopback, false},
	{"fe80::/10", "a link-local address", false},
	{"ff00::/8", "a multicast address", false},

	{"169.254.169.254/32", metadata, false},     // AWS, Azure, Google Cloud and most others
	{"169.254.170.2/32", metadata, false},       // AWS, for containers
	{"169.254.170.23/32", metadata, false},      // AWS, for pods
	{"169.254.169.252/32", metadata, false},     // Google Cloud, for pods
	{"169.254.42.42/32", metadata, false},       // Scaleway
	{"169.254.0.23/32", metadata, false},        // Tencent Cloud
	{"fd00:ec2::254/128", metadata, false},      // AWS
	{"fd00:ec2::23/128", metadata, false},       // AWS, for pods
	{"fd20:ce::254/128", metadata, false},       // Google Cloud
	{"fd00:c1::a9fe:a9fe/128", metadata, false}, // Oracle Cloud
	{"fd00:a9fe:a9fe::1/128", metadata, false},  // Akamai
	{"fd00:42::42/128", metadata, false},        // Scaleway
	{"fe80::a9fe:a9fe/128", metadata, false},    // OpenStack
	{"100.100.100.200/32", metadata, false},     // Alibaba Cloud
	{"192.0.0.192/32", metadata, false},         // Oracle Cloud
	{"168.63.129.16/32", metadata, false},       // Azure
}

// MetadataServices returns the addresses of the metadata services of clouds.
func MetadataServices() []netip.Prefix {
	var all []netip.Prefix
	for _, r := range builtIn {
		if r.what == metadata {
			all = append(all, netip.MustParsePrefix(r.prefix))
		}
	}
	return all
}

const (
	loopback    = "a loopback address"
	unspecified = "the unspecified address"
	metadata    = "an address of a cloud's metadata service"
)

// rule is a rule of the built-in table.
type rule struct {
	prefix string
	// what describes the addresses for messages.
	what  string
	allow bool
}

// Prefixes of IPv6 addresses that embed IPv4 addresses.
var (
	mapped     = netip.MustParsePrefix("::ffff:0:0/96")
	translated = netip.MustParsePrefix("::ffff:0:0:0/96")
	nat64      = netip.MustParsePrefix("64:ff9b::/96")
	localNAT64 = netip.MustParsePrefix("64:ff9b:1::/48")
	sixTo4     = netip.MustParsePrefix("2002::/16")
	teredo     = netip.MustParsePrefix("2001::/32")
	// thisNetwork has IPv4 addresses that are never the destination of a connection.
	thisNetwork = netip.MustParsePrefix("0.0.0.0/8")
)

// embedded returns all IPv4 addresses that an IPv6 address may represent. An address may have several forms at the same
// time, and the network decides which of them it uses.
func embedded(addr netip.Addr) []netip.Addr {
	if addr.Is4() {
		return nil
	}
	b := addr.As16()
	var found []netip.Addr
	add := func(a, b, c, d byte) { found = append(found, netip.AddrFrom4([4]byte{a, b, c, d})) }
	switch {
	case mapped.Contains(addr), translated.Contains(addr), nat64.Contains(addr):
		add(b[12], b[13], b[14], b[15])
	case localNAT64.Contains(addr):
		found = localTranslations(b)
	case sixTo4.Contains(addr):
		add(b[2], b[3], b[4], b[5])
	case teredo.Contains(addr): // inverts the bits of the client's address
		add(^b[12], ^b[13], ^b[14], ^b[15])
	}
	if b[8]&^2 == 0 && b[9] == 0 && b[10] == 0x5e && b[11] == 0xfe { // ISATAP, within any prefix
		add(b[12], b[13], b[14], b[15])
	}
	return found
}

// localTranslations returns the IPv4 addresses that an address of localNAT64 may represent. The operator of a network
// may choose a prefix of 48, 56, 64 or 96 bits within localNAT64, and the length decides where RFC 6052 puts the IPv4
// address. At the other places, the bytes are often zeros, of the prefix or after the address. So an address of
// thisNetwork does not count, unless all are such addresses.
func localTranslations(b [16]byte) []netip.Addr {
	found := []netip.Addr{
		netip.AddrFrom4([4]byte{b[6], b[7], b[9], b[10]}), // byte 8 is not used
		netip.AddrFrom4([4]byte{b[7], b[9], b[10], b[11]}),
		netip.AddrFrom4([4]byte{b[9], b[10], b[11], b[12]}),
		netip.AddrFrom4([4]byte{b[12], b[13], b[14], b[15]}),
	}
	if likely := slices.DeleteFunc(slices.Clone(found), thisNetwork.Contains); len(likely) > 0 {
		return likely
	}
	return found
}
