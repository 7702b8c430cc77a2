package providers_test

import (
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/capstan-dev/capstan/api/v1alpha1"
	"github.com/capstan-dev/capstan/internal/providers"
	"github.com/capstan-dev/capstan/internal/runtime/model"
)

func TestAccepts(t *testing.T) {
	all := model.AnyAttachment()
	images := model.Accepts{Images: all.Images}
	of := func(
		dialect v1alpha1.Dialect, images, files v1alpha1.Switch, capabilities ...v1alpha1.ModelCapability,
	) v1alpha1.ModelProviderSpec {
		return v1alpha1.ModelProviderSpec{
			Type: v1alpha1.ProviderTypeOpenAI, Dialect: dialect, Requests: &v1alpha1.RequestOptions{Images: images, Files: files},
			Models: []v1alpha1.Model{{Name: "other"}, {Name: "m", Capabilities: capabilities}},
		}
	}
	anthropic := of("", "", "", v1alpha1.CapabilityImages, v1alpha1.CapabilityFiles)
	anthropic.Type = v1alpha1.ProviderTypeAnthropic
	undeclared := of("OpenAI", "", "")
	undeclared.Models = nil
	const on, off = v1alpha1.SwitchOn, v1alpha1.SwitchOff
	for name, tc := range map[string]struct {
		spec v1alpha1.ModelProviderSpec
		want model.Accepts
	}{
		"no capability":                {of("OpenAI", on, on), model.Accepts{}},
		"a model that is not declared": {undeclared, model.Accepts{}},
		"images":                       {of("VLLM", "", "", v1alpha1.CapabilityImages, v1alpha1.CapabilityFiles), images},
		"files of OpenAI":              {of("OpenAI", "", "", v1alpha1.CapabilityFiles), model.Accepts{Files: true}},
		"all":                          {of("OpenAI", "", "", v1alpha1.CapabilityImages, v1alpha1.CapabilityFiles), all},
		"Anthropic":                    {anthropic, all},
		"some images": {
			of("XAI", on, "", v1alpha1.CapabilityImages), model.Accepts{Images: []string{"image/png", "image/jpeg"}},
		},
		"none":               {of("DeepSeek", "", "", v1alpha1.CapabilityImages), model.Accepts{}},
		"images switched on": {of("DeepSeek", on, "", v1alpha1.CapabilityImages), images},
		"files switched on":  {of("AzureOpenAI", "", on, v1alpha1.CapabilityFiles), model.Accepts{Files: true}},
		"switched off":       {of("OpenAI", off, off, v1alpha1.CapabilityImages, v1alpha1.CapabilityFiles), model.Accepts{}},
	} {
		t.Run(name, func(t *testing.T) {
			if diff := cmp.Diff(tc.want, providers.Accepts(&tc.spec, "m")); diff != "" {
				t.Errorf("accepted attachments: -want +got:\n%s", diff)
			}
		})
	}
}
