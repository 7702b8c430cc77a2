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

// TestEncodeKeepsTexts checks that a program reads the same text, and that no control character reaches a terminal.
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
					escaped := strings.NewReplacer("\\", `\\`, "\n", `\n`).Replace(text)
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
				if i := strings.IndexFunc(encoded, func(r rune) bool { return r != '\n' && unicode.IsControl(r) }); i >= 0 {
					t.Errorf("want no control character, have one at %d of %q", i, encoded)
				}
			})
		}
	}
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
