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

// known has the credentials of a namespace.
type known struct {
	// owners are the credentials by the object for which they were read.
	owners map[string][]string
	// forms are the forms of each credential. They are made once: those of a long credential need a millisecond, and a
	// namespace may have hundreds of credentials.
	forms map[string]*credentialForms
	// building is held while a redactor is made, so that only one goroutine makes it. It is locked before the Set.
	building sync.Mutex
	// redactor searches for all credentials. It is nil from a change until its next use. changes counts the changes.
	redactor *Redactor
	changes  int
}

// credentialForms are the forms of a credential, and the number of times that an object has it.
type credentialForms struct {
	forms []form
	uses  int
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
	if s.has(namespace, owner, credentials) {
		return
	}
	made := make([][]form, len(credentials)) // before the lock, which all namespaces share
	for i, c := range credentials {
		made[i] = newForms([]string{c})
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	k := s.namespaces[namespace]
	if k == nil {
		if len(credentials) == 0 {
			return
		}
		k = &known{owners: map[string][]string{}, forms: map[string]*credentialForms{}}
		s.namespaces[namespace] = k
	}
	k.redactor = nil
	k.changes++
	for i, c := range credentials {
		if k.forms[c] == nil {
			k.forms[c] = &credentialForms{forms: made[i]}
		}
		k.forms[c].uses++
	}
	for _, c := range k.owners[owner] {
		if k.forms[c].uses--; k.forms[c].uses == 0 {
			delete(k.forms, c)
		}
	}
	if len(credentials) > 0 {
		k.owners[owner] = credentials
		return
	}
	delete(k.owners, owner)
	if len(k.owners) == 0 {
		delete(s.namespaces, namespace)
	}
}

// has reports whether an object has exactly these credentials.
func (s *Set) has(namespace, owner string, credentials []string) bool {
	s.mu.RLock()
	defer s.mu.RUnlock()
	k := s.namespaces[namespace]
	if k == nil {
		return len(credentials) == 0
	}
	return slices.Equal(k.owners[owner], credentials)
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

// redactorOf returns the redactor of a namespace, or nil if it has no credentials. No other namespace waits while it is
// made.
func (s *Set) redactorOf(namespace string) *Redactor {
	if s == nil {
		return nil
	}
	k, r := s.current(namespace)
	if k == nil || r != nil {
		return r
	}
	k.building.Lock()
	defer k.building.Unlock()
	if k, r = s.current(namespace); k == nil || r != nil {
		return r
	}
	s.mu.RLock()
	changes := k.changes
	var forms []form
	for _, c := range k.forms {
		forms = append(forms, c.forms...)
	}
	s.mu.RUnlock()
	r = of(forms)
	s.mu.Lock()
	defer s.mu.Unlock()
	if k.changes == changes {
		k.redactor = r
	}
	return r
}

// current returns what is known of a namespace, and its redactor if that is made.
func (s *Set) current(namespace string) (*known, *Redactor) {
	s.mu.RLock()
	defer s.mu.RUnlock()
	k := s.namespaces[namespace]
	if k == nil {
		return nil, nil
	}
	return k, k.redactor
}
