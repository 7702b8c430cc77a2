package bundle

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
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
	"github.com/capstan-dev/capstan/internal/translate"
)

// filesOfAttach is the name of the ConfigMap that has the files of --attach. It exists only in the Bundle, and hides a
// ConfigMap of this name in the manifests.
const filesOfAttach = "attached-files"

// maxAttachments is the maximum number of attachments of a Turn.
const maxAttachments = 8

// textTypes are the media types of texts by the ends of their names. Other texts are text/plain.
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
		if err := p.attachFile(spec); err != nil {
			return exit.WithCode(exit.Usage, fmt.Errorf("--attach: %w", err))
		}
	}
	if n := len(p.Turn.Spec.Attachments); n > maxAttachments {
		return exit.WithCode(exit.Usage, fmt.Errorf("--attach: the Turn has %d attachments and may have at most %d", n, maxAttachments))
	}
	return nil
}

// attachFile adds the file of one --attach, NAME=FILE.
func (p *Bundle) attachFile(spec string) error {
	name, path, ok := strings.Cut(spec, "=")
	switch {
	case !ok || path == "":
		return fmt.Errorf("%q must be NAME=FILE", spec)
	case len(validation.IsDNS1123Label(name)) > 0:
		return fmt.Errorf("the name %q must be a lower-case DNS label: letters, digits and '-'", name)
	}
	if _, twice := p.files[name]; twice {
		return fmt.Errorf("the name %q is given twice", name)
	}
	data, err := readFile(path)
	if err != nil {
		return err
	}
	mediaType := attachment.Sniff(data)
	if own := textTypes[strings.ToLower(filepath.Ext(path))]; own != "" && mediaType == "text/plain" {
		mediaType = own
	}
	if mediaType == "" {
		return fmt.Errorf("%s is of no supported type: it must be a PNG, JPEG, WebP or GIF, a PDF, or a text in UTF-8", path)
	}
	if most := attachment.MaxOf(mediaType); len(data) > most {
		return fmt.Errorf("%s has more than %d bytes, the maximum for %s: use a smaller file", path, most, mediaType)
	}
	p.files[name] = string(data)
	attached := v1alpha1.Attachment{
		Name: name, MediaType: mediaType, ConfigMapKeyRef: &v1alpha1.ConfigMapKeyReference{Name: filesOfAttach, Key: name},
	}
	all := &p.Turn.Spec.Attachments
	if at := slices.IndexFunc(*all, func(a v1alpha1.Attachment) bool { return a.Name == name }); at >= 0 {
		(*all)[at] = attached
	} else {
		*all = append(*all, attached)
	}
	return nil
}

// readFile reads a file up to the maximum of an attachment and one byte.
func readFile(path string) (data []byte, err error) {
	f, err := os.Open(path) //nolint:gosec // because the file is the one that the user names
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, f.Close()) }()
	return io.ReadAll(io.LimitReader(f, attachment.MaxBytes+1))
}

// Attachments returns the function that reads the attachments of the Turn: see translate.Attach. artifacts reads the
// attachments that are artifacts of other Turns. redaction redacts the texts.
func (p *Bundle) Attachments(
	artifacts translate.Artifacts, redaction *redact.Turn,
) (read func(context.Context) ([]attachment.Content, error), most int64) {
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

// contentsOfConfigMaps is configMaps for attachments, which may be binary, or files of --attach.
func (p *Bundle) contentsOfConfigMaps(_ context.Context, ref v1alpha1.ConfigMapKeyReference) (string, error) {
	key := configMapKey{p.Turn.Namespace, ref}
	p.read[key] = nil
	if content, ok := p.files[ref.Key]; ok && ref.Name == filesOfAttach {
		p.read[key] = new(attachment.Digest([]byte(content)))
		return content, nil
	}
	object, ok := p.Set.ConfigMap(p.Turn.Namespace, ref.Name)
	if !ok {
		return "", &translate.MissingError{Reason: p.absent(kindConfigMap, ref.Name)}
	}
	value, err := translate.ConfigMapValue(ref, translate.ConfigMapContents(object.Data, object.BinaryData))
	if err != nil {
		return "", err
	}
	p.read[key] = new(attachment.Digest([]byte(value)))
	return value, nil
}
