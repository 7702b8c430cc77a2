package server

import (
	"cmp"
	"encoding/json"
)

// wireResponseFormat is the response_format of a request.
type wireResponseFormat struct {
	Type       ResponseFormat `json:"type"`
	JSONSchema *struct {
		Name   string          `json:"name"`
		Schema json.RawMessage `json:"schema"`
	} `json:"json_schema"`
}

// format returns the type of the answer that the request asks for.
func (r *completionRequest) format() ResponseFormat {
	if r.ResponseFormat == nil {
		return ResponseText
	}
	return cmp.Or(r.ResponseFormat.Type, ResponseText)
}

// invalid returns the error of a response format, with the real API's message, or nil if the format is valid.
func (f *wireResponseFormat) invalid() *wireError {
	if f == nil || f.Type == ResponseText || f.Type == ResponseJSONObject {
		return nil
	}
	const param = "response_format"
	switch {
	case f.Type == "":
		return missing(param + ".type")
	case f.Type != ResponseJSONSchema:
		return refuse(param+".type", codeInvalid,
			"Invalid value: '%s'. Supported values are: 'text', 'json_object', and 'json_schema'.", f.Type)
	case f.JSONSchema == nil:
		return missing(param + ".json_schema")
	}
	if e := invalidToolName(param+".json_schema.name", f.JSONSchema.Name); e != nil {
		return e
	}
	var schema map[string]json.RawMessage
	switch err := json.Unmarshal(f.JSONSchema.Schema, &schema); {
	case len(f.JSONSchema.Schema) == 0:
		return missing(param + ".json_schema.schema")
	case err != nil || schema == nil:
		return refuse(param+".json_schema.schema", "",
			"Invalid schema for response_format '%s': schema must be a JSON Schema object.", f.JSONSchema.Name)
	}
	return nil
}
