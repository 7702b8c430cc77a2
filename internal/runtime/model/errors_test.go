package model_test

import (
	"errors"
	"fmt"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/capstan-dev/capstan/internal/runtime/model"
)

func TestAsError(t *testing.T) {
	cause := errors.New("broken pipe")
	classified := &model.Error{Kind: model.Auth, Message: "refused", Err: cause}
	if got := model.AsError(fmt.Errorf("asking: %w", classified)); got != classified {
		t.Errorf("AsError = %+v, want the classified error that is wrapped", got)
	}
	if !errors.Is(classified, cause) {
		t.Error("errors.Is does not find the cause of an Error")
	}
	got := model.AsError(cause)
	if got.Kind != model.Network || got.Message != "broken pipe" || !errors.Is(got, cause) {
		t.Errorf("AsError = %+v, want a failure of the network with its cause", got)
	}
}

func TestUsageAdds(t *testing.T) {
	a, b := model.Usage{InputTokens: 1, OutputTokens: 2, ReasoningTokens: 3, CacheReadTokens: 4, CacheCreationTokens: 5},
		model.Usage{InputTokens: 10, OutputTokens: 20, ReasoningTokens: 30, CacheReadTokens: 40, CacheCreationTokens: 50}
	want := model.Usage{InputTokens: 11, OutputTokens: 22, ReasoningTokens: 33, CacheReadTokens: 44, CacheCreationTokens: 55}
	if diff := cmp.Diff(want, a.Add(b)); diff != "" {
		t.Errorf("-want +got:\n%s", diff)
	}
}

// TestErrorKinds checks for each kind of error whether the request is retried and which models may follow.
func TestErrorKinds(t *testing.T) {
	for kind, tc := range map[model.ErrorKind]struct {
		retry bool
		next  model.NextModel
	}{
		model.RateLimited:     {true, model.AnyModel},
		model.Overloaded:      {true, model.AnyModel},
		model.Timeout:         {true, model.AnyModel},
		model.Network:         {true, model.AnyModel},
		model.Malformed:       {true, model.AnyModel},
		model.Auth:            {false, model.AnyModel},
		model.QuotaExceeded:   {false, model.AnyModel},
		model.InvalidRequest:  {false, model.AnyModel},
		model.OverBudget:      {false, model.AnyModel},
		model.Unusable:        {false, model.AnyModel},
		model.ContextLength:   {false, model.LargerModel},
		model.ContentFiltered: {false, model.NoModel},
		model.ReplyTooLong:    {false, model.NoModel},
		model.Cancelled:       {false, model.NoModel},
	} {
		if kind.Retryable() != tc.retry || kind.Next() != tc.next {
			t.Errorf("%s: retryable %t, next %d; want %t, %d", kind, kind.Retryable(), kind.Next(), tc.retry, tc.next)
		}
	}
}

func TestUnknownKindIsFinal(t *testing.T) {
	if k := model.ErrorKind("Unheard"); k.Retryable() || k.Next() != model.NoModel {
		t.Error("an unknown kind is retryable or has a next model, want neither")
	}
}
