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

// Contents puts the data of attachments into the body of a request. The body is first made with a mark, a random
// placeholder, for each attachment. Then insert replaces one mark after another by the data of its attachment, so that
// besides the body, the data of only one attachment is in memory at a time.
type Contents struct {
	marks []mark
	// request reads the data of the attachments.
	request *model.Request
}

// mark is the placeholder for the data of an attachment, within a JSON string.
type mark struct {
	text       string
	attachment *model.Attachment
}

// Base64 returns the mark of an image or a file. insert replaces the mark by the data in base64.
func (c *Contents) Base64(a *model.Attachment) string { return c.mark(a) }

// Text returns the text of a message: a mark for each of its text attachments, followed by its own text. insert
// replaces each mark by the text of the attachment in a fence.
func (c *Contents) Text(m *model.Message) string {
	var text strings.Builder
	for i := range m.Attachments {
		if a := &m.Attachments[i]; model.KindOf(a.MediaType) == model.AttachedText {
			text.WriteString(c.mark(a) + "\n\n")
		}
	}
	return text.String() + m.Content
}

// NonTextAttachments returns the attachments of a message that are not texts.
func NonTextAttachments(m *model.Message) []*model.Attachment {
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

// insert replaces the marks in a body, in the order in which they were made. Without marks, it returns body itself.
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
			return nil, Unsendable("the placeholder for attachment %q is missing from the request body: this is a bug in Capstan",
				m.attachment.Name)
		}
		data, err := c.request.Content(m.attachment)
		if err != nil {
			return nil, err
		}
		out, body = m.append(ctx, append(out, before...), data), after
	}
	return append(out, body...), nil
}

// append appends the data of the attachment to out, encoded as a part of a JSON string.
func (m *mark) append(ctx context.Context, out, data []byte) []byte {
	defer fairgate.AcquireProcessor(ctx, len(data))()
	if model.KindOf(m.attachment.MediaType) != model.AttachedText {
		return base64.StdEncoding.AppendEncode(out, data)
	}
	text, _ := json.Marshal(attachment.Text(m.attachment, data)) // a text always marshals
	return append(out, text[1:len(text)-1]...)
}
