package cli

import (
	"context"
	"errors"
	"fmt"
	"io"
	"iter"
	"strings"

	"github.com/spf13/cobra"

	"github.com/capstan-dev/capstan/internal/readapi"
	"github.com/capstan-dev/capstan/internal/runtime/journal"
)

// journals says where the journal of a Turn is; the flags of logs and export.
type journals struct {
	env Environment
	// namespace of the Turn, empty for the usual one.
	namespace string
	// dataDir is the folder of capstan run, empty for a cluster; uid picks one of several Turns there.
	dataDir, uid string
	cluster      clusterFlags
}

// journalReader reads the journal of one Turn.
type journalReader interface {
	// entries returns the entries that a query wants; the reader knows of which Turn. With Follow it goes on until the Turn
	// has ended, and survives what it can.
	entries(ctx context.Context, q readapi.Query) iter.Seq2[journal.Entry, error]
	// artifact returns the content of an artifact.
	artifact(ctx context.Context, sha256 string) (io.ReadCloser, error)
	// close ends the work with it.
	close() error
}

func (j *journals) addFlags(cmd *cobra.Command) {
	f := cmd.Flags()
	f.StringVarP(&j.namespace, "namespace", "n", "", "namespace of the Turn; default: that of the kubeconfig's context, else default")
	f.StringVar(&j.dataDir, "data-dir", "", "read the journal that capstan run keeps in this folder, and no cluster's")
	f.StringVar(&j.uid, "uid", "", "with --data-dir: UID of the Turn, where several had its name; default: the newest")
	j.cluster.addFlags(f)
	cobra.CheckErr(cmd.MarkFlagDirname("data-dir"))
	cobra.CheckErr(cmd.RegisterFlagCompletionFunc("namespace", cobra.NoFileCompletions))
	cmd.ValidArgsFunction = j.completeTurns
	for _, flag := range j.cluster.names() {
		cmd.MarkFlagsMutuallyExclusive("data-dir", flag)
	}
}

// open finds the journal of a Turn, NAME or NAMESPACE/NAME. The reader must be closed.
func (j *journals) open(ctx context.Context, turn string) (journalReader, error) {
	namespace, name, err := splitName(turn, j.namespace)
	if err != nil {
		return nil, err
	}
	if j.dataDir != "" {
		return openLocal(ctx, j.env, j.dataDir, namespace, name, j.uid)
	}
	if j.uid != "" {
		return nil, errors.New("--uid needs --data-dir: in a cluster the name of a Turn says which")
	}
	return j.cluster.open(ctx, j.env, namespace, name)
}

// splitName takes NAME or NAMESPACE/NAME of a Turn apart. A namespace that --namespace gives is that of a mere name.
func splitName(turn, given string) (namespace, name string, err error) {
	namespace, name, qualified := strings.Cut(turn, "/")
	switch {
	case !qualified:
		namespace, name = given, turn
	case given != "" && given != namespace:
		return "", "", fmt.Errorf("the Turn %q and --namespace %q name different namespaces", turn, given)
	}
	if name == "" || strings.Contains(name, "/") {
		return "", "", fmt.Errorf("%q must be NAME or NAMESPACE/NAME of a Turn", turn)
	}
	return namespace, name, nil
}

// completeTurns lists the Turns of the folder or of the cluster. Where that fails it lists none: the command itself says why.
func (j *journals) completeTurns(cmd *cobra.Command, args []string, _ string) ([]string, cobra.ShellCompDirective) {
	if len(args) > 0 {
		return nil, cobra.ShellCompDirectiveNoFileComp
	}
	var found []string
	var err error
	if j.dataDir != "" {
		found, err = localTurns(cmd.Context(), j.dataDir, j.namespace)
	} else {
		found, err = j.cluster.turns(cmd.Context(), j.namespace, anyTurn)
	}
	if err != nil {
		return nil, cobra.ShellCompDirectiveNoFileComp
	}
	return found, cobra.ShellCompDirectiveNoFileComp
}
