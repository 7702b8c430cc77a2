package anthropic

import (
	"encoding/json"
	"testing"

	"github.com/capstan-dev/capstan/internal/model/endpoint"
	"github.com/capstan-dev/capstan/internal/runtime/model"
)

// TestAttachmentBlocks checks the blocks of images and PDFs: platform.claude.com, vision and PDF support.
func TestAttachmentBlocks(t *testing.T) {
	c := new(endpoint.Contents)
	_, out := messagesOf([]model.Message{{Role: model.RoleUser, Content: "What?", Attachments: []model.Attachment{
		{Name: "plan", MediaType: model.MediaPNG}, {Name: "terms", MediaType: model.MediaPDF},
	}}}, c)
	for i := range out[0].Content {
		if s := out[0].Content[i].Source; s != nil {
			if s.Data == "" {
				t.Error("a block has no mark for its content")
			}
			s.Data = "..."
		}
	}
	got, err := json.Marshal(out)
	const want = `[{"role":"user","content":[` +
		`{"type":"image","source":{"type":"base64","media_type":"image/png","data":"..."}},` +
		`{"type":"document","source":{"type":"base64","media_type":"application/pdf","data":"..."},"title":"terms"},` +
		`{"type":"text","text":"What?"}]}]`
	if err != nil || string(got) != want {
		t.Errorf("blocks are %s (error %v), want %s", got, err, want)
	}
}
