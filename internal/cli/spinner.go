package cli

import (
	"fmt"
	"io"
	"strings"
	"sync"
	"time"

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

// spinner shows on the last line of a terminal what goes on and for how long. Whatever else is written there goes through it, so
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
func newSpinner(out io.Writer) *spinner {
	s := &spinner{out: out, since: time.Since, stop: make(chan struct{}), stopped: make(chan struct{})}
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

// Write writes something else, on a line of its own.
func (s *spinner) Write(p []byte) (int, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.clear()
	return s.out.Write(p)
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
