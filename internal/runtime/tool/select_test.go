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

// desk are the tools of a help desk.
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
		"enough room":        {"all are offered", tool.Selection{Most: 5, Semantic: true, Query: "weather"}, "list_orders get_weather sendEmail refund_order translate"},
		"declared":           {"the first ones, whatever is asked", tool.Selection{Most: 2, Query: "Translate this."}, "list_orders get_weather"},
		"declared, pinned":   {"what is pinned is among them", tool.Selection{Most: 2, Pinned: []string{"translate", "unheard"}}, "list_orders translate"},
		"pinned by its name": {"that of its server will do", tool.Selection{Most: 1, Pinned: []string{"refunds.create"}}, "refund_order"},
		"too many pinned":    {"the first of them", tool.Selection{Most: 2, Semantic: true, Query: "weather", Pinned: []string{"translate", "refund_order", "sendEmail"}}, "sendEmail refund_order"},
		"semantic":           {"the best, in the order in which they are declared", tool.Selection{Most: 2, Semantic: true, Query: "Please REFUND my order of a customer!"}, "list_orders refund_order"},
		"by its name":        {"the words of a name count", tool.Selection{Most: 1, Semantic: true, Query: "email him"}, "sendEmail"},
		"by a parameter":     {"so do those of parameters", tool.Selection{Most: 1, Semantic: true, Query: "the amount"}, "refund_order"},
		"a rare word":        {"a word that few have says more than one that many have", tool.Selection{Most: 1, Semantic: true, Query: "customer forecast"}, "get_weather"},
		"semantic, pinned":   {"what is pinned goes before the best", tool.Selection{Most: 2, Semantic: true, Query: "weather of the city", Pinned: []string{"translate"}}, "get_weather translate"},
		"nothing fits":       {"their order decides", tool.Selection{Most: 2, Semantic: true, Query: "xyzzy"}, "list_orders get_weather"},
		"no query":           {"their order decides", tool.Selection{Most: 2, Semantic: true}, "list_orders get_weather"},
		"no bound":           {"at least one is offered", tool.Selection{}, "list_orders"},
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
		t.Errorf("of nothing, %v is kept and %d left out", kept, leftOut)
	}
}

func TestSelectLeavesItsInputAsItIs(t *testing.T) {
	all := desk()
	tool.Select(all, tool.Selection{Most: 2, Semantic: true, Query: "translate the weather"})
	if diff := cmp.Diff(desk(), all); diff != "" {
		t.Errorf("-before +after:\n%s", diff)
	}
}
