package redact_test

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"golang.org/x/text/unicode/norm"

	"github.com/capstan-dev/capstan/internal/redact"
	"github.com/capstan-dev/capstan/internal/runtime/invalid"
)

// email, card and iban are patterns like those that people write.
var (
	email = redact.PatternRule{Name: "email", Pattern: `[A-Za-z0-9._%+-]+@[A-Za-z0-9.-]+\.[A-Za-z]{2,}`}
	card  = redact.PatternRule{Name: "card", Pattern: `\b(?:\d[ -]?){15}\d\b`, Replacement: "CARD"}
	iban  = redact.PatternRule{Name: "iban", Pattern: `\b[A-Z]{2}\d{2}(?: ?[A-Z0-9]{4}){3,7}(?: ?[A-Z0-9]{1,3})?\b`}
)

func rulesOf(t testing.TB, patterns []redact.PatternRule, paths ...string) *redact.Rules {
	t.Helper()
	r, err := redact.NewRules("spec.redaction", patterns, paths)
	if err != nil {
		t.Fatal(err)
	}
	return r
}

// TestRules checks what remains of texts, and how the matches are counted.
func TestRules(t *testing.T) {
	all := []redact.PatternRule{email, card, iban}
	broken := strings.Repeat("\x80", 200_000) // bytes that continue a character which never begins
	for name, tc := range map[string]struct {
		patterns []redact.PatternRule
		paths    []string
		text     string
		want     string
		found    redact.Matches
	}{
		"nothing":              {all, nil, "Hello, world", "Hello, world", nil},
		"in a text":            {all, nil, "Mail a.b@example.com.", "Mail [redacted:email].", redact.Matches{"email": 1}},
		"twice":                {all, nil, "a@b.example c@d.example", "[redacted:email] [redacted:email]", redact.Matches{"email": 2}},
		"own replacement":      {all, nil, "4111 1111 1111 1111!", "CARD!", redact.Matches{"card": 1}},
		"invisible characters": {all, nil, "a\u200b.b@exam\u00adple.c\u2060om", "[redacted:email]", redact.Matches{"email": 1}},
		"wide letters":         {all, nil, "ａ＠ｂ．example", "[redacted:email]", redact.Matches{"email": 1}},
		"escape of JSON":       {all, nil, `say a\u0040b.example`, "say [redacted:email]", redact.Matches{"email": 1}},
		"escape of a URL":      {all, nil, "?to=a%40b.example&x=1", "?to=[redacted:email]&x=1", redact.Matches{"email": 1}},
		"escape of HTML":       {all, nil, "a&#64;b.example", "[redacted:email]", redact.Matches{"email": 1}},
		"escape twice":         {all, nil, `a\\u0040b.example`, "[redacted:email]", redact.Matches{"email": 1}},
		"line breaks stay":     {all, nil, "a@b.example\nnext", "[redacted:email]\nnext", redact.Matches{"email": 1}},
		"no-break space":       {all, nil, "4111\u00a01111\u00a01111\u00a01111", "CARD", redact.Matches{"card": 1}},
		"JSON string": {
			all, nil, `{"to": "a@b.example", "n": 1}`, `{"to": "[redacted:email]", "n": 1}`, redact.Matches{"email": 1},
		},
		"JSON escapes": {all, nil, `{"to":"a\u0040b.example"}`, `{"to":"[redacted:email]"}`, redact.Matches{"email": 1}},
		"JSON line break": {
			all, nil, `{"to":"x\na@b.example\n\"y\""}`, `{"to":"x\n[redacted:email]\n\"y\""}`, redact.Matches{"email": 1},
		},
		"JSON name":            {all, nil, `{"a@b.example":true}`, `{"[redacted:email]":true}`, redact.Matches{"email": 1}},
		"JSON number":          {all, nil, `{"card":4111111111111111}`, `{"card":"CARD"}`, redact.Matches{"card": 1}},
		"number with exponent": {all, nil, `[4.111111111111111e15]`, `["CARD"]`, redact.Matches{"card": 1}},
		"number out of bounds": {all, nil, `[1e999999999]`, `[1e999999999]`, nil},
		"JSON in JSON": {
			all, nil, `{"x":"{\"to\":\"a@b.example\"}"}`, `{"x":"{\"to\":\"[redacted:email]\"}"}`, redact.Matches{"email": 1},
		},
		"JSON in a text": {
			all, nil, "See\n```json\n{\"card\":4111111111111111}\n```\nof a@b.example",
			"See\n```json\n{\"card\":\"CARD\"}\n```\nof [redacted:email]",
			redact.Matches{"card": 1, "email": 1},
		},
		"several documents": {
			nil,
			[]string{"$.a"},
			"{\"a\":1}\n{\"a\":2,\"b\":3}", "{\"a\":\"[redacted]\"}\n{\"a\":\"[redacted]\",\"b\":3}",
			redact.Matches{"$.a": 2},
		},
		"overlap": {
			[]redact.PatternRule{{Name: "one", Pattern: "bcd"}, {Name: "two", Pattern: "abc"}},
			nil, "abcd", "[redacted:two]",
			redact.Matches{"one": 1, "two": 1},
		},
		"overlap with the same begin": {
			[]redact.PatternRule{{Name: "one", Pattern: "ab"}, {Name: "two", Pattern: "abc"}},
			nil, "abcd", "[redacted:one]d",
			redact.Matches{"one": 1, "two": 1},
		},
		"across a replacement": {
			[]redact.PatternRule{{Name: "one", Pattern: "secret", Replacement: "x"}, {Name: "two", Pattern: "<x> y"}},
			nil,
			"<secret> y", "<x> y",
			redact.Matches{"one": 1},
		},
		"path": {
			nil,
			[]string{"$.customer.iban"},
			`{"customer":{"iban":"DE1","name":"A"},"iban":"DE2"}`,
			`{"customer":{"iban":"[redacted]","name":"A"},"iban":"DE2"}`,
			redact.Matches{"$.customer.iban": 1},
		},
		"deep path": {
			nil,
			[]string{"$..password"},
			`{"a":[{"password":"x"}],"password":{"b":[1]}}`,
			`{"a":[{"password":"[redacted]"}],"password":"[redacted]"}`,
			redact.Matches{"$..password": 2},
		},
		"wildcard": {
			nil,
			[]string{"$.items[*].email"},
			`{"items":[{"email":"a"},{"email":7},{"mail":"b"}]}`,
			`{"items":[{"email":"[redacted]"},{"email":"[redacted]"},{"mail":"b"}]}`,
			redact.Matches{"$.items[*].email": 2},
		},
		"path in a string": {
			nil,
			[]string{"$..password"},
			`{"body":"{\"user\":\"é\",\"password\":\"hunter2\"}","password":1}`,
			`{"body":"{\"user\":\"é\",\"password\":\"[redacted]\"}","password":"[redacted]"}`,
			redact.Matches{"$..password": 2},
		},
		"path in a string in a string": {
			nil,
			[]string{"$.password"},
			`["{\"b\":\"{\\\"password\\\":1}\"}"]`,
			`["{\"b\":\"{\\\"password\\\":\\\"[redacted]\\\"}\"}"]`,
			redact.Matches{"$.password": 1},
		},
		"path in a quoted string of a text": {
			nil,
			[]string{"$..password"},
			`level=info msg="sent {\n \"password\":\"hunter2\"} to {\"password\":2}" id={"password":3}`,
			`level=info msg="sent {\n \"password\":\"[redacted]\"} to {\"password\":\"[redacted]\"}" id={"password":"[redacted]"}`,
			redact.Matches{"$..password": 3},
		},
		"path in an escaped list": {
			nil,
			[]string{"$[*].a"},
			`[{\"a\":1},{\"a\":2}]`, `[{\"a\":\"[redacted]\"},{\"a\":\"[redacted]\"}]`,
			redact.Matches{"$[*].a": 2},
		},
		"path in a text that is escaped twice": {
			nil, []string{"$.a"}, `x {\\\"a\\\":1}`, `x {\\\"a\\\":\\\"[redacted]\\\"}`, redact.Matches{"$.a": 1},
		},
		"escaped value cut off": {
			nil, []string{"$.a"}, `x {\"b\":1,\"a\":\"secr\`, `x {\"b\":1,\"a\":\"[redacted]\"`, redact.Matches{"$.a": 1},
		},
		"string cut off": {nil, []string{"$.a"}, `{"x":"{\"a\":\"secr`, `{"x":"{\"a\":\"[redacted]\"`, redact.Matches{"$.a": 1}},
		"path and patterns in a quoted string": {
			all,
			[]string{"$.a"},
			`x="{\"a\":\"a@b.example\",\"b\":\"c@b.example\"}" d@b.example`,
			`x="{\"a\":\"[redacted]\",\"b\":\"[redacted:email]\"}" [redacted:email]`,
			redact.Matches{"$.a": 1, "email": 2},
		},
		"escapes that are no JSON": {
			all,
			[]string{"$.a"},
			`{\d+} a@b.example {"a":1}`, `{\d+} [redacted:email] {"a":"[redacted]"}`,
			redact.Matches{"$.a": 1, "email": 1},
		},
		"words that are no JSON": {
			nil,
			[]string{"$..password", "$.customer.phone"},
			`{"score": NaN, "ok": True, "user": $USER, "limit": -Infinity, "customer": {"phone": 1}, "password": "hunter2"}`,
			`{"score": NaN, "ok": True, "user": $USER, "limit": -Infinity, "customer": {"phone": "[redacted]"}, "password": "[redacted]"}`,
			redact.Matches{"$..password": 1, "$.customer.phone": 1},
		},
		"escaped names after words that are no JSON": {
			nil,
			[]string{"$..住所", "$..straße", "$..🔑", "$..password"},
			`{"score": NaN, "\u4f4f\u6240": "\u6771\u4eac", "stra\u00DFe": {"n": 1}, "\ud83d\udd11": 7, "\u0070assword": "x", "\u5e74": 1}`,
			`{"score": NaN, "\u4f4f\u6240": "[redacted]", "stra\u00DFe": "[redacted]", "\ud83d\udd11": "[redacted]", ` +
				`"\u0070assword": "[redacted]", "\u5e74": 1}`,
			redact.Matches{"$..住所": 1, "$..straße": 1, "$..🔑": 1, "$..password": 1},
		},
		"escaped names in strings": {
			nil,
			[]string{"$..住所"},
			`{"a": NaN, "b": "{\"\\u4f4f\\u6240\": \"\\u6771\", \"c\": NaN}"}`,
			`{"a": NaN, "b": "{\"\\u4f4f\\u6240\": \"[redacted]\", \"c\": NaN}"}`,
			redact.Matches{"$..住所": 1},
		},
		"escaped names without quotes": {
			nil,
			[]string{"$..住所"},
			`{a: 1, \u4f4f所: "x", \u005f住所: 2}`, `{a: 1, \u4f4f所: "[redacted]", \u005f住所: 2}`,
			redact.Matches{"$..住所": 1},
		},
		"escaped quotes around a name": {
			nil,
			[]string{"$.a"},
			`{"x": NaN, "\u0022a\u0022": 1, "\ud83da": 2, "a": 3}`,
			`{"x": NaN, "\u0022a\u0022": 1, "\ud83da": 2, "a": "[redacted]"}`,
			redact.Matches{"$.a": 1},
		},
		"decomposed letters": {
			[]redact.PatternRule{
				{Name: "name", Pattern: `(?i)geburtsname:\s*\p{L}+ Müller`},
				{Name: "address", Pattern: `ご住所:\S+`},
				{Name: "korean", Pattern: `성명:\s*[가-힣]{2,4}`},
			},
			nil,
			norm.NFD.String("ä Geburtsname: Zoë Müller, ご住所:東京 성명: 홍길동 é ") + `{"ü":"` + norm.NFD.String("성명: 홍길동") + `"}`,
			norm.NFD.String("ä ") + "[redacted:name], [redacted:address] [redacted:korean]" + norm.NFD.String(" é ") +
				`{"ü":"[redacted:korean]"}`,
			redact.Matches{"name": 1, "address": 1, "korean": 2},
		},
		"a letter that is never composed": {
			[]redact.PatternRule{{Name: "letter", Pattern: "é \u0f42"}},
			nil, "ab e\u0301 \u0f43 cd", "ab [redacted:letter] cd",
			redact.Matches{"letter": 1},
		},
		"decomposed names": {
			nil,
			[]string{"$.straßé", "$..e\u0301te\u0301"},
			"{\"straße\u0301\": 1, \"a\": {\"e\\u0301te\u0301\": 2, \"été\": 3, \"éte\": 4}}",
			"{\"straße\u0301\": \"[redacted]\", \"a\": {\"e\\u0301te\u0301\": \"[redacted]\", \"été\": \"[redacted]\", \"éte\": 4}}",
			redact.Matches{"$.straßé": 1, "$..e\u0301te\u0301": 2},
		},
		"decomposed names in broken JSON": {
			nil,
			[]string{"$.é", "$.u\u0308"},
			"{\"x\": NaN, \"e\u0301\": 1, \"e\\u0301\": 2, \"ü\": 3, 'u\u0308': 4, \"e\": 5}",
			"{\"x\": NaN, \"e\u0301\": \"[redacted]\", \"e\\u0301\": \"[redacted]\", \"ü\": \"[redacted]\", 'u\u0308': \"[redacted]\", " +
				"\"e\": 5}",
			redact.Matches{"$.é": 2, "$.u\u0308": 2},
		},
		"comments and gaps": {
			nil,
			[]string{"$.password"},
			"{\"a\":1, // what a \"b\" is\n ..., /* [x */ \"password\": 1,, \"c\" 2, \"d\":, \"password\":3,}",
			"{\"a\":1, // what a \"b\" is\n ..., /* [x */ \"password\": \"[redacted]\", \"d\":, \"password\":\"[redacted]\"}",
			redact.Matches{"$.password": 2},
		},
		"ends that do not fit": {
			nil,
			[]string{"$.password"},
			`{"a":[1,{"b":2], "password":1} ] {"a":[}, "password":2}`,
			`{"a":[1,{"b":2], "password":"[redacted]"} ] {"a":[}, "password":"[redacted]"}`,
			redact.Matches{"$.password": 2},
		},
		"other quotes": {
			nil,
			[]string{"$.password", "$.n"},
			`{'password': 'it\'s', password: "x", 'n': None, "password": 'y'} it's {n: 'z', 'b': ""}`,
			`{'password': "[redacted]", password: "[redacted]", 'n': "[redacted]", "password": "[redacted]"} it's {n: "[redacted]", ` +
				`'b': ""}`,
			redact.Matches{"$.password": 3, "$.n": 2},
		},
		"selected words": {
			nil,
			[]string{"$.password"},
			`{"password": hunter2, "b": 1} {"password": 12-hunter2} {"password":12345hunter2} {"password":null}`,
			`{"password": "[redacted]", "b": 1} {"password": "[redacted]"} {"password":"[redacted]"} {"password":null}`,
			redact.Matches{"$.password": 3},
		},
		"a selected word without an end": {
			nil,
			[]string{"$.password"},
			`{"a": 1, "password": hunter2 and more, "b": 1}`, `{"a": 1, "password": "[redacted]", "b": 1}`,
			redact.Matches{"$.password": 1},
		},
		"a selected string without an end": {
			nil, []string{"$.password"}, `{"password": 'hunter 2, "b": 1}`, `{"password": "[redacted]"`, redact.Matches{"$.password": 1},
		},
		"a text in braces and brackets": {
			nil,
			[]string{"$.*", "$[*]", "$.a"},
			`{note: this and that} [see the docs](x) {"id":1} [ERROR] {"b":{"a":2}}`,
			`{note: this and that} [see the docs](x) {"id":"[redacted]"} [ERROR] {"b":"[redacted]"}`,
			redact.Matches{"$.*": 2},
		},
		"a comment before the first member": {
			nil,
			[]string{"$..password"},
			"{\n// login\n\"password\": \"hunter2\"} {/* a */ password: 1, // b\n password: 2, # c\n\t'password': 3}",
			"{\n// login\n\"password\": \"[redacted]\"} {/* a */ password: \"[redacted]\", // b\n password: \"[redacted]\", # c\n\t" +
				"'password': \"[redacted]\"}",
			redact.Matches{"$..password": 4},
		},
		"a long comment between members": {
			nil,
			[]string{"$..password"},
			"{password: 1, // " + strings.Repeat("long ", 40) + "\n  password: 2}",
			"{password: \"[redacted]\", // " + strings.Repeat("long ", 40) + "\n  password: \"[redacted]\"}",
			redact.Matches{"$..password": 2},
		},
		"comments in escaped text": {
			nil,
			[]string{"$..password"},
			`b'{ // login\n password: "a", /* x */ id: 1, # y\n password: "b"}'`,
			`b'{ // login\n password: "[redacted]", /* x */ id: 1, # y\n password: "[redacted]"}'`,
			redact.Matches{"$..password": 2},
		},
		"a string as the whole JSON": {
			all,
			[]string{"$..password"},
			` "a@b.example: {password: 'b', \"password\": 1}" `,
			` "[redacted:email]: {password: \"[redacted]\", \"password\": \"[redacted]\"}" `,
			redact.Matches{"$..password": 2, "email": 1},
		},
		"YAML after a text in braces": {
			nil, []string{"$..name"}, "{{ .Values }}\nname: x\n- name: y\n", "{{ .Values }}\nname: x\n- name: y\n", nil,
		},
		"strings with a prefix": {
			nil,
			[]string{"$..password"},
			`{u'user': u'bob', u'password': u'hun}ter2', u'id': 3} {b'password': b'a, b', b'id': 3} {r"password": Rb"x", f"id": 3}`,
			`{u'user': u'bob', u'password': "[redacted]", u'id': 3} {b'password': "[redacted]", b'id': 3} ` +
				`{r"password": "[redacted]", f"id": 3}`,
			redact.Matches{"$..password": 3},
		},
		"an escaped string with a prefix": {
			nil,
			[]string{"$..password"},
			`"{u\'password\': u\'a, b\', u\'id\': 3}"`, `"{u\'password\': \"[redacted]\", u\'id\': 3}"`,
			redact.Matches{"$..password": 1},
		},
		"a first member without a name": {
			nil,
			[]string{"$..password"},
			`{...defaults, password: 'hunter2'} {user, password: 'a'} {**defaults, "password": 'b'} {[key]: 1, password: 'c'}`,
			`{...defaults, password: "[redacted]"} {user, password: "[redacted]"} {**defaults, "password": "[redacted]"} ` +
				`{[key]: 1, password: "[redacted]"}`,
			redact.Matches{"$..password": 4},
		},
		"a name without quotes after a text": {
			nil, []string{"$..password"}, `Sent {password: "x"}`, `Sent {password: "[redacted]"}`, redact.Matches{"$..password": 1},
		},
		"a name without quotes in a list": {
			nil, []string{"$..password"}, ` [1, {password: "x"}]`, ` [1, {password: "[redacted]"}]`, redact.Matches{"$..password": 1},
		},
		"parameters in code": {
			nil,
			[]string{"$..password"},
			"class A {\n  constructor(private user: string, password: string) {}\n}\nfn f(x: u8, password: &str) { g({a, password: 'b'}) }",
			"class A {\n  constructor(private user: string, password: string) {}\n}\n" +
				`fn f(x: u8, password: &str) { g({a, password: "[redacted]"}) }`,
			redact.Matches{"$..password": 1},
		},
		"a name in braces before JSON": {
			nil,
			[]string{"$.user.id"},
			`GET /users/{id} -> {"id":7,"user":{"id":8}}`,
			`GET /users/{id} -> {"id":7,"user":{"id":"[redacted]"}}`,
			redact.Matches{"$.user.id": 1},
		},
		"a value with marks of comments": {
			nil,
			[]string{"$..url"},
			`{url: amqp://a:pw1@h1,//b:pw2@h2, x: 1} {url: hunter,#2:x}`,
			`{url: "[redacted]", x: 1} {url: "[redacted]"}`,
			redact.Matches{"$..url": 2},
		},
		"comments with commas before members": {
			nil,
			[]string{"$..password"},
			"{ // a, b\n # {c\n /* , { */ password: x, // y, z\n id: 3}",
			"{ // a, b\n # {c\n /* , { */ password: \"[redacted]\", // y, z\n id: 3}",
			redact.Matches{"$..password": 1},
		},
		"brackets in comments and strings of a list": {
			nil,
			[]string{"$.cards[*]"},
			"{\"cards\": [ // all ]\n \"4111\", \"5500\"], \"id\": 1} {'cards': ['a]b', '4111'], 'id': 2} " +
				"{\"cards\": [None, `]`, 'c]', '4111'], \"id\": 3}",
			`{"cards": "[redacted]", "id": 1} {'cards': "[redacted]", 'id': 2} {"cards": "[redacted]", "id": 3}`,
			redact.Matches{"$.cards[*]": 3},
		},
		"JSON that is encoded twice": {
			[]redact.PatternRule{{Name: "pin", Pattern: `"pin":\s*\d+`}},
			nil,
			`"{\"pin\": 1234, \"id\": 1}"`, `"{[redacted:pin], \"id\": 1}"`,
			redact.Matches{"pin": 1},
		},
		"a path in JSON that is encoded twice": {
			nil, []string{"$.pin"}, `"{\"pin\": 1234}"`, `"{\"pin\": \"[redacted]\"}"`, redact.Matches{"$.pin": 1},
		},
		"prose in braces": {
			all,
			[]string{"$..password", "$.cards[*]", "$[*]", "$.*"},
			"Dear {name}, the password: see {the page of your account}, {} and [see below].",
			"Dear {name}, the password: see {the page of your account}, {} and [see below].",
			nil,
		},
		"items of a broken list": {
			nil,
			[]string{"$.cards[*]"},
			`{"cards": [None, "4111"], "id": 1} {"cards":["x", NaN, "5500"]}`, `{"cards": "[redacted]", "id": 1} {"cards":"[redacted]"}`,
			redact.Matches{"$.cards[*]": 3},
		},
		"items of a list after a mistake": {
			nil,
			[]string{"$.cards[*]", "$.keys.*"},
			`{"score": NaN, "cards": ["4111"], 'keys': {"a": 1}, "id": 1}`,
			`{"score": NaN, "cards": "[redacted]", 'keys': "[redacted]", "id": 1}`,
			redact.Matches{"$.cards[*]": 1, "$.keys.*": 1},
		},
		"items of a broken list after objects": {
			nil,
			[]string{"$..cards[*].*"},
			`{"a": {"cards": [{"n": "4111"}, None, {"n": "5500"}]}, "id": 1}`, `{"a": {"cards": "[redacted]"}, "id": 1}`,
			redact.Matches{"$..cards[*].*": 2},
		},
		"items of a list without a comma, or with an open quote": {
			nil,
			[]string{"$.cards[*]"},
			`{"cards": ["41" "11", "5500"], "id": 1} {"cards": ["41"11", "5500"], "id": 1}`,
			`{"cards": "[redacted]", "id": 1} {"cards": "[redacted]"`,
			redact.Matches{"$.cards[*]": 4},
		},
		"members of a broken object": {
			nil,
			[]string{"$.cards.*"},
			`{"cards": {"a": "1", b: "4111"}, "id": 1}`, `{"cards": "[redacted]", "id": 1}`,
			redact.Matches{"$.cards.*": 2},
		},
		"items of an escaped broken list": {
			nil,
			[]string{"$.cards[*]"},
			`x="{\"cards\": [None, \"4111\"], \"id\": 1}"`, `x="{\"cards\": \"[redacted]\", \"id\": 1}"`,
			redact.Matches{"$.cards[*]": 1},
		},
		"items of a list that is broken by an escape": {
			nil,
			[]string{"$.cards[*]"},
			`{"cards": ["x", \"4111\"], "id": 1}`, `{"cards": "[redacted]", "id": 1}`,
			redact.Matches{"$.cards[*]": 2},
		},
		"a mistake at a value after a name with another path": {
			nil,
			[]string{"$.cards"},
			`{"list":[{"cards":"keep"},{"x":1},NaN], "cards": "4111"}`,
			`{"list":[{"cards":"keep"},{"x":1},NaN], "cards": "[redacted]"}`,
			redact.Matches{"$.cards": 1},
		},
		"items of a list that is cut off": {
			nil, []string{"$.cards[*]"}, `{"cards": ["x", "41`, `{"cards": ["[redacted]", "[redacted]"`, redact.Matches{"$.cards[*]": 2},
		},
		"items of a broken list at the root": {
			nil, []string{"$[*]"}, `["x", NaN, "5500"] rest`, `["[redacted]", "[redacted]"`, redact.Matches{"$[*]": 2},
		},
		"members of a broken object at the root": {
			nil, []string{"$.*"}, `{"a": null, b: "5500"} rest`, `{"a": null, "[redacted]"`, redact.Matches{"$.*": 1},
		},
		"JSON after a prefix in brackets": {
			nil,
			[]string{"$.customer.id"},
			`[INFO] [x/y] {"id":1,"customer":{"id":2}}`, `[INFO] [x/y] {"id":1,"customer":{"id":"[redacted]"}}`,
			redact.Matches{"$.customer.id": 1},
		},
		"JSON after a broken line": {
			nil,
			[]string{"$.customer.id"},
			"{\"id\": 1, \"score\": NaN, \"id\": 2}\n{\"id\":3,\"customer\":{\"id\":4}}\n",
			"{\"id\": 1, \"score\": NaN, \"id\": \"[redacted]\"}\n{\"id\":3,\"customer\":{\"id\":\"[redacted]\"}}\n",
			redact.Matches{"$.customer.id": 2},
		},
		"a cut off text": {
			nil,
			[]string{"$.customer.id"},
			`{"id":1,"customer":{"id":2},"x":"tru`, `{"id":1,"customer":{"id":"[redacted]"},"x":"tru`,
			redact.Matches{"$.customer.id": 1},
		},
		"a whole pattern in broken JSON": {
			[]redact.PatternRule{{Name: "ssn", Pattern: `^\d{9}$`}},
			nil,
			`{"ssn":"123456789","score":NaN} [{"ssn":"123456789"},{"x":"tru`,
			`{"ssn":"[redacted:ssn]","score":NaN} [{"ssn":"[redacted:ssn]"},{"x":"tru`,
			redact.Matches{"ssn": 2},
		},
		"values that go on after a delimiter": {
			nil,
			[]string{"$.url", "$.password"},
			`{url: https://bob:pw@db.example/x, id: 1} {"password": user:hunter2} {"password": DOMAIN\secret, "id": 12:34}`,
			`{url: "[redacted]", id: 1} {"password": "[redacted]"} {"password": "[redacted]", "id": 12:34}`,
			redact.Matches{"$.url": 1, "$.password": 2},
		},
		"comments with quotes, brackets and backslashes": {
			nil,
			[]string{"$.password"},
			"{\"size\": 5, // 5\" disk\n\"password\": \"a\"}\n{\"a\": 1, // ends with }\n\"password\": \"a\"}\n" +
				"{\"dir\": \"x\", // C:\\data\n\"password\": \"a\"}\n{\"size\": \"5\" disk\", \"password\": \"a\"}\n" +
				"{re: /\\d+/, password: \"a\"}",
			"{\"size\": 5, // 5\" disk\n\"password\": \"[redacted]\"}\n{\"a\": 1, // ends with }\n\"password\": \"[redacted]\"}\n" +
				"{\"dir\": \"x\", // C:\\data\n\"password\": \"[redacted]\"}\n{\"size\": \"5\" disk\", \"password\": \"[redacted]\"}\n" +
				"{re: /\\d+/, password: \"[redacted]\"}",
			redact.Matches{"$.password": 5},
		},
		"quotes within a value": {
			nil,
			[]string{"$.password"},
			`{"password": "hun"ter2", "b": 1} {"password": "abc" + "def", "b": 1} {"a": \"hi\", "password": "x"}`,
			`{"password": "[redacted]", "b": 1} {"password": "[redacted]", "b": 1} {"a": \"hi\", "password": "[redacted]"}`,
			redact.Matches{"$.password": 3},
		},
		"values of several lines": {
			nil,
			[]string{"$..privateKey"},
			"{privateKey: `-----BEGIN KEY-----\nMIIabc\n-----END KEY-----`, a: 1} {'privateKey': 'first\nsecond'}",
			"{privateKey: \"[redacted]\", a: 1} {'privateKey': \"[redacted]\"}",
			redact.Matches{"$..privateKey": 2},
		},
		"objects and lists in broken JSON": {
			nil,
			[]string{"$.key"},
			`{a: NaN, "key": {"b": ["}", 2]}, c: 1} {key: [1, 2]} {key: {`,
			`{a: NaN, "key": "[redacted]", c: 1} {key: "[redacted]"} {key: "[redacted]"`,
			redact.Matches{"$.key": 3},
		},
		"source code": {
			nil,
			[]string{"$..password"},
			"requests.post(u, json={\"password\": os.environ[\"PW\"]})\nprint(1)\n",
			"requests.post(u, json={\"password\": \"[redacted]\"]})\nprint(1)\n",
			redact.Matches{"$..password": 1},
		},
		"escapes without JSON before a list": {
			nil, []string{"$[*]"}, `{\d} [1,2,"x"]`, `{\d} ["[redacted]","[redacted]","[redacted]"]`, redact.Matches{"$[*]": 3},
		},
		"escaped line breaks between plain quotes": {
			all,
			[]string{"$.password"},
			`b'{\n  "user": "a@b.example",\r\n\t"password": "hunter2"\n}' and {"x":"'{\n \"password\": \"hunter2\"}'"}`,
			`b'{\n  "user": "[redacted:email]",\r\n\t"password": "[redacted]"\n}' and {"x":"'{\n \"password\": \"[redacted]\"}'"}`,
			redact.Matches{"$.password": 2, "email": 1},
		},
		"patterns in broken JSON count once": {
			all,
			[]string{"$.a"},
			`{"b": "a@b.example", "c": NaN, "a": {"x": "c@b.example"}, "d": "e@b.example"`,
			`{"b": "[redacted:email]", "c": NaN, "a": "[redacted]", "d": "[redacted:email]"`,
			redact.Matches{"$.a": 1, "email": 3},
		},
		"escaped JSON on several lines": {
			all,
			[]string{"$..password"},
			"curl -d \"{\n  \\\"user\\\": \\\"a@b.example\\\",\r\n  \\\"password\\\": \\\"hunter2\\\"\n}\" http://x",
			"curl -d \"{\n  \\\"user\\\": \\\"[redacted:email]\\\",\r\n  \\\"password\\\": \\\"[redacted]\\\"\n}\" http://x",
			redact.Matches{"$..password": 1, "email": 1},
		},
		"escaped JSON between colors": {
			nil,
			[]string{"$.password"},
			`msg="\x1b[32m{\"password\":\"a\"}\x1b[0m \u001b[1m[{\"password\":1}] it\'s \$HOME {\"password\":2}"`,
			`msg="\x1b[32m{\"password\":\"[redacted]\"}\x1b[0m \u001b[1m[{\"password\":1}] it\'s \$HOME {\"password\":\"[redacted]\"}"`,
			redact.Matches{"$.password": 2},
		},
		"escaped JSON with other escapes in its strings": {
			nil,
			[]string{"$.password"},
			`"{\"re\":\"\d+\",\"cost\":\"\$5\",\"name\":\"O\'Neill\",\"password\":\"hunter2\"}"`,
			`"{\"re\":\"\d+\",\"cost\":\"\$5\",\"name\":\"O\'Neill\",\"password\":\"[redacted]\"}"`,
			redact.Matches{"$.password": 1},
		},
		"JSON after an escape": {
			nil,
			[]string{"$..a"},
			`[\n] [1, {"a":1}] [\t [2, {"a":3}]`, `[\n] [1, {"a":"[redacted]"}] [\t [2, {"a":"[redacted]"}]`,
			redact.Matches{"$..a": 2},
		},
		"escaped JSON after a quote": {
			nil, []string{"$.a"}, `{"log": \"{\"a\":1}\"`, `{"log": \"{\"a\":\"[redacted]\"}\"`, redact.Matches{"$.a": 1},
		},
		"JSON in a string with a line break": {
			nil,
			[]string{"$.password"},
			"{\"log\":\"{\\\"password\\\":\\\"x\\\"}\n\"}", `{"log":"{\"password\":\"[redacted]\"}\n"}`,
			redact.Matches{"$.password": 1},
		},
		"JSON in a string of escaped JSON": {
			all,
			[]string{"$.a"},
			`x="{\"b\":\"{\\\"a\\\":1} a@b.example\"}"`, `x="{\"b\":\"{\\\"a\\\":\\\"[redacted]\\\"} [redacted:email]\"}"`,
			redact.Matches{"$.a": 1, "email": 1},
		},
		"escaped list cut off in a string": {
			nil, []string{"$.a"}, `x="{\"a\":[1,2" {"a":3}`, `x="{\"a\":\"[redacted]\"`, redact.Matches{"$.a": 2},
		},
		"quoted name": {
			nil, []string{`$['e-mail']`}, `{"e-mail":"a"}`, `{"e-mail":"[redacted]"}`, redact.Matches{`$['e-mail']`: 1},
		},
		"repeated name": {
			nil, []string{"$.a"}, `{"a":"1","b":2,"a":"3"}`, `{"a":"[redacted]","b":2,"a":"[redacted]"}`, redact.Matches{"$.a": 2},
		},
		"escaped name": {
			nil, []string{"$.password"}, `{"\u0070assword":"x"}`, `{"\u0070assword":"[redacted]"}`, redact.Matches{"$.password": 1},
		},
		"list at the root": {
			nil, []string{"$[*].a"}, `[{"a":true},{"a":null}]`, `[{"a":"[redacted]"},{"a":null}]`, redact.Matches{"$[*].a": 1},
		},
		"everything": {
			nil,
			[]string{"$.*"},
			`{"a":1,"b":[2],"c":{}}`, `{"a":"[redacted]","b":"[redacted]","c":"[redacted]"}`,
			redact.Matches{"$.*": 3},
		},
		"value cut off":  {nil, []string{"$.a"}, `{"b":1,"a":"secr`, `{"b":1,"a":"[redacted]"`, redact.Matches{"$.a": 1}},
		"object cut off": {nil, []string{"$.a"}, `{"b":1,"a":{"c":"secr`, `{"b":1,"a":"[redacted]"`, redact.Matches{"$.a": 1}},
		"object broken":  {nil, []string{"$.a"}, `{"b":1,"a":{"c":1 oops 2}}`, `{"b":1,"a":"[redacted]"`, redact.Matches{"$.a": 1}},
		"broken before": {
			nil,
			[]string{"$.a"},
			`[see {"a":"x"} and {"a":"y"}`, `[see {"a":"[redacted]"} and {"a":"[redacted]"}`,
			redact.Matches{"$.a": 2},
		},
		"broken, with pattern": {
			all, nil, `{"b": oops "a@b.example", 4111111111111111`, `{"b": oops "[redacted:email]", CARD`,
			redact.Matches{"email": 1, "card": 1},
		},
		"pattern in a path": {all, []string{"$.a"}, `{"a":{"b":"a@b.example"}}`, `{"a":"[redacted]"}`, redact.Matches{"$.a": 1}},
		"no UTF-8":          {all, nil, "a@b.example\xff", "[redacted:email]\xff", redact.Matches{"email": 1}},
		"long, no UTF-8": {
			all, nil, broken + " a@b.example " + broken, broken + " [redacted:email] " + broken, redact.Matches{"email": 1},
		},
		"long, no UTF-8, in JSON": {
			all, nil, `{"a":"` + broken + ` a@b.example"}`, `{"a":"` + strings.Repeat(`\ufffd`, 200_000) + ` [redacted:email]"}`,
			redact.Matches{"email": 1},
		},
		"not the text of JSON": {nil, []string{"$.a"}, `"a": "x"`, `"a": "x"`, nil},
		"a long match": {
			[]redact.PatternRule{{Name: "all", Pattern: `BEGIN[a-z]*END`}},
			nil, "x" + "BEGIN" + strings.Repeat("y", 300_000) + "END" + "z",
			"x[redacted:all]z",
			redact.Matches{"all": 1},
		},
	} {
		t.Run(name, func(t *testing.T) {
			r, found := rulesOf(t, tc.patterns, tc.paths...), redact.Matches{}
			got := r.Redact(t.Context(), tc.text, found)
			if got != tc.want {
				t.Errorf("%.300q, want %.300q", got, tc.want)
			}
			if diff := cmp.Diff(tc.found, found); diff != "" && len(tc.found)+len(found) > 0 {
				t.Errorf("matches: -want +got:\n%s", diff)
			}
			if again := r.Redact(t.Context(), got, nil); again != got && name != "across a replacement" {
				t.Errorf("a second redaction gives %q, want no change", again)
			}
			if json.Valid([]byte(tc.text)) && !json.Valid([]byte(got)) {
				t.Errorf("%q is not JSON", got)
			}
		})
	}
}

// TestRulesOfChunks puts an address at each position around the borders of chunks.
func TestRulesOfChunks(t *testing.T) {
	r := rulesOf(t, []redact.PatternRule{email})
	for _, at := range []int{64 << 10, 68 << 10, 60 << 10, 128 << 10} {
		for shift := -20; shift <= 20; shift++ {
			before := strings.Repeat("é ", (at+shift)/3) + strings.Repeat("x", (at+shift)%3)
			for _, text := range []string{before + " a.b@example.com ", `{"x":"` + before + ` a.b@example.com"} `} {
				found := redact.Matches{}
				if got := r.Redact(t.Context(), text, found); strings.Contains(got, "example") || found["email"] != 1 {
					t.Fatalf("%d bytes after the border at %d: %d matches", shift, at, found["email"])
				}
			}
		}
	}
}

// TestRulesAreChecked checks that invalid rules are rejected with an error that names the field.
func TestRulesAreChecked(t *testing.T) {
	large := strings.Repeat("a", 90)
	for name, tc := range map[string]struct {
		patterns []redact.PatternRule
		paths    []string
		field    string
		message  string
	}{
		"no expression":      {[]redact.PatternRule{{Pattern: "a("}}, nil, "patterns[0].pattern", "missing closing )"},
		"not RE2":            {[]redact.PatternRule{email, {Pattern: "(?=a)"}}, nil, "patterns[1].pattern", "RE2"},
		"too large":          {[]redact.PatternRule{{Pattern: "a{300}"}}, nil, "patterns[0].pattern", "at most 100"},
		"too large together": {slicesOf(large, 12), nil, "patterns", "at most 1000"},
		"the empty text":     {[]redact.PatternRule{{Pattern: "a*"}}, nil, "patterns[0].pattern", "empty"},
		"large classes together": {
			slicesOf(strings.Repeat(`\pL`, 20), 10), nil, "patterns", "must take at most 512 KiB of memory together",
		},
		"its own replacement": {[]redact.PatternRule{{Name: "x", Pattern: "[a-z]+"}}, nil, "patterns[0].pattern", "another replacement"},
		"another replacement": {
			[]redact.PatternRule{{Name: "x", Pattern: "1", Replacement: "2"}, {Name: "y", Pattern: "2", Replacement: "3"}},
			nil,
			"patterns[1].pattern", "another replacement",
		},
		"the replacement of paths": {
			[]redact.PatternRule{{Name: "x", Pattern: "[a-z]+", Replacement: "-"}}, []string{"$.a"}, "patterns[0].pattern", "jsonPaths",
		},
		"no root":             {nil, []string{"a.b"}, "jsonPaths[0]", "must begin with $"},
		"only the root":       {nil, []string{"$"}, "jsonPaths[0]", "1 to 16"},
		"an index":            {nil, []string{"$.a", "$.a[0]"}, "jsonPaths[1]", "not supported"},
		"a filter":            {nil, []string{"$.a[?(@.b)]"}, "jsonPaths[0]", "not supported"},
		"no name":             {nil, []string{"$.a..."}, "jsonPaths[0]", "name after each dot"},
		"no dot":              {nil, []string{"$a"}, "jsonPaths[0]", "must have . or ["},
		"a name with a space": {nil, []string{"$.a b"}, "jsonPaths[0]", "in brackets"},
		"too many segments":   {nil, []string{"$" + strings.Repeat(".a", 17)}, "jsonPaths[0]", "1 to 16"},
		"too long":            {nil, []string{"$." + strings.Repeat("a", 300)}, "jsonPaths[0]", "128"},
	} {
		t.Run(name, func(t *testing.T) {
			_, err := redact.NewRules("Agent spec.redaction", tc.patterns, tc.paths)
			e, ok := errors.AsType[*invalid.Error](err)
			if !ok || e.Field != "Agent spec.redaction."+tc.field || !strings.Contains(err.Error(), tc.message) {
				t.Errorf("the error is %v, want an error about %s with %q", err, tc.field, tc.message)
			}
		})
	}
}

func slicesOf(pattern string, n int) []redact.PatternRule {
	var all []redact.PatternRule
	for i := range n {
		all = append(all, redact.PatternRule{Name: fmt.Sprint("p", i), Pattern: pattern})
	}
	return all
}

// TestRulesDoNotMakeTextsMuchLonger checks that many replacements, each of them longer than what it replaces, do not
// make a text many times as long: the whole text is removed, and JSON stays JSON.
func TestRulesDoNotMakeTextsMuchLonger(t *testing.T) {
	const size = 1 << 20
	long := []redact.PatternRule{{Name: "q", Pattern: "q", Replacement: strings.Repeat("-", 64)}}
	many := slices.Clone(long)
	for i := len(many); i < redact.MaxPatterns; i++ {
		many = append(many, redact.PatternRule{Name: fmt.Sprint("p", i), Pattern: "q"})
	}
	text := "[" + strings.Repeat(`"`+strings.Repeat("q", 90_000)+`",`, size/90_003) + "1]"
	for name, tc := range map[string]struct {
		rules      *redact.Rules
		text, want string
	}{
		"long strings":      {rulesOf(t, long), text, `"[redacted]"`},
		"broken JSON":       {rulesOf(t, long), text + "}", `"[redacted]"`},
		"a string":          {rulesOf(t, long, "$.a"), jsonOf(t, text), jsonOf(t, long[0].Replacement)},
		"short strings":     {rulesOf(t, long), "[" + strings.Repeat(`"q",`, size/4) + "1]", `"[redacted]"`},
		"values":            {rulesOf(t, nil, "$[*]"), "[" + strings.Repeat("1,", size/2) + "1]", `"[redacted]"`},
		"members":           {rulesOf(t, nil, "$..a"), "x" + strings.Repeat(`{"a":1}`, size/7), "[redacted]"},
		"names":             {rulesOf(t, nil, "$..a"), `{'x': {` + strings.Repeat(`'a': 1,`, size/7), `"[redacted]"`},
		"rules in one text": {rulesOf(t, many), strings.Repeat("q ", 90_000), "[redacted]"},
	} {
		if got := tc.rules.Redact(t.Context(), tc.text, nil); got != tc.want {
			t.Errorf("%s: %.60q (%d bytes), want %q", name, got, len(got), tc.want)
		}
	}
	text = "Found:\n[" + strings.Repeat(`"q ",`, 60_000) + "1]"
	if got := rulesOf(t, long).Redact(t.Context(), text, nil); strings.Count(got, "- ") != 60_000 {
		t.Errorf("JSON within text with 60,000 matches becomes %.60q, want each replaced once", got)
	}
	text = strings.Repeat("q ", 90_000)
	if got := rulesOf(t, long).Redact(t.Context(), text, nil); strings.Count(got, "- ") != 90_000 {
		t.Errorf("a text with 90,000 matches becomes %.60q, want each replaced", got)
	}
}

// FuzzRules checks that no text keeps an address, and that JSON stays JSON.
func FuzzRules(f *testing.F) {
	for _, s := range []string{
		`{"a":["`, "\u200b", `\u00`, "%4", "&#6", "```json\n{", `"},{"a":`, "\xff",
		`"{\"a\":1,\"b\":\"`, `{\`, `\\\"`, `[\x1b {\'`, "{\\\"a\\\":\n[1,2\"",
	} {
		f.Add(s, s)
	}
	r := rulesOf(f, []redact.PatternRule{email}, "$..a")
	f.Fuzz(func(t *testing.T, before, after string) {
		text := before + " zoe@example.com " + after
		got := r.Redact(context.Background(), text, nil)
		if strings.Contains(got, "zoe@example.com") {
			t.Errorf("%q contains the address; the text was %q", got, text)
		}
		if json.Valid([]byte(text)) && !json.Valid([]byte(got)) {
			t.Errorf("%q is not JSON; the text was %q", got, text)
		}
	})
}

// BenchmarkRules measures ordinary rules, and the most expensive ones that are allowed.
func BenchmarkRules(b *testing.B) {
	ordinary := []redact.PatternRule{email, card, iban}
	var worst []redact.PatternRule
	for i := range 32 {
		ordinary = append(ordinary, redact.PatternRule{Name: fmt.Sprint("p", i), Pattern: fmt.Sprintf(`\bID-%d-[0-9]{6}\b`, i)})
		worst = append(worst, redact.PatternRule{Name: fmt.Sprint("w", i), Pattern: fmt.Sprintf(`(?:[a-z]|[b-y]){14}%d`, i%10)})
	}
	text := strings.Repeat("The quick brown fox jumps over the lazy dog. ", (1<<20)/45)
	document, _ := json.Marshal(strings.SplitAfter(text, "."))
	for name, patterns := range map[string][]redact.PatternRule{"ordinary": ordinary[:32], "worst": worst} {
		r := rulesOf(b, patterns)
		for kind, input := range map[string]string{"text": text, "JSON": string(document)} {
			b.Run(name+"/"+kind, func(b *testing.B) {
				b.SetBytes(int64(len(input)))
				for b.Loop() {
					r.Redact(b.Context(), input, nil)
				}
			})
		}
	}
}

// FuzzEscapedPaths checks that a path removes a value from each JSON object in a quoted string, with any text before
// and after the object that begins no other value.
func FuzzEscapedPaths(f *testing.F) {
	for _, s := range []string{"", "\x1b[32m", `it's \d $x`, "\n\t\r", `C:\new\x`, "é\u2028\xff", "}] ", `\`} {
		f.Add(s, s)
	}
	r := rulesOf(f, nil, "$..password")
	f.Fuzz(func(t *testing.T, before, after string) {
		if strings.ContainsAny(before, `"{[`) || strings.Contains(after, `"`) {
			return // another value begins
		}
		content, err := json.Marshal(before + `{"user":"zoe","password":"hunter2-hunter2"}` + after)
		if err != nil {
			t.Fatal(err)
		}
		for name, text := range map[string]string{
			"JSON": string(content), "log": "msg=" + string(content) + " id=1", "lines": strings.ReplaceAll(string(content), `\n`, "\n"),
			"single quotes": `b'{\n "n": NaN,\n "text": ` + string(content) + `,\n\t"password": "hunter2-hunter2"\n}'`,
		} {
			if got := r.Redact(context.Background(), text, nil); strings.Contains(got, "hunter2-hunter2") {
				t.Errorf("%s: %q contains the value; the text was %q", name, got, text)
			}
		}
	})
}
