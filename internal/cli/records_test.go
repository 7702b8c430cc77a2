package cli_test

import (
	"database/sql"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
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
		"demo/small   local       2       300     40       0.00038 USD\n"; table != want {
		t.Errorf("usage:\n%s\nwant:\n%s", table, want)
	}
	sheet := capstan(t, "usage", "--data-dir", data, "-o", "csv").mustEnd(t, exit.OK).out
	if want := "agent,turns,input_tokens,output_tokens,reasoning_tokens,cache_read_tokens,cache_creation_tokens,cost,currency," +
		"turns_of_unknown_cost\nsupport,2,300,40,0,0,0,0.00038,USD,0\n"; sheet != want {
		t.Errorf("usage:\n%s\nwant:\n%s", sheet, want)
	}
}

// TestUsageAsCSVOnATerminal checks that a terminal does not execute the name of a requester, which the author of a Turn
// has chosen, and that a file gets it unchanged.
func TestUsageAsCSVOnATerminal(t *testing.T) {
	t.Parallel()
	_, url := fake(t, answers)
	f := complete().with(t, "turn.yaml", "spec:\n", "spec:\n  requestedBy: {username: \"\\e]0;mine\\a\\e[2K\\nada,9\"}\n")
	data := t.TempDir()
	capstan(t, "run", "-f", f.written(t, url), "--data-dir", data).mustEnd(t, exit.OK)
	args := []string{"usage", "--data-dir", data, "--by", "requester", "-o", "csv"}
	shown := call{terminal: true, env: map[string]string{"TERM": "dumb"}}.run(t.Context(), args...).mustEnd(t, exit.OK).out
	mustSay(t, shown, `\u001b]0;mine\u0007\u001b[2K\nada,9",1,`)
	mustSay(t, capstan(t, args...).mustEnd(t, exit.OK).out, "\x1b]0;mine\a\x1b[2K\nada,9\",1,")
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

// TestFeedbackIsAboutTheNewestTurn checks that feedback does not go to an older Turn of the same name if the newest one
// has not ended.
func TestFeedbackIsAboutTheNewestTurn(t *testing.T) {
	t.Parallel()
	_, url := fake(t, "rules:\n- {when: {toolMessages: 0, hasTools: true}, "+
		"reply: {toolCalls: [{name: close_ticket, arguments: '{\"id\": \"1042\"}'}]}}\n- {reply: {text: Hello.}}\n")
	data := t.TempDir()
	old := complete().written(t, url)
	capstan(t, "run", "-f", old, "--data-dir", data, "--now", noon).mustEnd(t, exit.OK)
	newer := withTools(t, serveTools(t, "").url, requiresApproval).written(t, url)
	capstan(t, "run", "-f", newer, "--data-dir", data, "--now", "2026-04-09T13:00:00Z").mustEnd(t, exit.Parked)
	feedback := []string{"feedback", "first", "--score", "0.5", "--data-dir", data}
	mustSay(t, capstan(t, feedback...).mustEnd(t, exit.Failed).err, "has no record of the Turn default/first: it has not ended")
	capstan(t, "run", "-f", newer, "--data-dir", data, "--now", "2026-04-09T13:00:00Z", "--approve=all").mustEnd(t, exit.OK)
	capstan(t, feedback...).mustEnd(t, exit.OK)
	records := strings.Split(strings.TrimSpace(capstan(t, "decisions", "--data-dir", data, "-o", "json").mustEnd(t, exit.OK).out), "\n")
	if len(records) != 2 || strings.Count(strings.Join(records, ""), `"score":"0.5"`) != 1 {
		t.Fatalf("the records are %q, want those of both Turns, and feedback to one", records)
	}
	for _, record := range records {
		if strings.Contains(record, `"score":"0.5"`) != strings.Contains(record, "close_ticket") {
			t.Errorf("want feedback only to the Turn that called the tool, have %s", record)
		}
	}
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

// TestDeletedRecordsAreOfTheTurn checks that the name of a Turn may contain its namespace, and that a command that
// deletes nothing does not look like a success.
func TestDeletedRecordsAreOfTheTurn(t *testing.T) {
	t.Parallel()
	const one = "helpdesk first"
	for name, tc := range map[string]struct {
		args    []string
		deleted int
		code    int
		// asked is the namespace and the name in the request to the manager, or empty if there was no request.
		asked, says string
	}{
		"namespace and name": {[]string{"helpdesk/first"}, 1, exit.OK, one, "deleted records: 1\n"},
		"-n":                 {[]string{"first", "-n", "helpdesk"}, 1, exit.OK, one, "deleted records: 1\n"},
		"two namespaces":     {[]string{"helpdesk/first", "-n", "b"}, 1, exit.Usage, "", "name different namespaces"},
		"no record":          {[]string{"helpdesk/first"}, 0, exit.Failed, one, "there is no record of Turn helpdesk/first"},
		"no record of a Session": {
			[]string{"--session", "talk", "-n", "helpdesk"}, 0, exit.OK, "helpdesk ", "deleted records: 0\n",
		},
		"no record of a Turn in a Session": {
			[]string{"helpdesk/first", "--session", "talk"}, 0, exit.OK, one, "deleted records: 0\n",
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			var asked string
			web := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
				namespace, ok := strings.CutSuffix(strings.TrimPrefix(r.URL.Path, "/v1/namespaces/"), "/records")
				if !ok || r.Method != http.MethodDelete {
					t.Errorf("the request is %s %s, want one to delete records", r.Method, r.URL)
				}
				asked = namespace + " " + r.URL.Query().Get("turn")
				w.Header().Set("Content-Type", "application/json")
				if _, err := fmt.Fprintf(w, `{"deleted": %d}`, tc.deleted); err != nil {
					t.Error(err)
				}
			}))
			t.Cleanup(web.Close)
			got := capstan(t, append([]string{"decisions", "delete", "--server", web.URL, "--token", "mine"}, tc.args...)...)
			got.mustEnd(t, tc.code)
			mustSay(t, got.out+got.err, tc.says)
			if asked != tc.asked {
				t.Errorf("the manager received a request for %q, want %q", asked, tc.asked)
			}
		})
	}
}

// TestRecordsOfADirectory checks that a Turn of capstan run without a requester has the requester local in its journal,
// its record and the usage, and that decisions delete works on a directory.
func TestRecordsOfADirectory(t *testing.T) {
	t.Parallel()
	_, url := fake(t, answers)
	dir, data := complete().written(t, url), t.TempDir()
	capstan(t, "run", "-f", dir, "--data-dir", data).mustEnd(t, exit.OK)
	mustSay(t, capstan(t, "logs", "first", "--data-dir", data).mustEnd(t, exit.OK).out, "  asked by local\n")
	mustSay(t, capstan(t, "usage", "--by", "requester", "--data-dir", data).mustEnd(t, exit.OK).out, "\nlocal ")
	list := func() string {
		t.Helper()
		return capstan(t, "decisions", "--requester", "local", "--data-dir", data, "-o", "json").mustEnd(t, exit.OK).out
	}
	mustSay(t, list(), `"turn":"first"`, `"requester":"local"`)
	for name, tc := range map[string]struct {
		args []string
		code int
		says string
	}{
		"another Turn": {
			[]string{"second"}, exit.Failed, "there is no record of Turn default/second: capstan decisions lists the records",
		},
		"another namespace":    {[]string{"helpdesk/first"}, exit.Failed, "there is no record of Turn helpdesk/first"},
		"another requester":    {[]string{"--requester", "ada"}, exit.OK, "deleted records: 0\n"},
		"a cluster's flag":     {[]string{"first", "--token", "x"}, exit.Usage, "data-dir"},
		"a missing directory":  {[]string{"first", "--data-dir", data + "-none"}, exit.Failed, "does not exist"},
		"nothing that selects": {nil, exit.Usage, "specify a Turn, or set --session or --requester"},
	} {
		got := capstan(t, append([]string{"decisions", "delete", "--data-dir", data}, tc.args...)...)
		if got.code != tc.code || !strings.Contains(got.out+got.err, tc.says) {
			t.Errorf("%s: exit code %d and %q, want %d and %q", name, got.code, got.out+got.err, tc.code, tc.says)
		}
	}
	mustSay(t, list(), `"turn":"first"`)
	got := capstan(t, "decisions", "delete", "--requester", "local", "--data-dir", data, "-o", "json").mustEnd(t, exit.OK)
	if got.out != "{\"deleted\":1}\n" || list() != "" {
		t.Errorf("want the record deleted, have %q and the records %q", got.out, list())
	}
	mustSay(t, capstan(t, "logs", "first", "--data-dir", data).mustEnd(t, exit.OK).out, "Completed") // the journal stays
}

// TestUnusableDirectory checks that the errors about a directory of capstan run name it, and say what its user can do.
func TestUnusableDirectory(t *testing.T) {
	t.Parallel()
	_, url := fake(t, answers)
	dir, newer := complete().written(t, url), t.TempDir()
	capstan(t, "run", "-f", dir, "--data-dir", newer).mustEnd(t, exit.OK)
	db, err := sql.Open("sqlite", filepath.Join(newer, "capstan-run.db"))
	if err != nil {
		t.Fatal(err)
	}
	_, err = db.ExecContext(t.Context(), `INSERT INTO goose_db_version (version_id, is_applied) VALUES (99, 1)`)
	if err := errors.Join(err, db.Close()); err != nil {
		t.Fatal(err)
	}
	for _, args := range [][]string{
		{"run", "-f", dir},
		{"logs", "first"},
		{"decisions"},
		{"usage"},
		{"decisions", "delete", "first"},
		{"memory", "list"},
		{"memory", "delete", "x"},
		{"feedback", "first", "--score", "1"},
		{"replay", "first", "-f", dir},
		{"undo", "first", "-f", dir},
	} {
		got := capstan(t, append(args, "--data-dir", newer)...).mustEnd(t, exit.Failed)
		want := "--data-dir: a newer version of capstan wrote the journals in " + newer +
			": use that version or a later one, or another directory\n"
		if !strings.HasSuffix(got.err, want) || strings.Contains(got.err, "installation") {
			t.Errorf("%v: %q, want %q", args, got.err, want)
		}
		file := filepath.Join(dir, "turn.yaml")
		got = capstan(t, append(args, "--data-dir", file)...).mustEnd(t, exit.Failed)
		if want := "--data-dir: " + file + " is not a directory\n"; !strings.HasSuffix(got.err, want) {
			t.Errorf("%v: %q, want %q", args, got.err, want)
		}
	}
}

// TestFeedbackIsOfOneUser checks that feedback without a token of the user's own does not use the ServiceAccount that
// all users of client certificates share, unless a flag names it.
func TestFeedbackIsOfOneUser(t *testing.T) {
	t.Parallel()
	const shared = "capstan-turn-reader"
	for name, tc := range map[string]struct {
		flags []string
		code  int
		says  string
		// scored is the credential with which the manager received feedback, or empty if it received none.
		scored string
	}{
		"no token": {
			nil, exit.Failed, "feedback is stored under the name of the token's user: pass a token of your own with --token, " +
				"or set --service-account", "",
		},
		"empty account":      {[]string{"--service-account", ""}, exit.Failed, "pass a token of your own with --token", ""},
		"a named account":    {[]string{"--service-account", "bot"}, exit.OK, "is stored", "Bearer of-bot"},
		"the shared account": {[]string{"--service-account", shared}, exit.OK, "is stored", "Bearer of-" + shared},
		"a token":            {[]string{"--token", "mine"}, exit.OK, "is stored", "Bearer mine"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			kubeconfig, scored := certificateCluster(t)
			args := []string{"feedback", "first", "--score", "1", "--kubeconfig", kubeconfig.path, "--server", kubeconfig.server}
			got := capstan(t, append(args, tc.flags...)...).mustEnd(t, tc.code)
			mustSay(t, got.out+got.err, tc.says)
			if credential := scored(); credential != tc.scored {
				t.Errorf("the manager received feedback from %q, want %q", credential, tc.scored)
			}
		})
	}
}

// clusterAccess is a kubeconfig of namespace helpdesk, and the URL of its cluster.
type clusterAccess struct{ path, server string }

// certificateCluster serves the part of an API server that creates tokens, and the part of the read API that stores
// feedback. The kubeconfig has no token, as with a client certificate. scored returns the credential of the last
// feedback.
func certificateCluster(t *testing.T) (access clusterAccess, scored func() string) {
	t.Helper()
	var mu sync.Mutex
	var credential string
	mux := http.NewServeMux()
	answer := func(pattern, format string) {
		mux.HandleFunc(pattern, func(w http.ResponseWriter, r *http.Request) {
			w.Header().Set("Content-Type", "application/json")
			text := format
			if account := r.PathValue("account"); account != "" {
				text = fmt.Sprintf(format, account)
			}
			_, _ = io.WriteString(w, text)
		})
	}
	answer("GET /api", `{"kind":"APIVersions","versions":["v1"]}`)
	answer("GET /apis", `{"kind":"APIGroupList","groups":[]}`)
	answer("GET /api/v1", `{"kind":"APIResourceList","groupVersion":"v1","resources":[`+
		`{"name":"serviceaccounts","namespaced":true,"kind":"ServiceAccount","verbs":["create"]}]}`)
	answer("POST /api/v1/namespaces/helpdesk/serviceaccounts/{account}/token",
		`{"kind":"TokenRequest","apiVersion":"authentication.k8s.io/v1","status":{"token":"of-%s"}}`)
	mux.HandleFunc("POST /v1/namespaces/{namespace}/turns/first/feedback", func(w http.ResponseWriter, r *http.Request) {
		mu.Lock()
		defer mu.Unlock()
		credential = r.Header.Get("Authorization")
		_, _ = io.WriteString(w, "{}")
	})
	web := httptest.NewServer(mux)
	t.Cleanup(web.Close)
	path := filepath.Join(t.TempDir(), "kubeconfig")
	config := fmt.Sprintf(`{apiVersion: v1, kind: Config, current-context: x, users: [{name: u, user: {}}],
contexts: [{name: x, context: {cluster: c, user: u, namespace: helpdesk}}], clusters: [{name: c, cluster: {server: %q}}]}`, web.URL)
	if err := os.WriteFile(path, []byte(config), 0o600); err != nil {
		t.Fatal(err)
	}
	return clusterAccess{path, web.URL}, func() string {
		mu.Lock()
		defer mu.Unlock()
		return credential
	}
}
