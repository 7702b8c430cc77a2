package eventwriter_test

import (
	"context"
	"errors"
	"io"
	"net/http"
	"os"
	"strconv"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/go-logr/logr"
	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	eventsv1 "k8s.io/api/events/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/kubernetes/scheme"
	"k8s.io/client-go/rest"

	"github.com/capstan-dev/capstan/internal/eventwriter"
)

// server is an API server for Events, as a transport, so that the clock of a synctest bubble can advance while requests
// wait. reply decides the outcome of a request; if it returns nil, the Event is created.
type server struct {
	t     *testing.T
	reply func(ctx context.Context, e *eventsv1.Event) error

	mu       sync.Mutex
	requests int
	created  []*eventsv1.Event
}

func (s *server) RoundTrip(r *http.Request) (*http.Response, error) {
	body, err := io.ReadAll(r.Body)
	if err != nil {
		return nil, err
	}
	decoded, _, err := scheme.Codecs.UniversalDeserializer().Decode(body, nil, nil)
	e, ok := decoded.(*eventsv1.Event)
	if err != nil || !ok || r.Method != http.MethodPost || r.URL.Path != "/apis/events.k8s.io/v1/namespaces/"+e.Namespace+"/events" {
		s.t.Errorf("%s %s: %v", r.Method, r.URL.Path, err)
		return nil, errors.New("not a creation of an Event")
	}
	s.mu.Lock()
	s.requests++
	s.mu.Unlock()
	var answer runtime.Object = e
	code := http.StatusCreated
	if s.reply != nil {
		err = s.reply(r.Context(), e)
	}
	if err != nil {
		status, ok := errors.AsType[*apierrors.StatusError](err)
		if !ok {
			return nil, err
		}
		answer, code = &status.ErrStatus, int(status.ErrStatus.Code)
	} else {
		s.mu.Lock()
		s.created = append(s.created, e)
		s.mu.Unlock()
	}
	info, _ := runtime.SerializerInfoForMediaType(scheme.Codecs.SupportedMediaTypes(), runtime.ContentTypeJSON)
	versions := schema.GroupVersions{eventsv1.SchemeGroupVersion, {Version: "v1"}}
	text := runtime.EncodeOrDie(scheme.Codecs.EncoderForVersion(info.Serializer, versions), answer)
	return &http.Response{
		StatusCode: code, Header: http.Header{"Content-Type": {runtime.ContentTypeJSON}},
		Body: io.NopCloser(strings.NewReader(text)), Request: r,
	}, nil
}

// writer returns a writer to the server, and a function that returns the numbers of dropped Events by namespace.
func (s *server) writer(t *testing.T) (*eventwriter.Writer, func() map[string]int) {
	t.Helper()
	var mu sync.Mutex
	dropped := map[string]int{}
	config := &rest.Config{Host: "http://kubernetes", QPS: -1}
	w, err := eventwriter.New(t.Context(), config, &http.Client{Transport: s}, eventwriter.Options{
		Scheme: scheme.Scheme, Controller: "capstan", Now: time.Now, Log: logr.Discard(),
		Dropped: func(namespace string) {
			mu.Lock()
			defer mu.Unlock()
			dropped[namespace]++
		},
	})
	if err != nil {
		t.Fatal(err)
	}
	return w, func() map[string]int {
		mu.Lock()
		defer mu.Unlock()
		return dropped
	}
}

func (s *server) createdIn(namespace string) (n int) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, e := range s.created {
		if e.Namespace == namespace {
			n++
		}
	}
	return n
}

func pod(namespace, name string) *corev1.Pod {
	return &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: name, UID: "u", ResourceVersion: "7"}}
}

func emit(w *eventwriter.Writer, namespace string, n int) {
	for i := range n {
		w.Eventf(pod(namespace, "pod-"+strconv.Itoa(i)), nil, corev1.EventTypeNormal, "Done", "Run", "done")
	}
}

func TestWritesWholeEvent(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := &server{t: t}
		w, _ := s.writer(t)
		defer w.Close(t.Context())
		for range 2 { // at the same time: the clock of the test stands still
			w.Eventf(pod("team", "one"), pod("team", "two"), corev1.EventTypeWarning, "Failed", "Run", "failed %d times: %s", 3, "100%")
		}
		synctest.Wait()
		host, _ := os.Hostname()
		about := corev1.ObjectReference{Kind: "Pod", APIVersion: "v1", Namespace: "team", Name: "one", UID: "u", ResourceVersion: "7"}
		related := about
		related.Name = "two"
		if len(s.created) != 2 || s.created[0].Name == s.created[1].Name {
			t.Fatalf("created %+v, want two Events with different names", s.created)
		}
		for _, e := range s.created {
			if !strings.HasPrefix(e.Name, "one.") {
				t.Errorf("the name is %q", e.Name)
			}
			want := &eventsv1.Event{
				TypeMeta:   e.TypeMeta,
				ObjectMeta: metav1.ObjectMeta{Namespace: "team", Name: e.Name}, EventTime: e.EventTime,
				ReportingController: "capstan", ReportingInstance: "capstan-" + host,
				Type: "Warning", Reason: "Failed", Action: "Run", Note: "failed 3 times: 100%", Regarding: about, Related: &related,
			}
			if !e.EventTime.Time.Equal(time.Now()) {
				t.Errorf("the time is %s, want %s", e.EventTime, time.Now())
			}
			if diff := cmp.Diff(want, e); diff != "" {
				t.Errorf("the Event differs (-want +got):\n%s", diff)
			}
		}
	})
}

// TestRepetition has replies of an API server, and checks whether the write is repeated, and whether the Event then
// counts as dropped.
func TestRepetition(t *testing.T) {
	resource := schema.GroupResource{Group: "events.k8s.io", Resource: "events"}
	terminating := apierrors.NewForbidden(resource, "e", errors.New("the namespace is being terminated"))
	terminating.ErrStatus.Details.Causes = []metav1.StatusCause{{Type: corev1.NamespaceTerminatingCause}}
	for name, c := range map[string]struct {
		reply    error
		requests int // for a reply that comes twice
		dropped  int
	}{
		"the connection is refused":       {errors.New("connection refused"), 3, 0},
		"the API server is busy":          {apierrors.NewTooManyRequests("busy", 1), 3, 0},
		"the API server starts":           {apierrors.NewServiceUnavailable("starting"), 3, 0},
		"the store of the API server":     {apierrors.NewInternalError(errors.New("etcdserver: leader changed")), 3, 0},
		"an unknown outcome":              {apierrors.NewTimeoutError("timeout", 1), 3, 0},
		"a response that was lost before": {apierrors.NewAlreadyExists(resource, "e"), 1, 0},
		"an invalid Event":                {apierrors.NewInvalid(schema.GroupKind{}, "e", nil), 1, 1},
		"no permission":                   {apierrors.NewForbidden(resource, "e", errors.New("no")), 1, 1},
		"the namespace is being deleted":  {terminating, 1, 1},
		"the namespace is gone":           {apierrors.NewNotFound(schema.GroupResource{Resource: "namespaces"}, "team"), 1, 1},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				failures := 2
				s := &server{t: t}
				s.reply = func(context.Context, *eventsv1.Event) error {
					if failures--; failures >= 0 {
						return c.reply
					}
					return nil
				}
				w, dropped := s.writer(t)
				emit(w, "team", 1)
				w.Close(t.Context())
				if s.requests != c.requests || dropped()["team"] != c.dropped {
					t.Errorf("%d requests and %d dropped Events, want %d and %d", s.requests, dropped()["team"], c.requests, c.dropped)
				}
			})
		})
	}
}

func TestGivesUpAfterTwoMinutes(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := &server{t: t, reply: func(context.Context, *eventsv1.Event) error { return errors.New("connection refused") }}
		w, dropped := s.writer(t)
		begun := time.Now()
		emit(w, "team", 1)
		w.Close(t.Context())
		if took := time.Since(begun); took > 2*time.Minute || s.requests < 5 || dropped()["team"] != 1 {
			t.Errorf("%d requests in %s, dropped %v", s.requests, took, dropped())
		}
	})
}

// TestHangingServer checks that all Events are given up after two minutes if no request has a response, also those that
// wait for others.
func TestHangingServer(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := &server{t: t, reply: func(ctx context.Context, _ *eventsv1.Event) error {
			<-ctx.Done()
			return context.Cause(ctx)
		}}
		w, dropped := s.writer(t)
		begun := time.Now()
		emit(w, "team", 1000)
		w.Close(t.Context())
		if took := time.Since(begun); took > 2*time.Minute || dropped()["team"] != 1000 {
			t.Errorf("dropped %v in %s", dropped(), took)
		}
	})
}

// TestNamespaceCannotFillWriter has a slow API server. The writer must hold a bounded number of Events, and a namespace
// with many Events must leave space for those of others, and must not delay them.
func TestNamespaceCannotFillWriter(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := &server{t: t}
		s.reply = func(context.Context, *eventsv1.Event) error {
			time.Sleep(time.Second) // by the clock of the bubble
			return nil
		}
		w, dropped := s.writer(t)
		defer w.Close(t.Context())
		emit(w, "busy", 3000)
		emit(w, "calm", 300)
		if diff := cmp.Diff(map[string]int{"busy": 2000}, dropped()); diff != "" {
			t.Errorf("dropped Events (-want +got):\n%s", diff)
		}
		for s.createdIn("calm") < 300 {
			if s.createdIn("busy") == 1000 {
				t.Fatalf("created only %d Events of the calm namespace before all of the busy namespace", s.createdIn("calm"))
			}
			time.Sleep(time.Second) // by the clock of the bubble
			synctest.Wait()
		}
		for s.createdIn("busy") < 1000 {
			time.Sleep(time.Second) // by the clock of the bubble
			synctest.Wait()
		}
		emit(w, "busy", 1000) // the places are free again
		if got := dropped()["busy"]; got != 2000 {
			t.Errorf("dropped %d Events although nothing waited", got-2000)
		}
	})
}

// TestClose checks that Close waits for Events that are being written, but not longer than its context, and that later
// Events are dropped.
func TestClose(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := &server{t: t}
		s.reply = func(ctx context.Context, e *eventsv1.Event) error {
			wait := time.Millisecond
			if e.Namespace == "slow" {
				wait = time.Hour
			}
			select {
			case <-time.After(wait):
				return nil
			case <-ctx.Done():
				return context.Cause(ctx)
			}
		}
		w, dropped := s.writer(t)
		emit(w, "fast", 3)
		emit(w, "slow", 1)
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		begun := time.Now()
		w.Close(ctx)
		if took := time.Since(begun); took != time.Second {
			t.Errorf("Close took %s", took)
		}
		emit(w, "late", 1)
		want := map[string]int{"slow": 1, "late": 1}
		if diff := cmp.Diff(want, dropped()); diff != "" || s.createdIn("fast") != 3 {
			t.Errorf("created %d fast Events, dropped (-want +got):\n%s", s.createdIn("fast"), diff)
		}
	})
}

func TestUnknownKindEmitsNothing(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := &server{t: t}
		w, _ := s.writer(t)
		w.Eventf(&runtime.Unknown{}, nil, corev1.EventTypeNormal, "Done", "Run", "done")
		w.Close(t.Context())
		if s.requests != 0 {
			t.Errorf("%d requests", s.requests)
		}
	})
}
