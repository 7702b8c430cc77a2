package redact_test

import (
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
