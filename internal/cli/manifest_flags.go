package cli

import (
	"slices"
	"strings"

	"github.com/spf13/cobra"

	"github.com/capstan-dev/capstan/internal/cli/bundle"
	"github.com/capstan-dev/capstan/internal/cli/output"
	"github.com/capstan-dev/capstan/internal/manifest"
	"github.com/capstan-dev/capstan/internal/termsafe"
)

// longestHint is the maximum number of characters of a Turn's message that a completion shows.
const longestHint = 60

// addSourceFlags adds the flags of commands that read manifests, with their shell completions.
func addSourceFlags(cmd *cobra.Command, s *bundle.Source, format *output.Format) {
	f := cmd.Flags()
	f.StringArrayVarP(&s.Files, "filename", "f", nil,
		"file or directory of manifests, or - for standard input; may be repeated, and more may follow as arguments")
	f.StringVar(&s.Turn, "turn", "", "Turn to use, as NAME or NAMESPACE/NAME; required if the manifests contain several")
	f.StringVarP(&s.Namespace, "namespace", "n", "default", "namespace of objects that do not name one")
	f.StringVar(&s.SkillsFile, "skills-file", "",
		"`PATH` of a YAML file with skills for all Agents, in the format of the manager's --skills-file; default: none")
	f.StringArrayVar(&s.Attach, "attach", nil,
		"attach a file (image, PDF or text) to the Turn as `NAME=FILE`, in place of an attachment of this name; may be repeated")
	f.Var(instant{&s.Now}, "now", "time that the prompt and the journal contain; default: the current time")
	f.VarP(formatValue{format}, "output", "o", "output format")
	for flag, complete := range map[string]cobra.CompletionFunc{
		"turn": func(cmd *cobra.Command, args []string, _ string) ([]string, cobra.ShellCompDirective) {
			return completeManifests(cmd, s, args)
		},
		"output":    cobra.FixedCompletions(outputFormats, cobra.ShellCompDirectiveNoFileComp),
		"now":       cobra.NoFileCompletions,
		"namespace": cobra.NoFileCompletions,
		"attach":    completeAttach,
	} {
		cobra.CheckErr(cmd.RegisterFlagCompletionFunc(flag, complete)) // fails only for a flag that does not exist
	}
	cobra.CheckErr(cmd.MarkFlagFilename("skills-file", "yaml", "yml"))
}

// completeAttach leaves the completion of the file after NAME= to the shell.
func completeAttach(_ *cobra.Command, _ []string, given string) ([]string, cobra.ShellCompDirective) {
	if strings.Contains(given, "=") {
		return nil, cobra.ShellCompDirectiveDefault
	}
	return nil, cobra.ShellCompDirectiveNoFileComp
}

// completeManifests lists the Turns of the manifests on the command line. It returns no names if the manifests cannot
// be read; the command itself reports that error.
func completeManifests(cmd *cobra.Command, s *bundle.Source, args []string) ([]string, cobra.ShellCompDirective) {
	paths := slices.DeleteFunc(slices.Concat(s.Files, args), func(path string) bool { return path == "-" })
	set, err := manifest.Load(cmd.Context(), paths, manifest.Options{Namespace: s.Namespace})
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
