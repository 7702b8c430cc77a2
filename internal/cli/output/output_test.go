package output_test

import (
	"encoding/json"
	"maps"
	"strings"
	"testing"
	"unicode"
	"unicode/utf8"

	"github.com/google/go-cmp/cmp"
	"sigs.k8s.io/yaml"

	"github.com/capstan-dev/capstan/internal/cli/output"
)

// TestEncodeKeepsTexts checks that a program reads the same text, and that no character that controls a terminal, or
// changes the direction of text, reaches it.
func TestEncodeKeepsTexts(t *testing.T) {
	t.Parallel()
	var all strings.Builder
	for r := rune(0); r <= '\uffff'; r++ {
		if utf8.ValidRune(r) {
			all.WriteRune(r)
		}
	}
	for name, text := range map[string]string{
		"plain":                           "a\nb <c> & ü 👍",
		"DEL":                             "a\x7fb",
		"C1":                              "a\u009b2Jb",
		"noncharacters":                   "a\ufffeb\uffffc",
		"a line end that YAML would fold": "a\u0085b",
		"line ends in lines":              "a\nb\u0085c\u2028d\u2029e\n",
		"direction":                       "a\u202eb",
		"direction in lines":              " a\u2066b\n\n  c\u2069\n",
		"line ends first":                 "\n\n a\n\tb\n \n",
		"spaces":                          "  a\n b  \n\n\n",
		"a tab first":                     "\ta\n- b: c #d\n",
		"byte order mark":                 "\ufeffa",
		"backslashes":                     `a\ufffe` + "\\\ufffe",
		"each":                            all.String() + "\U0001fffe\U0010ffff",
	} {
		const line = "line"
		for format, decode := range map[output.Format]func([]byte, any) error{
			output.JSON: json.Unmarshal, line: json.Unmarshal,
			output.YAML: func(data []byte, into any) error { return yaml.Unmarshal(data, into) },
		} {
			t.Run(name+" as "+string(format), func(t *testing.T) {
				t.Parallel()
				object := map[string]any{"text": text}
				want := maps.Clone(object)
				object["key "+text], want["key "+text] = "value", "value"
				if name != "each" { // raw JSON has escapes for other control characters
					escaped := strings.NewReplacer("\\", `\\`, "\n", `\n`, "\t", `\t`).Replace(text)
					object["raw"], want["raw"] = json.RawMessage(`"`+escaped+`"`), text
				}
				encoded, err := output.Encode(object, format)
				if format == line {
					encoded, err = output.Line(object)
				}
				if err != nil {
					t.Fatal(err)
				}
				if n := strings.Count(encoded, "\n"); format == line && n != 1 {
					t.Errorf("%d line feeds, want one: %q", n, encoded)
				}
				var got map[string]any
				if err := decode([]byte(encoded), &got); err != nil {
					t.Fatalf("%v in %q", err, encoded)
				}
				if diff := cmp.Diff(want, got); diff != "" {
					t.Errorf("-want +got:\n%s", diff)
				}
				if i := strings.IndexFunc(encoded, controls); i >= 0 {
					t.Errorf("want no character that controls a terminal, have one at %d of %q", i, encoded)
				}
			})
		}
	}
}

// TestEncodeKeepsSpaces checks all short texts of characters that have a meaning in YAML, depending on their place.
func TestEncodeKeepsSpaces(t *testing.T) {
	t.Parallel()
	texts := []string{""}
	for begin := 0; len(texts[begin]) < 5; begin++ {
		for _, next := range []string{" ", "\t", "\n", "a", "-", "#", ":", "'", `"`} {
			texts = append(texts, texts[begin]+next)
		}
	}
	encoded, err := output.Encode(texts, output.YAML)
	if err != nil {
		t.Fatal(err)
	}
	var got []string
	if err := yaml.Unmarshal([]byte(encoded), &got); err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(texts, got); diff != "" {
		t.Errorf("-want +got:\n%s", diff)
	}
}

// controls reports whether a character is a control character, a separator of lines, or a control of the direction of
// text (Unicode Standard Annex 9, table 2.1 without the marks).
func controls(r rune) bool {
	switch {
	case r == '\n':
		return false
	case r >= 0x202A && r <= 0x202E, r >= 0x2066 && r <= 0x2069, r == 0x2028, r == 0x2029:
		return true
	}
	return unicode.IsControl(r)
}

// TestEncodeRawJSON checks that JSON of a model, such as the arguments of a call, can be printed with any key and any
// escape, and that its numbers stay the same.
func TestEncodeRawJSON(t *testing.T) {
	t.Parallel()
	for name, raw := range map[string]string{
		"a long key":             `{"` + strings.Repeat("a", 1100) + `": {"` + strings.Repeat("ü: ", 9000) + `": 1}}`,
		"halves of a character":  `"\ud83d\ude00"`,
		"an escaped slash":       `"<a href=\"b\">c<\/a>"`,
		"one half":               `"a\ud83d"`,
		"numbers":                `[0, -5, 9223372036854775807, 18446744073709551615, 1.5e-7, 0.1, 1e21]`,
		"texts that look others": `{"y": "n", "1": "2", "~": "0x1F", "2001-01-01": "1_000", "null": null, "": [], "o": {}}`,
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			var want, got any
			if err := json.Unmarshal([]byte(raw), &want); err != nil {
				t.Fatal(err)
			}
			encoded, err := output.Encode(json.RawMessage(raw), output.YAML)
			if err != nil {
				t.Fatal(err)
			}
			if err := yaml.Unmarshal([]byte(encoded), &got); err != nil {
				t.Fatalf("%v in %.200q", err, encoded)
			}
			if diff := cmp.Diff(want, got); diff != "" {
				t.Errorf("-want +got:\n%.500s", diff)
			}
			if name == "numbers" && !strings.Contains(encoded, "- 9223372036854775807\n- 18446744073709551615\n") {
				t.Errorf("want exact integers, have %s", encoded)
			}
		})
	}
}
