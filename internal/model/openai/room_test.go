package openai_test

import (
	"fmt"
	"net/http"
	"runtime"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/capstan-dev/capstan/internal/bytebudget"
	"github.com/capstan-dev/capstan/internal/model/endpoint"
	"github.com/capstan-dev/capstan/internal/model/openai"
	"github.com/capstan-dev/capstan/internal/netpolicy"
	"github.com/capstan-dev/capstan/internal/runtime/model"
)

// TestLongRepliesTakeTurns starts more long replies than fit into memory. All replies must arrive complete, also the
// one of another namespace, and a short reply must not wait.
func TestLongRepliesTakeTurns(t *testing.T) {
	const long = 200 << 10
	first, finish := make(chan struct{}, 8), make(chan struct{})
	slow := serve(t, func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("Content-Type", "text/event-stream")
		_, _ = fmt.Fprintf(w, "data: %s\n\n", delta(`"content":"`+strings.Repeat("x", long)+`"`))
		w.(http.Flusher).Flush()
		first <- struct{}{}
		select {
		case <-finish:
		case <-r.Context().Done():
		}
		_, _ = w.Write([]byte(events(finishEvent("stop"), "[DONE]")))
	})
	quick := serve(t, respond(200, events(delta(`"content":"fine"`), finishEvent("stop"), "[DONE]"), stream))
	budget := bytebudget.New(0, 8<<20) // two replies of one namespace
	ask := func(namespace, url string) error {
		p := openai.New(openai.Config{Config: endpoint.Config{
			Name: "m", BaseURL: url, ConnectTimeout: time.Minute, IdleTimeout: time.Minute, Policy: netpolicy.NewLocalPolicy(),
			Memory: budget.Account(namespace, bytebudget.Replies),
		}})
		defer p.Close()
		reply, err := generate(t.Context(), p, request("hello"))
		if held := budget.Use(bytebudget.Replies).Bytes; err == nil && (reply.Release != nil) != (url == slow) ||
			reply.Release != nil && held == 0 {
			err = fmt.Errorf("%d bytes are held; want memory held for each long reply, and none for a short one", held)
		}
		if reply.Release != nil {
			defer reply.Release()
		}
		if err == nil && url == slow && len(reply.Text) != long {
			err = fmt.Errorf("the reply has %d bytes, want %d", len(reply.Text), long)
		}
		return err
	}
	var all sync.WaitGroup
	for range 6 {
		all.Go(func() {
			if err := ask("greedy", slow); err != nil {
				t.Errorf("a long reply: %v", err)
			}
		})
	}
	for range 6 {
		<-first
	}
	for budget.Use(bytebudget.Replies).Waiting != 4 {
		runtime.Gosched()
	}
	if err := ask("greedy", quick); err != nil {
		t.Errorf("a short reply while long ones wait: %v", err)
	}
	close(finish)
	if err := ask("victim", slow); err != nil {
		t.Errorf("a long reply of another namespace: %v", err)
	}
	all.Wait()
	if use := budget.Use(bytebudget.Replies); use.Bytes != 0 || use.Waiting != 0 {
		t.Errorf("after all replies %+v is held", use)
	}
}

// TestSmallRepliesReserveMemory checks that a reply of 60 KiB holds memory until its receiver releases it. If
// there is no memory left, the reply waits like a long one.
func TestSmallRepliesReserveMemory(t *testing.T) {
	const length = 60 << 10
	url := serve(t, respond(200, events(delta(`"content":"`+strings.Repeat("x", length)+`"`), finishEvent("stop"), "[DONE]"), stream))
	budget := bytebudget.New(200<<10, 8<<20) // 175 KiB for one namespace
	p := provider(t, url, func(cfg *openai.Config) { cfg.Memory = budget.Account("team", bytebudget.Replies) })
	var all []model.Reply
	for range 3 { // the third does not fit
		reply, err := generate(t.Context(), p, request("hello"))
		if err != nil || reply.Release == nil {
			t.Fatalf("the reply holds no memory: %v", err)
		}
		all = append(all, reply)
	}
	if contents, replies := budget.Use(bytebudget.Contents).Bytes, budget.Use(bytebudget.Replies).Bytes; contents < 2*length ||
		replies == 0 {
		t.Errorf("%d bytes are held for small replies and %d for long ones, want memory for two small ones and for one that waited "+
			"like a long one", contents, replies)
	}
	for _, reply := range all {
		reply.Release()
	}
	if contents, replies := budget.Use(bytebudget.Contents).Bytes, budget.Use(bytebudget.Replies).Bytes; contents != 0 || replies != 0 {
		t.Errorf("%d and %d bytes are held in the end", contents, replies)
	}
}

// TestBytesOutsideEventsReserveMemory checks that lines outside events need a reservation, because an endpoint may send
// them until the idle timeout.
func TestBytesOutsideEventsReserveMemory(t *testing.T) {
	finish := make(chan struct{})
	url := serve(t, func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("Content-Type", "text/event-stream")
		_, _ = w.Write([]byte(strings.Repeat(strings.Repeat("x", 999)+"\n", 100)))
		w.(http.Flusher).Flush()
		select {
		case <-finish:
		case <-r.Context().Done():
		}
	})
	budget := bytebudget.New(0, 8<<20)
	p := provider(t, url, func(cfg *openai.Config) { cfg.Memory = budget.Account("team", bytebudget.Replies) })
	var all sync.WaitGroup
	all.Go(func() { _ = failure(t, p) })
	for budget.Use(bytebudget.Replies).Bytes == 0 {
		if t.Context().Err() != nil {
			t.Fatal("no memory is reserved for 100 KB outside events")
		}
		runtime.Gosched()
	}
	close(finish)
	all.Wait()
	if use := budget.Use(bytebudget.Replies); use.Bytes != 0 {
		t.Errorf("after the request %+v is held", use)
	}
}

// TestLongErrorBodyIsReadInPart checks that only the beginning of an error body is read. No memory is reserved for the
// body, and the body may never end.
func TestLongErrorBodyIsReadInPart(t *testing.T) {
	finish := make(chan struct{})
	url := serve(t, func(w http.ResponseWriter, r *http.Request) {
		w.WriteHeader(http.StatusBadRequest)
		_, _ = w.Write([]byte("the field is unknown: " + strings.Repeat("x", 20<<10)))
		w.(http.Flusher).Flush()
		select {
		case <-finish:
		case <-r.Context().Done():
		}
	})
	defer close(finish)
	e := failure(t, provider(t, url, func(cfg *openai.Config) { cfg.IdleTimeout = time.Hour }))
	if e.Kind != model.InvalidRequest || !strings.HasPrefix(e.RemoteMessage, "the field is unknown: x") {
		t.Errorf("error %s %q with the text %.40q; want InvalidRequest with the beginning of the body", e.Kind, e.Message, e.RemoteMessage)
	}
}

// TestStalledRefusal checks that the status of a refusal counts, although its body stalls or breaks.
func TestStalledRefusal(t *testing.T) {
	for status, want := range map[int]model.ErrorKind{
		400: model.InvalidRequest, 401: model.Auth, 429: model.RateLimited, 503: model.Overloaded,
	} {
		for _, stalls := range []bool{true, false} {
			url := serve(t, func(w http.ResponseWriter, r *http.Request) {
				w.WriteHeader(status)
				_, _ = w.Write([]byte("not for you"))
				w.(http.Flusher).Flush()
				if stalls {
					<-r.Context().Done()
				}
				panic(http.ErrAbortHandler)
			})
			e := failure(t, provider(t, url, func(cfg *openai.Config) { cfg.IdleTimeout = 100 * time.Millisecond }))
			if e.Kind != want || e.RemoteMessage != "not for you" {
				t.Errorf("status %d, stalled %t: %s %q with the text %q; want %s with the text that arrived", status, stalls, e.Kind,
					e.Message, e.RemoteMessage, want)
			}
		}
	}
}

// TestFinishedReplyWaitsForMemory checks that a reply is not lost if the connection ends while the reply waits for
// memory.
func TestFinishedReplyWaitsForMemory(t *testing.T) {
	body := events(delta(`"content":"`+strings.Repeat("x", 6<<10)+`"`), finishEvent("stop"), "[DONE]")
	const long = endpoint.MaxEventBytes + endpoint.MaxReplyBytes
	for name, handle := range map[string]http.HandlerFunc{
		"whole": respond(200, body, stream, fmt.Sprintf("Content-Length: %d", len(body))),
		"broken after the end": func(w http.ResponseWriter, _ *http.Request) {
			w.Header().Set("Content-Length", "100000")
			_, _ = w.Write([]byte(body))
			panic(http.ErrAbortHandler)
		},
	} {
		t.Run(name, func(t *testing.T) {
			budget := bytebudget.New(1, 2*long-1) // one long reply, and no small ones
			account := budget.Account("team", bytebudget.Replies)
			busy, err := account.Reserve(t.Context(), long)
			if err != nil {
				t.Fatal(err)
			}
			p := provider(t, serve(t, handle), func(cfg *openai.Config) { cfg.Memory = account })
			done := make(chan error, 1)
			go func() {
				reply, err := generate(t.Context(), p, request("hello"))
				if reply.Release != nil {
					reply.Release()
				}
				done <- err
			}()
			for budget.Use(bytebudget.Replies).Waiting == 0 && len(done) == 0 {
				runtime.Gosched()
			}
			busy.Release()
			if err := <-done; err != nil {
				t.Errorf("Generate: %v, want the reply that arrived", err)
			}
		})
	}
}
