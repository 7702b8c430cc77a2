package cli

import (
	"encoding/json"
	"fmt"
	"io"
	"strings"
	"sync"
	"time"

	"github.com/capstan-dev/capstan/internal/runtime/journal"
	"github.com/capstan-dev/capstan/internal/termsafe"
)

const (
	// frame is the time between two frames of the spinner, and frames are their characters.
	frame  = 120 * time.Millisecond
	frames = `-\|/`
	// longestActivity is the maximum number of characters shown of an activity. A longer one could wrap, and a
	// wrapped line cannot be erased.
	longestActivity = 60
	// wipe moves to the start of the line and erases it.
	wipe = "\r\x1b[K"
)

// startSpinner starts a spinner on the terminal of Err, and makes Out and Err write around it. The caller must
// close the spinner. startSpinner returns nil and changes nothing if Err is not a terminal that can erase a line.
func (e *Environment) startSpinner() *spinner {
	if !e.ErrIsTerminal || e.dumb() {
		return nil
	}
	s := newSpinner(e.Err)
	e.Out, e.Err = clearingWriter{s, e.Out}, clearingWriter{s, e.Err}
	return s
}

// dumb reports whether the terminal has no colours and cannot erase a line.
func (e *Environment) dumb() bool {
	kind, _ := e.LookupEnv("TERM")
	return kind == "dumb"
}

// clearingWriter is a writer to a terminal that may show the spinner's line.
type clearingWriter struct {
	*spinner
	out io.Writer
}

// Write erases the spinner's line and then writes.
func (a clearingWriter) Write(p []byte) (int, error) {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.clear()
	return a.out.Write(p)
}

// spinner shows the current activity and its duration on the last line of a terminal. All other output must go
// through clearingWriter, which erases the line first. It is safe for concurrent use.
type spinner struct {
	out   io.Writer
	since func(time.Time) time.Duration

	mu sync.Mutex
	// activity is shown since begun; it is empty for none. drawn is true while the line is on the screen.
	activity string
	begun    time.Time
	drawn    bool
	turned   int

	stop, stopped chan struct{}
}

// newSpinner returns a spinner on a terminal. The caller must close it.
func newSpinner(terminal io.Writer) *spinner {
	s := &spinner{out: terminal, since: time.Since, stop: make(chan struct{}), stopped: make(chan struct{})}
	go s.spin()
	return s
}

func (s *spinner) spin() {
	defer close(s.stopped)
	ticker := time.NewTicker(frame)
	defer ticker.Stop()
	for {
		select {
		case <-ticker.C:
			s.draw()
		case <-s.stop:
			return
		}
	}
}

// show replaces the activity. An empty activity shows nothing.
func (s *spinner) show(activity string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.clear()
	//nolint:forbidigo // because a duration is measured, not a time of day
	s.activity, s.begun = termsafe.Line(activity, longestActivity), time.Now()
}

// close erases the line and stops the spinner.
func (s *spinner) close() {
	close(s.stop)
	<-s.stopped
	s.show("")
}

func (s *spinner) draw() {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.activity == "" {
		return
	}
	s.turned++
	picture := frames[s.turned%len(frames)]
	s.drawn = true
	// A failed write does not matter: the spinner is only decoration.
	_, _ = fmt.Fprintf(s.out, "%s%c %s, %.0f s", wipe, picture, s.activity, s.since(s.begun).Truncate(time.Second).Seconds())
}

// clear erases the line if it is on the screen.
func (s *spinner) clear() {
	if s.drawn {
		s.drawn = false
		_, _ = io.WriteString(s.out, wipe)
	}
}

// activities are the activities at the moment, in the order in which they began.
type activities []struct{ key, what string }

// follow updates the activities after a journal entry, and reports whether they may have changed.
func (a *activities) follow(e journal.Entry) (changed bool) {
	var said struct {
		Step         int
		CallID, Name string
		Model        string
	}
	if json.Unmarshal(e.Payload, &said) != nil {
		return false
	}
	call := fmt.Sprintf("%d/%s", said.Step, said.CallID)
	const request = "request"
	switch e.Kind {
	case journal.ModelRequested:
		*a = a.begin(request, "waiting for "+termsafe.Line(said.Model, longestActivity))
	case journal.ModelReplied, journal.ModelFailed:
		*a = a.end(request)
	case journal.ToolIntended:
		*a = a.begin(call, termsafe.Line(said.Name, longestActivity)+" is running")
	case journal.ToolFinished:
		*a = a.end(call)
	case journal.RunStarted, journal.RunParked, journal.Finalized:
		*a = nil
	default:
		return false
	}
	return true
}

// begin returns the activities with one more.
func (a activities) begin(key, what string) activities {
	return append(a.end(key), struct{ key, what string }{key, what})
}

// end returns the activities without one.
func (a activities) end(key string) activities {
	var rest activities
	for _, one := range a {
		if one.key != key {
			rest = append(rest, one)
		}
	}
	return rest
}

// String returns the activities on one line.
func (a activities) String() string {
	all := make([]string, 0, len(a))
	for _, one := range a {
		all = append(all, one.what)
	}
	return strings.Join(all, ", ")
}
