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
	namespaces map[string]*namespaceCredentials
}

// namespaceCredentials has the credentials of a namespace.
type namespaceCredentials struct {
	// owners are the credentials by the object for which they were read.
	owners map[string][]string
	// forms are the forms of each credential. They are made once: the forms of a long credential take a millisecond,
	// and a namespace may have hundreds of credentials.
	forms map[string]*credentialForms
	// building is held while a redactor is made, so that only one goroutine makes it. It is locked before the Set.
	building sync.Mutex
	// redactor searches for all credentials. It is nil after a change of the credentials until it is needed again.
	// changes counts the changes.
	redactor *Redactor
	changes  int
}

// credentialForms has the forms of a credential, and the number of times that it occurs in the objects.
type credentialForms struct {
	forms []form
	uses  int
}

// NewSet returns an empty set.
func NewSet() *Set { return &Set{namespaces: map[string]*namespaceCredentials{}} }

// minShared is the shortest credential that a Set searches for, in bytes. For servers that need no key, people often
// set a word such as EMPTY or ollama, and any text of the namespace may contain that word.
const minShared = 8

// Put replaces the credentials of an object, which owner names within its namespace. If credentials is empty, the
// object is removed. Credentials of less than 8 bytes are ignored, and so are shorter parts, such as the password in
// the value of a Basic header.
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
		made[i] = newForms([]string{c}, minShared)
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	k := s.namespaces[namespace]
	if k == nil {
		if len(credentials) == 0 {
			return
		}
		k = &namespaceCredentials{owners: map[string][]string{}, forms: map[string]*credentialForms{}}
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

// redactorOf returns the redactor of a namespace, or nil if the namespace has no credentials. While the redactor is
// made, other namespaces do not wait.
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
	r = newFormRedactor(forms)
	s.mu.Lock()
	defer s.mu.Unlock()
	if k.changes == changes {
		k.redactor = r
	}
	return r
}

// current returns the credentials of a namespace, and its redactor. Each is nil if it does not exist.
func (s *Set) current(namespace string) (*namespaceCredentials, *Redactor) {
	s.mu.RLock()
	defer s.mu.RUnlock()
	k := s.namespaces[namespace]
	if k == nil {
		return nil, nil
	}
	return k, k.redactor
}
