package quota

import "sync"

const (
	// weight is the part that one more Turn has in what is usual for its namespace: 1 of 8.
	weight = 8
	// maxUsual bounds the namespaces of which a Forecast knows what is usual.
	maxUsual = 4096
)

// Forecast says how much the Turns that run here will still write to their journals, as far as can be told from those that ended: what a
// model is about to send has no size before it has come, and by then the Turn must be able to write it. The zero value knows of no Turn.
// It is safe for concurrent use. A nil Forecast expects nothing.
type Forecast struct {
	mu      sync.Mutex
	running map[string]*growing // by the UIDs of the Turns
	usual   map[string]int64    // bytes of a journal, by namespace
}

// growing is the journal of a Turn that runs.
type growing struct {
	namespace string
	written   int64
}

// Begin notes that a Turn runs.
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
	}
}

// End notes that a Turn runs no more. whole says that it began and ended in this run, so that what it wrote is a whole journal.
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
		delete(f.usual, other) // any one: its next Turn tells anew
	}
	f.usual[g.namespace] = g.written
}

// wrote notes that a Turn has written to its journal.
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
