package prompt

import (
	"bytes"
	"encoding/json"
)

// JSONSchema returns the schema of the tool's arguments: an object that has only the parameters of the tool.
func (t Tool) JSONSchema() (json.RawMessage, error) {
	properties, required := map[string]any{}, []string{}
	for _, p := range t.Parameters {
		properties[p.Name] = p.schema()
		if p.Required {
			required = append(required, p.Name)
		}
	}
	schema := map[string]any{"type": "object", "properties": properties, "additionalProperties": false}
	if len(required) > 0 {
		schema["required"] = required
	}
	return json.Marshal(schema)
}

func (p Parameter) schema() map[string]any {
	schema := map[string]any{"type": p.Type}
	switch p.Type {
	case "", "enum":
		schema["type"] = "string"
	case "array":
		schema["items"] = map[string]any{}
	}
	if len(p.Enum) > 0 {
		schema["enum"] = p.Enum
	}
	if p.Description != "" {
		schema["description"] = p.Description
	}
	if d := bytes.TrimSpace(p.Default); len(d) > 0 && string(d) != "null" {
		schema["default"] = p.Default
	}
	return schema
}
