package openai

import (
	"github.com/capstan-dev/capstan/internal/model/endpoint"
	"github.com/capstan-dev/capstan/internal/runtime/model"
)

// partText is the type of a part with a text.
const partText = "text"

// part is a part of a message with images or files.
type part struct {
	Type     string    `json:"type"`
	Text     string    `json:"text,omitempty"`
	ImageURL *imageURL `json:"image_url,omitempty"`
	File     *filePart `json:"file,omitempty"`
}

// imageURL is an image as a data URL. Most self-hosted servers fetch no other URLs, and the image behind another URL
// could change before a later request.
type imageURL struct {
	URL string `json:"url"`
}

// filePart is a PDF as a data URL: developers.openai.com/api/docs/guides/file-inputs, Chat Completions.
type filePart struct {
	Filename string `json:"filename"`
	FileData string `json:"file_data"`
}

// contentOf returns the content of a message. The text attachments are a part of the message's text, because a server
// may refuse parts if its model reads no images. Images and files come before the text.
func contentOf(m *model.Message, c *endpoint.Contents) any {
	media := endpoint.NonTextAttachments(m)
	parts := make([]part, 0, len(media)+1)
	for _, a := range media {
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
	if len(media) == 0 {
		return &text
	}
	return append(parts, part{Type: partText, Text: text})
}

// joinContents returns the content of two messages as the content of one message. Texts that become neighbours become
// one text with a blank line between them, because chat templates put nothing between parts.
func joinContents(first, second any) any {
	parts, next := partsOf(first), partsOf(second)
	if last := &parts[len(parts)-1]; last.Type == partText && next[0].Type == partText {
		last.Text += "\n\n" + next[0].Text
		next = next[1:]
	}
	parts = append(parts, next...)
	if len(parts) == 1 {
		return &parts[0].Text
	}
	return parts
}

// partsOf returns a content of contentOf as a list of parts, which is never empty.
func partsOf(content any) []part {
	if text, ok := content.(*string); ok {
		return []part{{Type: partText, Text: *text}}
	}
	parts, _ := content.([]part)
	return parts
}
