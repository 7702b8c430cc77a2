package quota

import (
	"cmp"
	"sync"
)

const (
	// weight is how slowly the usual journal size of a namespace follows the journals of its Turns: when a Turn ends,
	// the usual size changes by an eighth of the difference to the size of the Turn's journal.
	weight = 8
	// maxUsual limits the namespaces whose usual journal size a Forecast knows.
	maxUsual = 4096
	// firstGuess is the usual journal size of a namespace, in bytes, until the first of its Turns has ended, but at
	// most a firstPart-th of a quota. It is much more than Turns usually write. Otherwise a namespace could begin
	// thousands of Turns before the first one ends, and fill the volume with long answers. At least a hundred Turns may
	// begin.
	firstGuess, firstPart = 2 << 20, 128
)

// Forecast estimates how much the running Turns of this process will still write to their journals, from the sizes of
// the journals of Turns that have ended. An estimate is necessary because the size of a model's reply is not known
// before it arrives, and the Turn must then be able to write it. The zero value has no Turns. Forecast is safe for
// concurrent use. A nil Forecast expects no bytes.
type Forecast struct {
	mu      sync.Mutex
	running map[string]*growing // by the UIDs of the Turns
	usual   map[string]int64    // the usual bytes of a journal, by namespace
	guess   int64               // the usual bytes of other namespaces; 0 means firstGuess
	// grown receives the increases of the expected bytes. A Meter sets it; it may be nil.
	grown func(bytes int64)
}

// growing is the journal of a running Turn.
type growing struct {
	namespace string
	written   int64
	// whole is true if the Turn writes its whole journal in this run.
	whole bool
}

// Begin records that a Turn runs. whole must be true if the run begins the journal of the Turn. Nothing is expected
// from a run that continues a journal until the usual size of the namespace's journals is known, because it may have
// written everything already.
func (f *Forecast) Begin(uid, namespace string, whole bool) {
	if f == nil {
		return
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.running == nil {
		f.running, f.usual = map[string]*growing{}, map[string]int64{}
	}
	if f.running[uid] == nil {
		g := &growing{namespace: namespace, whole: whole}
		f.running[uid] = g
		f.grow(f.expectedFrom(g))
	}
}

// grow reports an increase of the expected bytes. The caller must hold the lock.
func (f *Forecast) grow(bytes int64) {
	if f.grown != nil && bytes > 0 {
		f.grown(bytes)
	}
}

// End records that a Turn no longer runs. whole must be true if the Turn began and ended in this run, so that the
// written bytes are its whole journal.
func (f *Forecast) End(uid string, whole bool) {
	if f == nil {
		return
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	g := f.running[uid]
	if g == nil {
		return
	}
	delete(f.running, uid)
	if !whole {
		return
	}
	usual, known := f.usual[g.namespace]
	if known {
		f.usual[g.namespace] = usual + (g.written-usual)/weight
		return
	}
	for other := range f.usual {
		if len(f.usual) < maxUsual {
			break
		}
		delete(f.usual, other) // which namespace does not matter: its next Turn sets the size again
	}
	before := f.left(g.namespace)
	f.usual[g.namespace] = g.written
	f.grow(f.left(g.namespace) - before)
}

// left returns how many bytes the running Turns of a namespace will still write. The caller must hold the lock.
func (f *Forecast) left(namespace string) (bytes int64) {
	for _, g := range f.running {
		if g.namespace == namespace {
			bytes += f.expectedFrom(g)
		}
	}
	return bytes
}

// expectedFrom returns how many bytes a running Turn will still write. The caller must hold the lock.
func (f *Forecast) expectedFrom(g *growing) int64 {
	usual, known := f.usual[g.namespace]
	if !known && g.whole {
		usual = cmp.Or(f.guess, firstGuess)
	}
	return max(usual-g.written, 0)
}

// setQuota limits the guess for namespaces whose usual size is not known. 0 means no quota.
func (f *Forecast) setQuota(bytes int64) {
	if f == nil || bytes <= 0 {
		return
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	f.guess = max(min(bytes/firstPart, firstGuess), 1)
}

// wrote records that a Turn has written to its journal.
func (f *Forecast) wrote(uid string, bytes int64) {
	if f == nil {
		return
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	if g := f.running[uid]; g != nil {
		g.written += bytes
	}
}

// expected returns how many bytes the Turns of each namespace will still write.
func (f *Forecast) expected() map[string]int64 {
	if f == nil {
		return nil
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	all := map[string]int64{}
	for _, g := range f.running {
		if left := f.expectedFrom(g); left > 0 {
			all[g.namespace] += left
		}
	}
	return all
}
