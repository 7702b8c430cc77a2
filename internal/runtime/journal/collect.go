package journal

import (
	"context"
	"fmt"
)

// Collect returns all entries of a UID in order, with their payloads filled. It holds the whole journal in memory, so
// it is only for journals that are known to be small. It returns ErrNewer and ErrDamaged like LoadPayload.
func Collect(ctx context.Context, j Journal, uid string) ([]Entry, error) {
	var entries []Entry
	for e, err := range j.Read(ctx, uid, 0) {
		if err != nil {
			return nil, fmt.Errorf("failed to read the journal of %q: %w", uid, err)
		}
		if err := LoadPayload(ctx, j, uid, &e); err != nil {
			return nil, err
		}
		entries = append(entries, e)
	}
	return entries, nil
}
