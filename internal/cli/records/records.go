// Package records prints and deletes the records and the memories of Turns, adds up their usage, and stores feedback.
// The data are in a cluster or in a directory of capstan run.
package records

import (
	"cmp"
	"context"
	"encoding/csv"
	"errors"
	"fmt"
	"strconv"
	"strings"
	"text/tabwriter"
	"time"

	"github.com/capstan-dev/capstan/internal/cli/cluster"
	"github.com/capstan-dev/capstan/internal/cli/exit"
	"github.com/capstan-dev/capstan/internal/cli/journals"
	"github.com/capstan-dev/capstan/internal/cli/output"
	"github.com/capstan-dev/capstan/internal/cli/terminal"
	"github.com/capstan-dev/capstan/internal/readapi"
	"github.com/capstan-dev/capstan/internal/runtime/turnrecord"
	"github.com/capstan-dev/capstan/internal/store"
	"github.com/capstan-dev/capstan/internal/termsafe"
	"github.com/capstan-dev/capstan/internal/usage"
)

// Format is a format of the output.
type Format string

// The formats.
const (
	Table Format = "table"
	JSON  Format = "json"
	CSV   Format = "csv"
	// Text is a line for people about what a command has done.
	Text Format = "text"
)

// Options select records, and specify where they are.
type Options struct {
	Env terminal.Environment
	// Namespace is the namespace of the Turns. If it is empty, it is the namespace of the kubeconfig's context, or
	// default with DataDir, or with a server and a token. AllNamespaces selects the Turns of all namespaces.
	Namespace     string
	AllNamespaces bool
	// Agent, Session and Requester select Turns by their fields. An empty field selects any value.
	Agent, Session, Requester string
	// Since selects the Turns that ended at that time or later: see ParseSince. It is empty for all Turns.
	Since string
	// Output is the format.
	Output Format
	// DataDir is a directory of capstan run, or empty to read from a cluster.
	DataDir string
	Cluster journals.ClusterFlags
}

// Decisions prints records.
type Decisions struct {
	Options
	// Limit is the maximum number of printed records; 0 means no limit.
	Limit int
}

// Usage prints the usage of Turns.
type Usage struct {
	Options
	// By are the fields by which usage is grouped, separated by commas.
	By string
}

// Delete deletes records.
type Delete struct {
	Options
	// Turn is NAME or NAMESPACE/NAME of the Turn, or empty if Session or Requester selects the records.
	Turn string
}

// ParseSince parses a time. The text is a duration before now, such as 24h or 7d, a day such as 2026-06-11, or an RFC
// 3339 time. For an empty text, ParseSince returns the zero time.
func ParseSince(text string, now time.Time) (time.Time, error) {
	if text == "" {
		return time.Time{}, nil
	}
	if days, ok := strings.CutSuffix(text, "d"); ok {
		if n, err := strconv.Atoi(days); err == nil && n >= 0 && n <= 36500 {
			return now.AddDate(0, 0, -n), nil
		}
	}
	if d, err := time.ParseDuration(text); err == nil && d >= 0 {
		return now.Add(-d), nil
	}
	for _, layout := range []string{time.DateOnly, time.RFC3339} {
		if t, err := time.Parse(layout, text); err == nil {
			return t, nil
		}
	}
	return time.Time{}, exit.WithCode(exit.Usage,
		fmt.Errorf("--since: %q must be a duration such as 24h or 7d, a day such as 2026-06-11, "+
			"or a time such as 2026-06-11T15:04:05Z", text))
}

// query returns the query that the options select, for a namespace.
func (o *Options) query(namespace string) (store.RecordQuery, error) {
	since, err := ParseSince(o.Since, o.Env.Now())
	if o.AllNamespaces {
		namespace = ""
	}
	return store.RecordQuery{
		RecordSelector: store.RecordSelector{Namespace: namespace, Agent: o.Agent, Session: o.Session, Requester: o.Requester},
		Since:          since,
	}, err
}

// local calls do with the records of --data-dir.
func (o *Options) local(ctx context.Context, do func(read recordReader, q store.RecordQuery) error) (err error) {
	q, err := o.query(cmp.Or(o.Namespace, "default"))
	if err != nil {
		return err
	}
	dirStore, err := journals.OpenDir(ctx, o.DataDir)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, dirStore.Close()) }()
	return do(func(q store.RecordQuery) ([]turnrecord.Record, bool, error) { return dirStore.Records(ctx, q) }, q)
}

// Run prints the records, newest first.
func (d *Decisions) Run(ctx context.Context) error {
	if d.Limit < 0 {
		return exit.WithCode(exit.Usage, fmt.Errorf("--limit is %d: it must be at least 0", d.Limit))
	}
	if d.DataDir != "" {
		return d.local(ctx, func(read recordReader, q store.RecordQuery) error {
			return d.print(q, func(q store.RecordQuery) (readapi.RecordPage, error) {
				all, more, err := read(q)
				next := ""
				if more {
					next = "more" // any text: print only checks that it is not empty
				}
				return readapi.RecordPage{Records: all, Next: next}, err
			})
		})
	}
	return d.Cluster.WithServer(ctx, d.Env, d.Namespace, func(client *readapi.Client, namespace string) error {
		q, err := d.query(namespace)
		if err != nil {
			return err
		}
		return d.print(q, func(q store.RecordQuery) (readapi.RecordPage, error) { return client.Records(ctx, q) })
	})
}

// print reads the records page by page, and prints them.
func (d *Decisions) print(q store.RecordQuery, read func(store.RecordQuery) (readapi.RecordPage, error)) error {
	var rows *table
	if d.Output == Table {
		rows = newTable("ENDED", "NAMESPACE", "TURN", "AGENT", "REASON", "STRATEGY", "TOKENS", "COST", "ELAPSED")
	}
	for printed := 0; ; {
		q.Limit = store.MaxRecords
		if d.Limit > 0 {
			q.Limit = min(q.Limit, d.Limit-printed)
		}
		page, err := read(q)
		if err != nil {
			return failed(err)
		}
		for i := range page.Records {
			r := &page.Records[i]
			if rows != nil {
				rows.row(rowOf(r))
				continue
			}
			if err := d.printJSON(r); err != nil {
				return err
			}
		}
		printed += len(page.Records)
		if n := len(page.Records); n == 0 || page.Next == "" || d.Limit > 0 && printed >= d.Limit {
			break
		}
		q.After = store.PositionOf(&page.Records[len(page.Records)-1])
	}
	if rows == nil {
		return nil
	}
	return d.Env.Print(rows.text())
}

// printJSON prints a record as one line of JSON.
func (d *Decisions) printJSON(r *turnrecord.Record) error {
	line, err := output.Line(r)
	if err != nil {
		return exit.WithCode(exit.Failed, err)
	}
	return d.Env.Print(line)
}

// rowOf returns the columns of a record.
func rowOf(r *turnrecord.Record) []string {
	var tokens int64
	for _, m := range r.Models {
		tokens += m.Usage.InputTokens + m.Usage.OutputTokens
	}
	sum := usage.NewSum(nil)
	cost, own := "unknown", *r
	own.Evaluations, own.Expenses = nil, nil // their cost is not part of the Turn's cost
	if err := sum.Add(&own); err == nil {
		cost = costOf(sum.Groups()[0])
	}
	return []string{
		r.Completed.UTC().Format(time.RFC3339), r.Namespace, r.Turn, r.Agent, r.Reason, r.Strategy,
		strconv.FormatInt(tokens, 10), cost, (time.Duration(r.ElapsedMilliseconds) * time.Millisecond).String(),
	}
}

// costOf returns the cost of a group for people. A cost that is not known is never shown as zero.
func costOf(g usage.Group) string {
	var parts []string
	for _, c := range g.Costs {
		parts = append(parts, c.Amount+" "+c.Currency)
	}
	if g.TurnsOfUnknownCost > 0 {
		parts = append(parts, "unknown")
	}
	return strings.Join(parts, " + ")
}

// Run prints the usage.
func (u *Usage) Run(ctx context.Context) error {
	by, err := usage.ParseDimensions(u.By)
	if err != nil {
		return exit.WithCode(exit.Usage, fmt.Errorf("--by: %w", err))
	}
	if u.DataDir != "" {
		return u.local(ctx, func(read recordReader, q store.RecordQuery) error {
			sum, err := readapi.UsageOf(ctx, read, q, by)
			if err != nil {
				return failed(err)
			}
			return u.print(sum)
		})
	}
	return u.Cluster.WithServer(ctx, u.Env, u.Namespace, func(client *readapi.Client, namespace string) error {
		q, err := u.query(namespace)
		if err != nil {
			return err
		}
		answer, err := client.Usage(ctx, q, by)
		if err != nil {
			return failed(err)
		}
		if until := answer.DeletedUntil; until != nil {
			u.Env.Logf("the usage is incomplete: records of Turns that ended until %s were deleted, because of the manager's flags "+
				"--record-retention and --max-records-per-namespace", until.UTC().Format(time.RFC3339))
		}
		return u.print(answer)
	})
}

// recordReader implements readapi.UsageRecords with a function that reads one page.
type recordReader func(store.RecordQuery) (page []turnrecord.Record, more bool, err error)

// Records returns a page of records.
func (r recordReader) Records(_ context.Context, q store.RecordQuery) (page []turnrecord.Record, more bool, err error) {
	return r(q)
}

// DeletedUntil returns the zero time, because a directory keeps all records.
func (recordReader) DeletedUntil(context.Context, string) (time.Time, error) { return time.Time{}, nil }

// print prints usage in the format of the options.
func (u *Usage) print(page readapi.UsagePage) error {
	by, groups := page.By, page.Groups
	switch u.Output {
	case JSON:
		text, err := output.Encode(page, output.JSON)
		if err != nil {
			return exit.WithCode(exit.Failed, err)
		}
		return u.Env.Print(text)
	case CSV:
		return u.printCSV(by, groups)
	case Table, Text:
	}
	var titles []string
	for _, d := range by {
		titles = append(titles, strings.ToUpper(string(d)))
	}
	t := newTable(append(titles, "TURNS", "INPUT", "OUTPUT", "COST")...)
	for _, g := range groups {
		t.row(append(withDashes(g.Values), strconv.FormatInt(g.Turns, 10), strconv.FormatInt(g.Usage.InputTokens, 10),
			strconv.FormatInt(g.Usage.OutputTokens, 10), costOf(g)))
	}
	return u.Env.Print(t.text())
}

// printCSV prints one line for each group and currency. If a group has several lines, the figures that do not depend on
// the currency are in its first line, and 0 in its further lines, so that the sum of a column is correct. If no part of
// the cost is known, the cost is empty.
func (u *Usage) printCSV(by []usage.Dimension, groups []usage.Group) error {
	var b strings.Builder
	w := csv.NewWriter(&b)
	var lines [][]string
	head := make([]string, 0, len(by)+9)
	for _, d := range by {
		head = append(head, string(d))
	}
	lines = append(lines, append(head, "turns", "input_tokens", "output_tokens", "reasoning_tokens", "cache_read_tokens",
		"cache_creation_tokens", "cost", "currency", "turns_of_unknown_cost"))
	for _, g := range groups {
		figures := []string{}
		for _, n := range []int64{
			g.Turns, g.Usage.InputTokens, g.Usage.OutputTokens, g.Usage.ReasoningTokens,
			g.Usage.CacheReadTokens, g.Usage.CacheCreationTokens,
		} {
			figures = append(figures, strconv.FormatInt(n, 10))
		}
		unknown := strconv.FormatInt(g.TurnsOfUnknownCost, 10)
		costs := g.Costs
		if len(costs) == 0 {
			costs = []turnrecord.Cost{{}}
		}
		for _, c := range costs {
			line := append([]string{}, escapeFormulas(g.Values)...)
			if u.Env.OutIsTerminal { // the author of a Turn may have chosen the name of its requester
				for i, v := range line {
					line[i] = onOneLine(v)
				}
			}
			lines = append(lines, append(append(line, figures...), c.Amount, c.Currency, unknown))
			figures, unknown = []string{"0", "0", "0", "0", "0", "0"}, "0"
		}
	}
	if err := w.WriteAll(lines); err != nil {
		return exit.WithCode(exit.Failed, err)
	}
	return u.Env.Print(b.String())
}

// formulaStarts are the characters with which a formula may begin. Some spreadsheets skip white space and U+0000 before
// a formula, and read full-width characters as the plain ones: owasp.org/www-community/attacks/CSV_Injection.
const formulaStarts = "=+-@\t\r\n\x00＝＋－＠"

// escapeFormulas changes values that a spreadsheet would take for formulas.
func escapeFormulas(values []string) []string {
	out := make([]string, len(values))
	for i, v := range values {
		if out[i] = v; strings.IndexAny(v, formulaStarts) == 0 {
			out[i] = "'" + v
		}
	}
	return out
}

// withDashes returns values for a table, with a dash in place of each empty value.
func withDashes(values []string) []string {
	out := make([]string, len(values))
	for i, v := range values {
		out[i] = cmp.Or(v, "-")
	}
	return out
}

// Run deletes the records that the namespace, Turn, Session and requester select, and prints their number.
// If only a Turn selects them, Run returns an error if the Turn has no record, because its name is probably wrong.
func (d *Delete) Run(ctx context.Context) error {
	if d.Turn == "" && d.Session == "" && d.Requester == "" {
		return exit.WithCode(exit.Usage, errors.New("specify a Turn, or set --session or --requester"))
	}
	namespace, turn, err := splitTurn(d.Turn, d.Namespace)
	if err != nil {
		return err
	}
	selector := store.RecordSelector{Turn: turn, Session: d.Session, Requester: d.Requester}
	if d.DataDir != "" {
		selector.Namespace = cmp.Or(namespace, "default")
		return d.local(ctx, selector)
	}
	return d.Cluster.WithServer(ctx, d.Env, namespace, func(client *readapi.Client, namespace string) error {
		selector.Namespace = namespace
		return d.all(selector, func() (n int, more bool, err error) {
			out, err := client.DeleteRecords(ctx, selector)
			return out.Deleted, out.More, err
		})
	})
}

// local deletes the selected records of --data-dir.
func (d *Delete) local(ctx context.Context, selector store.RecordSelector) (err error) {
	w, err := journals.OpenDirForWriting(ctx, d.DataDir)
	if err != nil {
		return failed(err)
	}
	defer func() { err = errors.Join(err, w.Close()) }()
	return d.all(selector, func() (n int, more bool, err error) {
		n, err = w.DeleteRecords(ctx, selector, store.MaxRecords)
		return n, n == store.MaxRecords, err
	})
}

// all calls remove until no selected record is left, and prints the number of the deleted ones.
func (d *Delete) all(selector store.RecordSelector, remove func() (n int, more bool, err error)) error {
	for all := 0; ; {
		n, more, err := remove()
		all += n
		switch {
		case err != nil:
			return failed(fmt.Errorf("failed after %d records were deleted: %w", all, err))
		case more:
		case all == 0 && selector.Session == "" && selector.Requester == "":
			return exit.WithCode(exit.Failed, fmt.Errorf(
				"there is no record of Turn %s/%s: capstan decisions lists the records", selector.Namespace, selector.Turn))
		default:
			return d.printDone(fmt.Sprintf("deleted records: %d\n", all), deleted{all})
		}
	}
}

// splitTurn is like cluster.SplitName, but the Turn may be empty. It then selects the Turns of the given namespace.
func splitTurn(turn, given string) (namespace, name string, err error) {
	if turn == "" {
		return given, "", nil
	}
	return cluster.SplitName(turn, given)
}

// deleted is the JSON form of a deletion.
type deleted struct {
	Deleted int `json:"deleted"`
}

// printDone prints a text, or object as a line of JSON.
func (o *Options) printDone(text string, object any) error {
	if o.Output == JSON {
		line, err := output.Line(object)
		if err != nil {
			return exit.WithCode(exit.Failed, err)
		}
		text = line
	}
	return o.Env.Print(text)
}

// failed explains the error of a request for records, and gives it the code exit.Failed.
func failed(err error) error {
	return exit.WithCode(exit.Failed, journals.ExplainRecords(err))
}

// table aligns columns. Tabs and line feeds in values are escaped.
type table struct {
	out *strings.Builder
	w   *tabwriter.Writer
}

func newTable(titles ...string) *table {
	t := &table{out: &strings.Builder{}}
	t.w = tabwriter.NewWriter(t.out, 0, 0, 3, ' ', 0)
	t.row(titles)
	return t
}

// row adds a row.
func (t *table) row(values []string) {
	for i, v := range values {
		v = onOneLine(v)
		if i > 0 {
			v = "\t" + v
		}
		fmt.Fprint(t.w, v) //nolint:errcheck // because a strings.Builder takes all
	}
	fmt.Fprintln(t.w) //nolint:errcheck // because a strings.Builder takes all
}

// onOneLine returns a value without control characters. Tabs and line feeds are escaped, too, because a value with them
// could look like another line or column.
func onOneLine(v string) string {
	return strings.NewReplacer("\t", `\t`, "\n", `\n`).Replace(termsafe.Safe(v))
}

// text returns the table, without blanks at the ends of lines.
func (t *table) text() string {
	t.w.Flush() //nolint:errcheck,gosec // because a strings.Builder takes all
	lines := strings.Split(t.out.String(), "\n")
	for i := range lines {
		lines[i] = strings.TrimRight(lines[i], " ")
	}
	return strings.Join(lines, "\n")
}
