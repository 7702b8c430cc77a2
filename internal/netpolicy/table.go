package netpolicy

import "net/netip"

// builtIn are the rules without any flag. They allow all addresses except special ones, such as those of the machine
// itself, and those of the services from which cloud machines get credentials. The addresses of these services have
// entries of their own, so that a wider rule cannot allow them.
var builtIn = []rule{
	{"0.0.0.0/0", "an address like any other", true},
	{"::/0", "an address like any other", true},
	{"0.0.0.0/8", "an unspecified address", false},
	{"127.0.0.0/8", loopback, false},
	{"169.254.0.0/16", "a link-local address", false},
	{"224.0.0.0/4", "a multicast address", false},
	{"255.255.255.255/32", "the broadcast address", false},
	{"::/96", "an unspecified address", false},
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

const (
	loopback = "a loopback address"
	metadata = "an address of a cloud's metadata service"
)

// rule is a rule of the built-in table.
type rule struct {
	prefix string
	// what describes the addresses for messages.
	what  string
	allow bool
}

var (
	mapped     = netip.MustParsePrefix("::ffff:0:0/96")
	translated = netip.MustParsePrefix("::ffff:0:0:0/96")
	nat64      = netip.MustParsePrefix("64:ff9b::/96")
	localNAT64 = netip.MustParsePrefix("64:ff9b:1::/48")
	sixTo4     = netip.MustParsePrefix("2002::/16")
	teredo     = netip.MustParsePrefix("2001::/32")
)

// embedded returns the IPv4 address that an IPv6 address represents, if there is one.
func embedded(addr netip.Addr) (netip.Addr, bool) {
	bytes := addr.As16()
	switch {
	case addr.Is4():
	case mapped.Contains(addr) || addr.Is4In6(), translated.Contains(addr), nat64.Contains(addr), localNAT64.Contains(addr):
		return netip.AddrFrom4([4]byte(bytes[12:])), true
	case sixTo4.Contains(addr):
		return netip.AddrFrom4([4]byte(bytes[2:6])), true
	}
	if bytes[8]&^2 == 0 && bytes[9] == 0 && bytes[10] == 0x5e && bytes[11] == 0xfe { // ISATAP, within any prefix
		return netip.AddrFrom4([4]byte(bytes[12:])), true
	}
	if teredo.Contains(addr) { // inverts the bits of the client's address
		return netip.AddrFrom4([4]byte{^bytes[12], ^bytes[13], ^bytes[14], ^bytes[15]}), true
	}
	return netip.Addr{}, false
}
