package redact

import (
	"slices"
	"sync"
)

// Set knows the credentials that a process has read, by namespace: those of one namespace are never looked for in texts of another,
// so nobody learns from a redaction that another namespace has a value. A nil Set knows none. It is safe for concurrent use.
type Set struct {
	mu         sync.RWMutex
	namespaces map[string]*known
}

// known are the credentials of a namespace, by the object that they were read for.
type known struct {
	owners map[string][]string
	// redactor knows all of them; nil until it is used after a change.
	redactor *Redactor
}

// NewSet returns an empty set.
func NewSet() *Set { return &Set{namespaces: map[string]*known{}} }

// minShared is the shortest credential that a Set looks for, in bytes. Servers that want no key are often given a word, such as EMPTY or
// ollama, and texts of the whole namespace may have that word.
const minShared = 8

// Put replaces the credentials of an object, which owner names within its namespace. Without credentials the object is forgotten. A
// credential of less than 8 bytes is not looked for.
func (s *Set) Put(namespace, owner string, credentials []string) {
	if s == nil {
		return
	}
	credentials = slices.DeleteFunc(slices.Clone(credentials), func(c string) bool { return len(c) < minShared })
	s.mu.Lock()
	defer s.mu.Unlock()
	k := s.namespaces[namespace]
	switch {
	case k == nil && len(credentials) == 0, k != nil && slices.Equal(k.owners[owner], credentials):
		return
	case k == nil:
		k = &known{owners: map[string][]string{}}
		s.namespaces[namespace] = k
	}
	k.redactor = nil
	if len(credentials) > 0 {
		k.owners[owner] = credentials
		return
	}
	delete(k.owners, owner)
	if len(k.owners) == 0 {
		delete(s.namespaces, namespace)
	}
}

// Whole returns a text without the credentials that are known of a namespace by now, as Redactor.Whole does.
func (s *Set) Whole(namespace, text string) string {
	if r := s.of(namespace); r != nil && text != "" {
		return r.Whole(text)
	}
	return text
}

// In returns Whole for a namespace. It knows what is put into the set later.
func (s *Set) In(namespace string) func(text string) string {
	return func(text string) string { return s.Whole(namespace, text) }
}

// of returns what knows the credentials of a namespace; nil if there are none.
func (s *Set) of(namespace string) *Redactor {
	if s == nil {
		return nil
	}
	s.mu.RLock()
	k := s.namespaces[namespace]
	var r *Redactor
	if k != nil {
		r = k.redactor
	}
	s.mu.RUnlock()
	if k == nil || r != nil {
		return r
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if k = s.namespaces[namespace]; k == nil {
		return nil
	}
	if k.redactor == nil {
		var all []string
		for _, credentials := range k.owners {
			all = append(all, credentials...)
		}
		k.redactor = searching(all)
	}
	return k.redactor
}
