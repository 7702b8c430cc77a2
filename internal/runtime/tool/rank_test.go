package tool

import (
	"fmt"
	"math"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/capstan-dev/capstan/internal/runtime/prompt"
)

// TestBM25 compares scores with the formula computed by hand, for three texts of 2, 4 and 3 words (3 on average).
func TestBM25(t *testing.T) {
	var tools []Tool
	for _, text := range []string{"blue cat", "red cat red dog", "old green bird"} {
		tools = append(tools, Tool{Tool: prompt.Tool{Description: text}})
	}
	idf := func(n float64) float64 { return math.Log(1 + (3-n+0.5)/(n+0.5)) }
	tf := func(f, length float64) float64 { return f * 2.2 / (f + 1.2*(0.25+0.75*length/3)) }
	want := []float64{idf(2) * tf(1, 2), idf(2)*tf(1, 4) + idf(1)*tf(2, 4), 0}
	got := rank(tools, "Red CAT, cat! unheard", nil)
	for i := range want {
		if math.Abs(got[i]-want[i]) > 1e-12 {
			t.Errorf("text %d has %g, want %g", i, got[i], want[i])
		}
	}
	if got := rank([]Tool{{}, {}}, "anything", nil); !cmp.Equal(got, []float64{0, 0}) {
		t.Errorf("tools without words have %v, want 0 each", got)
	}
}

func TestWords(t *testing.T) {
	for text, want := range map[string]string{
		"":                            "[]",
		"get_user-profile.v2":         "[get user profile v2]",
		"sendEmailV2Now":              "[send email v2 now]",
		"HTTP server":                 "[http server]",
		"Größe, naïve ÉTÉ":            "[größe naïve été]",
		"e\u0301te\u0301 <b>x</b>\n1": "[été b x b 1]",
		"日本 語":                        "[日 本 語 日本 本語]",
		"查询订单1042的状态":                 "[查 询 订 单 1042 的 状 态 查询 询订 订单 的状 状态]",
		"ｆｉｎｄＵｓｅｒ":                    "[find user]",
	} {
		if got := fmt.Sprint(words(text)); got != want {
			t.Errorf("words of %q are %s, want %s", text, got, want)
		}
	}
	if got := words(strings.Repeat("\xff", 3)); len(got) != 0 {
		t.Errorf("a text without words has the words %v", got)
	}
}
