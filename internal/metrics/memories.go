package metrics

import "github.com/capstan-dev/capstan/internal/runtime/model"

var (
	memoriesLearned = counter("capstan_memories_learned_total", "Memories that were learned from turns, by scope (Session, User).", "scope")
	memoriesRefused = counter("capstan_memories_refused_total",
		"Entries in replies of models that were not kept as memories, because they claim another scope, are not in the right form, "+
			"or are more than maxPerTurn.")
	memoriesFailed = counter("capstan_memories_failed_total", "Requests to extract memories to which no model gave a valid reply.")
	memoryTokens   = counter("capstan_memory_tokens_total",
		"Tokens used to learn memories from turns, by type (input, output). They are not in capstan_tokens_total.", "type")
	learningSkipped = counter("capstan_memory_skipped_total",
		"Turns from which no memories were learned although they should have been, by reason.", "reason")
	recallFailures = counter("capstan_memory_recall_failures_total",
		"Turns that continued without learned memories, because the store did not return them in time.")
	embeddingFailures = counter("capstan_embedding_failures_total",
		"Requests for vectors that failed, so that words alone decided which memories or tools match.")
)

// LearningSkipped counts a Turn from which no memories were learned although they should have been.
func LearningSkipped(namespace, reason string) {
	known.withNamespace(namespace, func(label string, _ *namespaceSeries) { learningSkipped.WithLabelValues(label, reason).Inc() })
}

// NotRecalled counts a Turn that continues without learned memories.
func NotRecalled(namespace string) {
	known.withNamespace(namespace, func(label string, _ *namespaceSeries) { recallFailures.WithLabelValues(label).Inc() })
}

// NotEmbedded counts a request for vectors that failed.
func NotEmbedded(namespace string) {
	known.withNamespace(namespace, func(label string, _ *namespaceSeries) { embeddingFailures.WithLabelValues(label).Inc() })
}

// Learned counts what was learned from a Turn. kept has the number of memories of each scope.
func Learned(namespace string, kept map[string]int, refused, failed int, used model.Usage) {
	known.withNamespace(namespace, func(label string, _ *namespaceSeries) {
		for scope, n := range kept {
			memoriesLearned.WithLabelValues(label, scope).Add(float64(n))
		}
		memoriesRefused.WithLabelValues(label).Add(float64(refused))
		memoriesFailed.WithLabelValues(label).Add(float64(failed))
		memoryTokens.WithLabelValues(label, "input").Add(float64(max(0, used.InputTokens)))
		memoryTokens.WithLabelValues(label, "output").Add(float64(max(0, used.OutputTokens)))
	})
}
