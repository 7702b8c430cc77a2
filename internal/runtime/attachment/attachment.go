// Package attachment checks the contents of attachments, and estimates how many tokens they take.
package attachment

import (
	"bytes"
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"image"
	_ "image/gif"  // for image.DecodeConfig
	_ "image/jpeg" // likewise
	_ "image/png"  // likewise
	"regexp"
	"strings"
	"unicode/utf8"

	"github.com/capstan-dev/capstan/internal/runtime/invalid"
	"github.com/capstan-dev/capstan/internal/runtime/model"
	"github.com/capstan-dev/capstan/internal/runtime/untrusted"
)

// The bounds of attachments.
const (
	// MaxBytes is the maximum size of an image or a file, in bytes. In base64, this is 5 MiB, the lowest maximum of the
	// public services.
	MaxBytes = 3_932_160
	// MaxTextBytes is the maximum size of a text, in bytes.
	MaxTextBytes = 256 << 10
	// MaxTotalBytes is the maximum size of all attachments of a Turn together, in bytes.
	MaxTotalBytes = 8 << 20
	// maxEdge is the maximum width and height of an image, in pixels. Public services refuse larger images.
	maxEdge = 8_000
)

// Content is an attachment with its content.
type Content struct {
	model.Attachment
	Data []byte
}

// New checks a content and returns its attachment. field names the source of the content. The error is an
// *invalid.Error, for example if the content is too large or does not have its media type.
func New(field, name, mediaType string, data []byte) (Content, error) {
	kind := model.KindOf(mediaType)
	most := MaxOf(mediaType)
	switch {
	case kind == "":
		return Content{}, invalid.Field(field, "the media type %q is not supported", mediaType)
	case len(data) == 0:
		return Content{}, invalid.Field(field, "the content must not be empty")
	case len(data) > most:
		return Content{}, TooLarge(field, most)
	}
	out := Content{Data: data, Attachment: model.Attachment{
		Name: name, MediaType: mediaType, SHA256: Digest(data), Bytes: int64(len(data)),
	}}
	var problem string
	switch kind {
	case model.AttachedImage:
		out.Tokens, problem = imageTokens(mediaType, data)
	case model.AttachedFile:
		out.Tokens, problem = pdfTokens(data)
	case model.AttachedText:
		out.Tokens, problem = textTokens(data)
	}
	if problem != "" {
		return Content{}, invalid.Field(field, "%s", problem)
	}
	return out, nil
}

// Digest returns the SHA-256 of a content, in hexadecimal.
func Digest(data []byte) string {
	sum := sha256.Sum256(data)
	return hex.EncodeToString(sum[:])
}

// MaxOf returns the maximum size of an attachment with a media type, in bytes.
func MaxOf(mediaType string) int {
	if model.KindOf(mediaType) == model.AttachedText {
		return MaxTextBytes
	}
	return MaxBytes
}

// TooLarge returns the error for a content that is larger than its maximum.
func TooLarge(field string, most int) error {
	return invalid.Field(field, "the content may have at most %d bytes: use a smaller one", most)
}

// CheckTotal returns an *invalid.Error if all attachments of a Turn together are too large.
func CheckTotal(field string, all []Content) error {
	total := 0
	for _, c := range all {
		total += len(c.Data)
	}
	if total > MaxTotalBytes {
		return invalid.Field(field, "all attachments together have %d bytes and may have at most %d: use fewer or smaller ones",
			total, MaxTotalBytes)
	}
	return nil
}

// Sniff returns the media type that the content itself shows, or text/plain for other valid UTF-8 without control
// characters, or an empty text.
func Sniff(data []byte) string {
	for _, t := range []string{model.MediaPNG, model.MediaJPEG, model.MediaGIF, model.MediaWebP, model.MediaPDF} {
		if hasSignature(data, t) {
			return t
		}
	}
	if isText(data) {
		return "text/plain"
	}
	return ""
}

// hasSignature reports whether a content begins as its media type demands.
func hasSignature(data []byte, mediaType string) bool {
	switch mediaType {
	case model.MediaPNG:
		return bytes.HasPrefix(data, []byte("\x89PNG\r\n\x1a\n"))
	case model.MediaJPEG:
		return bytes.HasPrefix(data, []byte("\xff\xd8\xff"))
	case model.MediaGIF:
		return bytes.HasPrefix(data, []byte("GIF87a")) || bytes.HasPrefix(data, []byte("GIF89a"))
	case model.MediaWebP:
		return len(data) >= 12 && string(data[:4]) == "RIFF" && string(data[8:12]) == "WEBP"
	case model.MediaPDF:
		return bytes.HasPrefix(data, []byte("%PDF-"))
	}
	return false
}

// mismatch returns the message that a content does not have its media type.
func mismatch(mediaType string, data []byte) string {
	actual := "its bytes are of another type"
	if t := Sniff(data); t != "" {
		actual = "its bytes are " + t
	}
	return fmt.Sprintf("the content is not %s, but %s: correct mediaType or the content", mediaType, actual)
}

// isText reports whether a content is UTF-8 without control characters, except white space.
func isText(data []byte) bool { return utf8.Valid(data) && bytes.IndexFunc(data, isControl) < 0 }

func isControl(r rune) bool { return r < ' ' && !strings.ContainsRune("\t\n\v\f\r", r) }

// TextOf converts content from outside, such as the output of a tool, to a text: control characters and bytes that are
// not UTF-8 become U+FFFD.
func TextOf(data []byte) []byte {
	if isText(data) {
		return data
	}
	return bytes.Map(func(r rune) rune {
		if isControl(r) {
			return utf8.RuneError
		}
		return r
	}, data)
}

// The estimate of an image: one token for each 750 pixels, as Anthropic documents it, within the range that other
// services charge.
const (
	pixelsPerToken = 750
	minImageTokens = 85
	maxImageTokens = 1_600
)

// imageTokens checks an image and estimates its tokens.
func imageTokens(mediaType string, data []byte) (tokens int64, problem string) {
	if !hasSignature(data, mediaType) {
		return 0, mismatch(mediaType, data)
	}
	width, height := dimensions(mediaType, data)
	if width < 1 || height < 1 {
		return 0, fmt.Sprintf("the content is a damaged %s: replace it", mediaType)
	}
	if width > maxEdge || height > maxEdge {
		return 0, fmt.Sprintf("the image has %d x %d pixels and may have at most %d x %d: use a smaller one",
			width, height, maxEdge, maxEdge)
	}
	pixels := int64(width) * int64(height)
	return min(max((pixels+pixelsPerToken-1)/pixelsPerToken, minImageTokens), maxImageTokens), ""
}

// dimensions returns the width and the height of an image in pixels, or 0 if they cannot be read. It reads the head of
// the image only.
func dimensions(mediaType string, data []byte) (width, height int) {
	if mediaType == model.MediaWebP {
		return webPDimensions(data)
	}
	config, _, err := image.DecodeConfig(bytes.NewReader(data))
	if err != nil {
		return 0, 0
	}
	return config.Width, config.Height
}

// webPDimensions is like dimensions, for WebP (RFC 9649, section 2), which the standard library does not support.
func webPDimensions(data []byte) (width, height int) {
	const head = 30
	if len(data) < head {
		return 0, 0
	}
	bits := func(at, n int) int { // of a little-endian number
		value := 0
		for i := range n {
			value |= int(data[at+i]) << (8 * i)
		}
		return value
	}
	switch string(data[12:16]) {
	case "VP8 ": // lossy
		return bits(26, 2) & 0x3fff, bits(28, 2) & 0x3fff
	case "VP8L": // lossless
		return bits(21, 4)&0x3fff + 1, bits(21, 4)>>14&0x3fff + 1
	case "VP8X": // extended
		return bits(24, 3) + 1, bits(27, 3) + 1
	}
	return 0, 0
}

// textBytesPerToken is the estimated number of bytes for each token of a text.
const textBytesPerToken = 3

// The estimate of a PDF.
const (
	// pageTokens is the estimate of a page: its text and its image.
	pageTokens = 2_000
	// maxPages is the maximum number of pages in an estimate. It is the lowest maximum of the public services.
	maxPages = 100
	// bytesPerToken is the number of bytes for each token of a PDF whose pages cannot be counted.
	bytesPerToken = 20
)

// page finds the pages of a PDF. Pages in compressed parts are not found.
var page = regexp.MustCompile(`/Type\s*/Page\b`)

// pdfTokens checks a PDF and estimates its tokens.
func pdfTokens(data []byte) (tokens int64, problem string) {
	if !hasSignature(data, model.MediaPDF) {
		return 0, mismatch(model.MediaPDF, data)
	}
	if pages := len(page.FindAllIndex(data, maxPages)); pages > 0 {
		return int64(pages) * pageTokens, ""
	}
	return min(max(int64(len(data)/bytesPerToken), pageTokens), maxPages*pageTokens), ""
}

// textTokens checks a text and estimates its tokens.
func textTokens(data []byte) (tokens int64, problem string) {
	if !isText(data) {
		return 0, "the content is not a text in UTF-8: correct mediaType or the content"
	}
	return int64(len(data)/textBytesPerToken) + 1, ""
}

// Text returns a text attachment as a part of a message: fenced, under a label with its name.
func Text(a *model.Attachment, data []byte) string {
	return untrusted.Untrusted(fmt.Sprintf("## Attachment %q (%s)\nA file that the user attached to the message.",
		untrusted.Line(a.Name), untrusted.Line(a.MediaType)), untrusted.Block(string(data)))
}

// Note returns the line that replaces attachments in the history of later Turns.
func Note(all []model.Attachment) string {
	if len(all) == 0 {
		return ""
	}
	parts := make([]string, 0, len(all))
	for _, a := range all {
		parts = append(parts, fmt.Sprintf("%q (%s, %d bytes)", a.Name, a.MediaType, a.Bytes))
	}
	return "\n\n[Attached to this message, and not shown again: " + strings.Join(parts, ", ") + "]"
}
