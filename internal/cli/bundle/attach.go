package bundle

import (
	"context"
	"fmt"
	"path/filepath"
	"slices"
	"strings"

	"k8s.io/apimachinery/pkg/util/validation"

	"github.com/capstan-dev/capstan/api/v1alpha1"
	"github.com/capstan-dev/capstan/internal/cli/exit"
	"github.com/capstan-dev/capstan/internal/fetch"
	"github.com/capstan-dev/capstan/internal/netpolicy"
	"github.com/capstan-dev/capstan/internal/redact"
	"github.com/capstan-dev/capstan/internal/runtime/attachment"
	"github.com/capstan-dev/capstan/internal/smallfile"
	"github.com/capstan-dev/capstan/internal/translate"
)

// attachedFiles is the name of the ConfigMap that has the files of --attach. It exists only in the Bundle. For the keys
// that are names of attached files, it hides a ConfigMap of the same name in the manifests.
const attachedFiles = "attached-files"

// maxAttachments is the maximum number of attachments of a Turn.
const maxAttachments = 8

// textTypes are the media types of text files by their extension. Other text files are text/plain.
var textTypes = map[string]string{
	".csv": "text/csv", ".htm": "text/html", ".html": "text/html", ".json": "application/json", ".md": "text/markdown",
	".xml": "text/xml", ".yaml": "text/yaml", ".yml": "text/yaml",
}

// AttachFiles adds the files of --attach to the attachments of the Turn. A file replaces an attachment of the same
// name.
func (s *Source) AttachFiles(p *Bundle) error {
	if len(s.Attach) == 0 {
		return nil
	}
	p.Turn, p.files = p.Turn.DeepCopy(), map[string]string{}
	for _, spec := range s.Attach {
		if err := s.attachFile(p, spec); err != nil {
			return exit.WithCode(exit.Usage, fmt.Errorf("--attach: %w", err))
		}
	}
	if n := len(p.Turn.Spec.Attachments); n > maxAttachments {
		return exit.WithCode(exit.Usage, fmt.Errorf("--attach: the Turn has %d attachments and may have at most %d", n, maxAttachments))
	}
	return nil
}

// attachFile adds the file of one --attach, NAME=FILE.
func (s *Source) attachFile(p *Bundle, spec string) error {
	name, path, ok := strings.Cut(spec, "=")
	switch {
	case !ok || path == "":
		return fmt.Errorf("%q must be NAME=FILE", spec)
	case len(validation.IsDNS1123Label(name)) > 0:
		return fmt.Errorf("the name %q must be a lower-case DNS label: letters, digits and '-'", name)
	}
	if _, exists := p.files[name]; exists {
		return fmt.Errorf("the name %q is given twice", name)
	}
	data, known := s.contents[path]
	if !known {
		var err error
		if data, err = smallfile.Read(path, attachment.MaxBytes); err != nil {
			return err
		}
		if s.contents == nil {
			s.contents = map[string][]byte{}
		}
		s.contents[path] = data
	}
	mediaType := attachment.Sniff(data)
	if exact := textTypes[strings.ToLower(filepath.Ext(path))]; exact != "" && mediaType == "text/plain" {
		mediaType = exact
	}
	if mediaType == "" {
		return fmt.Errorf("the type of %s is not supported: it must be a PNG, JPEG, WebP or GIF, a PDF, or a text in UTF-8", path)
	}
	if limit := attachment.MaxOf(mediaType); len(data) > limit {
		return fmt.Errorf("%s has more than %d bytes, the maximum for %s: use a smaller file", path, limit, mediaType)
	}
	if _, err := attachment.New(path, name, mediaType, data); err != nil { // later, the error would not name the file
		return err
	}
	p.files[name] = string(data)
	attached := v1alpha1.Attachment{
		Name: name, MediaType: mediaType, ConfigMapKeyRef: &v1alpha1.ConfigMapKeyReference{Name: attachedFiles, Key: name},
	}
	all := &p.Turn.Spec.Attachments
	if i := slices.IndexFunc(*all, func(a v1alpha1.Attachment) bool { return a.Name == name }); i >= 0 {
		(*all)[i] = attached
	} else {
		*all = append(*all, attached)
	}
	return nil
}

// Attachments returns the function that reads the attachments of the Turn, and the maximum size of their contents
// together, in bytes: see translate.Attach. artifacts reads the attachments that are artifacts of other Turns.
// redaction redacts the texts.
func (p *Bundle) Attachments(
	artifacts translate.Artifacts, redaction *redact.TurnRedactor,
) (read func(context.Context) ([]attachment.Content, error), maxTotal int64) {
	return translate.Attach(p.Turn, translate.AttachmentSources{
		ConfigMaps: p.contentsOfConfigMaps, Fetch: (&fetch.Fetcher{Policy: netpolicy.NewLocalPolicy()}).Fetch, Artifacts: artifacts,
		Redaction: redaction,
	})
}

// CheckAttachments returns an error if no model of the Agent accepts the attachments of the Turn.
func (p *Bundle) CheckAttachments() error {
	err := translate.CheckAttachments(p.Turn, p.Agent, func(ref v1alpha1.SharedReference) (*v1alpha1.ModelProvider, error) {
		object, err := p.provider(ref)
		if err != nil {
			return nil, nil //nolint:nilerr,nilnil // because Chain reports it
		}
		return object, nil
	})
	if err != nil {
		return exit.WithCode(exit.Failed, p.Located(err.Error()))
	}
	return nil
}

// contentsOfConfigMaps is like configMaps, but for attachments: a value may be binary, or a file of --attach.
func (p *Bundle) contentsOfConfigMaps(_ context.Context, ref v1alpha1.ConfigMapKeyReference) (string, error) {
	key := configMapKey{p.Turn.Namespace, ref}
	p.read[key] = nil
	if content, ok := p.files[ref.Key]; ok && ref.Name == attachedFiles {
		p.read[key] = new(attachment.Digest([]byte(content)))
		return content, nil
	}
	object, ok := p.Set.ConfigMap(p.Turn.Namespace, ref.Name)
	if !ok {
		return "", &translate.MissingError{Reason: p.notFound(kindConfigMap, ref.Name)}
	}
	value, err := translate.ConfigMapValue(ref, translate.ConfigMapContents(object.Data, object.BinaryData))
	if err != nil {
		return "", err
	}
	p.read[key] = new(attachment.Digest([]byte(value)))
	return value, nil
}
