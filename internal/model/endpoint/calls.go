package endpoint

import (
	"cmp"
	"encoding/json"
	"fmt"
	"slices"
	"strings"

	"github.com/capstan-dev/capstan/internal/model/lenient"
	"github.com/capstan-dev/capstan/internal/runtime/model"
)

// MaxToolCalls bounds the calls of one reply.
const MaxToolCalls = 128

// maxLabel bounds the ID and the name of a call while they are joined, in bytes. It is far more than any endpoint
// sends. An ID that reaches it is replaced.
const maxLabel = 1 << 10

// calls joins the tool calls of a stream from their pieces.
type calls struct {
	// tools are the tools of the request.
	tools []model.Tool
	// list holds the calls in the order in which they began.
	list []*call
	// tooMany is true once a call was left out. hasEmpty is true if an empty piece was ignored.
	tooMany, hasEmpty bool
}

type call struct {
	index     lenient.Number
	id, name  string
	arguments strings.Builder
	// progress is the progress of the arguments.
	progress progress
	// hasOtherIDs is true if a piece has another ID than the call.
	hasOtherIDs bool
	// data is data that the endpoint needs again with the call, or empty.
	data string
	// parts is the number of pieces with arguments, and last is where the arguments of the newest such piece begin.
	parts, last int
	// differs is true if a piece does not begin with the arguments of the piece before it.
	differs bool
}

// CallPiece is a part of a call. Every member may be absent.
type CallPiece struct {
	// Index is the position of the call in the reply.
	Index lenient.Maybe[lenient.Number]
	// ID and Name of the call, and the next part of its Arguments.
	ID, Name, Arguments string
	// Data is data that the endpoint needs again with the call, as JSON. It never comes in parts: if several pieces
	// have Data, the newest one counts.
	Data string
}

// add adds one piece. A piece with nothing but an index is not a call. DeepSeek sends such a piece after the calls of a
// reply: github.com/langchain4j/langchain4j/pull/5209.
func (c *calls) add(piece CallPiece) {
	if c.tooMany {
		return // the reply is unusable
	}
	if piece == (CallPiece{Index: piece.Index}) {
		c.hasEmpty = true
		return
	}
	if known := c.find(piece); known != nil {
		known.extend(piece)
		return
	}
	if len(c.list) == MaxToolCalls {
		c.tooMany = true
		return
	}
	added := &call{index: c.nextIndex()}
	if piece.Index.Given {
		added.index = piece.Index.Value
	}
	added.extend(piece)
	c.list = append(c.list, added)
}

// find returns the call that a piece belongs to, or nil if the piece begins a new call.
func (c *calls) find(piece CallPiece) *call {
	if piece.Index.Given {
		return cmp.Or(c.findAtIndex(piece), c.findOpen(piece))
	}
	for _, known := range slices.Backward(c.list) {
		switch {
		case piece.ID == known.id && piece.ID != "":
			return c.unlessReused(known, piece)
		case piece.ID == "" && piece.Name == "":
			return known // without index and ID, the piece continues the last call
		}
	}
	return nil
}

// findAtIndex is find for a piece with an index, which several calls may have.
func (c *calls) findAtIndex(piece CallPiece) *call {
	var last *call
	for _, known := range slices.Backward(c.list) {
		switch {
		case known.index != piece.Index.Value:
			continue
		case piece.ID != "" && piece.ID == known.id:
			return c.unlessReused(known, piece)
		}
		last = cmp.Or(last, known)
	}
	if last != nil && c.beginsAnother(last, piece) {
		return nil
	}
	return last
}

// unlessReused returns the call with the ID of a piece, or nil if the piece begins another call with this ID. Some
// servers have one ID for all calls of a reply, or use the name of the tool as the ID: github.com/TanStack/ai/pull/199.
// Many others repeat the ID, and some the name, with each piece of a call. So another call begins only with the name of
// a tool, and only if it is another tool or the arguments of the call are whole. If the whole call comes again,
// withoutRepeated removes it.
func (c *calls) unlessReused(known *call, piece CallPiece) *call {
	otherName := piece.Name != "" && known.name != "" && piece.Name != known.name
	isReused := false
	switch {
	case !known.progress.hasBegun():
		isReused = otherName && c.isTool(known.name) && c.isTool(piece.Name)
	case known.progress.isWhole():
		isReused = otherName || piece.Name != "" && opensObject(piece.Arguments) && !known.hasPlaceholder()
	}
	if isReused {
		return nil
	}
	return known
}

// findOpen returns the last call if the piece continues it, although no call has the index of the piece. Otherwise
// findOpen returns nil. Some servers count the pieces instead of the calls, or send the beginning of a call with
// another index than the rest.
func (c *calls) findOpen(piece CallPiece) *call {
	if len(c.list) == 0 || piece.ID != "" || piece.Name != "" || piece.Arguments == "" {
		return nil
	}
	if last := c.list[len(c.list)-1]; !last.progress.isWhole() {
		return last
	}
	return nil
}

// nextIndex returns the index for a call without an index from the endpoint: one more than the highest index.
func (c *calls) nextIndex() lenient.Number {
	next := lenient.Number(0)
	for _, known := range c.list {
		next = max(next, known.index+1)
	}
	return next
}

// beginsAnother reports whether a piece begins another call, although it has the same index as the last call. The piece
// has another ID than the last call, or none. Some servers send several calls, each with index 0. These calls have
// their own IDs, or no IDs and whole arguments, or call different tools. Before the arguments begin, a piece may also
// be a part of an ID or a name; a part of a name is not the name of a tool. Other servers repeat the whole arguments at
// the end, maybe in another formatting. If the last call has an ID or arguments in pieces, this is not another call.
func (c *calls) beginsAnother(last *call, piece CallPiece) bool {
	switch {
	case piece.Name == "" || last.name == "":
		return false
	case !last.progress.hasBegun() && piece.Name != last.name:
		return c.isTool(last.name) && c.isTool(piece.Name)
	case piece.ID != "" && last.id != "":
		return piece.Name != last.name || !last.isContinuedBy(piece.Arguments)
	}
	if piece.Arguments == "" || !last.progress.isWhole() {
		return false
	}
	if isSame(piece.Arguments, last.arguments.String()) {
		return last.parts == 1 && last.id == ""
	}
	return last.parts == 1 || opensObject(piece.Arguments)
}

// isContinuedBy reports whether a piece with another ID and the name of the call continues the call. Some servers send
// a new ID and the name with each piece, so their pieces look like several calls of one tool that all have index 0. A
// piece continues the call if the arguments are not whole yet. If pieces with other IDs have continued the call before,
// an empty piece at the end continues it, too.
func (c *call) isContinuedBy(arguments string) bool {
	switch {
	case !c.progress.hasBegun():
		var first progress
		first.add(arguments)
		return first.isOpen()
	case strings.Trim(arguments, jsonSpace) == "":
		return c.progress.isOpen() || c.hasOtherIDs
	}
	return c.progress.isOpen() && c.progress.accepts(arguments)
}

// isTool reports whether a tool of the request has this name.
func (c *calls) isTool(name string) bool {
	return slices.ContainsFunc(c.tools, func(t model.Tool) bool { return t.Name == name })
}

// extend adds a piece to the call. The ID and the name may come once, in pieces, or again with every piece. They are
// final when the arguments begin. Some servers use a new ID for every piece; the first of these IDs is the ID of the
// call.
func (c *call) extend(piece CallPiece) {
	begun := c.arguments.Len() > 0
	if c.id == "" || !begun && piece.Arguments == "" {
		c.id = join(c.id, piece.ID)
	} else if piece.ID != "" && piece.ID != c.id {
		c.hasOtherIDs = true
	}
	if c.name == "" || !begun {
		c.name = join(c.name, piece.Name)
	}
	c.data = cmp.Or(piece.Data, c.data)
	if c.hasPlaceholder() && opensObject(piece.Arguments) {
		c.arguments.Reset()
		c.progress, c.parts, c.last, c.differs = progress{}, 0, 0, false
	}
	if piece.Arguments != "" {
		c.differs = c.differs || !strings.HasPrefix(piece.Arguments, c.arguments.String()[c.last:])
		c.last = c.arguments.Len()
		c.arguments.WriteString(piece.Arguments)
		c.progress.add(piece.Arguments)
		c.parts++
	}
}

// hasPlaceholder reports whether the arguments so far are an empty object. Some servers send it before the arguments of
// a call: github.com/openai/openai-agents-js/pull/712 (Bedrock) and github.com/ogx-ai/ogx/pull/5462.
func (c *call) hasPlaceholder() bool { return c.arguments.String() == "{}" }

// whole returns the arguments of the call: the joined pieces, or the last piece alone if only the last piece is JSON.
// Some servers send the arguments so far with every piece, or repeat all arguments at the end, maybe in another
// formatting.
func (c *call) whole() string {
	all := c.arguments.String()
	before, last := all[:c.last], all[c.last:]
	if json.Valid([]byte(all)) || !json.Valid([]byte(last)) {
		return all
	}
	if c.parts < 2 || !c.differs || last == before || covers(membersOf(last), membersOf(before)) {
		return last
	}
	return all
}

// areWhole reports whether the arguments of all calls are whole: objects in JSON, or none if calls may have none.
func (c *calls) areWhole(mayBeEmpty bool) bool {
	return !slices.ContainsFunc(c.list, func(known *call) bool {
		whole := strings.TrimSpace(known.whole())
		if whole == "" {
			return !mayBeEmpty
		}
		return whole[0] != '{' || !json.Valid([]byte(whole))
	})
}

// endOpen reports whether the arguments of the newest call have not arrived to their end.
func (c *calls) endOpen() bool {
	return len(c.list) > 0 && !c.list[len(c.list)-1].progress.isWhole()
}

// joined is a call with all its arguments.
type joined struct {
	*call
	arguments string
	// isJSON is true if the arguments are JSON. object has their members once isRead is true.
	isJSON, isRead bool
	object         map[string]string
}

// members returns the members of the arguments, or nil if the arguments are no object.
func (c *joined) members() map[string]string {
	if !c.isRead {
		c.isRead, c.object = true, membersOf(c.arguments)
	}
	return c.object
}

// repeats reports whether a call adds nothing to another call. Some servers send one call with several indexes, each
// time whole or as far as it is known, or send the whole call again in another formatting. So arguments that grow by
// members are one call, too: it is safer to leave out a call, which the model can make later, than to make it twice.
// Calls with the same ID and other arguments are different calls of a server that reuses IDs.
func (c *joined) repeats(other *joined) bool {
	switch {
	case c.id == "" || c.id != other.id || c.name != other.name:
		return false
	case !c.isJSON || c.arguments == other.arguments:
		return strings.HasPrefix(other.arguments, c.arguments)
	}
	return covers(other.members(), c.members())
}

// withoutRepeated returns the calls without repetitions, because a repetition would call the tool twice. Of equal
// calls, the first one stays.
func withoutRepeated(list []*call) []joined {
	all, out := make([]joined, 0, len(list)), make([]joined, 0, len(list))
	for _, c := range list {
		whole := c.whole()
		all = append(all, joined{call: c, arguments: whole, isJSON: json.Valid([]byte(whole))})
	}
	for i := range all {
		repeated := false
		for j := range all {
			repeated = repeated || i != j && all[i].repeats(&all[j]) && (j < i || !all[j].repeats(&all[i]))
		}
		if !repeated {
			out = append(out, all[i])
		}
	}
	return out
}

// join appends a piece unless it equals the whole. Bytes beyond maxLabel are left out. The result shares no memory with
// the piece: without a copy, a label of 1 KiB would keep an event of up to MaxEventBytes in memory.
func join(whole, piece string) string {
	if whole == piece {
		return whole
	}
	return whole + strings.Clone(piece[:min(len(piece), max(0, maxLabel-len(whole)))])
}

// finish returns the calls in order, each with a unique ID, or an error if they are unusable.
func (c *calls) finish() ([]model.ToolCall, error) {
	if c.tooMany {
		return nil, &model.Error{
			Kind: model.ReplyTooLong, MayBeBilled: true,
			Message: fmt.Sprintf("the model called more than %d tools in one reply", MaxToolCalls),
		}
	}
	slices.SortStableFunc(c.list, func(a, b *call) int { return cmp.Compare(a.index, b.index) })
	list := withoutRepeated(c.list)
	out := make([]model.ToolCall, 0, len(list))
	for i := range list {
		known := &list[i]
		if strings.TrimSpace(known.name) == "" {
			nameless := Malformed("the model called a tool without a name")
			nameless.MayBeBilled = true // the reply is whole
			return nil, nameless
		}
		whole := model.ToolCall{ID: known.id, Name: known.name, Arguments: known.arguments}
		if known.data != "" {
			whole.ProviderData = json.RawMessage(known.data)
		}
		out = append(out, whole)
	}
	model.IdentifyCalls(out, nil)
	return out, nil
}
