package journal

// CheckAppend returns an error if entries must not be appended to a journal whose last entry has the given sequence
// number and epoch. Both are 0 for an empty journal. CheckAppend returns ErrFenced if an entry has an older epoch than
// the entry before it, and ErrSequence if an entry does not have the next sequence number. If both apply, it returns
// ErrFenced, because the writer must stop instead of reading again. All stores use CheckAppend, so that they behave
// alike.
func CheckAppend(seq, epoch int64, entries []Entry) error {
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
