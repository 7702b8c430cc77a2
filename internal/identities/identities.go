// Package identities lists the identities of objects. A list of metadata would hold up to 1.5 MiB for each object,
// because users choose labels, annotations and owners, so one namespace could fill the memory with a single page.
package identities

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"strings"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes/scheme"
	"k8s.io/client-go/rest"
	"sigs.k8s.io/controller-runtime/pkg/client"
)

// accept requests only the metadata of objects. The API server has sent it as JSON since Kubernetes 1.15.
const accept = "application/json;as=PartialObjectMetadataList;g=meta.k8s.io;v=v1"

// Reader reads from the API server. Its lists of metadata hold only the namespace, name and UID of each object, and
// need the memory of one object at a time. All other reads are those of the embedded Reader.
type Reader struct {
	client.Reader
	// REST sends requests to the API server.
	REST rest.Interface
	// Mapper finds the resource of a kind.
	Mapper meta.RESTMapper
}

// List lists objects. It returns the errors of the API server, and an error if the response is not a list.
func (r Reader) List(ctx context.Context, list client.ObjectList, opts ...client.ListOption) error {
	page, ok := list.(*metav1.PartialObjectMetadataList)
	if !ok {
		return r.Reader.List(ctx, list, opts...)
	}
	kind := page.GroupVersionKind()
	mapping, err := r.Mapper.RESTMapping(schema.GroupKind{
		Group: kind.Group, Kind: strings.TrimSuffix(kind.Kind, "List"),
	}, kind.Version)
	if err != nil {
		return err
	}
	path := []string{"/apis", kind.Group, kind.Version}
	options := (&client.ListOptions{}).ApplyOptions(opts)
	if options.Namespace != "" {
		path = append(path, "namespaces", options.Namespace)
	}
	body, err := r.REST.Get().AbsPath(append(path, mapping.Resource.Resource)...).SetHeader("Accept", accept).
		SpecificallyVersionedParams(options.AsListOptions(), scheme.ParameterCodec, schema.GroupVersion{Version: "v1"}).Stream(ctx)
	if err != nil {
		return err
	}
	defer body.Close() //nolint:errcheck // because the list is complete, or has failed
	page.ListMeta, page.Items = metav1.ListMeta{}, nil
	if err := decode(body, page); err != nil {
		return fmt.Errorf("failed to read the list of %s: %w", mapping.Resource.Resource, err)
	}
	return nil
}

// RenewedToken returns the token in the error of a list whose token has expired, or an empty string if there is none. A
// list takes longer than the 5 to 10 minutes for which a token is valid if there are many objects, or if the API server
// is busy. With the renewed token, the list continues with the same object in the newest state of the cluster. So it
// finds each object that has existed since the list began and still exists. It may miss newer objects.
func RenewedToken(err error) string {
	var status apierrors.APIStatus
	if !apierrors.IsResourceExpired(err) || !errors.As(err, &status) {
		return ""
	}
	return status.Status().Continue
}

// identity is the part of an object that is kept.
type identity struct {
	Metadata struct {
		Namespace string    `json:"namespace"`
		Name      string    `json:"name"`
		UID       types.UID `json:"uid"`
	} `json:"metadata"`
}

// decode reads a list as JSON into page, one object at a time.
func decode(body io.Reader, page *metav1.PartialObjectMetadataList) error {
	d := json.NewDecoder(body)
	if err := expect(d, json.Delim('{')); err != nil {
		return err
	}
	for d.More() {
		field, err := d.Token()
		if err != nil {
			return err
		}
		switch field {
		case "metadata":
			err = d.Decode(&page.ListMeta)
		case "items":
			err = decodeItems(d, page)
		default:
			err = d.Decode(new(json.RawMessage))
		}
		if err != nil {
			return err
		}
	}
	return expect(d, json.Delim('}'))
}

func decodeItems(d *json.Decoder, page *metav1.PartialObjectMetadataList) error {
	begin, err := d.Token()
	if err != nil || begin == nil { // null is an empty list
		return err
	}
	if begin != json.Delim('[') {
		return fmt.Errorf("items is %v, not an array", begin)
	}
	for d.More() {
		var item identity
		if err := d.Decode(&item); err != nil {
			return err
		}
		if item.Metadata.UID == "" {
			return errors.New("an object has no UID")
		}
		page.Items = append(page.Items, metav1.PartialObjectMetadata{ObjectMeta: metav1.ObjectMeta{
			Namespace: item.Metadata.Namespace, Name: item.Metadata.Name, UID: item.Metadata.UID,
		}})
	}
	return expect(d, json.Delim(']'))
}

func expect(d *json.Decoder, want json.Delim) error {
	got, err := d.Token()
	if err != nil {
		return err
	}
	if got != want {
		return fmt.Errorf("the response has %v where a list has %v", got, want)
	}
	return nil
}
