package server

import (
	"bytes"
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
	"os"

	kjson "sigs.k8s.io/json"

	"github.com/capstan-dev/capstan/internal/yamldoc"
)

// LoadConfig reads and checks a rules file. Its errors name the file, the index of the rule (from 0) and the field.
func LoadConfig(path string) (Config, error) {
	data, err := os.ReadFile(path)
	if err != nil {
		return Config{}, fmt.Errorf("failed to read the rules file: %w", err)
	}
	cfg, err := ParseConfig(data)
	if err != nil {
		return Config{}, fmt.Errorf("failed to load the rules file %q: %w", path, err)
	}
	return cfg, nil
}

// ParseConfig decodes and checks a rules file in YAML or JSON. It rejects unknown and duplicate fields. Its errors
// name the index of the rule (from 0) and the field.
func ParseConfig(data []byte) (Config, error) {
	asJSON, err := yamldoc.ToJSON(data)
	if err != nil {
		return Config{}, err
	}
	if bytes.Equal(asJSON, []byte("null")) { // an empty file has no rules
		return Config{}, nil
	}
	// Decode the rules one by one, so that an error can name the index of its rule.
	var file struct {
		APIKeys       []string          `json:"apiKeys"`
		Models        []string          `json:"models"`
		ContextTokens *int              `json:"contextTokens"`
		Embeddings    Embeddings        `json:"embeddings"`
		Rules         []json.RawMessage `json:"rules"`
	}
	if err := decodeStrict(asJSON, &file); err != nil {
		return Config{}, err
	}
	cfg := Config{APIKeys: file.APIKeys, Models: file.Models, ContextTokens: file.ContextTokens, Embeddings: file.Embeddings}
	for i, raw := range file.Rules {
		var rule Rule
		if err := decodeStrict(raw, &rule); err != nil {
			return Config{}, fmt.Errorf("rules[%d]: %w", i, err)
		}
		cfg.Rules = append(cfg.Rules, rule)
	}
	if _, err := compile(cfg); err != nil {
		return Config{}, err
	}
	return cfg, nil
}

// decodeStrict decodes JSON, and rejects unknown fields and values of the wrong type. Its error begins with the path of
// the field.
func decodeStrict(data []byte, into any) error {
	strict, err := kjson.UnmarshalStrict(data, into)
	if err != nil {
		if wrongType, ok := errors.AsType[*json.UnmarshalTypeError](err); ok && wrongType.Field != "" {
			return fmt.Errorf("%s: %s", wrongType.Field, yamldoc.WrongType(wrongType.Type.Kind().String(), wrongType.Value))
		}
		return fmt.Errorf("failed to decode: %w", err)
	}
	return cmp.Or(strict...)
}
