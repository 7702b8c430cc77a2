package quota

import "sync"

const (
	// weight is how slowly the usual journal size of a namespace follows the journals of its Turns: when a Turn ends,
	// the usual size changes by an eighth of the difference to the size of the Turn's journal.
	weight = 8
	// maxUsual limits the namespaces whose usual journal size a Forecast knows.
	maxUsual = 4096
)

// Forecast estimates how much the running Turns of this process will still write to their journals, from the sizes of
// the journals of Turns that have ended. An estimate is necessary because the size of a model's reply is not known
// before it arrives, and the Turn must then be able to write it. The zero value has no Turns. Forecast is safe for
// concurrent use. A nil Forecast expects no bytes.
type Forecast struct {
	mu      sync.Mutex
	running map[string]*growing // by the UIDs of the Turns
	usual   map[string]int64    // the usual bytes of a journal, by namespace
	// grown receives the increases of the expected bytes. A Meter sets it; it may be nil.
	grown func(bytes int64)
}

// growing is the journal of a running Turn.
type growing struct {
	namespace string
	written   int64
}

// Begin records that a Turn runs.
func (f *Forecast) Begin(uid, namespace string) {
	if f == nil {
		return
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.running == nil {
		f.running, f.usual = map[string]*growing{}, map[string]int64{}
	}
	if f.running[uid] == nil {
		f.running[uid] = &growing{namespace: namespace}
		f.grow(f.usual[namespace])
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
	f.usual[g.namespace] = g.written
	f.grow(f.left(g.namespace))
}

// left returns how many bytes the running Turns of a namespace will still write. The caller must hold the lock.
func (f *Forecast) left(namespace string) (bytes int64) {
	for _, g := range f.running {
		if g.namespace == namespace {
			bytes += max(f.usual[namespace]-g.written, 0)
		}
	}
	return bytes
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
		if left := f.usual[g.namespace] - g.written; left > 0 {
			all[g.namespace] += left
		}
	}
	return all
}
