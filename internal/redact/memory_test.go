package redact_test

import (
	"encoding/base64"
	"encoding/hex"
	"math/rand/v2"
	"runtime"
	"strings"
	"testing"

	"github.com/capstan-dev/capstan/internal/memory/memorytest"
	"github.com/capstan-dev/capstan/internal/redact"
)

// longest is the maximum length of a credential in a Secret, in bytes.
const longest = 16 << 10

// credentialOf returns a random credential of base64 digits. It is the same in each run.
func credentialOf(size int) string {
	random := rand.NewChaCha8([32]byte{1})
	raw := make([]byte, size)
	_, _ = random.Read(raw) // never fails
	return base64.StdEncoding.EncodeToString(raw)[:size]
}

// TestRedactorIsSmall bounds the memory of a redactor, as a multiple of its credential. The forms of a credential alone
// are 7 to 11 times as long as the credential: itself, three or six forms in base64, and one in hexadecimal digits.
func TestRedactorIsSmall(t *testing.T) {
	const most = 16
	credential := credentialOf(longest)
	r := redact.New(credential)
	if got := r.Line(credential, 100); got != "[redacted]" {
		t.Fatalf("the credential is left: %q", got)
	}
	with := memorytest.Heap()
	runtime.KeepAlive(r)
	r = nil
	if kept := with - memorytest.Heap(); kept > most*longest {
		t.Errorf("a redactor keeps %d KiB for a credential of %d KiB, want at most %d times as much", kept>>10, longest>>10, most)
	}
	runtime.KeepAlive(credential)
}

// TestMemory checks that Memory bounds the memory of a redactor together with that of a set.
func TestMemory(t *testing.T) {
	const ofNamespace = 20 << 10
	for name, secrets := range map[string][]string{
		"one long credential":        {credentialOf(longest)},
		"a credential with a scheme": {"Bearer " + credentialOf(longest-7)},
		"a usual key":                {"sk-0123456789-very-secret-0123456789"},
		"many short keys":            manyKeys(100),
	} {
		before := memorytest.Heap()
		r, set := redact.New(secrets...), redact.NewSet()
		set.Put("demo", "owner", secrets)
		_ = set.Redact("demo", "a text") // so that the set has a redactor
		kept := memorytest.Heap() - before
		runtime.KeepAlive(r)
		runtime.KeepAlive(set)
		if most := redact.Memory(secrets); kept > most+ofNamespace {
			t.Errorf("%s: %d bytes are kept, but Memory returns %d", name, kept, most)
		}
		runtime.KeepAlive(secrets)
	}
}

// manyKeys returns different keys.
func manyKeys(count int) []string {
	all := credentialOf(longest)
	keys := make([]string, count)
	for i := range keys {
		keys[i] = all[i*20 : i*20+15]
	}
	return keys
}

// TestPartsOfALongCredential checks that parts of 12 bytes of the longest credential are removed from messages.
func TestPartsOfALongCredential(t *testing.T) {
	credential := credentialOf(longest)
	r := redact.New(credential)
	const step = 509
	var parts []string
	for at := 0; at+12 <= longest; at += step {
		parts = append(parts, credential[at:at+12])
	}
	parts = append(parts, credential[longest-12:])
	digits := hex.EncodeToString([]byte(credential))
	encoded := base64.StdEncoding.EncodeToString([]byte("Bearer " + credential))
	for name, write := range map[string]func(i int, part string) string{
		"as it is":     func(_ int, part string) string { return part },
		"upper case":   func(_ int, part string) string { return strings.ToUpper(part) },
		"white space":  func(_ int, part string) string { return part[:5] + " \u200b" + part[5:] },
		"URL":          func(_ int, part string) string { return unicodes(part, "%%%02x") },
		"JSON in HTML": func(_ int, part string) string { return unicodes(unicodes(part, `\u%04x`), "&#%d;") },
		"hexadecimal":  func(i int, _ string) string { return digits[i*step : i*step+12] },
		"base64":       func(i int, _ string) string { return encoded[12+i*step : 12+i*step+12] },
	} {
		for i, part := range parts {
			if text := write(i, part); r.Line("<"+text+">", 1000) != "<[redacted]>" {
				t.Errorf("%s: %q of the credential, byte %d, is left: %q", name, text, i*step, r.Line("<"+text+">", 1000))
			}
		}
	}
	const less = 11
	for at := 0; at+less <= longest; at += 997 {
		if text := "<" + credential[at:at+less] + ">"; r.Line(text, 1000) != text {
			t.Errorf("Line of %q, which has only 11 bytes of the credential, is %q; want it unchanged", text, r.Line(text, 1000))
		}
	}
	// Adjacent parts are replaced together, separate parts separately.
	if got := r.Line(credential[100:140]+credential[100:140]+"-"+credential[9000:9012], 1000); got != "[redacted]-[redacted]" {
		t.Errorf("Line of three parts is %q, want one replacement for adjacent parts and another for the separate part", got)
	}
}

// TestRepeatingLongCredential checks a credential and a message that repeat one letter, so that all their windows are
// equal.
func TestRepeatingLongCredential(t *testing.T) {
	r := redact.New(strings.Repeat("a", longest))
	if got := r.Line(strings.Repeat("a", longest), 1000); got != "[redacted]" {
		t.Errorf("%q is left", got)
	}
}

func BenchmarkNew(b *testing.B) {
	for name, size := range map[string]int{"64 B": 64, "1 KiB": 1 << 10, "16 KiB": longest} {
		b.Run(name, func(b *testing.B) {
			credential := credentialOf(size)
			b.ReportAllocs()
			for b.Loop() {
				_ = redact.New(credential) // the test is about the time
			}
		})
	}
}

func BenchmarkLine(b *testing.B) {
	for name, text := range map[string]string{
		"short": "the endpoint answered with an error",
		"long":  strings.Repeat(`{"a":"b\u0026c"} `, 1000),
	} {
		for kind, size := range map[string]int{"64 B": 64, "1 KiB": 1 << 10, "16 KiB": longest} {
			b.Run(name+"/"+kind, func(b *testing.B) {
				r := redact.New(credentialOf(size))
				b.ReportAllocs()
				for b.Loop() {
					_ = r.Line(text, 300) // the test is about the time
				}
			})
		}
	}
}
