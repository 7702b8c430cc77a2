package executor

import (
	"crypto/sha256"
	"encoding/hex"
	"regexp"
	"strconv"
	"strings"

	coordinationv1 "k8s.io/api/coordination/v1"
)

// storeLeasePrefix precedes the store in the name of its Lease.
const storeLeasePrefix = "capstan-store-"

// storeLeaseName matches the IDs that are used unchanged in the name of a Lease. The IDs of SQLite and PostgreSQL
// match.
var storeLeaseName = regexp.MustCompile(`^[a-z0-9]([-a-z0-9]{0,62}[a-z0-9])?$`)

// StoreLeaseName returns the name of the Lease that keeps the position of the store with the given ID after the Leases
// of its executors were deleted. That Lease has no holder. It has LeaseLabel, StoreAnnotation and PositionAnnotation
// like the Lease of an executor, so that PublishedPosition counts it, also in older versions.
//
// Different IDs have different names: an ID that cannot be part of a name is hashed, and the hash follows a period,
// which no ID that is used unchanged has.
func StoreLeaseName(id string) string {
	if storeLeaseName.MatchString(id) {
		return storeLeasePrefix + id
	}
	hash := sha256.Sum256([]byte(id))
	return storeLeasePrefix + "sha256." + hex.EncodeToString(hash[:])
}

// IsStoreLease reports whether the Lease with this name keeps the position of a store. It is not the Lease of an
// executor, although it has the same label.
func IsStoreLease(name string) bool { return strings.HasPrefix(name, storeLeasePrefix) }

// LeasesOfExecutors returns the Leases of executors, in the same order. all may also have Leases of stores, which have
// the same label, and other Leases.
func LeasesOfExecutors(all []coordinationv1.Lease) []coordinationv1.Lease {
	var executors []coordinationv1.Lease
	for i := range all {
		if strings.HasPrefix(all[i].Name, LeasePrefix) {
			executors = append(executors, all[i])
		}
	}
	return executors
}

// StorePosition is a position that a store has reached.
type StorePosition struct {
	// ID is the ID of the store. It is not empty.
	ID string
	// Position is at least 1.
	Position int64
}

// PublishedBy returns the position that a Lease publishes. ok is false if the Lease does not prove that a store has
// reached a position: it has no ID or no valid position, or the store had not been marked yet and was at position 0.
func PublishedBy(l *coordinationv1.Lease) (p StorePosition, ok bool) {
	position, err := strconv.ParseInt(l.Annotations[PositionAnnotation], 10, 64)
	if id := l.Annotations[StoreAnnotation]; err == nil && id != "" && position > 0 {
		return StorePosition{ID: id, Position: position}, true
	}
	return StorePosition{}, false
}

// Covers reports whether p is a position of the same store as other, and not an earlier one.
func (p StorePosition) Covers(other StorePosition) bool {
	return p.ID == other.ID && p.Position >= other.Position
}
