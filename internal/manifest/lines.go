package manifest

import (
	"regexp"
	"strconv"

	"go.yaml.in/yaml/v3"
)

// fieldPart matches a part of the path of a field: a name, or an index or a key in brackets.
var fieldPart = regexp.MustCompile(`\[([^\]]*)\]|[^.\[\]]+`)

// lineOf returns the line in the file of a field of the document, from 1. If the document lacks the field, lineOf
// returns the line of the innermost object that contains it. It returns 0 if that is the document itself.
func (d document) lineOf(field string) int {
	var root yaml.Node
	if err := yaml.Unmarshal(d.text, &root); err != nil || len(root.Content) == 0 {
		return 0
	}
	line, at := 0, root.Content[0]
	for _, part := range fieldPart.FindAllStringSubmatch(field, -1) {
		name := part[0]
		if name[0] == '[' {
			name = part[1]
		}
		key, value := child(at, name)
		if key == nil {
			break
		}
		line, at = d.line-1+key.Line, value
	}
	return line
}

// child returns the value with a key or an index in a node, and the node that has its line. Both are nil if there is no
// such value.
func child(of *yaml.Node, name string) (key, value *yaml.Node) {
	if of.Kind == yaml.AliasNode {
		of = of.Alias
	}
	switch of.Kind { //nolint:exhaustive // because other nodes have no children with names
	case yaml.MappingNode:
		for i := 0; i+1 < len(of.Content); i += 2 {
			if of.Content[i].Value == name {
				return of.Content[i], of.Content[i+1]
			}
		}
	case yaml.SequenceNode:
		if i, err := strconv.Atoi(name); err == nil && i >= 0 && i < len(of.Content) {
			return of.Content[i], of.Content[i]
		}
	}
	return nil, nil
}
