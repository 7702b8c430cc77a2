package span_test

import (
	"strings"
	"testing"

	"github.com/capstan-dev/capstan/internal/runtime/span"
)

// TestParse checks that a valid header is read, and that an invalid header is ignored.
func TestParse(t *testing.T) {
	const trace, id = "4bf92f3577b34da6a3ce929d0e0e4736", "00f067aa0ba902b7"
	for name, c := range map[string]struct {
		value string
		want  string // empty if the value is invalid
	}{
		"sampled":                  {"00-" + trace + "-" + id + "-01", "00-" + trace + "-" + id + "-01"},
		"not sampled":              {"00-" + trace + "-" + id + "-00", "00-" + trace + "-" + id + "-00"},
		"unknown flags":            {"00-" + trace + "-" + id + "-03", "00-" + trace + "-" + id + "-01"},
		"a later version":          {"01-" + trace + "-" + id + "-01-what", "00-" + trace + "-" + id + "-01"},
		"a longer version 00":      {"00-" + trace + "-" + id + "-01-what", ""},
		"a later version, no dash": {"01-" + trace + "-" + id + "-01what", ""},
		"the forbidden version":    {"ff-" + trace + "-" + id + "-01", ""},
		"no trace":                 {"00-" + strings.Repeat("0", 32) + "-" + id + "-01", ""},
		"no span":                  {"00-" + trace + "-" + strings.Repeat("0", 16) + "-01", ""},
		"upper case":               {"00-" + strings.ToUpper(trace) + "-" + id + "-01", ""},
		"no hexadecimal digit":     {"00-" + trace[:31] + "g-" + id + "-01", ""},
		"dashes elsewhere":         {"00-" + trace[:31] + "-" + id + "-001", ""},
		"too long":                 {"01-" + trace + "-" + id + "-01-" + strings.Repeat("a", 200), ""},
		"a header break":           {"00-" + trace + "-" + id + "-01\r\nX: y", ""},
		"empty":                    {"", ""},
	} {
		t.Run(name, func(t *testing.T) {
			got, ok := span.Parse(c.value)
			if ok != (c.want != "") || ok && got.String() != c.want {
				t.Errorf("Parse(%q) = %q, %t; want %q", c.value, got, ok, c.want)
			}
		})
	}
}

// TestIDs checks that the IDs of two Turns, and of two parts of a Turn, differ, and that each is always the same.
func TestIDs(t *testing.T) {
	firstTrace, firstSpan := span.TraceIDOf("a"), span.IDOf("a", "step/1")
	if span.TraceIDOf("a") != firstTrace || span.IDOf("a", "step/1") != firstSpan {
		t.Error("two calls return different IDs for the same Turn, want the same ID")
	}
	if span.TraceIDOf("a") == span.TraceIDOf("b") || span.IDOf("a", "") == span.IDOf("b", "") || span.IDOf("a", "") == span.IDOf("a", "x") {
		t.Error("two parts have the same ID")
	}
	for _, text := range []string{"", "zz", strings.Repeat("0", 32), strings.Repeat("z", 32)} {
		if _, ok := span.ParseTraceID(text); ok {
			t.Errorf("ParseTraceID accepts %q", text)
		}
	}
	id := span.TraceIDOf("a")
	if got, ok := span.ParseTraceID(id.String()); !ok || got != id {
		t.Errorf("ParseTraceID(%q) = %v, %t", id, got, ok)
	}
}

// TestHeaderOf checks the header of a request with a span, and that a request without a span has no header.
func TestHeaderOf(t *testing.T) {
	c := span.Context{TraceID: span.TraceIDOf("a"), SpanID: span.IDOf("a", ""), Sampled: true}
	if got := span.HeaderOf(span.With(t.Context(), c)); got != c.String() {
		t.Errorf("the header is %q, want %q", got, c)
	}
	if got := span.HeaderOf(t.Context()) + span.HeaderOf(span.With(t.Context(), span.Context{})); got != "" {
		t.Errorf("the header without a span is %q", got)
	}
}
