package cli

import (
	"errors"
	"fmt"
	"strings"

	"github.com/spf13/cobra"
)

// noArguments returns the check of a command without arguments. Its error says what to do instead. The error of cobra
// would call the argument an unknown command.
func noArguments(instead string) cobra.PositionalArgs {
	return atMost(0, instead)
}

// oneOrNone returns the check of a command that acts on one thing, or on all that its flags select.
func oneOrNone(thing string) cobra.PositionalArgs {
	return atMost(1, "run the command once for each "+thing)
}

func atMost(n int, instead string) cobra.PositionalArgs {
	return func(_ *cobra.Command, args []string) error {
		if len(args) > n {
			return fmt.Errorf("unexpected argument %q: %s", args[n], instead)
		}
		return nil
	}
}

// oneTurn returns an error unless there is exactly one argument.
func oneTurn(_ *cobra.Command, args []string) error {
	const want = "specify one Turn, as NAME or NAMESPACE/NAME"
	switch len(args) {
	case 0:
		return errors.New(want)
	case 1:
		return nil
	}
	return fmt.Errorf("%s, and not %s", want, strings.Trim(fmt.Sprintf("%q", args), "[]"))
}
