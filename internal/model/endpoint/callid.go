package endpoint

import (
	"crypto/sha256"
	"encoding/hex"
	"strings"
)

// CallIDForm is a form of the IDs of calls.
type CallIDForm int

const (
	// CallIDsAny allows IDs of up to 40 characters.
	CallIDsAny CallIDForm = iota
	// CallIDsPlain allows up to 40 letters, digits, '_' and '-'.
	CallIDsPlain
	// CallIDsNine allows 9 letters and digits.
	CallIDsNine
)

// Bounds of APIs for parts of an earlier reply that a request repeats, in bytes.
const (
	maxCallID   = 40 // of CallIDsAny and CallIDsPlain
	maxToolName = 64
)

// replacedPrefix is the beginning of a replacement that CallID makes for CallIDsAny and CallIDsPlain. 32 hexadecimal
// digits follow.
const replacedPrefix = "call_"

// nine is the length of the IDs of CallIDsNine.
const nine = 9

// alphanumeric are the characters of the IDs of CallIDsNine.
const alphanumeric = "0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz"

// CallID returns the ID of a call in the form that an API accepts. It replaces an ID that has another form. The same ID
// always gives the same result. With CallIDsAny and CallIDsPlain, CallID also replaces an ID that looks like its own
// result, so different IDs stay different. With CallIDsNine it cannot: every nine letters or digits are a valid ID, so
// an equal result is possible, but very unlikely.
func CallID(id string, form CallIDForm) string {
	sum := sha256.Sum256([]byte(id))
	if form == CallIDsNine {
		if len(id) == nine && strings.Trim(id, alphanumeric) == "" {
			return id
		}
		made := make([]byte, nine)
		for i := range made {
			made[i] = alphanumeric[int(sum[i])%len(alphanumeric)]
		}
		return string(made)
	}
	hasOther := form == CallIDsPlain && strings.ContainsFunc(id, func(r rune) bool { return !isPlain(r) })
	if len(id) <= maxCallID && !isReplacement(id) && !hasOther {
		return id
	}
	return replacedPrefix + hex.EncodeToString(sum[:16])
}

// isReplacement reports whether an ID looks like a replacement that CallID makes for CallIDsAny and CallIDsPlain.
func isReplacement(id string) bool {
	digits, ok := strings.CutPrefix(id, replacedPrefix)
	_, err := hex.DecodeString(digits)
	return ok && err == nil && len(digits) == 32
}

// isPlain reports whether names of tools, and IDs of CallIDsPlain, may contain r.
func isPlain(r rune) bool { return strings.ContainsRune(alphanumeric+"_-", r) }

// ToolName makes the name of a call valid for APIs, which refuse the whole request if a model made up an
// invalid name.
func ToolName(name string) string {
	name = strings.Map(func(r rune) rune {
		if isPlain(r) {
			return r
		}
		return '_'
	}, name)
	return name[:min(len(name), maxToolName)]
}
