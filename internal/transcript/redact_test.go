package transcript_test

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"reflect"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/shopspring/decimal"

	"github.com/capstan-dev/capstan/internal/runtime/journal"
	"github.com/capstan-dev/capstan/internal/runtime/loop"
	"github.com/capstan-dev/capstan/internal/runtime/prepare"
	"github.com/capstan-dev/capstan/internal/runtime/session"
	"github.com/capstan-dev/capstan/internal/runtime/tool"
	"github.com/capstan-dev/capstan/internal/runtime/turn"
	"github.com/capstan-dev/capstan/internal/transcript"
)

// payloads returns an empty payload of each kind, except the kinds about undoing calls. It uses the types of the engine
// if they are exported.
func payloads() map[journal.Kind]any {
	return map[journal.Kind]any{
		journal.RunStarted: &struct {
			Executor  string    `json:"executor"`
			Namespace string    `json:"namespace"`
			Name      string    `json:"name"`
			Requester string    `json:"requester"`
			Begun     time.Time `json:"begun"`
			EndOnly   bool      `json:"endOnly"`
		}{},
		journal.RunParked: &struct {
			Approvals int                 `json:"approvals"`
			Turns     []string            `json:"turns"`
			Calls     []loop.SubAgentCall `json:"begun"`
			Budget    string              `json:"budget"`
		}{},
		journal.PreparationInput: &struct {
			Input    prepare.Input `json:"input"`
			Zone     string        `json:"zone"`
			Settings turn.Settings `json:"settings"`
		}{},
		journal.PromptRendered: &struct {
			prepare.Revision
			RenderHash  string   `json:"renderHash"`
			PromptHash  string   `json:"promptHash"`
			ContextHash string   `json:"contextHash"`
			Variables   []string `json:"variables"`
		}{},
		journal.Prepared: &struct {
			prepare.Prepared
			History struct {
				SessionUID string `json:"sessionUID"`
				First      int64  `json:"first"`
				SHA256     string `json:"sha256"`
			} `json:"history"`
		}{},
		journal.ModelRequested:    &loop.Request{},
		journal.ModelFailed:       &loop.FailedRequest{},
		journal.ModelReplied:      &loop.Step{},
		journal.ToolsExposed:      &tool.Exposure{},
		journal.ToolRepaired:      &loop.Repair{},
		journal.ApprovalRequested: &loop.Approval{},
		journal.ApprovalDecided:   &loop.Decision{},
		journal.OutputChecked:     &loop.AnswerCheck{},
		journal.OutputRejected:    &loop.Rejection{},
		journal.TextRedacted: &struct {
			Redactions []turn.Redaction `json:"redactions"`
		}{},
		journal.Compacted:     &loop.Compaction{},
		journal.Reflected:     &loop.Reflection{},
		journal.ContextWarned: &loop.Warning{},
		journal.ToolIntended:  &loop.Intent{},
		journal.ToolFinished:  &loop.CallResult{},
		journal.UndoPlanned: &struct {
			loop.FixedCalls
			turn.UndoPlan
			Exposure tool.Exposure `json:"exposure"`
		}{},
		journal.UndoBegun:   &turn.UndoMark{},
		journal.UndoEnded:   &turn.UndoMark{},
		journal.Finalized:   &turn.Result{},
		journal.SessionTurn: &session.Turn{},
		"some.new.kind":     &struct{ Text, Name string }{},
	}
}

// fill sets all texts, numbers and booleans within a value, and adds an item to each list and map.
func fill(t *testing.T, v reflect.Value, text string) {
	t.Helper()
	switch into := v.Addr().Interface().(type) {
	case *time.Time:
		*into = time.Date(2026, 4, 9, 12, 0, 0, 0, time.UTC)
		return
	case *decimal.Decimal:
		*into = decimal.NewFromInt(4711)
		return
	case *tool.Caller: // not part of the payload
		return
	case *json.RawMessage:
		data, err := json.Marshal(map[string]any{text: []any{text, map[string]int{"number": 4711}}})
		if err != nil {
			t.Fatal(err)
		}
		*into = data
		return
	}
	switch v.Kind() {
	case reflect.String:
		v.SetString(text)
	case reflect.Int, reflect.Int64:
		v.SetInt(7)
	case reflect.Float64:
		v.SetFloat(0.5)
	case reflect.Bool:
		v.SetBool(true)
	case reflect.Pointer:
		v.Set(reflect.New(v.Type().Elem()))
		fill(t, v.Elem(), text)
	case reflect.Slice:
		v.Set(reflect.MakeSlice(v.Type(), 1, 1))
		fill(t, v.Index(0), text)
	case reflect.Map:
		item := reflect.New(v.Type().Elem()).Elem()
		fill(t, item, text)
		v.Set(reflect.MakeMap(v.Type()))
		v.SetMapIndex(reflect.ValueOf(text), item)
	case reflect.Struct:
		for i := range v.NumField() {
			if f := v.Type().Field(i); f.IsExported() && f.Tag.Get("json") != "-" { // not part of the payload
				fill(t, v.Field(i), text)
			}
		}
	default:
		t.Fatalf("a payload has a field of kind %s, which this test cannot fill: extend fill", v.Kind())
	}
}

func filled(t *testing.T, kind journal.Kind, payload any, text string) journal.Entry {
	t.Helper()
	fill(t, reflect.ValueOf(payload).Elem(), text)
	return entry(t, kind, payload)
}

func entry(t *testing.T, kind journal.Kind, payload any) journal.Entry {
	t.Helper()
	data, err := json.Marshal(payload)
	if err != nil {
		t.Fatal(err)
	}
	return journal.Entry{Seq: 1, Epoch: 1, Kind: kind, Version: 1, Payload: data}
}

// users lists the fields with the names of users. A name is kept if it is on one line.
var users = []string{"approval.decided by", "finalized calls.decidedBy", "run.started requester"}

func TestTextsAreRedacted(t *testing.T) {
	t.Parallel()
	for kind, payload := range payloads() {
		for _, canary := range []string{"the canary sings", "canary, 4711", "sings\nthe canary", "<canary>", "kanari €"} {
			e := filled(t, kind, payload, canary)
			got := redacted(t, transcript.NewRedactor(), e)
			var value any
			if err := json.Unmarshal(got, &value); err != nil {
				t.Errorf("%s: got %s, want JSON", kind, got)
			}
			walk(value, "", func(path string, leaf any) {
				if slices.Contains(users, string(kind)+" "+path) && !strings.Contains(canary, "\n") {
					return
				}
				for _, trace := range []string{"canar", "kanari", "sings"} {
					if strings.Contains(path, trace) || strings.Contains(fmt.Sprint(leaf), trace) {
						t.Errorf("%s: got %v in %s, want it without the words of %q", kind, leaf, path, canary)
					}
				}
			})
		}
	}
}

// survivors lists all fields that keep a text that looks like a name. People without the right to read conversations
// can see the texts in these fields.
var survivors = []string{
	"approval.decided by", "finalized answer.name", "finalized calls.decidedBy", "finalized calls.outcome", "finalized calls.turn",
	"finalized fallback.from", "finalized fallback.to", "finalized model", "finalized preparation.contributions.name",
	"finalized preparation.mode", "finalized preparation.profile.id", "finalized preparation.profile.name",
	"finalized preparation.profile.version", "finalized preparation.sections", "finalized preparation.sectionsAsked",
	"finalized preparation.variables", "finalized provider", "finalized record.cost.currency", "finalized record.decision.key",
	"finalized record.decision.strategy", "finalized redactions.rule",
	"finalized spent.model", "finalized spent.price", "finalized spent.provider", "finalized stop",
	"finalized subAgents.cost.currency", "finalized toolServersMissing",
	"finalized violations.onViolation", "finalized violations.policy", "model.failed cost.currency",
	"model.failed kind", "model.failed model",
	"model.failed provider", "model.failed purpose", "model.replied cost.currency", "model.replied model", "model.replied provider",
	"model.replied purpose", "model.replied reply.finishReason", "model.requested budget",
	"model.requested estimatedCost.currency", "model.requested id",
	"model.requested model", "model.requested provider", "model.requested purpose",
	"output.checked findings.onViolation", "output.checked findings.policy", "output.rejected policies",
	"preparation.input input.Agent.Name",
	"preparation.input input.Agent.Thinking", "preparation.input input.Model", "preparation.input input.Profile.ID",
	"preparation.input input.Profile.Mode", "preparation.input input.Profile.Name", "preparation.input input.Profile.Sections",
	"preparation.input input.Profile.Version", "preparation.input input.Provider", "preparation.input input.Tools.name",
	"preparation.input input.Tools.parameters.name", "preparation.input input.Tools.parameters.type",
	"preparation.input input.Turn.Mode", "preparation.input input.Turn.Name", "preparation.input input.Turn.Namespace",
	"preparation.input zone", "prepared history.sessionUID", "prepared messages.name", "prepared messages.role",
	"prepared messages.toolCalls.name", "prepared model",
	"prepared provider", "prepared report.contributions.name", "prepared report.mode", "prepared report.profile.id",
	"prepared report.profile.name", "prepared report.profile.version", "prepared report.sections", "prepared report.sectionsAsked",
	"prepared report.variables", "prepared skills.key", "prepared tools.name", "prepared tools.parameters.name",
	"prepared tools.parameters.type", "prompt.rendered id", "prompt.rendered name", "prompt.rendered variables",
	"prompt.rendered version", "run.parked begun.turnUID", "run.parked budget", "run.parked turns",
	"run.started executor", "run.started name", "run.started namespace",
	"run.started requester",
	"session.turn cost.currency", "session.turn head.cost.currency",
	"session.turn messages.name", "session.turn messages.role", "session.turn turnName", "session.turn turnUID",
	"text.redacted redactions.rule", "tool.finished class",
	"tool.finished outcome", "tool.finished spent.cost.currency", "tool.finished spent.turn",
	"tool.finished undo.argument", "tool.finished undo.problem", "tool.finished undo.server", "tool.finished undo.tool",
	"tool.finished undo.uid", "tool.finished undoneBy", "tool.intended effect",
	"tool.intended name", "tools.exposed missing", "tools.exposed packs.effect", "tools.exposed packs.name",
	"tools.exposed packs.parameters.name",
	"tools.exposed packs.parameters.type", "tools.exposed packs.role", "tools.exposed packs.source.agent",
	"tools.exposed packs.source.name", "tools.exposed packs.source.server", "tools.exposed tools.effect", "tools.exposed tools.name",
	"tools.exposed tools.parameters.name", "tools.exposed tools.parameters.type", "tools.exposed tools.role",
	"tools.exposed tools.source.agent", "tools.exposed tools.source.name", "tools.exposed tools.source.server",
	"undo.begun turn", "undo.begun turnUID", "undo.ended turn", "undo.ended turnUID", "undo.planned agent",
	"undo.planned exposure.missing", "undo.planned exposure.packs.effect", "undo.planned exposure.packs.name",
	"undo.planned exposure.packs.parameters.name", "undo.planned exposure.packs.parameters.type", "undo.planned exposure.packs.role",
	"undo.planned exposure.packs.source.agent", "undo.planned exposure.packs.source.name", "undo.planned exposure.packs.source.server",
	"undo.planned exposure.tools.effect", "undo.planned exposure.tools.name", "undo.planned exposure.tools.parameters.name",
	"undo.planned exposure.tools.parameters.type", "undo.planned exposure.tools.role", "undo.planned exposure.tools.source.agent",
	"undo.planned exposure.tools.source.name", "undo.planned exposure.tools.source.server", "undo.planned name",
	"undo.planned namespace", "undo.planned of.server", "undo.planned of.state", "undo.planned of.tool", "undo.planned turnUID",
}

func TestNamesAreKeptInListedFieldsOnly(t *testing.T) {
	t.Parallel()
	var got []string
	for kind, payload := range payloads() {
		out := redacted(t, transcript.NewRedactor(), filled(t, kind, payload, "canary"))
		var value any
		if err := json.Unmarshal(out, &value); err != nil {
			t.Fatal(err)
		}
		walk(value, "", func(path string, leaf any) {
			if text, ok := leaf.(string); ok && strings.Contains(text, "canary") {
				got = append(got, string(kind)+" "+path)
			}
			if strings.Contains(path, "canary") {
				t.Errorf("%s: field %s is kept, want the names of unknown fields redacted", kind, path)
			}
		})
	}
	slices.Sort(got)
	if diff := cmp.Diff(survivors, got); diff != "" {
		t.Errorf("the fields that keep names: -want +got:\n%s", diff)
	}
}

// TestUserNamesAreKept checks that a redacted journal still says who asked and who decided. Users have names of many
// forms.
func TestUserNamesAreKept(t *testing.T) {
	t.Parallel()
	for name, tc := range map[string]struct {
		reason, user string
		kept         bool
	}{
		"e-mail address":  {"a usual name", "ada@example.com", true},
		"service account": {"a usual name", "system:serviceaccount:helpdesk:desk", true},
		"OIDC":            {"by default, the issuer precedes the subject", "https://issuer.example#248289761001", true},
		"certificate":     {"the common name of a certificate may have spaces and letters of any script", "Åsa Öberg (Büro)", true},
		"directory":       {"names of directories may have backslashes, bars and equals signs", `CORP\ada|cn=ada`, true},
		"longest":         {"the API limits names to 512 characters", strings.Repeat("é", 512), true},
		"too long":        {"no user name is longer", strings.Repeat("é", 513), false},
		"several lines":   {"a user name has one line", "ada\nPlease refund me.", false},
		"line separator":  {"a user name has one line", "ada\u2028Please refund me.", false},
		"NUL":             {"a user name has no control characters", "ada\u0000", false},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			for _, e := range []journal.Entry{
				entry(t, journal.RunStarted, map[string]any{"requester": tc.user}),
				entry(t, journal.ApprovalDecided, map[string]any{"by": tc.user}),
				entry(t, journal.Finalized, map[string]any{"calls": []any{map[string]any{"decidedBy": tc.user}}}),
			} {
				got := redacted(t, transcript.NewRedactor(), e)
				if kept := cmp.Diff(legible(e.Payload), legible(got)) == ""; kept != tc.kept {
					t.Errorf("%s: got %s for %s, want the name kept: %t, because %s", e.Kind, got, e.Payload, tc.kept, tc.reason)
				}
			}
		})
	}
}

func walk(value any, path string, leaf func(string, any)) {
	switch v := value.(type) {
	case map[string]any:
		for name, item := range v {
			walk(item, strings.TrimPrefix(path+"."+name, "."), leaf)
		}
	case []any:
		for _, item := range v {
			walk(item, path, leaf)
		}
	default:
		leaf(path, v)
	}
}

// redacted returns the redacted payload of an entry.
func redacted(t *testing.T, r *transcript.Redactor, e journal.Entry) json.RawMessage {
	t.Helper()
	got, err := r.Redact(e)
	if err != nil {
		t.Fatal(err)
	}
	return got.Payload
}

// hashed matches the hash of a marker, whose key the tests do not know.
var hashed = regexp.MustCompile(`"hmacSHA256":"[0-9a-f]{64}"`)

// legible returns a payload with its hashes replaced.
func legible(payload json.RawMessage) string {
	return hashed.ReplaceAllString(string(payload), `"hmacSHA256":"..."`)
}

func marker(text string) string {
	return fmt.Sprintf(`{"redacted":true,"bytes":%d,"hmacSHA256":"..."}`, len(text))
}

func TestListedNumbersAreKeptAndContentHashesAreRedacted(t *testing.T) {
	t.Parallel()
	hash := strings.Repeat("0a", 32)
	out := redacted(t, transcript.NewRedactor(), entry(t, journal.ToolFinished, map[string]any{
		"step": 2, "outcome": "Succeeded", "bytes": 120, "artifact": hash, "durationMilliseconds": 5,
		"content": "Ticket 1042", "stack": "", "invented": map[string]any{"number": 4711},
	}))
	want := fmt.Sprintf(`{"artifact":%s,"bytes":120,"content":%s,"durationMilliseconds":5,"invented":%s,`+
		`"outcome":"Succeeded","stack":"","step":2}`,
		marker(hash), marker("Ticket 1042"), marker(`{"number":4711}`))
	if diff := cmp.Diff(want, legible(out)); diff != "" {
		t.Errorf("the entry: -want +got:\n%s", diff)
	}
}

// contents lists the beginnings of the paths to the texts of a prompt and their parameters, and to the state of a
// model. No part of them is kept.
var contents = []string{
	"model.replied reply.providerData", "preparation.input input.Agent.Contributions", "preparation.input input.Profile.Contributions",
	"preparation.input input.Profile.ForModels", "preparation.input input.Profile.OutputPolicies",
	"preparation.input input.Profile.Shaping", "preparation.input input.Profile.Variables", "preparation.input input.Turn.Attachments",
	"preparation.input input.Turn.Contributions", "preparation.input input.Turn.History", "preparation.input input.Turn.Memories",
	"preparation.input input.Turn.Shaping", "prepared assembly", "prepared messages.providerData", "session.turn messages.providerData",
}

// TestFactsAreKept checks that the redaction keeps each number, Boolean and time of the engine, also in fields that a
// later version adds. They say what happened, and nothing about the content.
func TestFactsAreKept(t *testing.T) {
	t.Parallel()
	for kind, payload := range payloads() {
		e := filled(t, kind, payload, "canary")
		var before, after any
		if err := errors.Join(json.Unmarshal(e.Payload, &before),
			json.Unmarshal(redacted(t, transcript.NewRedactor(), e), &after)); err != nil {
			t.Fatal(err)
		}
		kept := map[string]bool{}
		walk(after, "", func(path string, _ any) { kept[path] = true })
		walk(before, "", func(path string, leaf any) {
			text, isText := leaf.(string)
			_, err := time.Parse(time.RFC3339, text)
			isFact := leaf != nil && (!isText || err == nil) && !strings.Contains(path, "canary")
			where := string(kind) + " " + path
			isContent := slices.ContainsFunc(contents, func(begin string) bool { return strings.HasPrefix(where, begin) })
			if isFact && !isContent && !kept[path] {
				t.Errorf("%s is redacted: add it to the rules in kept.go, or to contents", where)
			}
		})
	}
}

// conversation returns the entries of a Turn in which a model calls an offered tool and an invented tool.
func conversation() []journal.Entry {
	entries := []journal.Entry{
		{Kind: journal.ModelReplied, Payload: json.RawMessage(`{"step":1,"reply":{"toolCalls":[{"id":"c","name":"early"}]}}`)},
		{Kind: journal.Prepared, Payload: json.RawMessage(
			`{"tools":[{"name":"get_ticket"}],"messages":[{"toolCalls":[{"id":"c","name":"Ann.Miller"}],"toolCallID":"c"}]}`)},
		{Kind: journal.ModelReplied, Payload: json.RawMessage(
			`{"step":2,"reply":{"toolCalls":[{"id":"PIN_1234","name":"Ann.Miller"},{"id":"c","name":"get_ticket"}]}}`)},
		{Kind: journal.ToolFinished, Payload: json.RawMessage(`{"step":2,"callID":"PIN_1234","name":"Ann.Miller","outcome":"Refused"}`)},
		{Kind: journal.ToolIntended, Payload: json.RawMessage(`{"step":2,"callID":"c","name":"load_skill","idempotencyKey":"uid/2/c"}`)},
		{Kind: journal.ToolFinished, Payload: json.RawMessage(`{"step":2,"callID":"c","name":"load_skill"}`)},
		{Kind: journal.ToolFinished, Payload: json.RawMessage(`{"step":3,"callID":"c","name":"get_ticket"}`)},
	}
	for i := range entries {
		entries[i].Seq = int64(i + 1)
	}
	return entries
}

func TestNamesAndIDsByModelAreRedacted(t *testing.T) {
	t.Parallel()
	want := []string{
		`{"reply":{"toolCalls":[{"id":"call 1.1","name":` + marker("early") + `}]},"step":1}`,
		`{"messages":[{"toolCallID":` + marker("c") + `,"toolCalls":[{"id":` + marker("c") + `,"name":` +
			marker("Ann.Miller") + `}]}],"tools":[{"name":"get_ticket"}]}`,
		`{"reply":{"toolCalls":[{"id":"call 2.1","name":` + marker("Ann.Miller") + `},{"id":"call 2.2","name":"get_ticket"}]},"step":2}`,
		`{"callID":"call 2.1","name":` + marker("Ann.Miller") + `,"outcome":"Refused","step":2}`,
		`{"callID":"call 2.2","idempotencyKey":` + marker("uid/2/c") + `,"name":"load_skill","step":2}`,
		`{"callID":"call 2.2","name":"load_skill","step":2}`,
		`{"callID":` + marker("c") + `,"name":"get_ticket","step":3}`,
	}
	r := transcript.NewRedactor()
	var got []string
	for _, e := range conversation() {
		got = append(got, legible(redacted(t, r, e)))
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("the entries with the names of known tools and the places of calls: -want +got:\n%s", diff)
	}
}

func TestRedactorWithoutFirstEntriesRedactsMore(t *testing.T) {
	t.Parallel()
	got := legible(redacted(t, transcript.NewRedactor(), conversation()[5]))
	if want := `{"callID":` + marker("c") + `,"name":` + marker("load_skill") + `,"step":2}`; got != want {
		t.Errorf("got %s, want %s", got, want)
	}
}

func TestHashesDifferBetweenExports(t *testing.T) {
	t.Parallel()
	e := journal.Entry{Kind: journal.ModelFailed, Payload: json.RawMessage(`{"message":"yes"}`)}
	one, other := transcript.NewRedactor(), transcript.NewRedactor()
	first, again, elsewhere := string(redacted(t, one, e)), string(redacted(t, one, e)), string(redacted(t, other, e))
	if first != again {
		t.Errorf("got %s and %s, want equal hashes for equal values of one export", first, again)
	}
	if first == elsewhere {
		t.Errorf("got %s in two exports, want different hashes, because a reader could guess the value otherwise", first)
	}
}

func TestOnlyRenderHashIsKept(t *testing.T) {
	t.Parallel()
	hash := strings.Repeat("0a", 32)
	for kind, payload := range payloads() {
		var value any
		if err := json.Unmarshal(redacted(t, transcript.NewRedactor(), filled(t, kind, payload, hash)), &value); err != nil {
			t.Fatal(err)
		}
		walk(value, "", func(path string, leaf any) {
			field := strings.ToLower(path[strings.LastIndex(path, ".")+1:])
			if leaf == hash && (strings.HasSuffix(field, "hash") || strings.Contains(field, "sha256") || field == "artifact") &&
				!strings.HasSuffix(field, "renderhash") {
				t.Errorf("%s: %s has the hash of a text, want it redacted", kind, path)
			}
		})
	}
	e := entry(t, journal.Finalized, map[string]any{"preparation": map[string]any{"renderHash": hash}})
	if got := redacted(t, transcript.NewRedactor(), e); !bytes.Contains(got, []byte(hash)) {
		t.Errorf("got %s, want renderHash kept", got)
	}
}

func TestArtifactOfPayloadIsRemoved(t *testing.T) {
	t.Parallel()
	a := journal.NewArtifact([]byte(`{"text":"yes"}`))
	got, err := transcript.NewRedactor().Redact(journal.Entry{
		Kind: journal.ModelReplied, Payload: json.RawMessage(`{"text":"yes"}`), Artifact: a.SHA256, Artifacts: []journal.Artifact{a},
	})
	if err != nil || got.Artifact != "" || got.Artifacts != nil {
		t.Errorf("Redact = %+v, %v; want neither the artifact nor its hash", got, err)
	}
}

func TestUnexpectedValuesAreRedacted(t *testing.T) {
	t.Parallel()
	for name, tc := range map[string]struct{ reason, payload, want string }{
		"null":         {"null has no content", `null`, `null`},
		"another type": {"a text is not an object", `"canary"`, marker("canary")},
		"a list":       {"a list is not an object", `["canary"]`, marker(`["canary"]`)},
		"text number":  {"a quoted number is a text", `{"step":"7"}`, `{"step":` + marker("7") + `}`},
		"nested":       {"an object is not a name", `{"name":{"canary":1}}`, `{"name":` + marker(`{"canary":1}`) + `}`},
		"odd field":    {"the name of a field may be content, too", `{"the canary":1}`, `{"redacted":` + marker("1") + `}`},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			got := legible(redacted(t, transcript.NewRedactor(),
				journal.Entry{Kind: journal.ToolFinished, Payload: json.RawMessage(tc.payload)}))
			if got != tc.want {
				t.Errorf("%s: Redact(%s) = %s, want %s", tc.reason, tc.payload, got, tc.want)
			}
		})
	}
}

func TestRedactNamesCallsBeforeFirstRequest(t *testing.T) {
	t.Parallel()
	r := transcript.NewRedactor()
	for _, id := range []string{"pack-1", "pack-1", "pack-2"} {
		redacted(t, r, journal.Entry{
			Kind:    journal.ToolIntended,
			Payload: json.RawMessage(`{"step":0,"callID":"` + id + `","name":"find"}`),
		})
	}
	got := legible(redacted(t, r, journal.Entry{
		Kind:    journal.ToolFinished,
		Payload: json.RawMessage(`{"step":0,"callID":"pack-2","name":"find"}`),
	}))
	if want := `{"callID":"call 0.2","name":"find","step":0}`; got != want {
		t.Errorf("got %s, want %s", got, want)
	}
}

func TestRedactNamesCallsOfResultByStep(t *testing.T) {
	t.Parallel()
	r := transcript.NewRedactor()
	for _, payload := range []string{
		`{"step":1,"reply":{"toolCalls":[{"id":"c","name":"get_ticket"}]}}`,
		`{"step":2,"reply":{"toolCalls":[{"id":"d","name":"get_ticket"},{"id":"c","name":"get_ticket"}]}}`,
	} {
		redacted(t, r, journal.Entry{Kind: journal.ModelReplied, Payload: json.RawMessage(payload)})
	}
	redacted(t, r, journal.Entry{Kind: journal.ToolsExposed, Payload: json.RawMessage(`{"nonce":"n","tools":[{"name":"get_ticket"}]}`)})
	got := legible(redacted(t, r, journal.Entry{Kind: journal.Finalized, Payload: json.RawMessage(
		`{"calls":[{"callID":"c","name":"get_ticket","step":1},` +
			`{"callID":"c","name":"get_ticket","step":2,"artifact":"turn-3-call-2-2"},` +
			`{"callID":"c","name":"invented","artifact":"Ann.Miller"}]}`)}))
	want := `{"calls":[{"callID":"call 1.1","name":"get_ticket","step":1},{"artifact":"turn-3-call-2-2","callID":"call ` +
		`2.2","name":"get_ticket","step":2},` +
		`{"artifact":` + marker("Ann.Miller") + `,"callID":` + marker("c") + `,"name":` + marker("invented") + `}]}`
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("the calls by their places, with the artifact names of the engine: -want +got:\n%s", diff)
	}
}
