package model

import (
	"slices"
	"strings"
)

// Attachment is an image or a file that belongs to a message of the user. The message has only this reference. The
// journal of the Turn has the content, as an artifact.
type Attachment struct {
	// Name is the name of the attachment, unique within its Turn.
	Name string `json:"name"`
	// MediaType is the media type of the content, such as image/png. KindOf supports it.
	MediaType string `json:"mediaType"`
	// SHA256 is the digest of the content, in hexadecimal. Bytes is its size.
	SHA256 string `json:"sha256"`
	Bytes  int64  `json:"bytes"`
	// Tokens is the estimated number of tokens that the content takes in a prompt.
	Tokens int64 `json:"tokens"`
}

// AttachmentKind says how an attachment is sent to a model.
type AttachmentKind string

// The kinds of attachments.
const (
	// AttachedImage is an image, for a model that accepts images.
	AttachedImage AttachmentKind = "image"
	// AttachedFile is a PDF, for a model that accepts files.
	AttachedFile AttachmentKind = "file"
	// AttachedText is a text, which any model accepts.
	AttachedText AttachmentKind = "text"
)

// The media types of images and files.
const (
	MediaPNG  = "image/png"
	MediaJPEG = "image/jpeg"
	MediaGIF  = "image/gif"
	MediaWebP = "image/webp"
	MediaPDF  = "application/pdf"
)

// mediaJSON is the only media type of texts that does not begin with text/.
const mediaJSON = "application/json"

// KindOf returns the kind of an attachment with this media type, or an empty text if there is none.
func KindOf(mediaType string) AttachmentKind {
	switch mediaType {
	case MediaPNG, MediaJPEG, MediaGIF, MediaWebP:
		return AttachedImage
	case MediaPDF:
		return AttachedFile
	case mediaJSON:
		return AttachedText
	}
	if strings.HasPrefix(mediaType, "text/") {
		return AttachedText
	}
	return ""
}

// Accepts says which attachments a model accepts in addition to texts. The zero value accepts only texts.
type Accepts struct {
	// Images are the media types of images that the model accepts.
	Images []string
	// Files is true if the model accepts PDFs.
	Files bool
}

// AnyAttachment accepts all attachments.
func AnyAttachment() Accepts {
	return Accepts{Images: []string{MediaPNG, MediaJPEG, MediaWebP, MediaGIF}, Files: true}
}

// Refused returns the first media type that the model does not accept, or an empty text if it accepts all.
func (a *Accepts) Refused(mediaTypes []string) string {
	for _, t := range mediaTypes {
		switch KindOf(t) {
		case AttachedText:
			continue
		case AttachedImage:
			if slices.Contains(a.Images, t) {
				continue
			}
		case AttachedFile:
			if a.Files {
				continue
			}
		}
		return t
	}
	return ""
}
