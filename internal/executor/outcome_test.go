package executor

import (
	"context"
	"errors"
	"fmt"
	"testing"

	"github.com/capstan-dev/capstan/internal/runtime/journal"
	"github.com/capstan-dev/capstan/internal/runtime/loop"
	"github.com/capstan-dev/capstan/internal/runtime/turn"
)

func TestOutcomeOf(t *testing.T) {
	for name, tc := range map[string]struct {
		result         *turn.Result
		err            error
		suspends, full bool
		want           outcome
	}{
		"result":                                 {result: &turn.Result{}, want: ended},
		"result of a suspended Turn":             {result: &turn.Result{}, suspends: true, want: ended},
		"lost journal":                           {err: &cutOffError{}, want: cutOff},
		"lost journal of a suspended Turn":       {err: &cutOffError{}, suspends: true, full: true, want: cutOff},
		"bound elsewhere":                        {err: errSuperseded, want: superseded},
		"bound elsewhere, suspended":             {err: errSuperseded, suspends: true, want: superseded},
		"waits for approval":                     {err: &loop.Parked{}, want: parked},
		"waits for approval, without space":      {err: &loop.Parked{}, full: true, want: parked},
		"waits for approval, suspended":          {err: &loop.Parked{}, suspends: true, want: suspended},
		"stopped at a safe point":                {err: loop.ErrInterrupted, want: handedBack},
		"stopped at a safe point, suspended":     {err: loop.ErrInterrupted, suspends: true, want: suspended},
		"stopped at a safe point, without space": {err: loop.ErrInterrupted, full: true, want: outOfSpace},
		"stopped, suspended and without space":   {err: loop.ErrInterrupted, suspends: true, full: true, want: suspended},
		"not ready":                              {err: &notReadyError{}, want: notReady},
		"not ready, suspended":                   {err: &notReadyError{}, suspends: true, want: notReady},
		"no input":                               {err: &handBackError{errors.New("no Agent")}, want: handedBack},
		"no input because an object is missing":  {err: &handBackError{&notReadyError{}}, want: notReady},
		"no input, and bound elsewhere":          {err: &handBackError{errSuperseded}, want: superseded},
		"another executor has the journal":       {err: journal.ErrFenced, want: handedBack},
		"journal of a newer version":             {err: journal.ErrNewer, want: handedBack},
		"store is not available":                 {err: errors.New("no connection"), want: tryAgain},
		"store is not available, suspended":      {err: errors.New("no connection"), suspends: true, full: true, want: tryAgain},
		"ConfigMap cannot be read":               {err: &retryError{errors.New("no connection")}, want: tryAgain},
		"memory is short":                        {err: &memoryShortageError{}, want: tryAgain},
		"abandoned":                              {err: context.Canceled, want: tryAgain},
	} {
		t.Run(name, func(t *testing.T) {
			if got := outcomeOf(tc.result, tc.err, tc.suspends, tc.full); got != tc.want {
				t.Errorf("outcome %d, want %d", got, tc.want)
			}
			if tc.err == nil {
				return
			}
			if got := outcomeOf(tc.result, fmt.Errorf("wrapped: %w", tc.err), tc.suspends, tc.full); got != tc.want {
				t.Errorf("outcome of a wrapped error: %d, want %d", got, tc.want)
			}
		})
	}
}
