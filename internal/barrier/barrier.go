// Package barrier removes the credentials of a namespace from everything that a process writes about the objects of
// that namespace: status, Events and log lines. It is the second barrier. The adapters and the engine are the first
// barrier: each adapter redacts the credential that it has sent to its server, and the engine redacts the texts of
// models and tools before it records them.
package barrier

import (
	"context"
	"fmt"
	"unicode/utf8"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/tools/events"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/capstan-dev/capstan/api/v1alpha1"
	"github.com/capstan-dev/capstan/internal/redact"
	"github.com/capstan-dev/capstan/internal/runtime/cut"
)

// Client returns a client that redacts the texts of a status when it updates the status. known holds the credentials of
// all namespaces.
func Client(c client.Client, known *redact.Set) client.Client {
	return &redacting{Client: c, known: known}
}

type redacting struct {
	client.Client
	known *redact.Set
}

// Status returns the writer for statuses.
func (r *redacting) Status() client.SubResourceWriter {
	return &statusWriter{SubResourceWriter: r.Client.Status(), known: r.known}
}

type statusWriter struct {
	client.SubResourceWriter
	known *redact.Set
}

// Update writes the status of an object. It also replaces the texts in o by the redacted texts, so that the caller's
// object is equal to the written object.
func (w *statusWriter) Update(ctx context.Context, o client.Object, options ...client.SubResourceUpdateOption) error {
	clean := w.known.RedactFunc(namespacesOf(o)...)
	for _, text := range texts(o) {
		// A credential may be shorter than the mark that replaces it. The texts were cut to the limits of the schema
		// before, and the API server refuses a status with a longer text.
		*text = cut.Chars(clean(*text), max(utf8.RuneCountInString(*text), shortestLimit), "…")
	}
	if t, ok := o.(*v1alpha1.Turn); ok && t.Status.Result != nil && t.Status.Result.Data != nil {
		data := t.Status.Result.Data
		data.Raw = redact.JSON(data.Raw, clean)
	}
	return w.SubResourceWriter.Update(ctx, o, options...)
}

// shortestLimit is the smallest limit of the schema for one of the texts, in characters.
const shortestLimit = 32

// namespacesOf returns the namespaces whose credentials must not appear in a text about an object.
func namespacesOf(o metav1.Object) []string {
	if t, ok := o.(*v1alpha1.Turn); ok {
		return t.CredentialNamespaces()
	}
	return []string{o.GetNamespace()}
}

// texts returns the fields of a status that may quote a server. It leaves out names, hashes, enums and numbers: an
// object must keep its identity even if a credential happens to equal its name.
func texts(o client.Object) []*string {
	switch o := o.(type) {
	case *v1alpha1.Turn:
		all := messages(o.Status.Conditions)
		if o.Status.AwaitedBudget != nil {
			all = append(all, &o.Status.AwaitedBudget.Message)
		}
		for i := range o.Status.Evaluations {
			all = append(all, &o.Status.Evaluations[i].Reason)
		}
		if r := o.Status.Result; r != nil {
			all = append(all, &r.Text, &r.Preview)
			if r.Citations != nil {
				all = append(all, elements(r.Citations.Local)...)
				for i := range r.Citations.Web {
					all = append(all, &r.Citations.Web[i].Title, &r.Citations.Web[i].URL)
				}
			}
		}
		return all
	case *v1alpha1.ToolServer:
		s := &o.Status
		all := append(messages(s.Conditions), &s.ServerName, &s.ServerVersion, &s.ProtocolVersion)
		for i := range s.Tools {
			all = append(all, &s.Tools[i].Description, &s.Tools[i].Unusable)
		}
		return all
	case *v1alpha1.ModelProvider:
		return messages(o.Status.Conditions)
	case *v1alpha1.Agent:
		return messages(o.Status.Conditions)
	case *v1alpha1.PromptProfile:
		return messages(o.Status.Conditions)
	case *v1alpha1.Session:
		return messages(o.Status.Conditions)
	}
	return nil
}

func messages(conditions []metav1.Condition) []*string {
	all := make([]*string, 0, len(conditions))
	for i := range conditions {
		all = append(all, &conditions[i].Message)
	}
	return all
}

func elements(list []string) []*string {
	all := make([]*string, 0, len(list))
	for i := range list {
		all = append(all, &list[i])
	}
	return all
}

// maxNoteBytes bounds the note of an Event, without the dots after it: the API server accepts 1 KiB.
const maxNoteBytes = 1000

// Events returns a recorder that redacts the notes of Events, and then shortens them to the length that the API server
// accepts. It removes the credentials of the namespace of the object that the Event is about. If this object is a Turn,
// it also removes the credentials of the namespace of its Agent.
func Events(to events.EventRecorder, known *redact.Set) events.EventRecorder {
	return &recorder{to, known}
}

type recorder struct {
	to    events.EventRecorder
	known *redact.Set
}

// Eventf emits an Event.
func (r *recorder) Eventf(regarding, related runtime.Object, kind, reason, action, note string, args ...any) {
	text := fmt.Sprintf(note, args...)
	if o, ok := regarding.(metav1.Object); ok {
		text = r.known.RedactFunc(namespacesOf(o)...)(text)
	}
	// Only now: a replacement may be longer than the credential, and a part of a credential would not be recognized.
	if len(text) > maxNoteBytes {
		text = cut.Bytes(text, maxNoteBytes) + "..."
	}
	r.to.Eventf(regarding, related, kind, reason, action, "%s", text)
}
