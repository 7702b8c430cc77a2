package canonical_test

import (
	"bytes"
	"encoding/json"
	"math"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/capstan-dev/capstan/internal/runtime/canonical"
)

func TestJSON(t *testing.T) {
	type tagged struct {
		Z string `json:"z"`
		A int    `json:"a,omitempty"`
	}
	for name, tc := range map[string]struct {
		reason string
		value  any
		want   string
	}{
		"keys": {
			"keys are sorted at every depth", json.RawMessage(`{"b":{"d":1,"c":2},"a":[{"z":0,"y":0}]}`),
			`{"a":[{"y":0,"z":0}],"b":{"c":2,"d":1}}`,
		},
		"key bytes": {
			"keys are sorted by their bytes, so that capitals come first",
			map[string]int{"a": 1, "B": 2, "é": 3, "_": 4},
			`{"B":2,"_":4,"a":1,"é":3}`,
		},
		"struct": {"the fields of a struct are sorted, too", tagged{Z: "x"}, `{"z":"x"}`},
		"texts": {
			"a map of texts is written in the same form",
			map[string]string{"b": "\x00\"\\é\xff\xfe\uFFFD🙂\u2028<&>", "a": ""},
			"{\"a\":\"\",\"b\":\"\\u0000\\\"\\\\é\uFFFD\uFFFD\uFFFD🙂\u2028<&>\"}",
		},
		"one number":  {"a value need not be an object", json.RawMessage(" 1.0E+2 "), `1.0E+2`},
		"one text":    {"a value may be a text", json.RawMessage(`"\u003c\u00e9"`), `"<é"`},
		"one literal": {"a value may be a literal", json.RawMessage(" null\n"), `null`},
		"no texts":    {"an empty map is an empty object", map[string]string{}, `{}`},
		"nil texts":   {"a nil map is null", map[string]string(nil), `null`},
		"white space": {"no white space is written", json.RawMessage("[ 1 ,\n 2 ]"), `[1,2]`},
		"numbers": {
			"a number stays as it was written",
			json.RawMessage(`[1.0,1e400,-0,0.10,1E+2,12345678901234567890]`), `[1.0,1e400,-0,0.10,1E+2,12345678901234567890]`,
		},
		"HTML":       {"characters of HTML are not escaped", "<a href='x'>&</a>", `"<a href='x'>&</a>"`},
		"separators": {"U+2028 and U+2029 are not escaped", "a\u2028b\u2029", "\"a\u2028b\u2029\""},
		"control": {
			"control characters are escaped, in the short form if there is one",
			"\x00\b\t\n\f\r\x1f\x7f\"\\/", "\"\\u0000\\b\\t\\n\\f\\r\\u001f\x7f\\\"\\\\/\"",
		},
		"beyond the plane": {"a surrogate pair becomes one character", json.RawMessage(`"\ud83d\ude42"`), `"🙂"`},
		"lone surrogate":   {"half a surrogate pair is replaced", json.RawMessage(`"\ud83d"`), "\"\uFFFD\""},
		"invalid UTF-8":    {"invalid bytes are replaced", "a\xffb", "\"a\uFFFDb\""},
		"literals":         {"the three literals", []any{nil, true, false}, `[null,true,false]`},
		"empty":            {"empty containers stay", map[string]any{"a": []int{}, "b": map[string]int{}}, `{"a":[],"b":{}}`},
	} {
		t.Run(name, func(t *testing.T) {
			got, err := canonical.JSON(tc.value)
			if err != nil {
				t.Fatalf("JSON: %v", err)
			}
			if diff := cmp.Diff(tc.want, string(got)); diff != "" {
				t.Errorf("JSON: %s: -want +got:\n%s", tc.reason, diff)
			}
		})
	}
}

func TestHash(t *testing.T) {
	for name, tc := range map[string]struct {
		value any
		want  string
	}{
		// The digests were computed by another implementation of SHA-256 from the expected bytes of JSON.
		"empty object": {map[string]any{}, "44136fa355b3678a1146ad16f7e8649e94fb4fc21fe77e8310c060f61caaff8a"},
		"odd values": {
			json.RawMessage(`{"b": "<&>\u2028", "a": [1.0, 1e400, -0]}`),
			"3a1d17c8edc3ff40c5d71dfbe2d9e3eca3db815d9ddcb24c029337d273d1ab0f",
		},
	} {
		t.Run(name, func(t *testing.T) {
			got, err := canonical.Hash(tc.value)
			if err != nil {
				t.Fatalf("Hash: %v", err)
			}
			if diff := cmp.Diff(tc.want, got); diff != "" {
				t.Errorf("Hash: -want +got:\n%s", diff)
			}
		})
	}
	if diff := cmp.Diff("e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855", canonical.Sum(nil)); diff != "" {
		t.Errorf("Sum of nothing: -want +got:\n%s", diff)
	}
}

func TestHashRejectsValuesWithoutJSON(t *testing.T) {
	for name, value := range map[string]any{"infinity": math.Inf(1), "function": func() {}, "broken": json.RawMessage(`{`)} {
		t.Run(name, func(t *testing.T) {
			if got, err := canonical.Hash(value); err == nil {
				t.Errorf("Hash = %q, want an error", got)
			}
		})
	}
}

func FuzzJSON(f *testing.F) {
	for _, seed := range []string{`{"b":1,"a":[1e400,-0,1.0]}`, `"<\u2028\ud800>"`, `{"a":1,"a":2}`, `[null,true]`, `{"\u0000":""}`} {
		f.Add([]byte(seed))
	}
	f.Fuzz(func(t *testing.T, data []byte) {
		if !json.Valid(data) {
			return // only JSON has a canonical form
		}
		once, err := canonical.JSON(json.RawMessage(data))
		if err != nil {
			t.Fatalf("JSON(%s): %v", data, err)
		}
		if diff := cmp.Diff(decode(t, data), decode(t, once)); diff != "" {
			t.Errorf("JSON(%s) = %s means something else: -want +got:\n%s", data, once, diff)
		}
		var texts map[string]string
		if json.Unmarshal(data, &texts) == nil && texts != nil {
			alike := map[string]any{}
			for key, text := range texts {
				alike[key] = text
			}
			short, err := canonical.JSON(texts)
			long, err2 := canonical.JSON(alike)
			if err != nil || err2 != nil || !bytes.Equal(short, long) {
				t.Errorf("JSON of texts = %s, %v; want %s, %v, as of any object", short, err, long, err2)
			}
		}
		if twice, err := canonical.JSON(json.RawMessage(once)); err != nil || !bytes.Equal(once, twice) {
			t.Errorf("JSON of its own output %s = %s, %v; want the same bytes", once, twice, err)
		}
	})
}

func decode(t *testing.T, data []byte) any {
	t.Helper()
	dec := json.NewDecoder(bytes.NewReader(data))
	dec.UseNumber()
	var v any
	if err := dec.Decode(&v); err != nil {
		t.Fatalf("%s is no JSON: %v", data, err)
	}
	return v
}
