// Package lenient reads parts of answers in every form that servers send. A part in an unknown form counts as absent:
// it must not make the rest of a reply, which was paid for, unreadable.
package lenient

import (
	"encoding/json"
	"math"
	"strconv"
	"strings"

	"github.com/capstan-dev/capstan/internal/runtime/model"
)

// Maybe is a value that is absent if it is null or has another type.
type Maybe[T any] struct {
	// Value is the zero value if the value is absent.
	Value T
	// Given is true if the value is present.
	Given bool
}

// UnmarshalJSON implements json.Unmarshaler. It never fails.
func (m *Maybe[T]) UnmarshalJSON(data []byte) error {
	var value T
	if string(data) != "null" && json.Unmarshal(data, &value) == nil {
		m.Value, m.Given = value, true
	}
	return nil
}

// Number is a number of tokens, or an index, from 0 to model.MaxTokens. Servers send it as an integer, as a fraction,
// or in quotes.
type Number int64

// UnmarshalJSON implements json.Unmarshaler. It fails for null and for other forms: use Maybe[Number] to accept them.
func (n *Number) UnmarshalJSON(data []byte) error {
	value, err := strconv.ParseFloat(strings.Trim(string(data), `"`), 64)
	if value > 0 { // false for NaN
		*n = Number(math.Round(min(value, float64(model.MaxTokens))))
	}
	return err
}
