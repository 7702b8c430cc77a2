package journal

// CheckAppend reports whether entries may be appended to a journal whose last entry has the given sequence number and
// epoch. Both are 0 for an empty journal. CheckAppend returns ErrFenced if an epoch is older than the one before it,
// even among the entries themselves. It returns ErrSequence if a sequence number is not the next one. If both are
// wrong, it returns ErrFenced, because the writer must stop instead of reading again. All stores use CheckAppend, so
// that they decide alike.
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
