package failpoint

import (
	"encoding/json"
	"io"
	"slices"
	"sync"
	"time"
)

// Line is what stands between a process and its effects. The zero Line lets all pass. It is safe for concurrent use.
type Line struct {
	// Point at which Strike is called, once; nil for never.
	Point *Point
	// Strike ends the process at once and does not return, or stops it and returns when it goes on.
	Strike func()
	// Trace gets a line of JSON, a Step, for each effect that was had; nil for none.
	Trace io.Writer
	// Now is the time that steps bear.
	Now func() time.Time

	mu    sync.Mutex
	names map[string]string // of Turns, by UID
	count int               // of the effects that Point counts
}

// Step is an effect that was had, as the trace tells it.
type Step struct {
	// Begin and End of it.
	Begin, End time.Time
	Effect     Effect
	Details    []string `json:",omitempty"`
	// Turn is the UID.
	Turn string
	// Error of the effect, empty for none.
	Error string `json:",omitempty"`
}

// uidOf returns the UID of the Turn of a name that an effect was seen of; empty for none.
func (l *Line) uidOf(name string) string {
	l.mu.Lock()
	defer l.mu.Unlock()
	for uid, of := range l.names {
		if of == name {
			return uid
		}
	}
	return ""
}

// learn notes the name of a Turn, which its effects are later found by.
func (l *Line) learn(uid, name string) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.names == nil {
		l.names = map[string]string{}
	}
	l.names[uid] = name
}

// around has an effect on a Turn, and strikes before or after it if that is the point.
func (l *Line) around(effect Effect, uid string, details []string, do func() error) error {
	reached := l.reached(effect, uid, details)
	if reached && l.Point.When == Before {
		l.Strike()
	}
	step := Step{Effect: effect, Turn: uid, Details: details}
	if l.Trace != nil {
		step.Begin = l.Now()
	}
	err := do()
	if reached && l.Point.When == After {
		l.Strike()
	}
	if l.Trace != nil {
		l.trace(step, err)
	}
	return err
}

// reached counts an effect and says whether the point is at it.
func (l *Line) reached(effect Effect, uid string, details []string) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	p := l.Point
	if p == nil || effect != p.Effect || !p.meets(l.names[uid]) || p.Detail != "" && !slices.Contains(details, p.Detail) {
		return false
	}
	l.count++
	return l.count == p.Nth
}

// trace writes down what was done. A trace that cannot be written is missed by who reads it, and stops nobody.
func (l *Line) trace(s Step, err error) {
	s.End = l.Now()
	if err != nil {
		s.Error = err.Error()
	}
	text, err := json.Marshal(s)
	if err != nil {
		return
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	_, _ = l.Trace.Write(append(text, '\n'))
}
