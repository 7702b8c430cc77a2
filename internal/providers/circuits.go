package providers

import (
	"cmp"
	"encoding/json"
	"maps"
	"slices"
	"strings"

	"k8s.io/apimachinery/pkg/types"

	"github.com/capstan-dev/capstan/internal/fairgate"
)

// maxCircuits is the maximum number of ModelProviders with open circuits that an executor reports, maxCircuitModels is
// the maximum number of models of each, and maxCircuitBytes limits these models in bytes of JSON: JSON needs up to six
// bytes for a character. A report has at most about 70 KiB. The limit in bytes applies to each ModelProvider on its
// own, so that long names in one namespace take no space from another one.
const (
	maxCircuits      = 50
	maxCircuitModels = 4
	maxCircuitBytes  = 1100
)

// Circuits lists the models of ModelProviders whose circuits are open, in order.
type Circuits map[types.NamespacedName][]string

// OpenCircuits returns the open circuits of this process.
func (c *Cache) OpenCircuits() Circuits {
	open := Circuits{}
	for key, use := range c.GateUse() {
		if len(use.Open) > 0 {
			slices.Sort(use.Open)
			open[key] = use.Open
		}
	}
	return open
}

// Encode returns the circuits as text, always the same for the same circuits. It returns an empty text if there are no
// circuits. Circuits beyond the bounds are left out: first those of the namespaces with the most circuits, so that no
// namespace can hide the circuits of another one.
func (c Circuits) Encode() string {
	if len(c) == 0 {
		return ""
	}
	keys := slices.SortedFunc(maps.Keys(c), func(a, b types.NamespacedName) int {
		return cmp.Or(cmp.Compare(a.Namespace, b.Namespace), cmp.Compare(a.Name, b.Name))
	})
	keys = fairgate.InTurn(keys, func(key types.NamespacedName) string { return key.Namespace })
	named := map[string][]string{}
	for _, key := range keys[:min(len(keys), maxCircuits)] {
		if models := reported(c[key]); len(models) > 0 {
			named[key.String()] = models
		}
	}
	text, _ := json.Marshal(named) //nolint:errchkjson // because texts can be encoded
	return string(text)
}

// reported returns the first models that fit into a report. A name that is too long is left out and not cut: the
// controllers compare whole names.
func reported(models []string) []string {
	var fit []string
	size := 0
	for _, model := range models {
		text, _ := json.Marshal(model) //nolint:errchkjson // because texts can be encoded
		if len(fit) < maxCircuitModels && size+len(text) <= maxCircuitBytes {
			fit, size = append(fit, model), size+len(text)
		}
	}
	return fit
}

// DecodeCircuits returns the circuits of a text from Encode. It returns nil if the text cannot be read.
func DecodeCircuits(text string) Circuits {
	var named map[string][]string
	if text == "" || json.Unmarshal([]byte(text), &named) != nil {
		return nil
	}
	all := Circuits{}
	for name, models := range named {
		if namespace, name, ok := strings.Cut(name, "/"); ok && len(models) > 0 {
			all[types.NamespacedName{Namespace: namespace, Name: name}] = models
		}
	}
	return all
}
