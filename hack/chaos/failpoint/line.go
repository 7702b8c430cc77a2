package failpoint

import (
	"encoding/json"
	"io"
	"slices"
	"sync"
	"time"
)

// Line intercepts the effects of a process, to interrupt the process or to trace the effects. The zero Line does
// neither. A Line is safe for concurrent use.
type Line struct {
	// Point is the effect at which Interrupt is called, once. If Point is nil, Interrupt is never called.
	Point *Point
	// Interrupt either ends the process and does not return, or stops the process and returns when the process
	// continues.
	Interrupt func()
	// Trace receives a line of JSON, a Step, for each effect. If Trace is nil, no trace is written.
	Trace io.Writer
	// Now returns the time for the steps of the trace. It may be nil if Trace is nil.
	Now func() time.Time

	mu    sync.Mutex
	names map[string]string // names of Turns, by UID
	count int               // number of effects so far that Point matches
}

// Step is an effect in the trace.
type Step struct {
	// Begin and End are the times before and after the effect.
	Begin, End time.Time
	Effect     Effect
	Details    []string `json:",omitempty"`
	// Turn is the UID of the Turn.
	Turn string
	// Error is the error of the effect, or empty if it succeeded.
	Error string `json:",omitempty"`
}

// uidOf returns the UID of a Turn with this name, or an empty string if the Line has not seen it.
func (l *Line) uidOf(name string) string {
	l.mu.Lock()
	defer l.mu.Unlock()
	for uid, known := range l.names {
		if known == name {
			return uid
		}
	}
	return ""
}

// learn records the name of a Turn, so that later effects can be matched by name.
func (l *Line) learn(uid, name string) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.names == nil {
		l.names = map[string]string{}
	}
	l.names[uid] = name
}

// perform performs an effect on a Turn. It calls Interrupt before or after the effect if the Point says so.
func (l *Line) perform(effect Effect, uid string, details []string, do func() error) error {
	reached := l.reached(effect, uid, details)
	if reached && l.Point.When == Before {
		l.Interrupt()
	}
	step := Step{Effect: effect, Turn: uid, Details: details}
	if l.Trace != nil {
		step.Begin = l.Now()
	}
	err := do()
	if reached && l.Point.When == After {
		l.Interrupt()
	}
	if l.Trace != nil {
		l.trace(step, err)
	}
	return err
}

// reached counts an effect, and reports whether it is the effect that the Point selects.
func (l *Line) reached(effect Effect, uid string, details []string) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	p := l.Point
	if p == nil || effect != p.Effect || !p.matchesTurn(l.names[uid]) || p.Detail != "" && !slices.Contains(details, p.Detail) {
		return false
	}
	l.count++
	return l.count == p.Nth
}

// trace writes a step to the trace. It ignores a failed write, which leaves the trace incomplete.
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
