package output

import (
	"fmt"
	"strings"
	"text/tabwriter"
)

// LongestID is the maximum number of characters shown of a name or an ID.
const LongestID = 256

// MostListed is the maximum number of names in a message.
const MostListed = 10

// Row is a line of a report: a name and a value. Neither contains line feeds or tabs.
type Row struct{ Name, Value string }

// Table aligns rows in columns. It leaves out rows with an empty value.
func Table(rows []Row) string {
	var b strings.Builder
	w := tabwriter.NewWriter(&b, 0, 0, 2, ' ', 0)
	for _, r := range rows {
		if r.Value != "" {
			fmt.Fprintf(w, "  %s\t%s\n", r.Name, r.Value) //nolint:errcheck // because a strings.Builder takes all
		}
	}
	w.Flush() //nolint:errcheck,gosec // because a strings.Builder takes all
	return b.String()
}
