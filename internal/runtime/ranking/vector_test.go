package ranking_test

import (
	"math"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"

	"github.com/capstan-dev/capstan/internal/runtime/ranking"
)

func TestSimilarity(t *testing.T) {
	v := func(space string, values ...float32) ranking.Vector {
		return ranking.Vector{Space: space, Values: values}
	}
	for name, tc := range map[string]struct {
		a, b   ranking.Vector
		want   float64
		wantOK bool
	}{
		"the same":           {v("m", 1, 0), v("m", 1, 0), 1, true},
		"nothing in common":  {v("m", 1, 0), v("m", 0, 1), 0, true},
		"opposite":           {v("m", 1, 0), v("m", -1, 0), -1, true},
		"between":            {v("m", 0.6, 0.8), v("m", 0, 1), 0.8, true},
		"another model":      {v("m", 1, 0), v("n", 1, 0), 0, false},
		"another length":     {v("m", 1, 0), v("m", 1), 0, false},
		"no vector":          {v("m", 1, 0), v("m"), 0, false},
		"no vectors":         {v(""), v(""), 0, false},
		"rounded up":         {v("m", 1.0001), v("m", 1.0001), 1, true},
		"not a number":       {v("m", float32(math.NaN())), v("m", 1), 0, false},
		"the name is needed": {v("", 1), v("", 1), 0, false},
	} {
		t.Run(name, func(t *testing.T) {
			got, ok := tc.a.Similarity(tc.b)
			if ok != tc.wantOK || ok && math.Abs(got-tc.want) > 1e-6 {
				t.Errorf("Similarity = %v, %v; want %v, %v", got, ok, tc.want, tc.wantOK)
			}
			if tc.a.Space != tc.b.Space {
				return
			}
			if got, ok := tc.a.SimilarityTo(tc.b.Bytes()); ok != tc.wantOK || ok && math.Abs(got-tc.want) > 1e-6 {
				t.Errorf("SimilarityTo = %v, %v; want %v, %v", got, ok, tc.want, tc.wantOK)
			}
		})
	}
}

func TestBlend(t *testing.T) {
	m := func(all ...float64) (out []*float64) { // 9 stands for an unknown similarity
		for _, one := range all {
			if one == 9 {
				out = append(out, nil)
				continue
			}
			out = append(out, &one)
		}
		return out
	}
	for name, tc := range map[string]struct {
		words   []float64
		meaning []*float64
		want    []float64
	}{
		"words alone":                           {[]float64{2, 4, 0}, m(9, 9, 9), []float64{0.5, 1, 0}},
		"neither":                               {[]float64{0, 0}, m(9, 9), []float64{0, 0}},
		"meaning alone":                         {[]float64{0, 0, 0}, m(0.2, 0.6, 0.4), []float64{0, 0.5, 0.25}},
		"a narrow range is scaled":              {[]float64{0, 0, 0}, m(0.80, 0.84, 0.82), []float64{0, 0.5, 0.25}},
		"both agree":                            {[]float64{3, 0}, m(0.9, 0.1), []float64{1, 0}},
		"each finds another":                    {[]float64{3, 0}, m(0.1, 0.9), []float64{0.5, 0.5}},
		"a text without a vector has words":     {[]float64{4, 2, 0}, m(9, 0.1, 0.9), []float64{1, 0.25, 0.5}},
		"a single similarity is not scaled":     {[]float64{0, 2}, m(0.4, 9), []float64{0.2, 1}},
		"equal similarities are not scaled":     {[]float64{0, 0}, m(0.4, 0.4), []float64{0.2, 0.2}},
		"a single negative similarity counts 0": {[]float64{0}, m(-0.4), []float64{0}},
		"negative similarities are scaled":      {[]float64{0, 0}, m(-1, 1), []float64{0, 0.5}},
		"no text":                               {nil, nil, []float64{}},
		"a better meaning and some words win":   {[]float64{10, 1}, m(0.5, 0.6), []float64{0.5, 0.55}},
	} {
		t.Run(name, func(t *testing.T) {
			if diff := cmp.Diff(tc.want, ranking.Blend(tc.words, tc.meaning), cmpopts.EquateApprox(0, 1e-9)); diff != "" {
				t.Errorf("Blend: -want +got:\n%s", diff)
			}
		})
	}
}
