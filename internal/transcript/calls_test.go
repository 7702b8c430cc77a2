package transcript_test

import (
	"encoding/json"
	"strings"
	"testing"
	"time"

	"github.com/capstan-dev/capstan/internal/runtime/journal"
	"github.com/capstan-dev/capstan/internal/runtime/untrusted"
	"github.com/capstan-dev/capstan/internal/transcript"
)

// written returns an entry. Its time is one second after the entry before it.
func written(seq int64, kind journal.Kind, payload string) journal.Entry {
	return journal.Entry{
		Seq: seq, Epoch: 1, Kind: kind, Version: 1, Time: noon.Add(time.Duration(seq) * time.Second),
		Payload: json.RawMessage(payload),
	}
}

// eventful returns entries of a Turn with many kinds of events: tools, repairs, approvals, sub-agents, summaries,
// checks of drafts, and a rejected output.
func eventful() []journal.Entry {
	var all []journal.Entry
	add := func(kind journal.Kind, payload string) { all = append(all, written(int64(len(all)+1), kind, payload)) }
	add(journal.ToolsExposed, `{"nonce":"N0NCE","tools":[{"name":"get_ticket"},{"name":"close_ticket","requiresApproval":true}],`+
		`"packs":[{"name":"find_context"}],"unusable":["odd\u001b[2Jname"],`+
		`"missing":["wiki","mail\u001b[2J"],"leftOut":1}`)
	add(journal.ContextWarned, `{"tokens":7100,"contextWindow":10000}`)
	add(journal.ModelRequested, `{"step":1,"purpose":"compaction","provider":"demo","model":"small","attempt":1}`)
	add(journal.ModelFailed, `{"step":1,"purpose":"compaction","provider":"demo","model":"small",`+
		`"kind":"Overloaded","message":"busy","usage":{}}`)
	add(journal.ModelReplied, `{"step":1,"purpose":"compaction","provider":"demo","model":"small",`+
		`"reply":{"text":"They want a ticket closed.","finishReason":"stop","usage":{"inputTokens":90,"outputTokens":10}}}`)
	add(journal.Compacted, `{"from":2,"summary":"They want a ticket closed.","forced":true,"tokens":9100}`)
	add(journal.ModelReplied, `{"step":2,"provider":"demo","model":"small","reply":{"text":"","reasoning":"Which ticket?",`+
		`"toolCalls":[{"id":"c1","name":"close_ticket","arguments":"{\"id\":\"1042\"}"}],"finishReason":"tool_calls"}}`)
	add(journal.ToolRepaired, `{"step":2,"callID":"c1","name":"close_ticket","attempt":1,`+
		`"before":"{\"id\":\"1042\"}","after":{"id":1042},"changes":["/id: \"1042\" became 1042"]}`)
	add(journal.ApprovalRequested, `{"step":2,"callID":"c1","name":"close_ticket","arguments":{"id":1042,"note":"a\u001b[2Jb\nc"},`+
		`"argumentsHash":"ab","requested":"2026-04-09T12:00:09Z","expires":"2026-04-10T12:00:09Z"}`)
	add(journal.ApprovalDecided, `{"step":2,"callID":"c1","approved":true,"by":"ada@example.com","reason":"it is done"}`)
	add(journal.ApprovalDecided, `{"step":2,"callID":"c2","approved":false,"by":"ada@example.com"}`)
	add(journal.ApprovalDecided, `{"step":2,"callID":"c3","approved":false,"expired":true}`)
	add(journal.ToolFinished, `{"step":2,"callID":"c4","name":"get_ticket","outcome":"Reused","content":"open"}`)
	add(journal.ToolFinished, `{"step":2,"callID":"c5","name":"dump","outcome":"Succeeded","content":"head ... `+
		`tail","bytes":20000,"artifact":"ab12","artifactName":"call-2-5","durationMilliseconds":1200}`)
	add(journal.ToolFinished, `{"step":2,"callID":"c6","name":"writer","outcome":"Succeeded",`+
		`"content":"done","bytes":4,"spent":{"turn":"first-2-c6","usage":{"inputTokens":100,"outputTokens":20}}}`)
	add(journal.OutputRejected, `{"step":3,"message":"/total: must be a number"}`)
	add(journal.ModelRequested, `{"step":4,"purpose":"reflection","provider":"demo","model":"small","attempt":1}`)
	add(journal.Reflected, `{"step":4,"replaced":true,"text":"{\"total\": 3}"}`)
	add(journal.Reflected, `{"step":5,"text":"{\"total\": 3}"}`)
	add(journal.OutputRejected, `{"step":5,"noText":true,"message":"Write your answer now."}`)
	add(journal.Finalized, `{"stop":"ToolEnded","message":"a tool ended the `+
		`turn","counts":{"steps":4,"modelRequests":6,"toolCalls":3,"toolRetries":1,"toolRepairs":1,"compactions":1,"reflections":2},`+
		`"record":{"usage":{"inputTokens":1,"outputTokens":1}},"subAgents":{"usage":{"inputTokens":100,"outputTokens":20},`+
		`"cost":{"amount":"0.01","currency":"USD"}}}`)
	return all
}

func TestTranscriptOfTools(t *testing.T) {
	t.Parallel()
	got := shown(t, eventful())
	golden(t, "eventful", got)
}

func TestCallThatAnotherTurnHasUndone(t *testing.T) {
	t.Parallel()
	got := shown(t, []journal.Entry{written(1, journal.ToolFinished,
		`{"step":1,"callID":"c1","name":"close","outcome":"Succeeded","content":"It is done.","bytes":11,"undoneBy":"first-undo"}`)})
	if want := "close (c1) was not called: Turn first-undo has undone the call\n"; !strings.Contains(got, want) {
		t.Errorf("the transcript is %q, want %q in it", got, want)
	}
}

func TestHeadlines(t *testing.T) {
	t.Parallel()
	for name, tc := range map[string]struct {
		kind          journal.Kind
		payload, want string
	}{
		"failed step": {
			journal.ModelFailed, `{"kind":"RateLimited","message":"busy"}`,
			"the request failed: RateLimited: busy",
		},
		"failed summary": {
			journal.ModelFailed, `{"purpose":"compaction","kind":"RateLimited","message":"busy"}`,
			"the request for a summary of older messages failed: RateLimited: busy",
		},
		"failed embeddings": {
			journal.ModelFailed, `{"purpose":"embedding","kind":"RateLimited","message":"busy","unsent":true}`,
			"the request for embeddings was not sent: RateLimited: busy",
		},
		"delivered despite a violation": {
			journal.OutputChecked, `{"step":1,"findings":[{"policy":"no-prices","onViolation":"Report"}]}`,
			"the answer of step 1 violates no-prices: it is delivered, and the violation is recorded",
		},
		"delivered without a check": {
			journal.OutputChecked, `{"step":1,"findings":[{"policy":"kind","onViolation":"Report","unchecked":true}]}`,
			"the answer of step 1 could not be checked against kind: it is delivered, and the missing check is recorded",
		},
		"not delivered without a check": {
			journal.OutputChecked, `{"step":1,"findings":[{"policy":"kind","onViolation":"Fail","unchecked":true}]}`,
			"the answer of step 1 could not be checked against kind: it is not delivered",
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			got, err := transcript.Headline(written(1, tc.kind, tc.payload))
			if err != nil || got != tc.want {
				t.Errorf("the headline is %q, %v; want %q", got, err, tc.want)
			}
		})
	}
}

func TestFenceOfOutputIsNotShown(t *testing.T) {
	t.Parallel()
	for name, tc := range map[string]struct{ reason, content, want string }{
		"fenced": {"bars replace the fence for people", untrusted.Tool("N0NCE", "more", "one\ntwo"), "| one\n| two\n"},
		"empty":  {"the output is empty", untrusted.Tool("N0NCE", "", ""), ""},
		"after other text": {
			"Capstan's text before the fence stays",
			"error (failed): it broke\n" + untrusted.Tool("N0NCE", "", "one"), "| error (failed): it broke\n| one\n",
		},
		"not closed": {"this is not a fence", "<tool-output N0NCE> x\none", "| <tool-output N0NCE> x\n| one\n"},
		"another nonce": {
			"a fence with another nonce is text of a tool", "<tool-output A> x\none\n</tool-output B>",
			"| <tool-output A> x\n| one\n| </tool-output B>\n",
		},
		"not fenced": {"the text is shown unchanged", "one", "| one\n"},
		"one line":   {"one line is not a fence", "<tool-output N0NCE>", "| <tool-output N0NCE>\n"},
		"within text": {
			"a fence surrounds the whole output", "see <tool-output A> x\none\n</tool-output A>",
			"| see <tool-output A> x\n| one\n| </tool-output A>\n",
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			content, err := json.Marshal(tc.content)
			if err != nil {
				t.Fatal(err)
			}
			got := shown(t, []journal.Entry{written(1, journal.ToolFinished,
				`{"name":"x","callID":"c","outcome":"Succeeded","content":`+string(content)+`}`)})
			if want := "12:00:01Z x (c) succeeded, 0 bytes\n" + tc.want; got != want {
				t.Errorf("%s: want %q, have %q", tc.reason, want, got)
			}
		})
	}
}

func TestTurnWithoutToolsHasNoToolRows(t *testing.T) {
	t.Parallel()
	none := written(1, journal.ToolsExposed, `{"nonce":"n"}`)
	if got := shown(t, []journal.Entry{none}); got != "" {
		t.Errorf("got %q, want nothing", got)
	}
	if line, err := transcript.Headline(none); err != nil || line != "" {
		t.Errorf("Headline = %q, %v; want no headline", line, err)
	}
}

func TestArguments(t *testing.T) {
	t.Parallel()
	for name, tc := range map[string]struct{ reason, arguments, want string }{
		"an object": {
			"indented JSON is easier to read", `{"id":1042,"tags":["a","b"]}`,
			"| {\n|   \"id\": 1042,\n|   \"tags\": [\n|     \"a\",\n|     \"b\"\n|   ]\n| }\n",
		},
		"a line feed": {"a text must not imitate arguments", `{"a":"x\ny"}`, "| {\n|   \"a\": \"x\\ny\"\n| }\n"},
		"an escape":   {"a terminal must not interpret it", "{\"a\":\"\u009b31m\u202e\"}", "| {\n|   \"a\": \"\\u009b31m\\u202e\"\n| }\n"},
		"hidden": {
			"hidden text must not be approved", "{\"a\":\"x\u200by\u00adz\U000e0041\"}",
			"| {\n|   \"a\": \"x\\u200by\\u00adz\\U000e0041\"\n| }\n",
		},
		"no JSON": {"other text is shown, too", "oops", "| oops\n"},
		"nothing": {"there is nothing to show", "", ""},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			if got := transcript.Arguments(json.RawMessage(tc.arguments)); got != tc.want {
				t.Errorf("%s: want %q, have %q", tc.reason, tc.want, got)
			}
		})
	}
}
