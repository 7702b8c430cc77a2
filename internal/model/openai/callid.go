package openai

import (
	"crypto/sha256"
	"encoding/hex"
	"strings"
)

// shortened is the beginning of an ID that callID made from another one. 32 hexadecimal digits follow.
const shortened = "call_"

// nine is the length of the IDs of CallIDsNine.
const nine = 9

// alphanumeric are the characters of the IDs of CallIDsNine.
const alphanumeric = "0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz"

// callID replaces the ID of a call that does not have the form that the API accepts. The same ID always gives the same
// result, and different IDs give different results. So callID also replaces an ID that looks like its own results.
func callID(id string, form CallIDForm) string {
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
	isOther := form == CallIDsPlain && strings.ContainsFunc(id, func(r rune) bool { return !isPlain(r) })
	if len(id) <= maxCallID && !isShortened(id) && !isOther {
		return id
	}
	return shortened + hex.EncodeToString(sum[:16])
}

// isShortened reports whether an ID looks like a result of callID.
func isShortened(id string) bool {
	digits, ok := strings.CutPrefix(id, shortened)
	_, err := hex.DecodeString(digits)
	return ok && err == nil && len(digits) == 32
}

// isPlain reports whether names of tools, and IDs of CallIDsPlain, may have a character.
func isPlain(r rune) bool { return strings.ContainsRune(alphanumeric+"_-", r) }
