package tracing

import (
	"context"
	"encoding/json"
	"fmt"
	"net"
	"slices"
	"strconv"
	"strings"
	"time"

	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/codes"
	"go.opentelemetry.io/otel/trace"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/capstan-dev/capstan/api/v1alpha1"
	"github.com/capstan-dev/capstan/internal/genai"
	"github.com/capstan-dev/capstan/internal/runtime/cut"
	"github.com/capstan-dev/capstan/internal/runtime/loop"
	"github.com/capstan-dev/capstan/internal/runtime/model"
	"github.com/capstan-dev/capstan/internal/runtime/span"
	"github.com/capstan-dev/capstan/internal/runtime/turn"
)

// maxContent is the maximum size of a recorded text, in bytes. A span has at most two texts.
const maxContent = 8 << 10

// Turn records the parts of one Turn. It implements turn.Observer.
type Turn struct {
	provider *Provider
	// seed is the text from which the IDs of the spans are computed.
	seed    string
	traceID span.TraceID
	// parent is the span of the caller. It is the zero value if the Turn has no caller with a span.
	parent span.Context
	// sampled is true if the Turn is recorded.
	sampled bool
	// common are the attributes of all spans of the Turn.
	common []attribute.KeyValue
	redact func(string) string
}

// Of returns the recorder of a Turn. The ID of the trace is taken from the status, otherwise from the annotation, and
// otherwise from the UID of the Turn.
func (p *Provider) Of(t *v1alpha1.Turn) *Turn { return p.OfSeed(t, string(t.UID)) }

// OfSeed is like Of, but computes the IDs of the spans from a seed in place of the UID, for a Turn whose UID another
// Turn may have. All runs of the Turn must have the same seed.
func (p *Provider) OfSeed(t *v1alpha1.Turn, seed string) *Turn {
	out := &Turn{provider: p, seed: seed}
	parent, called := span.Parse(t.Annotations[span.Annotation])
	known, ok := span.ParseTraceID(t.Status.TraceID)
	switch {
	case ok && called && parent.TraceID != known: // the annotation was changed after the Turn was bound
		called = false
		out.traceID = known
	case ok:
		out.traceID = known
	default:
		out.traceID = span.TraceOf(t.Annotations[span.Annotation], string(t.UID))
	}
	if called {
		out.parent = parent
	}
	if !p.On() {
		return out
	}
	out.redact = p.redact(t.CredentialNamespaces()...)
	out.common = []attribute.KeyValue{
		attribute.String("k8s.namespace.name", t.Namespace), attribute.String("capstan.turn.name", t.Name),
		attribute.String("capstan.turn.uid", string(t.UID)), attribute.String("gen_ai.agent.name", t.AgentName()),
	}
	if s := t.Spec.SessionRef; s != nil {
		out.common = append(out.common, attribute.String("gen_ai.conversation.id", s.Name))
	}
	if r := t.Spec.RequestedBy; r != nil {
		out.common = append(out.common, attribute.String("user.name", r.Username))
	}
	// This span only asks the sampler. It is never ended, so it is never exported.
	out.sampled = out.start("", "", time.Time{}, "invoke_agent").SpanContext().IsSampled()
	return out
}

// context returns the span context of a part of the Turn.
func (t *Turn) context(key string) span.Context {
	return span.Context{TraceID: t.traceID, SpanID: span.IDOf(t.seed, key), Sampled: t.sampled}
}

// start starts a span. The key of the Turn's root span is empty.
func (t *Turn) start(key, parent string, at time.Time, name string, options ...trace.SpanStartOption) trace.Span {
	ctx := withID(context.Background(), t.context(key))
	above := t.parent
	if key != "" {
		above = t.context(parent)
	}
	if above.IsValid() {
		flags := trace.TraceFlags(0)
		if above.Sampled {
			flags = trace.FlagsSampled
		}
		ctx = trace.ContextWithRemoteSpanContext(ctx, trace.NewSpanContext(trace.SpanContextConfig{
			TraceID: trace.TraceID(above.TraceID), SpanID: trace.SpanID(above.SpanID), TraceFlags: flags, Remote: true,
		}))
	}
	_, s := t.provider.tracer.Start(ctx, name, append(options, trace.WithTimestamp(at))...)
	return s
}

// Propagated returns the span context that the Turn of a sub-agent, a model or a tool server receives: the context of a
// part, or of the caller if this process exports no spans. ok is false if neither exists.
func (t *Turn) Propagated(key string) (c span.Context, ok bool) {
	if t.provider.On() {
		return t.context(key), true
	}
	return t.parent, t.parent.IsValid()
}

// AnnotateChild writes the span context of a call into the Turn that the call creates for a sub-agent.
func (t *Turn) AnnotateChild(child *v1alpha1.Turn, step int, callID string) {
	if c, ok := t.Propagated(turn.CallKey(step, callID)); ok {
		child.Annotations = map[string]string{span.Annotation: c.String()}
	}
}

// TraceID returns the ID of the trace.
func (t *Turn) TraceID() string { return t.traceID.String() }

// Within returns ctx with the span context that a request or a call sends in its header.
func (t *Turn) Within(ctx context.Context, key string) context.Context {
	if t.provider != nil && !t.provider.settings.propagates {
		return ctx
	}
	if c, ok := t.Propagated(key); ok {
		return span.With(ctx, c)
	}
	return ctx
}

// Observe records a part.
func (t *Turn) Observe(s *turn.Span) {
	if !t.sampled {
		return
	}
	name, kind, attributes := string(s.Kind), trace.SpanKindInternal, t.common
	add := func(more ...attribute.KeyValue) {
		attributes = append(slices.Clip(attributes), more...)
	}
	if s.Step > 0 {
		add(attribute.Int("capstan.step", s.Step))
	}
	switch s.Kind {
	case turn.SpanPreparation:
		r := s.Report
		add(attribute.String("capstan.prompt.id", r.Profile.ID), attribute.String("capstan.prompt.version", r.Profile.Version),
			attribute.String("capstan.prompt.render_hash", r.RenderHash), attribute.String("capstan.prompt.hash", r.PromptHash))
		if len(s.Tags) > 0 {
			add(attribute.StringSlice("capstan.prompt.tags", s.Tags))
		}
	case turn.SpanStep:
		name = "step " + strconv.Itoa(s.Step)
	case turn.SpanRequest:
		name, kind = genai.OperationName(s.Request, s.Candidate)+" "+s.Request.Model, trace.SpanKindClient
		add(t.requestAttributes(s)...)
	case turn.SpanApproval:
		name = "approval " + s.Approval.Name
		add(attribute.String("gen_ai.tool.name", s.Approval.Name), attribute.String("gen_ai.tool.call.id", s.Approval.CallID),
			attribute.Bool("capstan.approval.approved", s.Decision.Approved))
	case turn.SpanCall:
		name = "execute_tool " + s.Result.Name
		add(t.callAttributes(s)...)
	case turn.SpanCheck:
		name = "check_answer"
		add(checkAttributes(s.Check)...)
	case turn.SpanHistory:
		name = "add_to_session"
	case turn.SpanFollowUp:
		name = string(s.Work)
	case turn.SpanFinalization:
	}
	if s.Failure != "" {
		add(attribute.String("error.type", s.Failure))
	}
	out := t.start(s.Key, s.Parent, s.Start, name, trace.WithSpanKind(kind), trace.WithAttributes(attributes...))
	if s.Failure != "" {
		out.SetStatus(codes.Error, s.Failure)
	}
	out.End(trace.WithTimestamp(s.End))
}

// requestAttributes returns the attributes of a request to a model.
func (t *Turn) requestAttributes(s *turn.Span) []attribute.KeyValue {
	r := s.Request
	all := []attribute.KeyValue{
		attribute.String("gen_ai.operation.name", genai.OperationName(s.Request, s.Candidate)),
		attribute.String("gen_ai.request.model", r.Model),
		attribute.String("capstan.model_provider", r.Provider), attribute.Int("capstan.attempt", r.Attempt),
	}
	if r.Purpose != loop.ForStep {
		all = append(all, attribute.String("capstan.purpose", string(r.Purpose)))
	}
	if c := s.Candidate; c != nil {
		all = append(all, candidateAttributes(c)...)
	}
	var usage model.Usage
	var cost *model.Cost
	switch {
	case s.Reply != nil:
		usage, cost = s.Reply.Reply.Usage, s.Reply.Cost
		all = append(all, attribute.StringSlice("gen_ai.response.finish_reasons", []string{string(s.Reply.Reply.FinishReason)}),
			attribute.String("gen_ai.response.model", responseModel(s.Reply)))
		if first := s.Reply.FirstEventMS; first > 0 {
			all = append(all, attribute.Float64("gen_ai.response.time_to_first_chunk", float64(first)/1e3))
		}
		if t.provider.settings.content {
			all = append(all, attribute.String("gen_ai.output.messages", t.outputOf(&s.Reply.Reply)))
		}
	case s.Failed != nil:
		usage, cost = s.Failed.Usage, s.Failed.Cost
	}
	return append(append(all, usageAttributes(usage)...), costAttributes(cost)...)
}

func responseModel(s *loop.Step) string {
	if s.ResponseModel != "" {
		return s.ResponseModel
	}
	return s.Model
}

// candidateAttributes returns the attributes of a model of the chain.
func candidateAttributes(c *loop.Candidate) []attribute.KeyValue {
	var all []attribute.KeyValue
	if name := genai.ProviderName(c); name != "" {
		all = append(all, attribute.String("gen_ai.provider.name", name))
	}
	host, port, err := net.SplitHostPort(c.Endpoint)
	if err != nil {
		host = c.Endpoint
	}
	if host != "" {
		all = append(all, attribute.String("server.address", host))
	}
	if n, err := strconv.Atoi(port); err == nil {
		all = append(all, attribute.Int("server.port", n))
	}
	if p := c.Parameters.Temperature; p != nil {
		all = append(all, attribute.Float64("gen_ai.request.temperature", *p))
	}
	if p := c.Parameters.MaxOutputTokens; p != nil {
		all = append(all, attribute.Int("gen_ai.request.max_tokens", *p))
	}
	return all
}

// usageAttributes returns the attributes of a usage.
func usageAttributes(u model.Usage) []attribute.KeyValue {
	if u == (model.Usage{}) {
		return nil
	}
	all := []attribute.KeyValue{
		attribute.Int64("gen_ai.usage.input_tokens", u.InputTokens), attribute.Int64("gen_ai.usage.output_tokens", u.OutputTokens),
	}
	for name, n := range map[string]int64{
		"gen_ai.usage.cache_read.input_tokens": u.CacheReadTokens, "gen_ai.usage.cache_creation.input_tokens": u.CacheCreationTokens,
		"gen_ai.usage.reasoning.output_tokens": u.ReasoningTokens,
	} {
		if n > 0 {
			all = append(all, attribute.Int64(name, n))
		}
	}
	if u.Estimated {
		all = append(all, attribute.Bool("capstan.usage.estimated", true))
	}
	return all
}

// costAttributes returns the attributes of a cost, which may be nil.
func costAttributes(c *model.Cost) []attribute.KeyValue {
	if c == nil {
		return nil
	}
	return []attribute.KeyValue{
		attribute.Float64("capstan.cost.amount", c.Amount.InexactFloat64()), attribute.String("capstan.cost.currency", c.Currency),
	}
}

// callAttributes returns the attributes of a tool call.
func (t *Turn) callAttributes(s *turn.Span) []attribute.KeyValue {
	all := []attribute.KeyValue{
		attribute.String("gen_ai.operation.name", "execute_tool"), attribute.String("gen_ai.tool.name", s.Result.Name),
		attribute.String("gen_ai.tool.call.id", s.Result.CallID), attribute.String("gen_ai.tool.type", "function"),
		attribute.String("capstan.tool.outcome", string(s.Result.Outcome)),
	}
	if i := s.Intent; i != nil {
		all = append(all, attribute.String("capstan.tool.effect", string(i.Effect)), attribute.Int("capstan.attempt", i.Attempt))
		if t.provider.settings.content {
			all = append(all, attribute.String("gen_ai.tool.call.arguments", t.content(string(i.Arguments))))
		}
	}
	if spent := s.Result.Spent; spent != nil {
		all = append(all, attribute.String("capstan.subagent.turn", spent.Turn))
	}
	if t.provider.settings.content {
		all = append(all, attribute.String("gen_ai.tool.call.result", t.content(s.Result.Content)))
	}
	return all
}

// checkAttributes returns the attributes of a check of an answer: only the names of the policies, and no texts.
func checkAttributes(c *loop.AnswerCheck) []attribute.KeyValue {
	var violated, unchecked []string
	for i := range c.Findings {
		if f := &c.Findings[i]; f.Unchecked {
			unchecked = append(unchecked, f.Policy)
		} else {
			violated = append(violated, f.Policy)
		}
	}
	var all []attribute.KeyValue
	if len(violated) > 0 {
		all = append(all, attribute.StringSlice("capstan.output_policies.violated", violated))
	}
	if len(unchecked) > 0 {
		all = append(all, attribute.StringSlice("capstan.output_policies.unchecked", unchecked))
	}
	return all
}

// outputOf returns the messages of a reply as JSON, in the form of the conventions, without credentials. It cuts long
// texts and arguments, so that the JSON is complete and has at most maxContent bytes. If a reply has too many calls for
// that, outputOf leaves out the last calls.
func (t *Turn) outputOf(r *model.Reply) string {
	type part struct {
		Type      string `json:"type"`
		Content   string `json:"content,omitempty"`
		ID        string `json:"id,omitempty"`
		Name      string `json:"name,omitempty"`
		Arguments string `json:"arguments,omitempty"`
	}
	var parts []part
	if r.Text != "" {
		parts = append(parts, part{Type: "text", Content: t.redact(r.Text)})
	}
	for _, c := range r.ToolCalls {
		parts = append(parts, part{Type: "tool_call", ID: t.content(c.ID), Name: t.content(c.Name), Arguments: t.redact(c.Arguments)})
	}
	for most := maxContent; ; most /= 2 {
		for i := range parts {
			parts[i].Content, parts[i].Arguments = cut.Bytes(parts[i].Content, most), cut.Bytes(parts[i].Arguments, most)
		}
		data, err := json.Marshal([]any{map[string]any{"role": "assistant", "parts": parts, "finish_reason": r.FinishReason}})
		switch {
		case err != nil:
			return ""
		case len(data) <= maxContent:
			return string(data)
		case most == 0:
			parts = parts[:len(parts)/2]
		}
	}
}

// content returns a text without credentials, of at most maxContent bytes. The text is a copy, because its span may
// wait in the queue for long: a part of the arguments of a call would keep all of them, up to 1 MiB, in memory.
func (t *Turn) content(text string) string {
	return strings.Clone(cut.Bytes(t.redact(text), maxContent))
}

// End records a Turn that has ended, with its final status. It must be called once for each Turn. since is the
// beginning of the first run, or zero if the status has the start time.
func (p *Provider) End(t *v1alpha1.Turn, since time.Time) {
	if p.On() {
		p.Of(t).End(t, since)
	}
}

// End is like Provider.End, for the Turn that t records.
func (t *Turn) End(ended *v1alpha1.Turn, since time.Time) {
	if !t.sampled || ended.Status.CompletionTime == nil {
		return
	}
	begin := ended.Status.CompletionTime.Time
	if s := ended.Status.StartTime; s != nil && s.Time.Before(begin) {
		begin = s.Time
	}
	if !since.IsZero() && since.Before(begin) {
		begin = since
	}
	queued := begin
	if c := ended.CreationTimestamp.Time; !c.IsZero() && begin.Sub(c) >= time.Second { // a creation time has whole seconds
		queued = c
	}
	if queued.Before(begin) {
		s := t.start("queue", "", queued, "queue", trace.WithAttributes(t.common...))
		s.End(trace.WithTimestamp(begin))
	}
	attributes := slices.Concat(t.common, endAttributes(ended))
	s := t.start("", "", queued, "invoke_agent "+ended.AgentName(), trace.WithAttributes(attributes...))
	if c := meta.FindStatusCondition(ended.Status.Conditions, v1alpha1.ConditionSucceeded); c != nil && c.Status == metav1.ConditionFalse {
		s.SetAttributes(attribute.String("error.type", c.Reason))
		s.SetStatus(codes.Error, c.Reason)
	}
	s.End(trace.WithTimestamp(ended.Status.CompletionTime.Time))
}

// endAttributes returns the attributes of a Turn that has ended.
func endAttributes(t *v1alpha1.Turn) []attribute.KeyValue {
	st := &t.Status
	all := []attribute.KeyValue{
		attribute.String("gen_ai.operation.name", "invoke_agent"), attribute.String("capstan.turn.stop_reason", string(st.StopReason)),
	}
	if e := st.Executor; e != nil {
		all = append(all, attribute.Int64("capstan.turn.epoch", e.Epoch))
	}
	if p := st.Preparation; p != nil {
		all = append(all, attribute.String("gen_ai.request.model", p.Model), attribute.String("capstan.model_provider", p.Provider),
			attribute.String("capstan.prompt.id", p.PromptProfile.ID), attribute.String("capstan.prompt.version", p.PromptProfile.Version),
			attribute.String("capstan.prompt.render_hash", p.PromptRenderHash), attribute.String("capstan.prompt.hash", p.PromptHash))
	}
	if d := st.Decision; d != nil && d.Key != "" {
		all = append(all, attribute.String("capstan.decision.key", d.Key))
	}
	if c := st.Steps; c != nil {
		all = append(all, attribute.Int64("capstan.steps", int64(c.Count)),
			attribute.Int64("capstan.model_requests", int64(c.ModelRequests)),
			attribute.Int64("capstan.tool_calls", int64(c.ToolCalls)), attribute.Int64("capstan.resumes", int64(c.Resumes)))
	}
	if u := st.Usage; u != nil {
		all = append(all, usageAttributes(model.Usage{
			InputTokens: u.InputTokens, OutputTokens: u.OutputTokens, ReasoningTokens: u.ReasoningTokens,
			CacheReadTokens: u.CacheReadTokens, CacheCreationTokens: u.CacheCreationTokens, Estimated: u.Estimated,
		})...)
		if u.Cost != nil {
			if amount, err := strconv.ParseFloat(u.Cost.Amount, 64); err == nil {
				all = append(all, attribute.Float64("capstan.cost.amount", amount),
					attribute.String("capstan.cost.currency", u.Cost.Currency))
			}
		}
	}
	return all
}

// Annotate writes the span context of a caller into the annotation of a Turn, unless the Turn has that annotation.
// value is the value of a header traceparent.
func Annotate(t *v1alpha1.Turn, value string) error {
	value = strings.TrimSpace(value)
	if value == "" || t.Annotations[span.Annotation] != "" {
		return nil
	}
	c, ok := span.Parse(value)
	if !ok {
		return fmt.Errorf("%q must be a W3C traceparent, such as 00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01",
			cut.Bytes(value, maxContent))
	}
	if t.Annotations == nil {
		t.Annotations = map[string]string{}
	}
	t.Annotations[span.Annotation] = c.String()
	return nil
}
