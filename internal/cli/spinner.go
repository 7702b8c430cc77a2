package cli

import (
	"encoding/json"
	"fmt"
	"io"
	"strings"
	"sync"
	"time"

	"github.com/capstan-dev/capstan/internal/runtime/journal"
	"github.com/capstan-dev/capstan/internal/screen"
)

const (
	// frame is the time between two pictures of a spinner, and frames are these.
	frame  = 120 * time.Millisecond
	frames = `-\|/`
	// longestActivity is how many characters of an activity are shown: more than fits a line could not be wiped off.
	longestActivity = 60
	// wipe goes to the beginning of the line and empties it.
	wipe = "\r\x1b[K"
)

// watch puts a spinner on the terminal that Err is, and has Out and Err write around it. It must be closed. It is nil, and nothing
// changes, where Err is none that can wipe a line off.
func (e *Environment) watch() *spinner {
	if !e.ErrIsTerminal || e.dumb() {
		return nil
	}
	s := newSpinner(e.Err)
	e.Out, e.Err = around{s, e.Out}, around{s, e.Err}
	return s
}

// dumb reports whether a terminal knows no colours and cannot wipe a line off.
func (e *Environment) dumb() bool {
	kind, _ := e.LookupEnv("TERM")
	return kind == "dumb"
}

// around writes elsewhere, where the spinner's line may be, too.
type around struct {
	*spinner
	out io.Writer
}

// Write writes when the line is wiped off.
func (a around) Write(p []byte) (int, error) {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.clear()
	return a.out.Write(p)
}

// spinner shows on the last line of a terminal what goes on and for how long. Whatever else is written there goes around it, so
// that the line is wiped off before. It is safe for concurrent use.
type spinner struct {
	out   io.Writer
	since func(time.Time) time.Duration

	mu sync.Mutex
	// activity that is shown since begun, empty for none; drawn is true while a line of it is on the screen.
	activity string
	begun    time.Time
	drawn    bool
	turned   int

	stop, stopped chan struct{}
}

// newSpinner returns a spinner on a terminal. It must be closed.
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

// show shows another activity, from now on; empty for none.
func (s *spinner) show(activity string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.clear()
	s.activity, s.begun = screen.Line(activity, longestActivity), time.Now() //nolint:forbidigo // because a duration is measured, not a time of day
}

// close wipes the line off and ends the spinner.
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
	// That a picture cannot be drawn matters to nobody.
	_, _ = fmt.Fprintf(s.out, "%s%c %s, %.0f s", wipe, picture, s.activity, s.since(s.begun).Truncate(time.Second).Seconds())
}

// clear wipes the line off, if there is one.
func (s *spinner) clear() {
	if s.drawn {
		s.drawn = false
		_, _ = io.WriteString(s.out, wipe)
	}
}

// activities are the things that go on at the same time, in the order in which they began.
type activities []struct{ key, what string }

// follow notes what goes on from an entry of a journal on, and reports whether that may be something else than before.
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
		*a = a.begin(request, "waiting for "+screen.Line(said.Model, longestActivity))
	case journal.ModelReplied, journal.ModelFailed:
		*a = a.end(request)
	case journal.ToolIntended:
		*a = a.begin(call, screen.Line(said.Name, longestActivity)+" at work")
	case journal.ToolFinished:
		*a = a.end(call)
	case journal.RunStarted, journal.RunParked, journal.Finalized:
		*a = nil
	default:
		return false
	}
	return true
}

// begin returns them with one more.
func (a activities) begin(key, what string) activities {
	return append(a.end(key), struct{ key, what string }{key, what})
}

// end returns them without one.
func (a activities) end(key string) activities {
	var rest activities
	for _, one := range a {
		if one.key != key {
			rest = append(rest, one)
		}
	}
	return rest
}

// String names them on one line.
func (a activities) String() string {
	all := make([]string, 0, len(a))
	for _, one := range a {
		all = append(all, one.what)
	}
	return strings.Join(all, ", ")
}
