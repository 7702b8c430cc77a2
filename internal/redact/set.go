package redact

import (
	"slices"
	"sync"
)

// Set has the credentials that a process has read, by namespace. A text is searched only for the credentials of its
// own namespace, so a redaction never reveals that another namespace has a certain value. A nil Set has no
// credentials. Set is safe for concurrent use.
type Set struct {
	mu         sync.RWMutex
	namespaces map[string]*known
}

// known has the credentials of a namespace, by the object for which they were read.
type known struct {
	owners map[string][]string
	// redactor searches for all of them. It is nil from a change until its next use.
	redactor *Redactor
}

// NewSet returns an empty set.
func NewSet() *Set { return &Set{namespaces: map[string]*known{}} }

// minShared is the shortest credential that a Set searches for, in bytes. Servers that need no key are often given
// a word, such as EMPTY or ollama, and any text of the namespace may contain that word.
const minShared = 8

// Put replaces the credentials of an object, which owner names within its namespace. If credentials is empty, the
// object is removed. Credentials of less than 8 bytes are ignored.
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

// Redact returns a text without the current credentials of a namespace, as Redactor.Redact does.
func (s *Set) Redact(namespace, text string) string {
	if r := s.redactorOf(namespace); r != nil && text != "" {
		return r.Redact(text)
	}
	return text
}

// RedactFunc returns Redact for one or more namespaces. The function also uses credentials that are put into the set
// later.
func (s *Set) RedactFunc(namespaces ...string) func(text string) string {
	return func(text string) string {
		for _, namespace := range namespaces {
			text = s.Redact(namespace, text)
		}
		return text
	}
}

// redactorOf returns the redactor of a namespace, or nil if it has no credentials.
func (s *Set) redactorOf(namespace string) *Redactor {
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
