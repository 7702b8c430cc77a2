package redact_test

import (
	"bytes"
	"encoding/json"
	"fmt"
	"math/rand/v2"
	"strings"
	"testing"
)

// TestRulesInOtherStrings checks where values end whose strings have brackets and escaped quotes, if the text is not
// JSON: an object of Python, or JSON in a string of Python.
func TestRulesInOtherStrings(t *testing.T) {
	t.Parallel()
	for name, tc := range map[string]struct{ text, want string }{
		"an escaped quote and a bracket": {
			`{'cards': ['it\'s] "x', '4111'], 'id': 2}`, `{'cards': "[redacted]", 'id': 2}`,
		},
		"a quote of the other kind and a bracket": {
			`{'cards': ["it's]", 'say "]"', '4111'], 'id': 2}`, `{'cards': "[redacted]", 'id': 2}`,
		},
		"all quotes escaped": {
			`'{\'cards\': [\'a]b\', \'it\\\'s]\', \'4111\'], \'id\': 2}'`, `'{\'cards\': \"[redacted]\", \'id\': 2}'`,
		},
		"all quotes of an object escaped": {
			`"{\'cards\': {\'n\': \'a}b\', \'x\': \'4111\'}, \'id\': 2}"`, `"{\'cards\': \"[redacted]\", \'id\': 2}"`,
		},
		"JSON in a string": {
			`{'args': '{"cards": ["a\\"]b", "4111"], "id": 2}', 'id': 3}`, `{'args': '{"cards": "[redacted]", "id": 2}', 'id': 3}`,
		},
		"a JSON object in a string": {
			`{'args': '{"cards": {"n": "a\\"}b", "x": "4111"}, "id": 2}'}`, `{'args': '{"cards": "[redacted]", "id": 2}'}`,
		},
		"JSON in JSON in a string": {
			`{'args': '{"cards": ["[\\"a\\", \\"b\\"]", None, "4111"], "id": 2}'}`, `{'args': '{"cards": "[redacted]"`,
		},
		"an object in a string": {
			`{'args': "{'cards': ['it\\'s]', '4111'], 'id': 2}", 'id': 3}`, `{'args': "{'cards': "[redacted]", 'id': 2}", 'id': 3}`,
		},
		"three quotes": {
			`{'cards': ['''it's ] "x''', """say "]" x""", '4111'], 'id': 2}`, `{'cards': "[redacted]", 'id': 2}`,
		},
		"a value in three quotes": {
			`{'cards': '''4111 it's "x"''', 'id': 2} {"cards": """4111 "]""", 'id': 3}`,
			`{'cards': "[redacted]", 'id': 2} {"cards": "[redacted]", 'id': 3}`,
		},
		"an open string in three quotes": {`{'cards': ['''4111', 'x'], 'id': 2}`, `{'cards': "[redacted]"`},
		// It is not known whether the text is within another string, where the two backslashes are one.
		"a backslash at the end of a string": {`{'cards': ['C:\\', '4111'], 'id': 2}`, `{'cards': "[redacted]"`},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			for _, path := range []string{"$..cards", "$..cards.*", "$..cards[*]"} {
				got := rulesOf(t, nil, path).Redact(t.Context(), tc.text, nil)
				if strings.Contains(got, "4111") || path == "$..cards" && got != tc.want {
					t.Errorf("%s: %s, want %s", path, got, tc.want)
				}
			}
		})
	}
}

// TestRulesAfterBackslashes checks where values end whose strings end in backslashes, if a bracket is in the next
// string and the text is not JSON.
func TestRulesAfterBackslashes(t *testing.T) {
	t.Parallel()
	for name, tc := range map[string]struct{ path, text string }{
		"a name after a mistake":    {"$..cards", `{"n": NaN, "cards": ["C:\\", "]", "4111"]}`},
		"a mistake in a list":       {"$.cards[*]", `{"cards": ["C:\\", "]", None, "4111"]}`},
		"a mistake after a list":    {"$..cards", `{"cards": ["C:\\", "]", "4111"] x}`},
		"a comment after an object": {"$..card", `{"card": {"dir":"C:\\","re":"[^}]+","pan":"4111"} // c`},
		"Python":                    {"$..cards", `{'n': None, 'cards': ['C:\\', ']', '4111']}`},
		"an object of Python":       {"$..card", `{'card': {'dir':'C:\\','re':'[^}]+','pan':'4111'}}`},
		"four backslashes":          {"$..cards", `{"n": NaN, "cards": ["C:\\\\", "]", "4111"]}`},
		"six backslashes":           {"$.cards[*]", `{"cards": ["C:\\\\\\", "]", None, "4111"]}`},
		"an escaped quote":          {"$..cards", `{"cards": ["C:\\\"]", "\\", "]", "4111"] x}`},
		"backslashes in Python":     {"$..cards", `{'cards': ['C:\\\\', 'it\'s]', '\\\\', ']', '4111'], 'n': 1}`},
		"in a string of Python":     {"$..cards", `{'args': '{"cards": ["a\\"]b", "C:\\\\", "]", "4111"]}'}`},
		"a comma in a string":       {"$..cards", `{'args': '{"cards": "a\\", 4111", "id": 2}'}`},
		"a comma at an open end":    {"$.cards", `{'args': '{"cards": "a\\" , 4111`},
		"in a string of JSON":       {"$..cards", `"{\"n\": NaN, \"cards\": [\"C:\\\\\", \"]\", \"4111\"]}"`},
		"in a string of a shell":    {"$..cards", `'{\'n\': NaN, \'cards\': [\'C:\\\\\', \']\', \'4111\']}'`},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			got := rulesOf(t, nil, tc.path).Redact(t.Context(), tc.text, nil)
			if strings.Contains(got, "4111") || !strings.Contains(got, "[redacted]") {
				t.Errorf("%s: %s becomes %s", tc.path, tc.text, got)
			}
		})
	}
}

// TestRulesKeepMembersAfterABackslash checks that a value of JSON that ends in a backslash does not take the next
// member with it, whatever its name is.
func TestRulesKeepMembersAfterABackslash(t *testing.T) {
	t.Parallel()
	rules := rulesOf(t, nil, "$.password")
	for _, name := range []string{"b", "user's card", "a`b", `say \"a\"`, "a\\", strings.Repeat("n", 1000)} {
		text := `{"password":"C:\\", "` + name + `":"x"}`
		if got, want := rules.Redact(t.Context(), text, nil), `{"password":"[redacted]", "`+name+`":"x"}`; got != want {
			t.Errorf("%s becomes %s, want %s", text, got, want)
		}
	}
}

// TestRulesRemoveWholeJSONValues checks with generated values that the removed part of a text is never shorter than the
// value as JSON reads it, whatever is wrong before or after the value.
func TestRulesRemoveWholeJSONValues(t *testing.T) {
	t.Parallel()
	random := rand.New(rand.NewPCG(1, 2))
	rules := rulesOf(t, nil, "$..cards")
	for range 2_000 {
		value := jsonOf(t, randomValue(random, 3))
		for _, around := range [][2]string{
			{`{"n": NaN, "cards": `, `}`},
			{`{'n': 1, "cards": `, `, "id": 2}`},
			{`{"n": 1 /* c */, "cards": `, ` // c`},
			{`{"cards": `, ` x}`},
			{`{"cards": `, ` // c`},
			{`{"cards": `, `} x`},
			{`{"cards": `, `, "n": NaN}`},
			{`[{"cards": `, ` /* "]" */}]`},
		} {
			text := around[0] + value + around[1]
			got := rules.Redact(t.Context(), text, nil)
			rest, ok := strings.CutPrefix(got, around[0]+`"[redacted]"`)
			if !ok || !strings.HasSuffix(around[1], rest) {
				t.Fatalf("%s becomes %s", text, got)
			}
		}
		inPython := strings.NewReplacer(`\`, `\\`, `'`, `\'`).Replace(`{"n": NaN, "cards": [` + value + `, "4111"], "id": 2}`)
		for _, text := range []string{
			`{'args': '` + inPython + `', 'id': 3}`,
			`{"n": NaN, "cards": [` + value + `, "4111"]}`,
			`{"cards": [` + value + `, "4111"] x}`,
			jsonOf(t, `{"n": NaN, "cards": [`+value+`, "4111"]}`),
			jsonOf(t, jsonOf(t, `{"n": NaN, "cards": [`+value+`, "4111"]}`)),
		} {
			if got := rules.Redact(t.Context(), text, nil); strings.Contains(got, "4111") {
				t.Fatalf("%s becomes %s", text, got)
			}
		}
		items := rulesOf(t, nil, "$.cards[*]")
		text := `{"cards": [` + value + `, "4111", None]}`
		if got := items.Redact(t.Context(), text, nil); strings.Contains(got, "4111") {
			t.Fatalf("%s becomes %s", text, got)
		}
	}
}

// randomValue returns a string, a list or an object whose strings have backslashes, quotes and brackets.
func randomValue(random *rand.Rand, depth int) any {
	text := func() string {
		var out strings.Builder
		for range random.IntN(4) {
			out.WriteString([]string{`\`, `\\`, `"`, `'`, "`", `]`, `}`, `[`, `{`, `,`, `:`, `a`, ` `, `//`, `#`}[random.IntN(15)])
		}
		return out.String()
	}
	switch kind := random.IntN(3); {
	case depth == 0 || kind == 0:
		return text()
	case kind == 1:
		list := make([]any, random.IntN(4))
		for i := range list {
			list[i] = randomValue(random, depth-1)
		}
		return list
	default:
		object := map[string]any{}
		for i := range random.IntN(4) {
			object[fmt.Sprint(i, text())] = randomValue(random, depth-1)
		}
		return object
	}
}

// jsonOf returns a value as JSON.
func jsonOf(t *testing.T, value any) string {
	t.Helper()
	var out bytes.Buffer
	encoder := json.NewEncoder(&out)
	encoder.SetEscapeHTML(false)
	if err := encoder.Encode(value); err != nil {
		t.Fatal(err)
	}
	return strings.TrimSpace(out.String())
}
