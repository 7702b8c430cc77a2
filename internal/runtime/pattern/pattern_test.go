package pattern_test

import (
	"fmt"
	"regexp"
	"runtime"
	"strings"
	"testing"

	"github.com/capstan-dev/capstan/internal/memory/memorytest"
	"github.com/capstan-dev/capstan/internal/runtime/pattern"
)

func TestCompile(t *testing.T) {
	for name, tc := range map[string]struct {
		reason, text, err string
		size              int
	}{
		"literal":            {"each character counts", "abc", "", 3},
		"classes":            {"a class looks for one character", `\d{4}-[a-z]+`, "", 7},
		"nested repetitions": {"nested repetitions multiply", "(?:(?:ab){10}){20}", "", 400},
		"too large":          {"a search would take too long", "(?:a{40}b{40}){25}c", "it has more than 2000 characters", 0},
		"too long": {
			"it would take too much memory", strings.Repeat("a", 1025), "it has 1025 bytes, and the maximum is 1024",
			0,
		},
		"no expression": {"it cannot be compiled", "(", "missing closing )", 0},
		"backward references": {
			"RE2 has no backward references, because they need exponential time", `(a)\1`, "invalid escape sequence",
			0,
		},
		"huge repetition": {"the library rejects it", "a{1001}", "invalid repeat count", 0},
		"classes of letters": {
			"usual patterns may have many large classes", "^" + strings.Repeat(`[\p{L}\p{N}_-]{1,64} `, 12) + "$", "",
			2 + 12*65,
		},
		"many large classes": {"each class takes memory", strings.Repeat(`\pL`, 100), "it takes more than 512 KiB of memory", 0},
		"overlapping classes": {
			"their ranges are sorted", "[" + strings.Repeat(`\pL`, 300) + "]", "it takes too long to compile", 0,
		},
		"ranges without regard to case": {
			"the parser goes through all characters", "(?s-U:(?mi)[" + strings.Repeat("B-\U0001e940", 150) + "])",
			"it takes too long to compile", 0,
		},
		"ranges in hexadecimal digits": {
			"the parser goes through all characters", "(?i)[" + strings.Repeat(`B-\x{1e940}`, 90) + "]", "it takes too long to compile", 0,
		},
		"usual flags": {"usual ranges may follow (?i)", "(?i)" + strings.Repeat("[a-z0-9]-", 100), "", 200},
		"nested groups": {
			"a group takes memory, too", "(?:" + strings.Repeat("(", 400) + "a" + strings.Repeat(")", 400) + "){1000}",
			"it takes more than 512 KiB of memory", 0,
		},
		"look ahead": {"RE2 has no look-ahead", "(?=a)", "invalid or unsupported Perl syntax", 0},
	} {
		t.Run(name, func(t *testing.T) {
			p, err := pattern.Compile(tc.text)
			switch {
			case tc.err == "" && (err != nil || p.Size != tc.size):
				t.Errorf("Compile = %+v, %v; want the size %d: %s", p, err, tc.size, tc.reason)
			case tc.err != "" && (err == nil || !strings.Contains(err.Error(), tc.err)):
				t.Errorf("Compile = %v, want an error with %q: %s", err, tc.err, tc.reason)
			}
		})
	}
}

// TestMemory checks that Memory bounds the memory of a compiled expression, and that it is not several times too high
// for large ones.
func TestMemory(t *testing.T) {
	var alternatives []string
	for i := range 250 {
		alternatives = append(alternatives, string(rune(0xc0+i))+"a")
	}
	for name, text := range map[string]string{
		"short":             "a",
		"literal":           strings.Repeat("a", 1000),
		"repeated literal":  "(?:ab|cd){300}",
		"classes":           strings.Repeat(`\pL`, 60),
		"folded classes":    "(?i)" + strings.Repeat(`\pL`, 40),
		"merged classes":    "[" + strings.Repeat(`\pL`, 60) + "]",
		"other classes":     strings.Repeat("[a-z]x*", 140),
		"repeated classes":  `^\pL{900}$`,
		"optional classes":  `^\pL{0,450}$`,
		"alternatives":      "^(?:" + strings.Join(alternatives, "|") + ")$",
		"anchors in groups": `^(?:^(?:^\pL{400}))$`,
		"groups":            "(?:" + strings.Repeat("(", 20) + "a" + strings.Repeat(")", 20) + "){100}",
		"many groups":       strings.Repeat("(a)", 300),
	} {
		t.Run(name, func(t *testing.T) {
			const copies = 16
			var all [copies]*pattern.Pattern
			before := memorytest.Heap()
			for i := range all {
				p, err := pattern.Compile(strings.Clone(text))
				if err != nil {
					t.Fatal(err)
				}
				all[i] = p
			}
			kept := int(memorytest.Heap()-before) / copies
			runtime.KeepAlive(all)
			counted := all[0].Memory
			t.Logf("Memory = %d, and %d bytes are kept", counted, kept)
			if kept > counted || counted > pattern.MaxMemory || counted > 4*kept+4096 {
				t.Errorf("Memory = %d, but %d bytes are kept", counted, kept)
			}
		})
	}
}

// TestAnchorsAndGroups checks that an expression that begins with ^ finds the same as in package regexp.
func TestAnchorsAndGroups(t *testing.T) {
	for _, text := range []string{`^a|b`, `^(a)+$`, `(?i)^ab`, `\Aa{2}`, `\Q^a`, `^\Qa`, `(?:^|x)a`, `(?m)^a$`} {
		p, err := pattern.Compile(text)
		if err != nil {
			t.Fatal(err)
		}
		want := regexp.MustCompile(text)
		for _, searched := range []string{"", "a", "aa", "AB", "b", "xa", "x\na", "^a"} {
			if got, want := p.FindAllStringIndex(searched, -1), want.FindAllStringIndex(searched, -1); fmt.Sprint(got) != fmt.Sprint(want) {
				t.Errorf("%q finds %v in %q, want %v", text, got, searched, want)
			}
		}
		if p.String() != text {
			t.Errorf("String of %q is %q", text, p)
		}
	}
}
