package tool_test

import (
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/capstan-dev/capstan/internal/runtime/prompt"
	"github.com/capstan-dev/capstan/internal/runtime/tool"
)

func described(name, description string, parameters ...prompt.Parameter) tool.Tool {
	return tool.Tool{Tool: prompt.Tool{Name: name, Description: description, Parameters: parameters}}
}

// desk returns the tools of a help desk.
func desk() []tool.Tool {
	all := []tool.Tool{
		described("list_orders", "Lists the orders of a customer.", prompt.Parameter{Name: "customer"}),
		described("get_weather", "Returns the weather forecast of a city.", prompt.Parameter{Name: "city"}),
		described("sendEmail", "Sends a message.", prompt.Parameter{Name: "to", Description: "The address of the customer."}),
		described("refund_order", "Refunds an order that was paid.", prompt.Parameter{Name: "amount"}),
		described("translate", "Translates a text."),
	}
	all[3].Source = tool.Source{Server: "shop", Name: "refunds.create"}
	return all
}

func TestSelect(t *testing.T) {
	for name, tc := range map[string]struct {
		reason string
		s      tool.Selection
		want   string
	}{
		"enough room": {
			"all tools are selected if there is room",
			tool.Selection{Most: 5, Semantic: true, Query: "weather"},
			"list_orders get_weather sendEmail refund_order translate",
		},
		"declared order": {
			"without Semantic, the first tools are selected for any query",
			tool.Selection{Most: 2, Query: "Translate this."},
			"list_orders get_weather",
		},
		"declared order, pinned": {
			"a pinned tool is selected first",
			tool.Selection{Most: 2, Pinned: []string{"translate", "unheard"}},
			"list_orders translate",
		},
		"pinned by the server's name": {
			"a pinned name may be the server's name of the tool",
			tool.Selection{Most: 1, Pinned: []string{"refunds.create"}},
			"refund_order",
		},
		"too many pinned": {
			"the first pinned tools are selected",
			tool.Selection{Most: 2, Semantic: true, Query: "weather", Pinned: []string{"translate", "refund_order", "sendEmail"}},
			"sendEmail refund_order",
		},
		"semantic": {
			"the best tools are selected, and stay in the declared order",
			tool.Selection{Most: 2, Semantic: true, Query: "Please REFUND my order of a customer!"},
			"list_orders refund_order",
		},
		"word of a name": {
			"the words of a name count", tool.Selection{Most: 1, Semantic: true, Query: "email him"}, "sendEmail",
		},
		"word of a parameter": {
			"the words of parameters count", tool.Selection{Most: 1, Semantic: true, Query: "the amount"}, "refund_order",
		},
		"a rare word": {
			"a rare word has more weight than a frequent one",
			tool.Selection{Most: 1, Semantic: true, Query: "customer forecast"},
			"get_weather",
		},
		"semantic, pinned": {
			"a pinned tool is selected before the best one",
			tool.Selection{Most: 2, Semantic: true, Query: "weather of the city", Pinned: []string{"translate"}},
			"get_weather translate",
		},
		"no match": {
			"without a match, the declared order decides",
			tool.Selection{Most: 2, Semantic: true, Query: "xyzzy"},
			"list_orders get_weather",
		},
		"no query": {
			"without a query, the declared order decides",
			tool.Selection{Most: 2, Semantic: true},
			"list_orders get_weather",
		},
		"no maximum": {"at least one tool is selected", tool.Selection{}, "list_orders"},
	} {
		t.Run(name, func(t *testing.T) {
			kept, leftOut := tool.Select(desk(), tc.s)
			var names []string
			for _, x := range kept {
				names = append(names, x.Name)
			}
			if got := strings.Join(names, " "); got != tc.want || leftOut != 5-len(names) {
				t.Errorf("kept %s and left out %d, want %s: %s", got, leftOut, tc.want, tc.reason)
			}
		})
	}
	if kept, leftOut := tool.Select(nil, tool.Selection{Most: 3, Semantic: true, Query: "x"}); kept != nil || leftOut != 0 {
		t.Errorf("Select(nil) kept %v and left out %d, want nothing", kept, leftOut)
	}
}

// TestSelectInAnyScript checks that a tool is found by the words of its description in scripts without spaces between
// words, and in a message whose letters are composed in another way.
func TestSelectInAnyScript(t *testing.T) {
	for name, tc := range map[string]struct{ other, wanted, query string }{
		"Chinese":    {"翻译一段文字", "查询订单状态", "帮我查询订单1042的状态"},
		"Japanese":   {"文章を翻訳します", "天気予報を返します", "明日の天気は?"},
		"Thai":       {"แปลข้อความ", "คืนสภาพอากาศ", "อากาศวันนี้เป็นอย่างไร"},
		"Burmese":    {"စာသားဘာသာပြန်", "ရာသီဥတု", "ဒီနေ့ရာသီဥတုဘယ်လိုလဲ"},
		"decomposed": {"Übersetzt Texte.", "Zeigt Verträge.", "Meine Vertra\u0308ge?"},
		"full width": {"Sends a message.", "Returns a forecast.", "ｆｏｒｅｃａｓｔ"},
	} {
		t.Run(name, func(t *testing.T) {
			all := []tool.Tool{described("a", tc.other), described("b", tc.wanted)}
			kept, _ := tool.Select(all, tool.Selection{Most: 1, Semantic: true, Query: tc.query})
			if len(kept) != 1 || kept[0].Name != "b" {
				t.Errorf("the message %q selects %v, want the tool %q", tc.query, kept, tc.wanted)
			}
		})
	}
}

func TestSelectDoesNotChangeItsInput(t *testing.T) {
	all := desk()
	tool.Select(all, tool.Selection{Most: 2, Semantic: true, Query: "translate the weather"})
	if diff := cmp.Diff(desk(), all); diff != "" {
		t.Errorf("tools: -before +after:\n%s", diff)
	}
}
