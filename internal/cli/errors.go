package cli

import (
	"errors"
	"fmt"
	"strconv"
	"strings"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"github.com/capstan-dev/capstan/internal/cli/exit"
	"github.com/capstan-dev/capstan/internal/manifest"
)

// explain returns the exit code and the message of an error.
func explain(err error) (code int, message string) {
	code = exit.Usage
	if f, ok := errors.AsType[*exit.Error](err); ok {
		code = f.Code
	}
	if all, ok := errors.AsType[manifest.Errors](err); ok && len(all) > 1 {
		return code, fmt.Sprintf("the manifests have %d problems:\n  %s", len(all), strings.ReplaceAll(all.Error(), "\n", "\n  "))
	}
	return code, strings.TrimSpace(err.Error())
}

// hasExitCode reports whether an error has an exit code. Only errors of the command line itself have none; for these
// errors, the help text is of use.
func hasExitCode(err error) bool {
	_, ok := errors.AsType[*exit.Error](err)
	return ok
}

// flagError adds a suggestion to the error of an unknown flag, and says which values a flag for a number or a switch
// may have.
func flagError(cmd *cobra.Command, err error) error {
	bad, ok := errors.AsType[*pflag.InvalidValueError](err)
	if number, isGo := errors.AsType[*strconv.NumError](err); ok && isGo {
		allowed := "a whole number"
		switch {
		case number.Func == "ParseBool":
			allowed = "true or false"
		case errors.Is(number, strconv.ErrRange):
			allowed = "a smaller number"
		}
		return fmt.Errorf("--%s: %q must be %s", bad.GetFlag().Name, bad.GetValue(), allowed)
	}
	unknown, ok := errors.AsType[*pflag.NotExistError](err)
	if !ok || len(unknown.GetSpecifiedName()) < 2 {
		return err
	}
	var names []string
	cmd.Flags().VisitAll(func(f *pflag.Flag) { names = append(names, f.Name) })
	if guess := closest(unknown.GetSpecifiedName(), names); guess != "" {
		return fmt.Errorf("%w: did you mean --%s?", err, guess)
	}
	return err
}

// mostTypos is the maximum edit distance between a misspelt word and a suggestion.
const mostTypos = 2

// closest returns the candidate that is most similar to a misspelt word, or an empty string if none is similar
// enough.
func closest(word string, candidates []string) string {
	best, bestDistance := "", mostTypos+1
	for _, c := range candidates {
		if d := distance(strings.ToLower(word), c); d < bestDistance && d < len(c) {
			best, bestDistance = c, d
		}
	}
	return best
}

// distance returns the edit distance of two words: how many bytes must be inserted, deleted or replaced to turn a
// into b.
func distance(a, b string) int {
	row := make([]int, len(b)+1)
	for j := range row {
		row[j] = j
	}
	for i := range len(a) {
		diagonal := row[0]
		row[0] = i + 1
		for j := range len(b) {
			cost := diagonal
			if a[i] != b[j] {
				cost++
			}
			diagonal = row[j+1]
			row[j+1] = min(cost, row[j]+1, row[j+1]+1)
		}
	}
	return row[len(b)]
}
