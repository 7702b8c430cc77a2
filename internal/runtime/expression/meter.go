package expression

import (
	"github.com/google/cel-go/cel"
	"github.com/google/cel-go/common/types"
	"github.com/google/cel-go/common/types/ref"
	"github.com/google/cel-go/interpreter"
)

const (
	// maxWork bounds the work of one evaluation that CEL does not count. A byte of a text that is made is one unit, so that
	// an evaluation makes texts of at most about 10 MB.
	maxWork = 10_000_000
	// literalValue is the work of a value in a literal of a list or a map. It takes up to 100 bytes of memory.
	literalValue = 50
)

// meter counts the work of one evaluation that CEL does not count, and stops the evaluation at maxWork:
//
//   - the texts that calls make: CEL counts them only if the types of the operands are known before the evaluation
//   - the values of literals: CEL counts each literal, but not its constants
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
			return &call{step, m}, nil
		case interpreter.InterpretableConstructor:
			return &literal{step, m, len(step.InitVals())}, nil
		}
		return step, nil
	})
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
	}
	return result
}

// Eval is Exec for the other interface of a step.
func (c *call) Eval(vars interpreter.Activation) ref.Val { return c.Exec(interpreter.AsFrame(vars)) }

// literal is a literal of a list or a map whose values are counted.
type literal struct {
	interpreter.InterpretableConstructor
	meter  *meter
	values int
}

// Exec makes the list or the map.
func (l *literal) Exec(frame *interpreter.ExecutionFrame) ref.Val {
	l.meter.use(l.values * literalValue)
	return l.InterpretableConstructor.Exec(frame)
}

// Eval is Exec for the other interface of a step.
func (l *literal) Eval(vars interpreter.Activation) ref.Val { return l.Exec(interpreter.AsFrame(vars)) }
