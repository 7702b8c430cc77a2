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
	"github.com/capstan-dev/capstan/internal/model/openai"
	"github.com/capstan-dev/capstan/internal/netpolicy"
	"github.com/capstan-dev/capstan/internal/runtime/model"
)

// TestLongRepliesTakeTurns has more long replies begin than there is memory for, and each wait longer than its idle time for the
// others: all come in whole, a short one waits for nobody, and another namespace has its own memory.
func TestLongRepliesTakeTurns(t *testing.T) {
	const long = 200 << 10
	first, finish := make(chan struct{}, 8), make(chan struct{})
	slow := raw(t, func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("Content-Type", "text/event-stream")
		_, _ = fmt.Fprintf(w, "data: %s\n\n", delta(`"content":"`+strings.Repeat("x", long)+`"`))
		w.(http.Flusher).Flush()
		first <- struct{}{}
		select {
		case <-finish:
		case <-r.Context().Done():
		}
		_, _ = w.Write([]byte(events(finishing("stop"), "[DONE]")))
	})
	quick := raw(t, respond(200, events(delta(`"content":"fine"`), finishing("stop"), "[DONE]"), stream))
	budget := bytebudget.New(0, 8<<20) // two replies of one namespace
	ask := func(namespace, url string) error {
		p := openai.New(openai.Config{
			Name: "m", BaseURL: url, ConnectTimeout: time.Minute, IdleTimeout: time.Minute, Policy: netpolicy.Permissive(),
			Memory: budget.Account(namespace, bytebudget.Replies),
		})
		defer p.Close()
		reply, err := p.Generate(t.Context(), request("hello"))
		if held := budget.Use(bytebudget.Replies).Bytes; err == nil && (reply.Release != nil) != (url == slow) || reply.Release != nil && held == 0 {
			err = fmt.Errorf("who gets the reply holds none of %d bytes, or a short one holds some", held)
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
		t.Errorf("a short reply beside long ones: %v", err)
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

// TestWhatIsNoEventNeedsMemoryToo: an endpoint may send lines that say nothing, and go on for as long as its events may be away.
func TestWhatIsNoEventNeedsMemoryToo(t *testing.T) {
	finish := make(chan struct{})
	url := raw(t, func(w http.ResponseWriter, r *http.Request) {
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
			t.Fatal("100 KB are held, and none of them counts")
		}
		runtime.Gosched()
	}
	close(finish)
	all.Wait()
	if use := budget.Use(bytebudget.Replies); use.Bytes != 0 {
		t.Errorf("after the request %+v is held", use)
	}
}

// TestALongRefusalIsReadAsFarAsItSaysSomething: nothing reserves memory for it, and it may never end.
func TestALongRefusalIsReadAsFarAsItSaysSomething(t *testing.T) {
	finish := make(chan struct{})
	url := raw(t, func(w http.ResponseWriter, r *http.Request) {
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
	if e.Kind != model.InvalidRequest || !strings.HasPrefix(e.Said, "the field is unknown: x") {
		t.Errorf("error %s %q, said %.40q; want what the endpoint said first", e.Kind, e.Message, e.Said)
	}
}
