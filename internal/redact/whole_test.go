package redact_test

import (
	"encoding/base64"
	"encoding/json"
	"fmt"
	"html"
	"math/rand/v2"
	"net/url"
	"strings"
	"testing"

	"github.com/capstan-dev/capstan/internal/redact"
)

// token contains the characters that the formats escape.
const token = `Super&Secret/Token+12345<"%41>`

// writings are forms in which servers write a text.
var writings = map[string]func(string) string{
	"as it is": func(s string) string { return s },
	"JSON of Go": func(s string) string {
		text, _ := json.Marshal(s) // a string can always be encoded
		return string(text[1 : len(text)-1])
	},
	"JSON in small":    func(s string) string { return unicodes(s, `\u%04x`) },
	"JSON in capitals": func(s string) string { return unicodes(s, `\u%04X`) },
	"JSON of PHP": func(s string) string {
		return strings.NewReplacer(`\`, `\\`, `"`, `\"`, `/`, `\/`).Replace(s)
	},
	"JavaScript":     func(s string) string { return unicodes(s, `\x%02x`) },
	"query":          url.QueryEscape,
	"path":           url.PathEscape,
	"query in small": func(s string) string { return small.Replace(url.QueryEscape(s)) },
	"URL, all of it": func(s string) string { return unicodes(s, "%%%02x") },
	"HTML":           html.EscapeString,
	"HTML, decimal":  func(s string) string { return unicodes(s, "&#%d;") },
	"HTML, hex":      func(s string) string { return unicodes(s, "&#x%x;") },
}

var small = strings.NewReplacer("%2B", "%2b", "%2F", "%2f", "%3C", "%3c", "%3E", "%3e")

// unicodes writes each character as a number.
func unicodes(s, format string) string {
	var out strings.Builder
	for _, r := range s {
		fmt.Fprintf(&out, format, r)
	}
	return out.String()
}

func TestWholeFindsEncodedSecrets(t *testing.T) {
	for _, secret := range []string{token, secret, "pass&word", "a/b+", `back\\slash-%2526`, "Bearer " + token, "with spaces & more"} {
		r := redact.New(secret)
		for inner, write := range writings {
			for outer, wrap := range writings {
				around := wrap("é a+b&c/") // has the same escapes
				got := r.Redact(around + wrap(write(secret)) + around)
				if got != around+"[redacted]"+around {
					t.Errorf("%q: %s within %s: %q of %q", secret, inner, outer, got, wrap(write(secret)))
				}
				if line := r.Line("{"+wrap(write(secret))+"}", 10_000); line != "{[redacted]}" {
					t.Errorf("%q: %s within %s, in a message: %q", secret, inner, outer, line)
				}
			}
		}
	}
}

func TestWhole(t *testing.T) {
	encode := base64.StdEncoding.EncodeToString
	long := strings.Repeat("k3y/", 30) + "end+of+it"
	wrapped := encode([]byte("Bearer " + long))
	wrapped = wrapped[:76] + "\r\n" + wrapped[76:152] + "\r\n" + wrapped[152:]
	for name, tc := range map[string]struct {
		reason  string
		secrets []string
		text    string
		want    string
	}{
		"a tool that echoes": {
			"Go escapes & for HTML, and the last member has all but the last byte",
			[]string{"Super&Secret/Token+12345"},
			`{"plain":"Super&Secret/Token+12345","esc":"Super\u0026Secret/Token+12345",` +
				`"url":"Super%26Secret%2FToken%2B12345","part":"Super&Secret/Token+1234"}`,
			`{"plain":"[redacted]","esc":"[redacted]","url":"[redacted]","part":"[redacted]"}`,
		},
		"JSON in JSON": {
			"a tool may pass on the result of another tool",
			[]string{token},
			`"{\"a\":\"Super\\u0026Secret/Token+12345\\u003c\\\"%41\\u003e\",\n\"b\":1}"`, `"{\"a\":\"[redacted]\",\n\"b\":1}"`,
		},
		"nothing": {
			"a text without a secret is unchanged, byte by byte",
			[]string{token},
			"a\\u0026b %41 &amp; \x00\xff \t\r\n", "a\\u0026b %41 &amp; \x00\xff \t\r\n",
		},
		"no secret": {"there is nothing to find", nil, token, token},
		"too short": {"such a secret would be found everywhere", []string{"abc", `\u0041b`}, `abc Ab`, "abc Ab"},
		"short":     {"4 bytes are enough", []string{"abcd"}, "xabcdy", "x[redacted]y"},
		"short, two words": {
			"with white space in it, a short secret may be two words",
			[]string{"theme"},
			"the men of the\nme theme",
			"the men of the\nme [redacted]",
		},
		"short, a part":    {"a part of a short secret may be any text", []string{"pass&word-12345"}, "pass&word-1234", "pass&word-1234"},
		"with white space": {"a secret may be wrapped", []string{secret}, secret[:20] + "\n" + secret[20:] + "\n", "[redacted]\n"},
		"three quarters": {
			"three quarters of a secret reveal it",
			[]string{secret},
			"x" + secret[8:] + "x " + secret[:26] + " " + secret[4:30], "x[redacted]x [redacted] [redacted]",
		},
		"less": {
			"a shorter part may be another text",
			[]string{secret},
			secret[:25] + " " + secret[10:], secret[:25] + " " + secret[10:],
		},
		"side by side": {"adjacent secrets have one replacement", []string{secret, token}, secret + token + secret + "x", "[redacted]x"},
		"repeats itself": {
			"a secret that repeats itself counts only as a whole",
			[]string{strings.Repeat("ab", 20)},
			strings.Repeat("ab", 19) + "-" + strings.Repeat("ab", 21), strings.Repeat("ab", 19) + "-[redacted]ab",
		},
		"nested": {
			"a secret may contain another secret",
			[]string{"inner-secret-0123", "outer-inner-secret-0123-outer"},
			"<outer-inner-secret-0123-outer>", "<[redacted]>",
		},
		"the token alone": {
			"the text after a scheme is a secret itself",
			[]string{"Token 0123456789"},
			"0123456789 Token 0123456789", "[redacted] [redacted]",
		},
		"the password": {
			"the password within Basic is a secret itself",
			[]string{"Basic " + encode([]byte("ada:love<lace"))},
			`{"user":"ada","password":"love\u003clace"}`, `{"user":"ada","password":"[redacted]"}`,
		},
		"base64": {
			"the encoded header may be wrapped",
			[]string{long},
			"a " + wrapped + " b",
			"a " + wrapped[:10] + "[redacted]" + wrapped[len(wrapped)-3:] + " b",
		},
		"base64 in a URL": {
			"the digits of base64 may be escaped, and base64 for URLs has other digits",
			[]string{"??>>??>>~~~~"},
			"a=" + url.QueryEscape(base64.StdEncoding.EncodeToString([]byte("??>>??>>~~~~"))) + "&b=" +
				base64.URLEncoding.EncodeToString([]byte("??>>??>>~~~~")), "a=[redacted]&b=[redacted]",
		},
		"another encoding": {"other encodings are not found", []string{"abcdefgh"}, "a-b-c-d-e-f-g-h", "a-b-c-d-e-f-g-h"},
	} {
		t.Run(name, func(t *testing.T) {
			if got := redact.New(tc.secrets...).Redact(tc.text); got != tc.want {
				t.Errorf("%q, want %q: %s", got, tc.want, tc.reason)
			}
		})
	}
}

// TestWholeOfBase64 checks secrets at all positions of base64 texts.
func TestWholeOfBase64(t *testing.T) {
	r := redact.New(secret)
	for before := range 7 {
		for after := range 4 {
			for _, kind := range []*base64.Encoding{base64.StdEncoding, base64.RawURLEncoding} {
				text := kind.EncodeToString([]byte(strings.Repeat("u", before) + secret + strings.Repeat("v", after)))
				got := r.Redact("x " + text + " y")
				front, back, found := strings.Cut(got, "[redacted]")
				// The digit at each end may depend on the neighboring bytes.
				if !found || len(front) > 2+(before*8+5)/6 || len(back) > 2+(after*8+5)/6+3 ||
					!strings.HasPrefix("x "+text, front) || !strings.HasSuffix(text+" y", back) {
					t.Errorf("%d bytes before, %d after: %q is left of %q", before, after, got, text)
				}
			}
		}
	}
}

// TestWholeOfLongTexts checks secrets at random places of a text of many chunks.
func TestWholeOfLongTexts(t *testing.T) {
	random := rand.New(rand.NewPCG(1, 2)) // the same in each run
	escaped := unicodes(secret, `\u%04x`)
	r := redact.New(secret)
	var text, want strings.Builder
	for text.Len() < 1<<20 {
		gap := strings.Repeat(`a "b" \u0026 `, random.IntN(400)) + strings.Repeat("x", random.IntN(20))
		text.WriteString(gap + escaped)
		want.WriteString(gap + "[redacted]")
	}
	if got := r.Redact(text.String()); got != want.String() {
		t.Errorf("got %d bytes of %d, want %d bytes; they contain the secret %d times", len(got), text.Len(), want.Len(),
			strings.Count(got, escaped))
	}
	huge := strings.Repeat(secret+"/", 20_000)[:600_000] // a secret that is longer than a chunk, and repeats itself
	if got := redact.New(huge[7:]).Redact("x" + huge + "y"); got != "x[redacted]y" {
		t.Errorf("of a huge secret %.100q is left", got)
	}
}

// TestWholeOfLongSecrets checks secrets that are longer than the parts in which a text is viewed, and parts of them.
func TestWholeOfLongSecrets(t *testing.T) {
	all := credentialOf(100_000)
	for _, size := range []int{513, 700, 3000, longest, len(all)} {
		long := all[:size]
		r := redact.New(long)
		for name, write := range map[string]func(string) string{
			"as it is":     func(s string) string { return s },
			"JSON":         func(s string) string { return unicodes(s, `\u%04x`) },
			"JSON in HTML": func(s string) string { return unicodes(unicodes(s, `\u%04x`), "&#%d;") },
			"wrapped":      func(s string) string { return strings.ReplaceAll(s[:len(s)-1], "a", "a\r\n ") + s[len(s)-1:] },
		} {
			for _, part := range []string{long, long[size/4:], long[:size-size/4], long[size/8 : size-size/8]} {
				var text, want strings.Builder
				for _, gap := range []int{1, 64_000, 81_000} {
					around := strings.Repeat(`\u003e`, gap/6) + strings.Repeat("#", 1+gap%6)
					text.WriteString(around + write(part))
					want.WriteString(around + "[redacted]")
					if size == len(all) {
						break // it takes long
					}
				}
				if got := r.Redact(text.String() + "#"); got != want.String()+"#" {
					t.Errorf("%s: %d bytes of a secret of %d bytes: %d bytes are left, want %d", name, len(part), size, len(got),
						want.Len()+1)
				}
			}
		}
		if less := "#" + long[:size/4] + "#"; r.Redact(less) != less {
			t.Errorf("the first quarter of a secret of %d bytes is not left", size)
		}
	}
}

func BenchmarkWhole(b *testing.B) {
	row, err := json.Marshal(map[string]any{
		"id": 12345, "title": "A <b>title</b> & \"more\"",
		"url": "https://example.com/a?b=c%20d&e=f", "text": strings.Repeat("Lorem ipsum dolor sit amet. ", 10),
	})
	if err != nil {
		b.Fatal(err)
	}
	var many []string
	for i := range 17 {
		many = append(many, fmt.Sprintf("%d-%s", i*1234567, token))
	}
	for name, text := range map[string]string{
		"prose":  strings.Repeat("Lorem ipsum dolor sit amet, consectetur. ", 8<<20/41),
		"JSON":   strings.Repeat(string(row)+"\n", 8<<20/len(row)),
		"almost": strings.Repeat(secret[:len(secret)*3/4-1], 8<<20/25),
		"one":    strings.Repeat("a", 8<<20),
		"found":  strings.Repeat(string(row)+secret+"\n", 8<<20/len(row)),
		"slash":  strings.Repeat("\\", 8<<20),
		"short":  `{"status":"ok","id":12}`,
	} {
		for kind, secrets := range map[string][]string{
			"one secret": {secret}, "17 secrets": many, "a secret of one letter": {strings.Repeat("a", 4096)},
			"a secret that repeats itself": {secret + strings.Repeat("a", 2000) + secret},
		} {
			r := redact.New(secrets...)
			b.Run(name+"/"+kind, func(b *testing.B) {
				b.SetBytes(int64(len(text)))
				b.ReportAllocs()
				for b.Loop() {
					_ = r.Redact(text) // the test is about the time
				}
			})
		}
	}
}
