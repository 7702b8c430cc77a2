package openai_test

import (
	"testing"

	"github.com/capstan-dev/capstan/internal/model/modeltest"
	"github.com/capstan-dev/capstan/internal/runtime/model"
)

// TestCorpus replays the answers of all services that speak the protocol. Their forms do not depend on the dialect.
func TestCorpus(t *testing.T) {
	folders, err := modeltest.Folders()
	if err != nil {
		t.Fatal(err)
	}
	for _, folder := range folders {
		if folder != "anthropic" { // which has a protocol of its own
			modeltest.Run(t, folder, func(t *testing.T, url string) model.Provider { return provider(t, url) })
		}
	}
}
