package openai

import (
	"github.com/capstan-dev/capstan/internal/model/endpoint"
	"github.com/capstan-dev/capstan/internal/runtime/model"
)

// part is a part of a message with images or files.
type part struct {
	Type     string    `json:"type"`
	Text     string    `json:"text,omitempty"`
	ImageURL *imageURL `json:"image_url,omitempty"`
	File     *filePart `json:"file,omitempty"`
}

// imageURL is an image as a data URL. Most own servers fetch no other URLs, and a URL of another server could have
// another content in a later request.
type imageURL struct {
	URL string `json:"url"`
}

// filePart is a PDF as a data URL: developers.openai.com/api/docs/guides/file-inputs, Chat Completions.
type filePart struct {
	Filename string `json:"filename"`
	FileData string `json:"file_data"`
}

// contentOf returns the content of a message. Texts among its attachments are a part of its text, because servers of
// models without images may refuse parts. Images and files come before the text.
func contentOf(m *model.Message, c *endpoint.Contents) any {
	others := endpoint.Others(m)
	parts := make([]part, 0, len(others)+1)
	for _, a := range others {
		url := "data:" + a.MediaType + ";base64," + c.Base64(a)
		if model.KindOf(a.MediaType) == model.AttachedImage {
			parts = append(parts, part{Type: "image_url", ImageURL: &imageURL{url}})
		} else {
			parts = append(parts, part{Type: "file", File: &filePart{Filename: a.Name + ".pdf", FileData: url}})
		}
	}
	text := m.Content
	if len(m.Attachments) > 0 {
		text = c.Text(m)
	}
	if len(others) == 0 {
		return &text
	}
	return append(parts, part{Type: "text", Text: text})
}
