package yamldoc

import "cmp"

// typeNames are the types of JSON Schema and of Go's decoder, as people call them.
var typeNames = map[string]string{
	"string": "a string", "integer": "a whole number", "number": "a number", "float64": "a number", "bool": "a boolean",
	"boolean": "a boolean", "array": "a list", "slice": "a list", "object": "a mapping", "map": "a mapping", "struct": "a mapping",
}

// schemaTypes are the names of JSON Schema for its formats and for the types of Go's decoder.
var schemaTypes = map[string]string{
	"float64": "number", "int": "integer", "int32": "integer", "int64": "integer",
	"bool": "boolean", "slice": "array", "map": "object", "struct": "object",
}

// WrongType returns the message about a value that has another type than its field. The types are those of JSON Schema,
// or the names of types that Go's decoder uses. The message begins as that of the API server. YAML reads values such as
// n, on and 123 not as texts, so the message about such a value says to put it in quotes.
func WrongType(want, have string) string {
	message := "must be of type " + cmp.Or(schemaTypes[want], want) + ", not " + typeName(have)
	if want == "string" {
		switch have {
		case "integer", "number", "float64", "bool", "boolean":
			message += ": put it in quotes"
		}
	}
	return message
}

func typeName(of string) string {
	if name := typeNames[of]; name != "" {
		return name
	}
	return "a value of the type " + of
}
