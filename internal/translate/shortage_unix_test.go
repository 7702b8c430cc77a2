//go:build unix

package translate_test

import (
	"errors"
	"testing"

	"github.com/capstan-dev/capstan/internal/fetch"
	"github.com/capstan-dev/capstan/internal/netpolicy"
	"github.com/capstan-dev/capstan/internal/netpolicy/shortagetest"
	"github.com/capstan-dev/capstan/internal/runtime/invalid"
	"github.com/capstan-dev/capstan/internal/translate"
)

// TestFetchWithoutFiles checks that the failure of a fetch is not about the Turn's URL while this process has no free
// file descriptor. An *invalid.Error would end the Turn.
func TestFetchWithoutFiles(t *testing.T) {
	turn := attached()
	turn.Spec.Attachments = turn.Spec.Attachments[1:]
	turn.Spec.Attachments[0].URL = "https://192.0.2.1/b.json"
	fetcher := fetch.Fetcher{Policy: netpolicy.NewLocalPolicy()}
	attach, _ := translate.Attach(turn, translate.AttachmentSources{Fetch: fetcher.Fetch})
	restore := shortagetest.NoFiles(t)
	_, err := attach(t.Context())
	restore()
	_, isShort := errors.AsType[*netpolicy.Shortage](err)
	if _, ends := errors.AsType[*invalid.Error](err); ends || !isShort {
		t.Errorf("error is %v, want a *Shortage that does not end the Turn", err)
	}
}
