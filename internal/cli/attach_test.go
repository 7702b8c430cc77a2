package cli_test

import (
	"bytes"
	"encoding/base64"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/capstan-dev/capstan/internal/cli/exit"
)

// stored writes a file and returns its path.
func stored(t *testing.T, name string, data []byte) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), name)
	if err := os.WriteFile(path, data, 0o600); err != nil {
		t.Fatal(err)
	}
	return path
}

// picture returns the bytes of pngOfOne.
func picture(t *testing.T) []byte {
	t.Helper()
	data, err := base64.StdEncoding.DecodeString(pngOfOne)
	if err != nil {
		t.Fatal(err)
	}
	return data
}

// TestAttachFiles attaches files to a Turn that has an attachment from a ConfigMap. One of the files replaces this
// attachment.
func TestAttachFiles(t *testing.T) {
	t.Parallel()
	server := &eyes{images: true, files: true}
	web := httptest.NewServer(server)
	t.Cleanup(web.Close)
	dir := attachedTo(t, "OpenAI", "rooms text/csv rooms.csv").written(t, web.URL+"/v1")
	plan, terms := stored(t, "plan.dat", picture(t)), stored(t, "terms.pdf", []byte(pdfOfOne))
	rooms, data := stored(t, "Rooms.CSV", []byte("room,size\nhall,7\n")), t.TempDir()
	run := func() string {
		t.Helper()
		return capstan(t, "run", "-f", dir, "--attach", "plan="+plan, "--attach", "terms="+terms, "--attach", "rooms="+rooms,
			"--data-dir", data, "-o", "json").mustEnd(t, exit.OK).out
	}
	out := run()
	if len(server.seen) != 1 || !strings.Contains(server.seen[0], "hall,7") || strings.Contains(server.seen[0], "kitchen") ||
		!strings.Contains(server.seen[0], pngOfOne) || !strings.Contains(server.seen[0], "terms.pdf") {
		t.Errorf("want the picture, the PDF and the file with the hall, have %v", server.seen)
	}
	types := map[string]string{}
	for _, a := range turnOf(t, out).Spec.Attachments {
		types[a.Name] = a.MediaType
	}
	if len(types) != 3 || types["plan"] != "image/png" || types["terms"] != "application/pdf" || types["rooms"] != "text/csv" {
		t.Errorf("want an image, a PDF and a CSV, have %v", types)
	}
	if run(); len(server.seen) != 1 {
		t.Error("want no second request for the same command")
	}
	if err := os.WriteFile(rooms, []byte("room,size\nattic,9\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	if run(); len(server.seen) != 2 || !strings.Contains(server.seen[1], "attic,9") {
		t.Errorf("want a request with the changed file, have %v", server.seen)
	}
	rendered := capstan(t, "render", "-f", dir, "--attach", "plan="+plan).mustEnd(t, exit.OK).out
	mustSay(t, rendered, "+-- attachment rooms: text/csv, 21 bytes", "+-- attachment plan: image/png, 70 bytes, about 85 tokens --\n")
	capstan(t, "render", "-f", dir, "--attach", "plan="+plan, "--diff", dir).mustEnd(t, exit.OK)
}

// TestAttachErrors checks the errors of --attach.
func TestAttachErrors(t *testing.T) {
	t.Parallel()
	dir := attachedTo(t, "OpenAI", "rooms text/csv rooms.csv").written(t, nowhere)
	text := stored(t, "a.txt", []byte("one"))
	eight := []string{}
	for name := range strings.FieldsSeq("a b c d e f g h") {
		eight = append(eight, "--attach", name+"="+text)
	}
	for name, tc := range map[string]struct {
		flags []string
		want  string
	}{
		"no name":        {[]string{"--attach", text}, "must be NAME=FILE"},
		"no file":        {[]string{"--attach", "a="}, "must be NAME=FILE"},
		"a bad name":     {[]string{"--attach", "A_b=" + text}, `the name "A_b" must be a lower-case DNS label`},
		"twice":          {[]string{"--attach", "a=" + text, "--attach", "a=" + text}, `the name "a" is given twice`},
		"a missing file": {[]string{"--attach", "a=" + text + ".gone"}, "no such file"},
		"a directory":    {[]string{"--attach", "a=" + filepath.Dir(text)}, "is a directory"},
		"a program":      {[]string{"--attach", "a=" + stored(t, "a", []byte("\x7fELF\x01\x02"))}, "is not supported: it must be a PNG"},
		"a large text": {
			[]string{"--attach", "a=" + stored(t, "b.txt", bytes.Repeat([]byte("a"), 262145))},
			"has more than 262144 bytes, the maximum for text/plain",
		},
		"a large image": {
			[]string{"--attach", "a=" + stored(t, "b.png", append(picture(t), make([]byte, 3_932_160)...))},
			"has more than 3932160 bytes, the maximum for image/png",
		},
		"an empty file": {
			[]string{"--attach", "a=" + stored(t, "empty.txt", nil)}, "empty.txt: the content must not be empty\n",
		},
		"a damaged image": {
			[]string{"--attach", "a=" + stored(t, "cut.png", picture(t)[:12])}, "cut.png: the content is a damaged image/png: replace it\n",
		},
		"too many": {eight, "the Turn has 9 attachments and may have at most 8"},
	} {
		got := capstan(t, append([]string{"run", "-f", dir}, tc.flags...)...)
		if got.code != exit.Usage || !strings.Contains(got.err, "--attach: ") || !strings.Contains(got.err, tc.want) {
			t.Errorf("%s: exit code %d, %q; want %q", name, got.code, got.err, tc.want)
		}
	}
}

// artifactTurnYAML is a Turn that attaches an artifact of another Turn.
const artifactTurnYAML = `apiVersion: capstan.dev/v1alpha1
kind: Turn
metadata: {name: later, namespace: default}
spec:
  agentRef: {name: support}
  message: What does the file say?
  attachments:
  - {name: file, mediaType: text/plain, artifactRef: {turnName: TURN, name: ARTIFACT, scope: Namespace}}
`

// TestAttachArtifactOfAnotherTurn runs a Turn whose attachment is an attachment of an earlier Turn of the same
// directory.
func TestAttachArtifactOfAnotherTurn(t *testing.T) {
	t.Parallel()
	server := &eyes{images: true}
	web := httptest.NewServer(server)
	t.Cleanup(web.Close)
	f := attachedTo(t, "OpenAI", "rooms text/csv rooms.csv")
	first, data := turnNameOf(t, f), t.TempDir()
	later := func(turn, artifact string) string {
		f["later.yaml"] = strings.NewReplacer("TURN", turn, "ARTIFACT", artifact).Replace(artifactTurnYAML)
		return f.written(t, web.URL+"/v1")
	}
	got := capstan(t, "run", "-f", later(first, "attachments/rooms"), "--turn", "later", "--data-dir", data)
	mustSay(t, got.mustEnd(t, exit.Failed).err, `failed to read an artifact of Turn "`+first+`": --data-dir has no journal of a Turn `+
		"default/"+first+": run it first, with the same --data-dir")
	capstan(t, "run", "-f", later(first, "attachments/rooms"), "--turn", first, "--data-dir", data).mustEnd(t, exit.OK)
	got = capstan(t, "logs", first, "--data-dir", data, "--artifact", "attachments/rooms").mustEnd(t, exit.OK)
	if got.out != "room,size\nkitchen,12\n" {
		t.Errorf("logs prints %q", got.out)
	}
	capstan(t, "run", "-f", later(first, "attachments/rooms"), "--turn", "later", "--data-dir", data).mustEnd(t, exit.OK)
	if len(server.seen) != 2 || !strings.Contains(server.seen[1], `Attachment \"file\"`) ||
		!strings.Contains(server.seen[1], "kitchen,12") {
		t.Errorf("the server received %v", server.seen)
	}
	got = capstan(t, "run", "-f", later(first, "call-1-1"), "--turn", "later", "--data-dir", data)
	mustSay(t, got.mustEnd(t, exit.Failed).err, `there is no artifact "call-1-1": it has no artifacts of this kind so far`)
	got = capstan(t, "render", "-f", later(first, "call-1-1"), "--turn", "later").mustEnd(t, exit.OK)
	mustSay(t, got.err, "note: attachment file is not shown; a run reads artifact call-1-1 of Turn "+first)
}

// turnNameOf returns the name of the Turn of the manifests.
func turnNameOf(t *testing.T, f files) string {
	t.Helper()
	_, after, ok := strings.Cut(f["turn.yaml"], "name: ")
	if !ok {
		t.Fatalf("turn.yaml has no name: %s", f["turn.yaml"])
	}
	return strings.Trim(strings.FieldsFunc(after, func(r rune) bool { return r == '\n' || r == ',' || r == '}' })[0], " ")
}
