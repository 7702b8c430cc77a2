package model_test

import (
	"math"
	"testing"

	"github.com/capstan-dev/capstan/internal/runtime/model"
)

func TestUsageStaysWithinItsBounds(t *testing.T) {
	wild := model.Usage{InputTokens: math.MaxInt64, OutputTokens: -1}
	sum := wild.Add(wild).Add(model.Usage{InputTokens: 9, OutputTokens: 9})
	if want := (model.Usage{InputTokens: model.MaxTokens, OutputTokens: 9}); sum != want {
		t.Errorf("sum %+v, want %+v: an endpoint may report anything", sum, want)
	}
	if total := sum.InputTokens + sum.OutputTokens; total < 0 {
		t.Errorf("total %d, want no overflow", total)
	}
}
