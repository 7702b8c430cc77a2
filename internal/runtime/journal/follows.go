package journal

// Follows says whether entries may stand after the last one there is, of a place and an epoch; both are 0 where there is
// none. It returns ErrFenced if an epoch is older than the one before it, also among the entries themselves, and ErrSequence
// if a place is not the next one. An entry that is both wrong in place and of an older epoch is fenced off: its writer must
// stop, not read again. Stores use it, so that all judge alike.
func Follows(seq, epoch int64, entries []Entry) error {
	for _, e := range entries {
		if e.Epoch < epoch {
			return ErrFenced
		}
		if e.Seq != seq+1 {
			return ErrSequence
		}
		seq, epoch = e.Seq, e.Epoch
	}
	return nil
}
