package barrier

import (
	"errors"
	"slices"
	"strings"

	"github.com/go-logr/logr"
	"k8s.io/apimachinery/pkg/types"

	"github.com/capstan-dev/capstan/internal/redact"
)

// Log returns a logger that redacts credentials in the errors and the string values of each line. It redacts only the
// credentials of the namespaces that appear in the values of the line. A line without a namespace stays unchanged: a
// credential of one namespace must not change log lines about another namespace, or about the process.
func Log(to logr.Logger, known *redact.Set) logr.Logger {
	sink := to.GetSink()
	if sink == nil {
		return to
	}
	if deep, ok := sink.(logr.CallDepthLogSink); ok {
		sink = deep.WithCallDepth(1)
	}
	return to.WithSink(&logSink{to: sink, known: known})
}

type logSink struct {
	to    logr.LogSink
	known *redact.Set
	// namespaces are the namespaces that appear in the values of the logger.
	namespaces []string
}

// Init does nothing, because the wrapped sink is initialized already.
func (*logSink) Init(logr.RuntimeInfo) {}

// Enabled reports whether lines of a level are written.
func (s *logSink) Enabled(level int) bool { return s.to.Enabled(level) }

// Info writes a line.
func (s *logSink) Info(level int, message string, values ...any) {
	s.to.Info(level, message, s.clean(values)...)
}

// Error writes a line about an error.
func (s *logSink) Error(err error, message string, values ...any) {
	namespaces := withNamed(s.namespaces, values)
	if err != nil {
		if text := s.text(namespaces, err.Error()); text != err.Error() {
			err = errors.New(text)
		}
	}
	s.to.Error(err, message, s.clean(values)...)
}

// WithValues returns a sink whose lines have further values.
func (s *logSink) WithValues(values ...any) logr.LogSink {
	return &logSink{s.to.WithValues(s.clean(values)...), s.known, withNamed(s.namespaces, values)}
}

// WithName returns a sink with a further name.
func (s *logSink) WithName(name string) logr.LogSink {
	return &logSink{s.to.WithName(name), s.known, s.namespaces}
}

// WithCallDepth returns a sink that skips further callers.
func (s *logSink) WithCallDepth(depth int) logr.LogSink {
	deep, ok := s.to.(logr.CallDepthLogSink)
	if !ok {
		return s
	}
	return &logSink{deep.WithCallDepth(depth), s.known, s.namespaces}
}

// clean redacts values.
func (s *logSink) clean(values []any) []any {
	namespaces := withNamed(s.namespaces, values)
	if len(namespaces) == 0 {
		return values
	}
	cleaned := slices.Clone(values)
	for i := 1; i < len(cleaned); i += 2 {
		switch v := cleaned[i].(type) {
		case string:
			cleaned[i] = s.text(namespaces, v)
		case error:
			if v != nil {
				cleaned[i] = s.text(namespaces, v.Error())
			}
		}
	}
	return cleaned
}

func (s *logSink) text(namespaces []string, text string) string {
	for _, namespace := range namespaces {
		text = s.known.Redact(namespace, text)
	}
	return text
}

// objectKeys are the keys of values that name an object as NAMESPACE/NAME.
var objectKeys = []string{"turn", "session", "agent", "toolServer", "modelProvider", "object"}

// withNamed adds the namespaces that appear in values.
func withNamed(namespaces []string, values []any) []string {
	for i := 1; i < len(values); i += 2 {
		namespace := ""
		switch v := values[i].(type) {
		case types.NamespacedName:
			namespace = v.Namespace
		case interface{ GetNamespace() string }:
			namespace = v.GetNamespace()
		case string:
			key, _ := values[i-1].(string)
			before, _, found := strings.Cut(v, "/")
			switch {
			case key == "namespace":
				namespace = v
			case found && slices.Contains(objectKeys, key):
				namespace = before
			}
		}
		if namespace != "" && !slices.Contains(namespaces, namespace) {
			namespaces = append(slices.Clip(namespaces), namespace)
		}
	}
	return namespaces
}
