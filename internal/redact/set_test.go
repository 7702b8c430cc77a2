package redact_test

import (
	"fmt"
	"runtime"
	"strings"
	"testing"

	"github.com/capstan-dev/capstan/internal/redact"
)

func TestSetKnowsCredentialsOfOneNamespace(t *testing.T) {
	s := redact.NewSet()
	s.Put("team-a", "ModelProvider/main", []string{secret})
	s.Put("team-a", "ToolServer/main", []string{token, "abc"})
	s.Put("team-b", "ModelProvider/main", []string{"another-key-0123456789"})
	text := secret + " " + strings.Join(strings.Split(token, ""), "\u200b") + " abc another-key-0123456789"
	for namespace, want := range map[string]string{
		"team-a": "[redacted] [redacted] abc another-key-0123456789",
		"team-b": secret + " " + strings.Join(strings.Split(token, ""), "\u200b") + " abc [redacted]",
		"team-c": text,
	} {
		if got := s.Redact(namespace, text); got != want {
			t.Errorf("in %s: %q, want %q", namespace, got, want)
		}
	}
}

// TestSetIgnoresShortParts checks that a Set searches neither for short parts of a credential nor for its short form
// without escapes. They are often words.
func TestSetIgnoresShortParts(t *testing.T) {
	s := redact.NewSet()
	s.Put("team-a", "ToolServer/main", []string{"Basic YWRtaW46YWRtaW4=", "a%62cd%65"}) // admin:admin
	for text, want := range map[string]string{
		"administrator": "administrator", "abcde": "abcde", "YWRtaW4": "YWRtaW4",
		"Basic YWRtaW46YWRtaW4=": "[redacted]", "YWRtaW46YWRtaW4=": "[redacted]", "admin:admin": "[redacted]",
	} {
		if got := s.Redact("team-a", text); got != want {
			t.Errorf("%q becomes %q, want %q", text, got, want)
		}
	}
}

func TestSetForgetsObjects(t *testing.T) {
	const before, after = "key-of-yesterday-0123", "key-of-today-4567"
	s := redact.NewSet()
	clean := s.RedactFunc("team-a")
	if got := clean(before); got != before {
		t.Errorf("an empty set has changed the text to %q", got)
	}
	s.Put("team-a", "ModelProvider/main", []string{before})
	if got := clean(before + " " + after); got != "[redacted] "+after {
		t.Errorf("with the first key: %q, want only the first key redacted", got)
	}
	s.Put("team-a", "ModelProvider/main", []string{after, before}) // as after a rotation
	if got := clean(before + " " + after); got != "[redacted] [redacted]" {
		t.Errorf("after a rotation: %q, want both keys redacted", got)
	}
	s.Put("team-a", "ToolServer/main", []string{before})
	s.Put("team-a", "ModelProvider/main", nil)
	if got := clean(before + " " + after); got != "[redacted] "+after {
		t.Errorf("after the ModelProvider is gone: %q, want only the key of the ToolServer redacted", got)
	}
	s.Put("team-a", "ToolServer/main", nil)
	s.Put("team-a", "ToolServer/other", nil)
	if got := clean(before + " " + after); got != before+" "+after {
		t.Errorf("after all objects are gone: %q, want no key redacted", got)
	}
	var none *redact.Set
	none.Put("team-a", "ModelProvider/main", []string{before})
	if got := none.RedactFunc("team-a")(before); got != before {
		t.Errorf("with a nil Set: %q, want the text unchanged", got)
	}
}

// TestSetIsSafe changes a set while another goroutine reads it, for the race detector.
func TestSetIsSafe(t *testing.T) {
	s := redact.NewSet()
	done := make(chan struct{})
	go func() {
		defer close(done)
		for i := range 50 {
			s.Put("team-a", "ModelProvider/main", []string{fmt.Sprintf("some-key-%d", i%2), secret})
		}
	}()
	s.Put("team-a", "ToolServer/main", []string{secret})
	for range 50 {
		if got := s.Redact("team-a", secret); got != "[redacted]" {
			t.Errorf("%q, want the credential redacted", got)
		}
	}
	<-done
}

func TestJSON(t *testing.T) {
	clean := redact.New(token, `"},{"`, "4815162342").Redact
	for name, tc := range map[string]struct{ document, want string }{
		"nothing":                {`{ "b":1,  "a":"<x>" }`, `{ "b":1,  "a":"<x>" }`},
		"a string":               {`{"b":1e3,"a":["Super\u0026Secret/Token+12345<\"%41>","<&>"]}`, `{"a":["[redacted]","<&>"],"b":1e3}`},
		"the name of a member":   {`{"Super&Secret/Token+12345<\"%41>":true}`, `{"[redacted]":true}`},
		"a credential like JSON": {`[{"a":"b"},{"c":"d"}]`, `[{"a":"b"},{"c":"d"}]`},
		"a number":               {`{"pin":4815162342,"all":[1e3,-4815162342.5]}`, `{"all":[1e3,"-[redacted].5"],"pin":"[redacted]"}`},
		"not JSON":               {`Super&Secret/Token+12345<"%41>!`, `"[redacted]!"`},
	} {
		if got := string(redact.JSON([]byte(tc.document), clean)); got != tc.want {
			t.Errorf("%s: %s, want %s", name, got, tc.want)
		}
	}
}

// BenchmarkSet scans a text without a match, for different numbers of credentials in the namespace.
func BenchmarkSet(b *testing.B) {
	for _, size := range []int{200, 4 << 10, 1 << 20} {
		text := strings.Repeat(`{"id":12345,"title":"A title \u0026 more","text":"Lorem ipsum dolor sit amet."},`, size/80+1)[:size]
		for _, count := range []int{0, 1, 100, 1000} {
			s := redact.NewSet()
			for i := range count {
				s.Put("team-a", fmt.Sprintf("ModelProvider/%d", i),
					[]string{fmt.Sprintf("sk-%d-%d", i*7654321, i), fmt.Sprintf("short%d", i)})
			}
			b.Run(fmt.Sprintf("%d bytes/%d objects", size, count), func(b *testing.B) {
				b.SetBytes(int64(size))
				b.ReportAllocs()
				for b.Loop() {
					if s.Redact("team-a", text) != text {
						b.Fatal("the text has no credential")
					}
				}
			})
		}
	}
}

// TestSetMakesFormsOnce checks that a new credential of a namespace needs only the memory for itself, however many long
// credentials the namespace has. Otherwise, in a namespace with hundreds of long credentials, each change would keep
// the processors busy.
func TestSetMakesFormsOnce(t *testing.T) {
	s := redact.NewSet()
	all := credentialOf(101 * longest)
	credential := func(i int) string { return all[i*longest : (i+1)*longest] }
	allocated := func(i int) uint64 {
		var before, after runtime.MemStats
		runtime.ReadMemStats(&before)
		s.Put("team-a", fmt.Sprintf("ModelProvider/%d", i), []string{credential(i)})
		if got := s.Redact("team-a", "key: "+credential(i)); got != "key: [redacted]" {
			t.Fatalf("credential %d is left: %.40q", i, got)
		}
		runtime.ReadMemStats(&after)
		return after.TotalAlloc - before.TotalAlloc
	}
	first := allocated(0)
	for i := 1; i < 100; i++ {
		allocated(i)
	}
	if last := allocated(100); last > 2*first+1<<20 {
		t.Errorf("the 101st credential allocates %d KiB, and the first %d KiB; want about the same", last>>10, first>>10)
	}
	if got := s.Redact("team-a", credential(0)+" "+credential(99)); got != "[redacted] [redacted]" {
		t.Errorf("earlier credentials are left: %.40q", got)
	}
}

// TestSetKeepsSharedCredentials checks that a credential is removed from texts until no object has it anymore, also if
// one object has it twice.
func TestSetKeepsSharedCredentials(t *testing.T) {
	s := redact.NewSet()
	const key = "key-of-two-objects-0123"
	s.Put("team-a", "ModelProvider/a", []string{key, key})
	s.Put("team-a", "ModelProvider/b", []string{key})
	s.Put("team-a", "ModelProvider/a", []string{"another-key-4567"})
	if got := s.Redact("team-a", key); got != "[redacted]" {
		t.Errorf("the credential of ModelProvider b is left: %q", got)
	}
	s.Put("team-a", "ModelProvider/b", nil)
	if got := s.Redact("team-a", key); got != key {
		t.Errorf("a credential that no object has anymore is redacted: %q", got)
	}
}
