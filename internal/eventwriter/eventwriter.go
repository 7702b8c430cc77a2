// Package eventwriter writes Events of events.k8s.io without keeping them.
//
// The recorder of client-go keeps each Event for 6 to 12 minutes, to count its repetitions in one object. It finds
// nearly none, because it compares the resource versions of the objects that Events are about, and most Events of
// Capstan follow a change of their object. So the Events of a busy namespace would take memory without a bound.
package eventwriter

import (
	"cmp"
	"context"
	"fmt"
	"net/http"
	"os"
	"sync"
	"time"

	"github.com/cenkalti/backoff/v5"
	"github.com/go-logr/logr"
	corev1 "k8s.io/api/core/v1"
	eventsv1 "k8s.io/api/events/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	clientv1 "k8s.io/client-go/kubernetes/typed/events/v1"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/events"
	"k8s.io/client-go/tools/record/util"
	"k8s.io/client-go/tools/reference"

	"github.com/capstan-dev/capstan/internal/fairgate"
	"github.com/capstan-dev/capstan/internal/writeerror"
)

const (
	// capacity limits the Events that are not written yet, and so their memory.
	capacity = 2000
	// patience limits the time until an Event is written.
	patience = 2 * time.Minute
	// attemptTimeout limits one attempt.
	attemptTimeout = 30 * time.Second
	// firstInterval and longestInterval are the intervals between the attempts.
	firstInterval, longestInterval = time.Second, 20 * time.Second
)

// Options configure a Writer.
type Options struct {
	// Scheme knows the kinds of the objects that Events are about.
	Scheme *runtime.Scheme
	// Controller is the reportingController of the Events. The reportingInstance is this name, a hyphen and the name of
	// the machine. The API server accepts at most 128 characters.
	Controller string
	// Now returns the time of an Event.
	Now func() time.Time
	// Dropped is called for each Event that is not written, with its namespace.
	Dropped func(namespace string)
	Log     logr.Logger
}

// Writer writes Events in the background. At most 2000 Events are waiting; a namespace may have as many of them as
// there is space left, so that none can fill it. Writer implements events.EventRecorder, and is safe for concurrent
// use.
type Writer struct {
	options  Options
	client   clientv1.EventsV1Interface
	instance string
	// gate limits the memory of the Events that wait for the gate in the transport.
	gate *fairgate.Gate
	// ctx ends the writes.
	ctx  context.Context //nolint:containedctx // because the writes outlive the calls of Eventf
	stop context.CancelFunc

	mu      sync.Mutex
	closed  bool
	newest  time.Time
	waiting map[string]int // by namespace, without entries that are 0
	total   int
	running sync.WaitGroup
}

var _ events.EventRecorder = &Writer{}

// New returns a writer of Events to the API server of config. transport must be that of config. The end of ctx does not
// end the writer: the caller must call Close.
func New(ctx context.Context, config *rest.Config, transport *http.Client, o Options) (*Writer, error) {
	config = rest.CopyConfig(config)
	config.ContentType = runtime.ContentTypeProtobuf // takes the API server less time than JSON
	config.AcceptContentTypes = runtime.ContentTypeProtobuf + "," + runtime.ContentTypeJSON
	client, err := clientv1.NewForConfigAndClient(config, transport)
	if err != nil {
		return nil, fmt.Errorf("failed to create a client for Events: %w", err)
	}
	host, _ := os.Hostname() // the Events are useful without it, too
	w := &Writer{
		options: o, client: client, instance: o.Controller + "-" + host, gate: fairgate.NewPreWriteGate(), waiting: map[string]int{},
	}
	w.ctx, w.stop = context.WithCancel(context.WithoutCancel(ctx))
	return w, nil
}

// Eventf writes an Event about an object in the background. It writes the Event again if the API server does not reply,
// or cannot write it at the moment. note and args are as in fmt.Sprintf.
func (w *Writer) Eventf(regarding, related runtime.Object, kind, reason, action, note string, args ...any) {
	e, err := w.event(regarding, related)
	if err != nil {
		w.options.Log.Error(err, "Failed to create an Event", "reason", reason)
		return
	}
	e.Type, e.Reason, e.Action, e.Note = kind, reason, action, fmt.Sprintf(note, args...)
	w.log(e).V(1).Info("Writing an Event", "type", e.Type, "note", e.Note)

	w.mu.Lock()
	defer w.mu.Unlock()
	if w.closed || w.waiting[e.Namespace] >= capacity-w.total {
		w.options.Dropped(e.Namespace)
		return
	}
	w.name(e)
	w.waiting[e.Namespace]++
	w.total++
	w.running.Go(func() {
		defer w.leave(e.Namespace)
		w.write(e)
	})
}

// event returns an Event about an object, without its name and its content.
func (w *Writer) event(regarding, related runtime.Object) (*eventsv1.Event, error) {
	about, err := reference.GetReference(w.options.Scheme, regarding)
	if err != nil {
		return nil, fmt.Errorf("the object has no reference: %w", err)
	}
	e := &eventsv1.Event{
		ObjectMeta:          metav1.ObjectMeta{Namespace: cmp.Or(about.Namespace, metav1.NamespaceDefault)},
		ReportingController: w.options.Controller, ReportingInstance: w.instance,
		Regarding: *about,
	}
	if related != nil {
		if e.Related, err = reference.GetReference(w.options.Scheme, related); err != nil {
			return nil, fmt.Errorf("the related object has no reference: %w", err)
		}
	}
	return e, nil
}

// name sets the time and the name of an Event. The name is unique in this process, because it contains a time that no
// other Event has. w.mu must be locked.
func (w *Writer) name(e *eventsv1.Event) {
	now := w.options.Now()
	e.EventTime = metav1.NewMicroTime(now)
	if !now.After(w.newest) {
		now = w.newest.Add(time.Nanosecond)
	}
	w.newest = now
	e.Name = util.GenerateEventName(e.Regarding.Name, now.UnixNano())
}

// leave records that an Event no longer waits.
func (w *Writer) leave(namespace string) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.total--
	if w.waiting[namespace]--; w.waiting[namespace] == 0 {
		delete(w.waiting, namespace)
	}
}

// write creates an Event.
func (w *Writer) write(e *eventsv1.Event) {
	ctx, cancel := context.WithTimeout(w.ctx, patience)
	defer cancel()
	intervals := backoff.NewExponentialBackOff()
	intervals.InitialInterval, intervals.MaxInterval = firstInterval, longestInterval
	_, err := backoff.Retry(ctx, func() (struct{}, error) { return struct{}{}, w.create(ctx, e) },
		backoff.WithBackOff(intervals), backoff.WithMaxElapsedTime(0))
	if err == nil {
		return
	}
	w.options.Dropped(e.Namespace)
	log := w.log(e)
	if isGone(err) {
		log = log.V(1)
	}
	log.Info("Failed to write an Event", "cause", err.Error())
}

// create makes one attempt to create an Event. It returns a *backoff.PermanentError if another attempt would fail, too.
func (w *Writer) create(ctx context.Context, e *eventsv1.Event) error {
	if err := w.gate.Enter(ctx, e.Namespace); err != nil {
		return err
	}
	defer w.gate.Leave(e.Namespace)
	ctx, cancel := context.WithTimeout(ctx, attemptTimeout)
	defer cancel()
	_, err := w.client.Events(e.Namespace).Create(ctx, e, metav1.CreateOptions{})
	switch {
	case apierrors.IsAlreadyExists(err): // an earlier attempt, whose response was lost
		return nil
	case writeerror.ChangedNothing(err), apierrors.IsNotFound(err):
		return backoff.Permanent(err)
	}
	return err
}

// isGone reports whether an Event was refused because its namespace is being deleted or is gone.
func isGone(err error) bool {
	return apierrors.IsNotFound(err) || apierrors.HasStatusCause(err, corev1.NamespaceTerminatingCause)
}

func (w *Writer) log(e *eventsv1.Event) logr.Logger {
	about := e.Regarding
	return w.options.Log.WithValues("kind", about.Kind, "namespace", about.Namespace, "name", about.Name, "reason", e.Reason)
}

// Close refuses further Events, waits until the others are written or ctx ends, and then ends their writes.
func (w *Writer) Close(ctx context.Context) {
	w.mu.Lock()
	w.closed = true
	w.mu.Unlock()
	written := make(chan struct{})
	go func() {
		w.running.Wait()
		close(written)
	}()
	select {
	case <-written:
	case <-ctx.Done():
	}
	w.stop()
	<-written
}
