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

// maxCircuits is the maximum number of ModelProviders with open circuits that an executor reports, and maxCircuitModels
// is the maximum number of models of each. A report has at most about 70 KiB.
const (
	maxCircuits      = 50
	maxCircuitModels = 4
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
		named[key.String()] = c[key][:min(len(c[key]), maxCircuitModels)]
	}
	text, _ := json.Marshal(named) //nolint:errchkjson // because texts can be encoded
	return string(text)
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
