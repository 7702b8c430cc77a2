package translate

import (
	"context"
	"encoding/json"
	"fmt"

	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/capstan-dev/capstan/api/v1alpha1"
	"github.com/capstan-dev/capstan/internal/redact"
	"github.com/capstan-dev/capstan/internal/runtime/attachment"
	"github.com/capstan-dev/capstan/internal/runtime/prepare"
	"github.com/capstan-dev/capstan/internal/runtime/turn"
)

// RecordedTurn returns the Turn that replays a recorded Turn, in the same namespace and with the given Agent. It has no
// limits of its own, so the Agent's limits apply. The recorded input has all other parts of the request.
func RecordedTurn(r *turn.Recording, agent v1alpha1.SharedReference) *v1alpha1.Turn {
	t := &v1alpha1.Turn{ObjectMeta: metav1.ObjectMeta{Namespace: r.Namespace, Name: r.Name, Generation: 1}}
	t.Spec = v1alpha1.TurnSpec{AgentRef: agent, Message: r.Input.Turn.Message, WebMode: v1alpha1.WebModeOn}
	if r.Input.Turn.Depth > 0 {
		t.Spec.Depth = new(int32(r.Input.Turn.Depth)) //nolint:gosec // because a depth is at most 8
	}
	for _, a := range r.Input.Turn.Attachments {
		t.Spec.Attachments = append(t.Spec.Attachments, v1alpha1.Attachment{Name: a.Name, MediaType: a.MediaType})
	}
	s := r.Settings
	if s == nil { // no web search is made in a replay, so the default does no harm
		return t
	}
	if !s.Web {
		t.Spec.WebMode = v1alpha1.WebModeOff
	}
	switch {
	case s.AppendCitations:
		t.Spec.Citations = v1alpha1.CitationsAppend
	case s.HideCitations:
		t.Spec.Citations = v1alpha1.CitationsHide
	}
	if len(s.Output) > 0 {
		t.Spec.Output = &v1alpha1.TurnOutput{Schema: apiextensionsv1.JSON{Raw: s.Output}}
	}
	return t
}

// PrepareAgain returns the input of a recorded preparation with the Agent, the profile and the manager's skills of o.
// If one of these is nil, the recorded value is used. The request, the time and the tools are the recorded ones. The
// redaction rules of the Agent apply to the recorded request, too. Unlike Preparation, PrepareAgain never uses
// o.ConfigMaps: o.AgentConfigMaps and o.ProfileConfigMaps must be set if the Agent or the profile refers to ConfigMaps.
func PrepareAgain(ctx context.Context, recorded *prepare.Input, o Objects) (prepare.Input, error) {
	in, err := copyOf(recorded)
	if err != nil {
		return in, err
	}
	if o.ManagerSkills != nil {
		in.ManagerSkills = o.ManagerSkills
	}
	if o.Agent != nil {
		loc, err := Location(o.Agent)
		if err != nil {
			return in, err
		}
		in.Now = in.Now.In(loc)
		if in.Agent, err = Agent(ctx, o.Agent, o.AgentConfigMaps); err != nil {
			return in, err
		}
	}
	if o.Profile != nil {
		if in.Profile, err = Profile(ctx, o.Profile, o.ProfileConfigMaps); err != nil {
			return in, err
		}
	}
	if o.Redaction == nil && o.Agent != nil {
		if o.Redaction, err = Redaction(ctx, o.Agent, nil); err != nil {
			return in, err
		}
	}
	redactInput(&in, o.Redaction)
	return in, nil
}

// copyOf returns a copy of an input that shares nothing with it. JSON keeps all of it except for the time zone.
func copyOf(in *prepare.Input) (out prepare.Input, err error) {
	data, err := json.Marshal(in)
	if err == nil {
		err = json.Unmarshal(data, &out)
	}
	if err != nil {
		return out, fmt.Errorf("failed to copy the recorded input: %w", err)
	}
	out.Now = in.Now
	return out, nil
}

// AttachRecorded returns the function that reads the attachments of a recorded Turn and applies redaction to the texts
// among them. total is the size of the recorded contents together, in bytes. The function is nil if the Turn has no
// attachments.
func AttachRecorded(
	r *turn.Recording, redaction *redact.TurnRedactor,
) (attach func(context.Context) ([]attachment.Content, error), total int64) {
	read, total := r.Attach()
	if read == nil {
		return nil, 0
	}
	s := AttachmentSources{Redaction: redaction}
	return func(ctx context.Context) ([]attachment.Content, error) {
		all, err := read(ctx)
		for i := 0; i < len(all) && err == nil; i++ {
			all[i], err = s.withoutRedacted(fmt.Sprintf("attachment %q of the recorded Turn", all[i].Name), all[i])
		}
		return all, err
	}, total
}
