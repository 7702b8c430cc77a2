package terminal

import (
	"fmt"
	"io"
	"sync"
	"time"
	"unicode"

	"golang.org/x/text/width"

	"github.com/capstan-dev/capstan/internal/termsafe"
)

const (
	// frameInterval is the time between two frames of the spinner, and frames are their characters.
	frameInterval = 120 * time.Millisecond
	frames        = `-\|/`
	// LongestActivity is the maximum number of characters shown of an activity. On a narrow terminal, fewer are shown:
	// the line could wrap, and a wrapped line cannot be erased.
	LongestActivity = 60
	// usualWidth is the number of columns that the spinner assumes if the terminal does not report them.
	usualWidth = 80
	// eraseLine moves the cursor to the start of the line and erases the line.
	eraseLine = "\r\x1b[K"
)

// StartSpinner starts a spinner on the terminal of Err. It replaces Out and Err by writers that erase the spinner's
// line first. The caller must close the spinner. If Err is not a terminal that can erase a line, StartSpinner returns
// nil and changes nothing.
func (e *Environment) StartSpinner() *Spinner {
	if !e.ErrIsTerminal || e.IsDumb() {
		return nil
	}
	s := newSpinner(e.Err, e.Width)
	e.Out, e.Err = clearingWriter{s, e.Out}, clearingWriter{s, e.Err}
	return s
}

// clearingWriter is a writer to a terminal that may show the spinner's line.
type clearingWriter struct {
	*Spinner
	out io.Writer
}

// Write erases the spinner's line and then writes.
func (a clearingWriter) Write(p []byte) (int, error) {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.clear()
	return a.out.Write(p)
}

// Spinner shows the current activity and its duration on the last line of a terminal. All other output must go
// through the writers that StartSpinner sets, which erase the line first. It is safe for concurrent use.
type Spinner struct {
	out   io.Writer
	width func() int // may be nil
	since func(time.Time) time.Duration

	mu sync.Mutex
	// activity is the current activity, or empty if there is none; it is shown since begun. drawn is true while the
	// line is on the screen. drawings is the number of frames drawn so far.
	activity string
	begun    time.Time
	drawn    bool
	drawings int

	stop, stopped chan struct{}
}

// newSpinner returns a spinner on a terminal with a width. The caller must close it.
func newSpinner(terminal io.Writer, columns func() int) *Spinner {
	s := &Spinner{out: terminal, width: columns, since: time.Since, stop: make(chan struct{}), stopped: make(chan struct{})}
	go s.spin()
	return s
}

func (s *Spinner) spin() {
	defer close(s.stopped)
	ticker := time.NewTicker(frameInterval)
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

// Show replaces the activity. An empty activity shows nothing.
func (s *Spinner) Show(activity string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.clear()
	//nolint:forbidigo // because a duration is measured, not a time of day
	s.activity, s.begun = termsafe.Line(activity, LongestActivity), time.Now()
}

// Close erases the line and stops the spinner.
func (s *Spinner) Close() {
	close(s.stop)
	<-s.stopped
	s.Show("")
}

func (s *Spinner) draw() {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.activity == "" {
		return
	}
	s.drawings++
	picture := frames[s.drawings%len(frames)]
	s.drawn = true
	duration := fmt.Sprintf(", %.0f s", s.since(s.begun).Truncate(time.Second).Seconds())
	room := s.columns() - 1 // a character in the last column could begin the next line
	line := string(picture) + " " + fit(s.activity, room-len("- ")-len(duration)) + duration
	_, _ = io.WriteString(s.out, eraseLine+fit(line, room)) // a failed write does not matter: the spinner is only decoration
}

// columns returns the number of columns of the terminal, which may have changed since the last frame.
func (s *Spinner) columns() int {
	if s.width != nil {
		if n := s.width(); n > 0 {
			return n
		}
	}
	return usualWidth
}

// fit returns the beginning of a text that takes at most a number of columns.
func fit(text string, columns int) string {
	end, used := 0, 0 // end is where the text is cut to leave a column for the ellipsis
	for i, r := range text {
		if used < columns {
			end = i
		}
		if used += columnsOf(r); used > columns {
			if columns < 1 {
				return ""
			}
			return text[:end] + "…"
		}
	}
	return text
}

// columnsOf returns the number of columns that a character takes.
func columnsOf(r rune) int {
	switch width.LookupRune(r).Kind() {
	case width.EastAsianWide, width.EastAsianFullwidth:
		return 2
	default:
	}
	if unicode.In(r, unicode.Mn, unicode.Me) {
		return 0
	}
	return 1
}

// clear erases the line if it is on the screen.
func (s *Spinner) clear() {
	if s.drawn {
		s.drawn = false
		_, _ = io.WriteString(s.out, eraseLine)
	}
}
