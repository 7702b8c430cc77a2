package openai

import (
	"cmp"
	"fmt"
	"slices"
	"strings"

	api "github.com/sashabaranov/go-openai"

	"github.com/capstan-dev/capstan/internal/runtime/model"
)

// MaxToolCalls bounds the calls of one reply.
const MaxToolCalls = 128

// maxLabel bounds the id and the name of a call as they are put together, in bytes: far more than any endpoint gives them. An id
// that reaches it is replaced.
const maxLabel = 1 << 10

// calls puts the tool calls of a stream together from their pieces.
type calls struct {
	// list is in the order in which the calls began.
	list []*call
	// tooMany is true once a call was left out.
	tooMany bool
}

type call struct {
	index     int
	id, name  string
	arguments strings.Builder
}

// add takes one piece.
func (c *calls) add(piece api.ToolCall) {
	if of := c.find(piece); of != nil {
		of.extend(piece)
		return
	}
	if len(c.list) == MaxToolCalls {
		c.tooMany = true
		return
	}
	begun := &call{index: c.next()}
	if piece.Index != nil {
		begun.index = *piece.Index
	}
	begun.extend(piece)
	c.list = append(c.list, begun)
}

// find returns the call that a piece belongs to, nil if the piece begins a new one.
func (c *calls) find(piece api.ToolCall) *call {
	for _, of := range slices.Backward(c.list) {
		switch {
		case piece.Index != nil:
			if of.index != *piece.Index {
				continue
			}
			if of.endsBefore(piece) {
				return nil
			}
			return of
		case piece.ID == of.id && piece.ID != "":
			return of
		case piece.ID == "" && piece.Function.Name == "":
			return of // without index and id, it goes on with the last
		}
	}
	return nil
}

// next is the index of a call to which the endpoint gave none: behind all others.
func (c *calls) next() int {
	next := 0
	for _, of := range c.list {
		next = max(next, of.index+1)
	}
	return next
}

// endsBefore reports whether a piece of the same index begins another call. Some servers give index 0 to each of several
// calls, every one whole and with an id of its own.
func (c *call) endsBefore(piece api.ToolCall) bool {
	whole := c.id != "" && c.name != "" && c.arguments.Len() > 0
	return whole && piece.ID != "" && piece.ID != c.id && piece.Function.Name != ""
}

// extend adds a piece. Id and name come once, in pieces, or again with every piece; they are settled when the arguments
// begin. Some servers draw a new id for every piece: the first is the call's.
func (c *call) extend(piece api.ToolCall) {
	begun := c.arguments.Len() > 0
	if c.id == "" || !begun && piece.Function.Arguments == "" {
		c.id = join(c.id, piece.ID)
	}
	if c.name == "" || !begun {
		c.name = join(c.name, piece.Function.Name)
	}
	c.arguments.WriteString(piece.Function.Arguments)
}

// join appends a piece, unless it repeats the whole. What is beyond the bound is left out.
func join(whole, piece string) string {
	if whole == piece {
		return whole
	}
	return whole + piece[:min(len(piece), max(0, maxLabel-len(whole)))]
}

// finish returns the calls in order, each with an id of its own, and why they are no good if they are not.
func (c *calls) finish() ([]model.ToolCall, error) {
	if c.tooMany {
		return nil, &model.Error{Kind: model.ReplyTooLong, Message: fmt.Sprintf("the model called more than %d tools at once", MaxToolCalls)}
	}
	slices.SortStableFunc(c.list, func(a, b *call) int { return cmp.Compare(a.index, b.index) })
	out := make([]model.ToolCall, 0, len(c.list))
	for _, of := range c.list {
		if strings.TrimSpace(of.name) == "" {
			return nil, malformed("the model called a tool without saying which")
		}
		out = append(out, model.ToolCall{ID: of.id, Name: of.name, Arguments: of.arguments.String()})
	}
	model.IdentifyCalls(out, nil)
	return out, nil
}
