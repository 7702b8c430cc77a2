package ranking_test

import (
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/capstan-dev/capstan/internal/runtime/ranking"
)

func TestWords(t *testing.T) {
	for text, want := range map[string][]string{
		"Ada's printer: HP-4000!":  {"ada", "s", "printer", "hp", "4000"},
		"":                         nil,
		"... !":                    nil,
		"ＦＵＬＬ ﬁne":                 {"full", "fine"},
		"東京 tower":                 {"東", "京", "tower"},
		"نرم\u200cافزار":           {"نرمافزار"},
		"Kranken\u00adkasse":       {"krankenkasse"},
		"ශ්\u200dරී e\u2060\u0301": {"ශ්රී", "é"},
		"a\x00b \xff c":            {"a", "b", "c"},
		"' OR 1=1; \" * NEAR(x)":   {"or", "1", "1", "near", "x"},
		strings.Repeat("é", 100):   {strings.Repeat("é", 32)},
		strings.Repeat("wort ", 1): {"wort"},
	} {
		got := ranking.Words(text)
		if diff := cmp.Diff(want, got); diff != "" && len(want)+len(got) > 0 {
			t.Errorf("Words(%q): -want +got:\n%s", text, diff)
		}
	}
}
