package turn_test

import (
	"context"
	"errors"
	"strings"
	"testing"

	"github.com/capstan-dev/capstan/internal/runtime/attachment"
	"github.com/capstan-dev/capstan/internal/runtime/invalid"
	"github.com/capstan-dev/capstan/internal/runtime/journal"
	"github.com/capstan-dev/capstan/internal/runtime/journal/journaltest"
	"github.com/capstan-dev/capstan/internal/runtime/model"
	"github.com/capstan-dev/capstan/internal/runtime/prepare"
	"github.com/capstan-dev/capstan/internal/runtime/turn"
)

// reader is a model that reads the attachments of each request, as an adapter does.
type reader struct {
	*script
	read []string
}

func (r *reader) Generate(ctx context.Context, req *model.Request) (*model.Reply, error) {
	all := ""
	for _, m := range req.Messages {
		for i := range m.Attachments {
			data, err := req.Content(&m.Attachments[i])
			if err != nil {
				return nil, err
			}
			all += m.Attachments[i].Name + "=" + string(data) + ";"
		}
	}
	r.read = append(r.read, all)
	return r.script.Generate(ctx, req)
}

// attachText gives a Turn a text as an attachment, and counts how often the attachment is read.
func attachText(in *turn.Input, text string) (reads *int) {
	reads = new(int)
	in.AttachBytes = attachment.MaxTextBytes
	in.Attach = func(context.Context) ([]attachment.Content, error) {
		*reads++
		c, err := attachment.New("f", "notes", "text/plain", []byte(text))
		return []attachment.Content{c}, err
	}
	return reads
}

// TestAttachmentsAreReadOnce kills a Turn with two models after each of its entries, from the prompt on. The run that
// continues the Turn must send the same bytes, although their source has changed.
func TestAttachmentsAreReadOnce(t *testing.T) {
	for store, open := range journals {
		t.Run(store, func(t *testing.T) {
			whole := open(t)
			run := func(j journal.Journal, epoch int64, text string) (*reader, *reader, *int) {
				first, failing := candidate("first", 1, fails(model.Overloaded))
				second, answering := candidate("second", 1, says("Done."))
				a, b := &reader{script: failing}, &reader{script: answering}
				first.Provider, second.Provider = a, b
				in := input(first, second)
				in.Epoch = epoch
				reads := attachText(&in, text)
				if got := mustRun(t, j, in); got.Stop != turn.StopCompleted {
					t.Fatalf("the Turn ends with %s: %s", got.Stop, got.Message)
				}
				return a, b, reads
			}
			a, b, reads := run(whole, 1, "old")
			if *reads != 1 || strings.Join(append(a.read, b.read...), " ") != "notes=old; notes=old;" {
				t.Fatalf("read %d times; the models received %v and %v", *reads, a.read, b.read)
			}
			all := entries(t, whole, "uid")
			prepared := 0
			for i, e := range all {
				if e.Kind == journal.Prepared && prepared == 0 {
					prepared = i + 1
				}
			}
			for n := prepared; n < len(all)-1; n++ {
				j := copyOf(t, whole, &journaltest.Store{}, n)
				a, b, reads := run(j, 2, "new")
				for _, got := range append(a.read, b.read...) {
					if got != "notes=old;" {
						t.Errorf("after %d entries (%s), a model received %q", n, all[n-1].Kind, got)
					}
				}
				if *reads != 0 {
					t.Errorf("after %d entries, the attachment was read again", n)
				}
			}
		})
	}
}

// TestUnreadableJournalIsNoFailureOfTheModel checks that a Turn does not end, and asks no other model, because its
// attachment cannot be read from the journal for a while. A later run reads the attachment.
func TestUnreadableJournalIsNoFailureOfTheModel(t *testing.T) {
	for name, attempts := range map[string]int{"one attempt": 1, "several attempts": 4} {
		t.Run(name, func(t *testing.T) {
			j := &flakyArtifacts{Store: &journaltest.Store{}, failures: 5}
			first, answering := candidate("first", attempts, says("Done."))
			second, other := candidate("second", attempts, says("Done by another."))
			m := &reader{script: answering}
			first.Provider, second.Provider = m, &reader{script: other}
			in := input(first, second)
			attachText(&in, "notes")
			for range 5 {
				result, err := engine(j).Run(t.Context(), new(in))
				if !errors.Is(err, errUnreadable) {
					t.Fatalf("the run ends with %+v, %v; want the error of the journal", result, err)
				}
				in.Epoch++
			}
			got := mustRun(t, j, in)
			if got.Stop != turn.StopCompleted || got.Text != "Done." || strings.Join(m.read, " ") != "notes=notes;" || other.asked() != 0 {
				t.Errorf("the Turn ends with %s: %q; the models received %v", got.Stop, got.Text, m.read)
			}
		})
	}
}

var errUnreadable = errors.New("the server does not answer")

// flakyArtifacts is a journal whose artifacts cannot be read several times.
type flakyArtifacts struct {
	*journaltest.Store
	failures int
}

func (f *flakyArtifacts) Artifact(ctx context.Context, uid, sha256 string) (journal.Artifact, error) {
	if f.failures > 0 {
		f.failures--
		return journal.Artifact{}, errUnreadable
	}
	return f.Store.Artifact(ctx, uid, sha256)
}

// TestPromptWithAttachment checks that a prompt has a reference to its attachment, and that the hashes of the prompt do
// not depend on the attachment.
func TestPromptWithAttachment(t *testing.T) {
	prompt := func(text string) prepare.Prepared {
		j := &journaltest.Store{}
		c, _ := candidate("demo", 1, says("Done."))
		in := input(c)
		if text != "" {
			attachText(&in, text)
		}
		mustRun(t, j, in)
		return payloads[prepare.Prepared](t, j, journal.Prepared)[0]
	}
	with, without := prompt("notes"), prompt("")
	last := with.Messages[len(with.Messages)-1]
	if len(last.Attachments) != 1 || last.Attachments[0].SHA256 != attachment.Digest([]byte("notes")) ||
		strings.Contains(last.Content, "notes") {
		t.Errorf("the message is %+v, want a reference and no content", last)
	}
	if with.Report.PromptHash != without.Report.PromptHash || with.Report.ContextHash != without.Report.ContextHash {
		t.Error("an attachment changes a hash of the prompt")
	}
}

// TestAttachmentInSession checks that the next Turn of a Session receives the name of an attachment, without its
// content.
func TestAttachmentInSession(t *testing.T) {
	j := &journaltest.Store{}
	ask := func(uid string, change func(*turn.Input)) *script {
		c, s := candidate("demo", 1, says("Done."))
		in := input(c)
		in.UID, in.Session = uid, &turn.Session{UID: "session", Name: "chat"}
		change(&in)
		mustRun(t, j, in)
		return s
	}
	ask("one", func(in *turn.Input) { attachText(in, "secret plan") })
	second := ask("two", func(*turn.Input) {})
	found := false
	for _, m := range second.requests[0].Messages {
		if len(m.Attachments) > 0 || strings.Contains(m.Content, "secret plan") {
			t.Errorf("the second Turn receives the content: %+v", m)
		}
		found = found || strings.HasSuffix(m.Content,
			"What is new?\n\n[Attached to this message, and not shown again: \"notes\" (text/plain, 11 bytes)]")
	}
	if !found {
		t.Errorf("the second Turn does not learn of the attachment: %+v", second.requests[0].Messages)
	}
}

func TestErrorsOfAttachments(t *testing.T) {
	c, s := candidate("demo", 1, says("Done."))
	in := input(c)
	in.Attach = func(context.Context) ([]attachment.Content, error) {
		return nil, invalid.Field("Turn spec.attachments[0].url", "it is bad")
	}
	got := mustRun(t, &journaltest.Store{}, in)
	if got.Stop != turn.StopPreparationError || got.Message != "Turn spec.attachments[0].url: it is bad" || s.asked() != 0 {
		t.Errorf("the Turn ends with %s: %s; want a preparation error that names the field", got.Stop, got.Message)
	}
	unreadable := errors.New("the ConfigMap cannot be read")
	in.Attach = func(context.Context) ([]attachment.Content, error) { return nil, unreadable }
	if _, err := engine(&journaltest.Store{}).Run(t.Context(), &in); !errors.Is(err, unreadable) {
		t.Errorf("error is %v, want the error of the source, so that the run is repeated", err)
	}
}

// TestMemoryOfAttachments checks that memory is reserved before content is read, and that the size of the content
// counts afterwards.
func TestMemoryOfAttachments(t *testing.T) {
	c, _ := candidate("demo", 1, says("Done."))
	in := input(c)
	reads := attachText(&in, strings.Repeat("x", 100_000))
	short := errors.New("there is no memory")
	in.Hold = func(bytes int64) error {
		if bytes > attachment.MaxTextBytes {
			return short
		}
		return nil
	}
	if _, err := engine(&journaltest.Store{}).Run(t.Context(), &in); !errors.Is(err, short) || *reads != 0 {
		t.Errorf("error is %v after %d reads, want no read without memory", err, *reads)
	}
	var held int64
	in.Hold = func(bytes int64) error { held = bytes; return nil }
	mustRun(t, &journaltest.Store{}, in)
	if held < 133_334 || held > 140_000 {
		t.Errorf("%d bytes are reserved at the end, want the size of the content in a request", held)
	}
}
