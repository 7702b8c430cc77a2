// Package statuswriter writes the status of Turns with small requests and small responses. An ordinary client sends the
// whole object and receives it back, with its managed fields. But the API server uses only the status in a request to
// the status subresource, and the caller already has the status that would be in the response.
package statuswriter

import (
	"context"
	"encoding/json"
	"fmt"
	"net/http"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/runtime/serializer"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/rest"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/capstan-dev/capstan/api/v1alpha1"
)

// metadataOnly asks the API server to return only the metadata of the written object. An API server that does not
// support this returns the whole object, and its metadata is read just the same.
const metadataOnly = "application/json;as=PartialObjectMetadata;g=meta.k8s.io;v=v1,application/json"

// Client returns a client that behaves like c, except that an update of a Turn's status sends only the status and
// receives only the metadata. config and transport must be those of c.
func Client(c client.Client, config *rest.Config, transport *http.Client) (client.Client, error) {
	known := runtime.NewScheme()
	metav1.AddToGroupVersion(known, schema.GroupVersion{Version: "v1"}) // to decode the metav1.Status of an error
	config = rest.CopyConfig(config)
	config.APIPath, config.GroupVersion = "/apis", &v1alpha1.GroupVersion
	config.NegotiatedSerializer = serializer.NewCodecFactory(known).WithoutConversion()
	turns, err := rest.RESTClientForConfigAndClient(config, transport)
	if err != nil {
		return nil, fmt.Errorf("failed to create a client for the status of Turns: %w", err)
	}
	return &statusClient{Client: c, turns: turns}, nil
}

type statusClient struct {
	client.Client
	turns rest.Interface
}

// Status returns a client that writes a status.
func (l *statusClient) Status() client.SubResourceWriter {
	return &writer{SubResourceWriter: l.Client.Status(), turns: l.turns}
}

type writer struct {
	client.SubResourceWriter
	turns rest.Interface
}

// request is a Turn with only the fields that the API server uses.
type request struct {
	metav1.TypeMeta `json:",inline"`
	Metadata        identity            `json:"metadata"`
	Status          v1alpha1.TurnStatus `json:"status"`
}

// identity identifies the object to write, and the version that it must have. Without a resource version, the write
// never conflicts, as with any client.
type identity struct {
	Namespace       string    `json:"namespace"`
	Name            string    `json:"name"`
	UID             types.UID `json:"uid,omitempty"`
	ResourceVersion string    `json:"resourceVersion,omitempty"`
}

// Update writes the status of an object. If o is a Turn, Update changes only its resource version, so that its times
// keep a higher precision than the API server stores.
func (w *writer) Update(ctx context.Context, o client.Object, options ...client.SubResourceUpdateOption) error {
	t, ok := o.(*v1alpha1.Turn)
	if !ok || len(options) > 0 {
		return w.SubResourceWriter.Update(ctx, o, options...)
	}
	body, err := json.Marshal(request{
		TypeMeta: metav1.TypeMeta{APIVersion: v1alpha1.GroupVersion.String(), Kind: "Turn"},
		Metadata: identity{Namespace: t.Namespace, Name: t.Name, UID: t.UID, ResourceVersion: t.ResourceVersion},
		Status:   t.Status,
	})
	if err != nil {
		return fmt.Errorf("failed to encode the status of turn %q: %w", t.Name, err)
	}
	result := w.turns.Put().Namespace(t.Namespace).Resource("turns").Name(t.Name).SubResource("status").
		SetHeader("Content-Type", runtime.ContentTypeJSON).SetHeader("Accept", metadataOnly).Body(body).Do(ctx)
	if err := result.Error(); err != nil { // unlike Raw, Error returns the API server's message
		return err //nolint:wrapcheck // because callers check it like the error of any client
	}
	answer, err := result.Raw()
	if err != nil {
		return fmt.Errorf("failed to read the response to the status write of turn %q: %w", t.Name, err)
	}
	var written metav1.PartialObjectMetadata
	if err := json.Unmarshal(answer, &written); err != nil {
		return fmt.Errorf("failed to decode the response to the status write of turn %q: %w", t.Name, err)
	}
	t.ResourceVersion = written.ResourceVersion
	return nil
}
