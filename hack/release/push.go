package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io"

	"github.com/google/go-containerregistry/pkg/authn"
	"github.com/google/go-containerregistry/pkg/name"
	"github.com/google/go-containerregistry/pkg/v1/remote"
)

// noHost is the default host of a reference without a host. Otherwise the default would be a public registry, to which
// nothing must be pushed by mistake.
const noHost = "no-host.invalid"

// runPush pushes an OCI archive: the image under a tag, and its SBOMs and its provenance as referrers. It uses the
// credentials of docker login, podman login or a credential helper.
func runPush(ctx context.Context, args []string, out io.Writer) error {
	f := flag.NewFlagSet("push", flag.ContinueOnError)
	archive := f.String("archive", "", "path of the OCI archive that make image has written")
	reference := f.String("reference", "", "name and tag to push it to, with the host of the registry; default: the name in the archive")
	insecure := f.Bool("insecure", false, "use HTTP where the registry has no TLS")
	if err := f.Parse(args); err != nil {
		return err
	}
	a, err := openArchive(*archive)
	if err != nil {
		return err
	}
	defer a.Close() //nolint:errcheck // because it is a temporary directory
	if *reference == "" {
		*reference = a.name
	}
	options := []name.Option{name.WithDefaultRegistry(noHost)}
	if *insecure {
		options = append(options, name.Insecure)
	}
	tag, err := name.NewTag(*reference, options...)
	if err != nil {
		return fmt.Errorf("-reference must be the name and the tag of an image: %w", err)
	}
	if tag.RegistryStr() == noHost {
		return fmt.Errorf("-reference must begin with the host of a registry, for example docker.io/, not %q", *reference)
	}
	return a.push(ctx, tag, out)
}

func (a *archived) push(ctx context.Context, tag name.Tag, out io.Writer) error {
	pusher, err := remote.NewPusher(remote.WithContext(ctx), remote.WithAuthFromKeychain(authn.DefaultKeychain))
	if err != nil {
		return err
	}
	// Push the artifacts after the image and before the tag, so that a reader of the tag finds all of them.
	if err := pusher.Push(ctx, tag.Context().Digest(a.digest.String()), a.index); err != nil {
		return fmt.Errorf("failed to push the image to %s: %w", tag.Context(), err)
	}
	for _, img := range a.attached {
		digest, err := img.Digest()
		if err != nil {
			return err
		}
		if err := pusher.Push(ctx, tag.Context().Digest(digest.String()), img); err != nil {
			return fmt.Errorf("failed to push the referrers of the image to %s: %w", tag.Context(), err)
		}
	}
	if err := pusher.Push(ctx, tag, a.index); err != nil {
		return fmt.Errorf("failed to push %s: %w", tag, err)
	}
	if _, err := fmt.Fprintf(out, "%s@%s\n", tag, a.digest); err != nil {
		return errors.Join(errors.New("the image is pushed"), err)
	}
	return nil
}
