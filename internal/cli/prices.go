package cli

import (
	"fmt"
	"strings"
	"text/tabwriter"

	"github.com/shopspring/decimal"
	"github.com/spf13/cobra"

	"github.com/capstan-dev/capstan/internal/cli/terminal"
	"github.com/capstan-dev/capstan/internal/prices"
	"github.com/capstan-dev/capstan/internal/runtime/model"
)

const pricesHelp = `prices prints the list prices that this version of Capstan contains, in USD for a million tokens, with the
day on which they were read. They apply to models of public services if spec.baseURL of the ModelProvider
is on the service's own host and spec.models declares no pricing. Prices in brackets apply to requests
with longer prompts.

Prices change: compare them with the price list of the service, and declare your own prices if they differ.
If a model has no declared price and is not in this table, its cost is unknown.`

func newPrices(env terminal.Environment) *cobra.Command {
	return &cobra.Command{
		Use: "prices", Short: "Print the list prices of models of public services", Long: pricesHelp,
		Args:              noArguments("this command has no arguments"),
		ValidArgsFunction: cobra.NoFileCompletions, Example: "  capstan prices",
		RunE: func(*cobra.Command, []string) error { return env.Print(priceTable(prices.All())) },
	}
}

// priceTable returns the entries in columns, and the source of each service.
func priceTable(entries []prices.Entry) string {
	var b, sources strings.Builder
	w := tabwriter.NewWriter(&b, 0, 0, 3, ' ', 0)
	//nolint:errcheck // because a strings.Builder takes all
	fmt.Fprintln(w, "SERVICE\tMODEL\tINPUT\tCACHE READ\tCACHE WRITE\tOUTPUT\tLONG PROMPT\tDATE")
	service := ""
	for _, e := range entries {
		p, long := &e.Pricing, "-"
		if p.Long != nil {
			long = fmt.Sprintf("> %d", p.LongOver)
		}
		//nolint:errcheck // because a strings.Builder takes all
		fmt.Fprintf(w, "%s\t%s\t%s\t%s\t%s\t%s\t%s\t%s\n", e.Service, e.Model, cell(p, inputPrice), cell(p, cacheReadPrice),
			cell(p, cacheWritePrice), cell(p, outputPrice), long, p.Date)
		if e.Service != service {
			service = e.Service
			fmt.Fprintf(&sources, "%s: %s\n", e.Service, e.Source)
		}
	}
	w.Flush() //nolint:errcheck,gosec // because a strings.Builder takes all
	return b.String() + "\n" + sources.String()
}

// cell returns a price. If requests with long prompts have another price, that price follows in brackets.
func cell(p *model.Pricing, priceOf func(*model.Pricing) decimal.Decimal) string {
	text := priceOf(p).String()
	if p.Long != nil {
		text += " (" + priceOf(p.Long).String() + ")"
	}
	return text
}

func inputPrice(p *model.Pricing) decimal.Decimal     { return p.Input }
func cacheReadPrice(p *model.Pricing) decimal.Decimal { return p.CacheRead }
func outputPrice(p *model.Pricing) decimal.Decimal    { return p.Output }

func cacheWritePrice(p *model.Pricing) decimal.Decimal {
	if p.CacheWrite == nil {
		return p.Input
	}
	return *p.CacheWrite
}
