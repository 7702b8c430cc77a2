package mcp

import (
	"bytes"
	"encoding/json"
)

// A response reserves memory for its text only, and an element of a list in JSON may need 40 times as much memory as
// its text. So the elements are counted before they are decoded.
const (
	// maxElements is the maximum number of tools in a page of a list, and of parts in the result of a call.
	maxElements = 10_000
	// maxID is the maximum length of the ID of a message, in bytes.
	maxID = 256
	// maxMember is the maximum length, in bytes, of a member of the response to initialize that is not a text. Servers
	// send a few hundred bytes.
	maxMember = 16 << 10
)

// elements is a list of at most maxElements elements.
type elements[T any] []T

// UnmarshalJSON implements json.Unmarshaler. It returns errElements for a longer list, before it decodes an element.
func (e *elements[T]) UnmarshalJSON(data []byte) error {
	if countElements(data) > maxElements {
		return errElements
	}
	return json.Unmarshal(data, (*[]T)(e))
}

// countElements returns the number of elements of a list in valid JSON, or 0 for another value. It stops soon after
// maxElements.
func countElements(data []byte) int {
	if len(data) < 2 || data[0] != '[' || bytes.HasPrefix(bytes.TrimLeft(data[1:], " \t\r\n"), []byte("]")) {
		return 0
	}
	count, depth := 1, 0
	inText, escaped := false, false
	for _, c := range data {
		switch {
		case escaped:
			escaped = false
		case inText:
			escaped, inText = c == '\\', c != '"'
		case c == '"':
			inText = true
		case c == '[' || c == '{':
			depth++
		case c == ']' || c == '}':
			depth--
		case c == ',' && depth == 1:
			if count++; count > maxElements {
				return count
			}
		}
	}
	return count
}

// messageID is the ID of a message: a text, a number or nil.
type messageID struct{ value any }

// UnmarshalJSON implements json.Unmarshaler. It returns errProtocol for a value that is too long for an ID.
func (id *messageID) UnmarshalJSON(data []byte) error {
	if len(data) > maxID {
		return errProtocol
	}
	return json.Unmarshal(data, &id.value)
}

// member is a member of the response to initialize. A large one that is not a text is left out.
type member struct{ json.RawMessage }

// UnmarshalJSON implements json.Unmarshaler.
func (m *member) UnmarshalJSON(data []byte) error {
	if len(data) > maxMember && data[0] != '"' {
		return nil
	}
	return m.RawMessage.UnmarshalJSON(data)
}

// object is a member that must be an object. Another value is left out: PHP writes an empty object as a list.
type object struct{ member }

// UnmarshalJSON implements json.Unmarshaler.
func (o *object) UnmarshalJSON(data []byte) error {
	if data[0] != '{' {
		return nil
	}
	return o.member.UnmarshalJSON(data)
}

// capabilities is an object whose members must be objects, too.
type capabilities struct{ member }

// UnmarshalJSON implements json.Unmarshaler.
func (c *capabilities) UnmarshalJSON(data []byte) (err error) {
	var all object
	if err := all.UnmarshalJSON(data); err != nil || all.RawMessage == nil {
		return err
	}
	var members map[string]json.RawMessage
	if err := json.Unmarshal(all.RawMessage, &members); err != nil {
		return err
	}
	for name, value := range members {
		if value[0] == '[' {
			members[name] = json.RawMessage("{}")
		}
	}
	c.RawMessage, err = json.Marshal(members)
	return err
}

// greeting is the response to initialize, or to the request that replaces it in newer versions of the protocol. It has
// the members that the SDK reads.
type greeting struct {
	Version json.RawMessage `json:"jsonrpc,omitzero"`
	ID      json.RawMessage `json:"id,omitzero"`
	Result  *struct {
		Meta              object       `json:"_meta,omitzero"`
		Capabilities      capabilities `json:"capabilities,omitzero"`
		Instructions      member       `json:"instructions,omitzero"`
		ProtocolVersion   member       `json:"protocolVersion,omitzero"`
		ServerInfo        object       `json:"serverInfo,omitzero"`
		SupportedVersions member       `json:"supportedVersions,omitzero"`
		ResultType        member       `json:"resultType,omitzero"`
		TTL               member       `json:"ttlMs,omitzero"`
		CacheScope        member       `json:"cacheScope,omitzero"`
	} `json:"result"`
}

// reduce returns a response to initialize with only the members that greeting has, because the SDK decodes the
// whole result. Members of the result that are large and not texts are left out, too.
func reduce(response []byte) []byte {
	var g greeting
	if err := json.Unmarshal(response, &g); err != nil || g.Result == nil {
		return response // a result that the SDK cannot decode
	}
	reduced, err := json.Marshal(g)
	if err != nil {
		return response // impossible: all members are valid JSON
	}
	return reduced
}
