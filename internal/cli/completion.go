package cli

import (
	"slices"
	"strings"

	"github.com/spf13/cobra"

	"github.com/capstan-dev/capstan/internal/manifest"
	"github.com/capstan-dev/capstan/internal/termsafe"
)

// longestHint is the number of characters of a message that a completion shows.
const longestHint = 60

// complete registers shell completions for the flags of a source.
func (s *source) complete(cmd *cobra.Command) {
	for flag, f := range map[string]cobra.CompletionFunc{
		"turn":      s.completeTurns,
		"output":    cobra.FixedCompletions(outputFormats, cobra.ShellCompDirectiveNoFileComp),
		"now":       cobra.NoFileCompletions,
		"namespace": cobra.NoFileCompletions,
	} {
		cobra.CheckErr(cmd.RegisterFlagCompletionFunc(flag, f)) // fails only for a flag that does not exist
	}
	cobra.CheckErr(cmd.MarkFlagFilename("skills-file", "yaml", "yml"))
}

// completeTurns lists the Turns of the manifests on the command line. It returns no names if the manifests cannot
// be read; the command itself reports that error.
func (s *source) completeTurns(cmd *cobra.Command, args []string, _ string) ([]string, cobra.ShellCompDirective) {
	paths := slices.DeleteFunc(slices.Concat(s.files, args), func(path string) bool { return path == "-" })
	set, err := manifest.Load(cmd.Context(), paths, manifest.Options{Namespace: s.namespace})
	if err != nil {
		return nil, cobra.ShellCompDirectiveNoFileComp
	}
	uses := map[string]int{}
	for _, t := range set.Turns() {
		uses[t.Name]++
	}
	var found []string
	for _, t := range set.Turns() {
		name := t.Name
		if uses[name] > 1 {
			name = t.Namespace + "/" + t.Name
		}
		found = append(found, cobra.CompletionWithDesc(name, strings.TrimSpace(termsafe.Line(t.Spec.Message, longestHint))))
	}
	return found, cobra.ShellCompDirectiveNoFileComp
}
