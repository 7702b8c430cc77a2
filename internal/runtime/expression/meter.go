package expression

import (
	"slices"

	"github.com/google/cel-go/cel"
	"github.com/google/cel-go/common/operators"
	"github.com/google/cel-go/common/types"
	"github.com/google/cel-go/common/types/ref"
	"github.com/google/cel-go/common/types/traits"
	"github.com/google/cel-go/interpreter"
)

const (
	// maxWork bounds the work of one evaluation that CEL does not count. A byte of a text that is made is one unit, so
	// that an evaluation makes texts of at most about 10 MB.
	maxWork = 10_000_000
	// comparedBytes is the number of bytes of a compared text that are one unit. hashedBytes is the same for a key of a
	// map: its whole text is hashed up to four times.
	comparedBytes, hashedBytes = 16, 4
	// comparedElement is the work of comparing two elements of lists or maps, without the bytes of texts.
	comparedElement = 20
	// madeValue is the work of a value in a list or a map that is made. It takes up to about 150 bytes of memory.
	madeValue = 50
)

// meter counts the work of one evaluation that CEL does not count, and stops the evaluation at maxWork:
//
//   - the texts that calls make: CEL counts them only if the types of the operands are known before the evaluation
//   - the values that comparisons compare: CEL does not count the elements of lists within lists, and does not look at
//     the time during a comparison. A list can contain the same list many times, and be much longer than its memory
//   - the values of lists and maps: CEL counts each literal, but not its values, and does not count sums of lists
type meter struct{ work int }

// use counts work. At the bound, it stops the evaluation in the same way as the limit of CEL.
func (m *meter) use(work int) {
	if m.work += work; m.work > maxWork {
		panic(interpreter.EvalCancelledError{Message: ErrCost.Error(), Cause: interpreter.CostLimitExceeded})
	}
}

// option returns the option for a program whose work is counted.
func (m *meter) option() cel.ProgramOption {
	return cel.CustomDecoratorV2(func(step interpreter.InterpretableV2) (interpreter.InterpretableV2, error) {
		switch step := step.(type) {
		case interpreter.InterpretableCall:
			if compare, ok := comparisons[step.Function()]; ok {
				return &comparison{step, m, compare}, nil
			}
			return &call{step, m}, nil
		case interpreter.InterpretableConstructor:
			if whole := constant(step); whole != nil {
				return interpreter.NewConstValue(step.ID(), whole), nil
			}
			return &literal{step, m, len(step.InitVals())}, nil
		}
		return step, nil
	})
}

// constant returns the list or the map of a literal that has only constants, or nil. The program makes it once, so that
// it need not be counted: its size is bounded by MaxLength. A list of one value is evaluated and counted, because
// macros add such lists to their own list.
func constant(step interpreter.InterpretableConstructor) ref.Val {
	values := make([]ref.Val, 0, len(step.InitVals()))
	for _, part := range step.InitVals() {
		fixed, ok := part.(interpreter.InterpretableConst)
		if !ok {
			return nil
		}
		values = append(values, fixed.Value())
	}
	if step.Type() == types.ListType {
		if len(values) == 1 {
			return nil
		}
		return types.NewRefValList(types.DefaultTypeAdapter, values)
	}
	entries := make(map[ref.Val]ref.Val, len(values)/2)
	for pair := range slices.Chunk(values, 2) {
		if pair[0].Type() == types.BytesType {
			return nil // its evaluation fails, because bytes cannot be keys
		}
		entries[pair[0]] = pair[1]
	}
	return types.NewRefValMap(types.DefaultTypeAdapter, entries)
}

// call is a call whose result is counted.
type call struct {
	interpreter.InterpretableCall
	meter *meter
}

// Exec makes the call, and counts its result. The result is at most as large as the operands together, so that the last
// result before the end of the evaluation takes at most as much memory again.
func (c *call) Exec(frame *interpreter.ExecutionFrame) ref.Val {
	result := c.InterpretableCall.Exec(frame)
	switch result := result.(type) {
	case types.String:
		c.meter.use(len(result))
	case types.Bytes:
		c.meter.use(len(result))
	case traits.MutableLister: // a macro adds an element to its own list
	case traits.Lister:
		if c.Function() == operators.Add {
			return c.meter.flat(result)
		}
	}
	return result
}

// Eval is Exec for the other interface of a step.
func (c *call) Eval(vars interpreter.Activation) ref.Val { return c.Exec(interpreter.AsFrame(vars)) }

// flat returns the sum of two lists as one list. CEL's sum refers to both lists, so that it can be much longer than its
// memory, and each access to an element goes through all sums within the sum.
func (m *meter) flat(sum traits.Lister) ref.Val {
	size := sum.Size().(types.Int)
	m.use(int(size) * madeValue)
	values := make([]ref.Val, 0, size)
	for i := range size {
		values = append(values, sum.Get(i))
	}
	return types.NewRefValList(types.DefaultTypeAdapter, values)
}

// literal is a literal of a list or a map whose values are counted.
type literal struct {
	interpreter.InterpretableConstructor
	meter  *meter
	values int
}

// Exec makes the list or the map.
func (l *literal) Exec(frame *interpreter.ExecutionFrame) ref.Val {
	l.meter.use(l.values * madeValue)
	return l.InterpretableConstructor.Exec(frame)
}

// Eval is Exec for the other interface of a step.
func (l *literal) Eval(vars interpreter.Activation) ref.Val { return l.Exec(interpreter.AsFrame(vars)) }

// operator is an operator that compares values with their elements: its work, and its result.
type operator struct {
	count func(m *meter, left, right ref.Val)
	apply func(left, right ref.Val) ref.Val
}

// comparisons has the operators that compare values with their elements.
var comparisons = map[string]operator{
	operators.Equals: {(*meter).compare, types.Equal},
	operators.NotEquals: {(*meter).compare, func(left, right ref.Val) ref.Val {
		return types.Bool(types.Equal(left, right) != types.True)
	}},
	operators.In: {(*meter).search, func(left, right ref.Val) ref.Val {
		if all, ok := right.(traits.Container); ok {
			return all.Contains(left)
		}
		return types.NoSuchOverloadErr()
	}},
}

// comparison is a call of an operator whose work is counted before the comparison, because nothing can stop it.
type comparison struct {
	interpreter.InterpretableCall
	meter    *meter
	operator operator
}

// Exec compares the operands. It evaluates both of them even if the first one is an error, as CEL does.
func (c *comparison) Exec(frame *interpreter.ExecutionFrame) ref.Val {
	operands := c.Args()
	left, right := operands[0].Exec(frame), operands[1].Exec(frame)
	switch {
	case types.IsUnknownOrError(left):
		return left
	case types.IsUnknownOrError(right):
		return right
	}
	c.operator.count(c.meter, left, right)
	return types.LabelErrNode(c.ID(), c.operator.apply(left, right))
}

// Eval is Exec for the other interface of a step.
func (c *comparison) Eval(vars interpreter.Activation) ref.Val {
	return c.Exec(interpreter.AsFrame(vars))
}

// compare counts the work of comparing the texts in two values, and the elements of two lists or maps. Elements are
// compared only if both have the same number of them.
func (m *meter) compare(left, right ref.Val) {
	switch left := left.(type) {
	case types.String:
		if right, ok := right.(types.String); ok && len(left) == len(right) {
			m.use(len(left) / comparedBytes)
		}
	case types.Bytes:
		if right, ok := right.(types.Bytes); ok && len(left) == len(right) {
			m.use(len(left) / comparedBytes)
		}
	case traits.Lister:
		right, ok := right.(traits.Lister)
		if !ok || left.Size() != right.Size() {
			return
		}
		for i := range left.Size().(types.Int) {
			m.use(comparedElement)
			m.compare(left.Get(i), right.Get(i))
		}
	case traits.Mapper:
		right, ok := right.(traits.Mapper)
		if !ok || left.Size() != right.Size() {
			return
		}
		for keys := left.Iterator(); keys.HasNext() == types.True; {
			key := keys.Next()
			m.use(comparedElement)
			if text, ok := key.(types.String); ok { // bytes cannot be keys
				m.use(len(text) / hashedBytes)
			}
			if value, found := right.Find(key); found {
				m.compare(left.Get(key), value)
			}
		}
	}
}

// search counts the work of searching for a value in a list: it is compared with each element. A map needs no search.
func (m *meter) search(sought, in ref.Val) {
	if all, ok := in.(traits.Lister); ok {
		for i := range all.Size().(types.Int) {
			m.use(comparedElement)
			m.compare(sought, all.Get(i))
		}
	}
}
