package endpoint

import (
	"bytes"
	"context"
	"crypto/rand"
	"encoding/base64"
	"encoding/json"
	"strings"

	"github.com/capstan-dev/capstan/internal/fairgate"
	"github.com/capstan-dev/capstan/internal/runtime/attachment"
	"github.com/capstan-dev/capstan/internal/runtime/model"
)

// Contents puts the contents of attachments into the body of a request. Body gets marks, which are random texts, and
// each mark is replaced by its content afterwards. So each content is in memory only for a moment, besides the body.
type Contents struct {
	marks []mark
	// request reads the contents.
	request *model.Request
}

// mark stands for a content within a text in JSON.
type mark struct {
	text       string
	attachment *model.Attachment
}

// Base64 returns the mark of an image or a file, which becomes its content in base64.
func (c *Contents) Base64(a *model.Attachment) string { return c.mark(a) }

// Text returns the text of a message: its text attachments, each in a fence, and its own text.
func (c *Contents) Text(m *model.Message) string {
	var text strings.Builder
	for i := range m.Attachments {
		if a := &m.Attachments[i]; model.KindOf(a.MediaType) == model.AttachedText {
			text.WriteString(c.mark(a) + "\n\n")
		}
	}
	return text.String() + m.Content
}

// Others returns the attachments of a message that are not texts.
func Others(m *model.Message) []*model.Attachment {
	var all []*model.Attachment
	for i := range m.Attachments {
		if a := &m.Attachments[i]; model.KindOf(a.MediaType) != model.AttachedText {
			all = append(all, a)
		}
	}
	return all
}

func (c *Contents) mark(a *model.Attachment) string {
	m := mark{rand.Text(), a} // random, so that no other text of the request contains it
	c.marks = append(c.marks, m)
	return m.text
}

// insert replaces the marks in a body, in their order. It takes over the body.
func (c *Contents) insert(ctx context.Context, body []byte) ([]byte, error) {
	if len(c.marks) == 0 {
		return body, nil
	}
	size := len(body)
	for _, m := range c.marks {
		size += base64.StdEncoding.EncodedLen(int(m.attachment.Bytes))
	}
	out := make([]byte, 0, size)
	for _, m := range c.marks {
		before, after, ok := bytes.Cut(body, []byte(m.text))
		if !ok {
			return nil, Unsendable("attachment %q has no place in the request, which is a bug in Capstan", m.attachment.Name)
		}
		data, err := c.request.Content(m.attachment)
		if err != nil {
			return nil, err
		}
		out, body = m.append(ctx, append(out, before...), data), after
	}
	return append(out, body...), nil
}

// append appends a content as a part of a text in JSON.
func (m *mark) append(ctx context.Context, out, data []byte) []byte {
	defer fairgate.AcquireProcessor(ctx, len(data))()
	if model.KindOf(m.attachment.MediaType) != model.AttachedText {
		return base64.StdEncoding.AppendEncode(out, data)
	}
	text, _ := json.Marshal(attachment.Text(m.attachment, data)) // a text always marshals
	return append(out, text[1:len(text)-1]...)
}
