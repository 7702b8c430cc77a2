package cli_test

import (
	"slices"
	"strings"
	"testing"

	"github.com/capstan-dev/capstan/internal/cli/exit"
)

// TestRecordsOfLocalRuns checks that a Turn of capstan run leaves a record, which decisions and usage print. The record
// has no text of the conversation.
func TestRecordsOfLocalRuns(t *testing.T) {
	t.Parallel()
	_, url := fake(t, memory)
	dir, data := conversing(t).written(t, url), t.TempDir()
	for _, name := range []string{"first", "second"} {
		for range 2 { // the second run only prints the result again
			capstan(t, "run", "-f", dir, "--turn", name, "--data-dir", data).mustEnd(t, exit.OK)
		}
	}
	list := capstan(t, "decisions", "--data-dir", data).mustEnd(t, exit.OK).out
	lines := strings.Split(strings.TrimSpace(list), "\n")
	if len(lines) != 3 || !strings.HasPrefix(lines[0], "ENDED") || !strings.Contains(list, " second ") {
		t.Fatalf("want one line for each Turn, have:\n%s", list)
	}
	first := lines[slices.IndexFunc(lines, func(line string) bool { return strings.Contains(line, " first ") })]
	mustSay(t, first, "support", "DirectAnswer", "120", "0.00014 USD")
	all := capstan(t, "decisions", "--data-dir", data, "-o", "json", "--agent", "support").mustEnd(t, exit.OK).out
	mustSay(t, all, `"session":"chat"`, `"turnNumber":2`, `"id":"helpdesk.support"`, `"model":"small"`)
	for _, secret := range []string{"Monday", "again", key} {
		if strings.Contains(all, secret) {
			t.Errorf("want no text of the conversation, have %q in %s", secret, all)
		}
	}
	if none := capstan(t, "decisions", "--data-dir", data, "-o", "json", "--agent", "other").mustEnd(t, exit.OK).out; none != "" {
		t.Errorf("want no record of another Agent, have %s", none)
	}
	one := capstan(t, "decisions", "--data-dir", data, "-o", "json", "--limit", "1").mustEnd(t, exit.OK).out
	if strings.Count(one, "\n") != 1 {
		t.Errorf("want one record, have %s", one)
	}
	table := capstan(t, "usage", "--data-dir", data, "--by", "model,requester").mustEnd(t, exit.OK).out
	if want := "MODEL        REQUESTER   TURNS   INPUT   OUTPUT   COST\n" +
		"demo/small   -           2       300     40       0.00038 USD\n"; table != want {
		t.Errorf("usage:\n%s\nwant:\n%s", table, want)
	}
	sheet := capstan(t, "usage", "--data-dir", data, "-o", "csv").mustEnd(t, exit.OK).out
	if want := "agent,turns,input_tokens,output_tokens,reasoning_tokens,cache_read_tokens,cache_creation_tokens,cost,currency," +
		"turns_of_unknown_cost\nsupport,2,300,40,0,0,0,0.00038,USD,0\n"; sheet != want {
		t.Errorf("usage:\n%s\nwant:\n%s", sheet, want)
	}
}

// TestUnknownCostIsNotZero checks that a Turn of a model without prices has an unknown cost.
func TestUnknownCostIsNotZero(t *testing.T) {
	t.Parallel()
	_, url := fake(t, memory)
	f := complete().with(t, "provider.yaml", "    pricing: {currency: USD, inputPerMillion: \"1\", outputPerMillion: \"2\"}\n", "")
	dir, data := f.written(t, url), t.TempDir()
	capstan(t, "run", "-f", dir, "--data-dir", data).mustEnd(t, exit.OK)
	mustSay(t, capstan(t, "decisions", "--data-dir", data).mustEnd(t, exit.OK).out, "unknown")
	mustSay(t, capstan(t, "usage", "--data-dir", data).mustEnd(t, exit.OK).out, "unknown")
	mustSay(t, capstan(t, "usage", "--data-dir", data, "-o", "csv").mustEnd(t, exit.OK).out, ",0,,,1\n")
	mustSay(t, capstan(t, "usage", "--data-dir", data, "-o", "json").mustEnd(t, exit.OK).out, `"turnsOfUnknownCost": 1`)
}

func TestInvalidFlagsOfRecords(t *testing.T) {
	t.Parallel()
	data := t.TempDir()
	for name, tc := range map[string]struct {
		args []string
		want string
	}{
		"by": {
			[]string{"usage", "--by", "team", "--data-dir", data},
			`--by: "team" must be one of namespace, agent, requester, session, model and for`,
		},
		"output":    {[]string{"decisions", "-o", "csv"}, "must be table or json"},
		"exclusive": {[]string{"usage", "--data-dir", data, "--server", "https://x"}, "data-dir"},
		"limit":     {[]string{"decisions", "--limit", "-1", "--data-dir", data}, "--limit is -1: it must be at least 0"},
		"delete":    {[]string{"decisions", "delete"}, "specify a Turn, or set --session or --requester"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			mustSay(t, capstan(t, tc.args...).mustEnd(t, exit.Usage).err, tc.want)
		})
	}
}
