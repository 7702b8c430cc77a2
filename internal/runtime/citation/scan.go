package citation

import (
	"cmp"
	"encoding/json"
	"errors"
	"io"
	"slices"
	"strings"
)

// maxNesting is the nesting of JSON at which the search of a result ends.
const maxNesting = 1000

// kind is a kind of source.
type kind[T any] struct {
	// clean returns a source as it is cited, and whether it can be cited.
	clean func(T) (T, bool)
	// key is the same for sources of which only the first is cited.
	key func(T) string
}

// merge returns the sources of lists that can be cited, in order and without repeats, at most Max.
func (k kind[T]) merge(lists ...[]T) []T {
	var all []T
	for _, list := range lists {
		for _, source := range list {
			if len(all) == Max {
				return all
			}
			if source, ok := k.clean(source); ok && !k.contains(all, source) {
				all = append(all, source)
			}
		}
	}
	return all
}

// contains reports whether sources contain a source. All must be clean.
func (k kind[T]) contains(all []T, source T) bool {
	return slices.ContainsFunc(all, func(other T) bool { return k.key(other) == k.key(source) })
}

// firstFew keeps the first sources of a result, in the order of their places. A result may have hundreds of thousands
// of sources. So each is cleaned only once, and one that cannot be among the first is dropped at once.
type firstFew[T any] struct {
	kind  kind[T]
	found []placed[T]
	// isFull is true if Max sources are known up to the place last.
	isFull bool
	last   int64
}

// placed is a clean source with its place in a result.
type placed[T any] struct {
	at     int64
	source T
}

// add adds a source. Sources may be added in any order.
func (f *firstFew[T]) add(at int64, source T) {
	if f.isFull && at > f.last {
		return
	}
	source, ok := f.kind.clean(source)
	if !ok {
		return
	}
	if f.found = append(f.found, placed[T]{at, source}); len(f.found) >= 8*Max {
		f.sort()
	}
}

// sort sorts the sources, drops those that are not among the first, and returns the others.
func (f *firstFew[T]) sort() (first []T) {
	slices.SortStableFunc(f.found, func(a, b placed[T]) int { return cmp.Compare(a.at, b.at) })
	kept := f.found[:0]
	for _, p := range f.found {
		if len(first) < Max && !f.kind.contains(first, p.source) {
			kept, first = append(kept, p), append(first, p.source)
		}
	}
	clear(f.found[len(kept):])
	f.found = kept
	if len(kept) == Max {
		f.isFull, f.last = true, kept[Max-1].at
	}
	return first
}

// object is a JSON object while it is read. texts has the texts of its members with the wanted names, or an empty text
// for a member that is not a text.
type object struct {
	at    int64
	texts map[string]string
	// name is the name of the member whose value is read next. isName is true if the next token is a name.
	name   string
	isName bool
	// isArray is true for an array, which has no members.
	isArray bool
}

// first returns the first text of the object with one of these names.
func (o *object) first(names ...string) string {
	for _, name := range names {
		if text := o.texts[name]; text != "" {
			return text
		}
	}
	return ""
}

// visitObjects calls visit for each object in a JSON text when the object ends, that is, after the objects inside it.
// It reads the text token by token, so a large text needs little memory. It returns false if the text is not one JSON
// object or array; visit may have been called even then.
func visitObjects(text string, wanted []string, visit func(*object)) bool {
	if text == "" || text[0] != '{' && text[0] != '[' {
		return false
	}
	d := json.NewDecoder(strings.NewReader(text))
	d.UseNumber() // a number need not fit into a float
	var open []object
	for {
		token, err := d.Token()
		switch {
		case errors.Is(err, io.EOF):
			return len(open) == 0
		case err != nil:
			return false
		}
		var in *object // the object that contains the token, or nil if there is none
		if len(open) > 0 && !open[len(open)-1].isArray {
			in = &open[len(open)-1]
		}
		switch token := token.(type) {
		case json.Delim:
			switch token {
			case '{', '[':
				if len(open) == 0 && d.InputOffset() > 1 {
					return false // a second value follows
				}
				if len(open) == maxNesting {
					return true
				}
				if in != nil {
					in.isName = true
				}
				open = append(open, object{at: d.InputOffset(), isName: true, isArray: token == '['})
			default:
				if last := &open[len(open)-1]; !last.isArray && len(open) <= maxDepth+1 {
					visit(last)
				}
				open = open[:len(open)-1]
			}
		case string:
			switch {
			case in == nil:
			case in.isName:
				in.name, in.isName = token, false
			default:
				in.isName = true
				in.set(token, wanted)
			}
		default:
			if in != nil {
				in.isName = true
				in.set("", wanted)
			}
		}
	}
}

// set sets the text of the current member if its name is wanted.
func (o *object) set(text string, wanted []string) {
	if !slices.Contains(wanted, o.name) {
		return
	}
	if o.texts == nil {
		o.texts = map[string]string{}
	}
	o.texts[o.name] = strings.TrimSpace(text)
}
