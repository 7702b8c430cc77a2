// Package prices has the list prices of models of public services. The prices are in prices.json.
package prices

import (
	"bytes"
	_ "embed"
	"encoding/json"
	"fmt"
	"maps"
	"net/url"
	"slices"
	"strings"
	"sync"

	"github.com/shopspring/decimal"

	"github.com/capstan-dev/capstan/internal/runtime/model"
)

// Currency is the currency of all prices in the table.
const Currency = "USD"

//go:embed prices.json
var data []byte

// Entry is the price of one model of a public service.
type Entry struct {
	// Service is the name of the service, and Source is the URL of its price list.
	Service, Source string
	// Model is the name of the model in the service's API.
	Model string
	// Pricing has the prices and the date at which they were read.
	Pricing model.Pricing
}

// service is the data of one service.
type service struct {
	Name   string            `json:"name"`
	Hosts  []string          `json:"hosts"`
	Source string            `json:"source"`
	Date   string            `json:"date"`
	Models map[string]*price `json:"models"`
}

// rates are prices of a million tokens. CacheRead is nil if tokens from a cache cost as much as other input.
type rates struct {
	Input      *decimal.Decimal `json:"input"`
	Output     *decimal.Decimal `json:"output"`
	CacheRead  *decimal.Decimal `json:"cacheRead"`
	CacheWrite *decimal.Decimal `json:"cacheWrite"`
	Reasoning  *decimal.Decimal `json:"reasoning"`
}

// price is the data of one model. Date replaces the date of the service.
type price struct {
	rates
	Date string `json:"date"`
	Long *struct {
		rates
		Over int64 `json:"over"`
	} `json:"long"`
}

// table returns the entries of each host by the name of the model. The data is part of the program and checked by a
// test, so an error is a bug.
var table = sync.OnceValue(func() map[string]map[string]*Entry {
	all, err := parse(data)
	if err != nil {
		panic(err)
	}
	return all
})

// Of returns the list prices of a model, or nil if the table does not have them. The prices apply only to the public
// service itself, at its own host over HTTPS with the usual port. Another server has other costs for a model of the
// same name.
func Of(baseURL, name string) *model.Pricing {
	u, err := url.Parse(baseURL)
	if err != nil || u.Scheme != "https" || u.Port() != "" && u.Port() != "443" {
		return nil
	}
	models := table()[strings.ToLower(strings.TrimSuffix(u.Hostname(), "."))]
	e := models[strings.TrimPrefix(name, "models/")] // Gemini accepts its models with and without this prefix
	if e == nil {
		return nil
	}
	return &e.Pricing
}

// All returns the entries of the table, sorted by service and model.
func All() []Entry {
	seen := map[*Entry]bool{}
	for _, models := range table() {
		for _, e := range models {
			seen[e] = true
		}
	}
	var out []Entry
	for e := range maps.Keys(seen) {
		out = append(out, *e)
	}
	slices.SortFunc(out, func(a, b Entry) int {
		if by := strings.Compare(strings.ToLower(a.Service), strings.ToLower(b.Service)); by != 0 {
			return by
		}
		return strings.Compare(a.Model, b.Model)
	})
	return out
}

// parse reads the data.
func parse(data []byte) (map[string]map[string]*Entry, error) {
	var services []service
	decoder := json.NewDecoder(bytes.NewReader(data))
	decoder.DisallowUnknownFields()
	if err := decoder.Decode(&services); err != nil {
		return nil, fmt.Errorf("failed to read the table of prices: %w", err)
	}
	all := map[string]map[string]*Entry{}
	for _, s := range services {
		entries := map[string]*Entry{}
		for name, p := range s.Models {
			e, err := s.entry(name, p)
			if err != nil {
				return nil, fmt.Errorf("failed to read the price of %s of %s: %w", name, s.Name, err)
			}
			entries[name] = e
		}
		for _, host := range s.Hosts {
			all[host] = entries
		}
	}
	return all, nil
}

// entry returns the entry of one model.
func (s *service) entry(name string, p *price) (*Entry, error) {
	e := &Entry{Service: s.Name, Source: s.Source, Model: name}
	var err error
	if e.Pricing, err = p.pricing(); err != nil {
		return nil, err
	}
	e.Pricing.Date = s.Date
	if p.Date != "" {
		e.Pricing.Date = p.Date
	}
	if p.Long != nil {
		long, err := p.Long.pricing()
		if err != nil {
			return nil, err
		}
		e.Pricing.Long, e.Pricing.LongOver = &long, p.Long.Over
	}
	return e, nil
}

// pricing returns the prices in the engine's type.
func (r *rates) pricing() (model.Pricing, error) {
	if r.Input == nil || r.Output == nil {
		return model.Pricing{}, fmt.Errorf("input and output must be given")
	}
	out := model.Pricing{
		Currency: Currency, Input: *r.Input, Output: *r.Output, CacheRead: *r.Input, CacheWrite: r.CacheWrite, Reasoning: r.Reasoning,
	}
	if r.CacheRead != nil {
		out.CacheRead = *r.CacheRead
	}
	return out, nil
}
