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

// journals holds the flags of logs and export, which say where the journal of a Turn is.
type journals struct {
	env Environment
	// namespace is the namespace of the Turn. If it is empty, the default namespace is used.
	namespace string
	// dataDir is a folder of capstan run, or empty to read from a cluster. uid selects one of several Turns of the
	// same name in that folder.
	dataDir, uid string
	cluster      clusterFlags
}

// journalReader reads the journal of one Turn.
type journalReader interface {
	// entries returns the entries of the Turn's journal that a query selects. With Follow it continues until the
	// Turn has ended and recovers from temporary failures.
	entries(ctx context.Context, q readapi.Query) iter.Seq2[journal.Entry, error]
	// artifact returns the content of an artifact. The caller must close it.
	artifact(ctx context.Context, sha256 string) (io.ReadCloser, error)
	// close releases the reader's resources.
	close() error
}

func (j *journals) addFlags(cmd *cobra.Command) {
	f := cmd.Flags()
	f.StringVarP(&j.namespace, "namespace", "n", "",
		"namespace of the Turn; default: the namespace of the kubeconfig's context, or else default")
	f.StringVar(&j.dataDir, "data-dir", "", "read a journal that capstan run keeps in this folder, instead of one in a cluster")
	f.StringVar(&j.uid, "uid", "", "with --data-dir: UID of the Turn if several have the same name; default: the newest")
	j.cluster.addFlags(f)
	cobra.CheckErr(cmd.MarkFlagDirname("data-dir"))
	cobra.CheckErr(cmd.RegisterFlagCompletionFunc("namespace", cobra.NoFileCompletions))
	cmd.ValidArgsFunction = j.completeTurns
	for _, flag := range j.cluster.names() {
		cmd.MarkFlagsMutuallyExclusive("data-dir", flag)
	}
}

// open returns a reader of the journal of a Turn, given as NAME or NAMESPACE/NAME. The caller must close the
// reader.
func (j *journals) open(ctx context.Context, turn string) (journalReader, error) {
	namespace, name, err := splitName(turn, j.namespace)
	if err != nil {
		return nil, err
	}
	if j.dataDir != "" {
		return openLocal(ctx, j.env, j.dataDir, namespace, name, j.uid)
	}
	if j.uid != "" {
		return nil, errors.New("--uid requires --data-dir: in a cluster, the name identifies the Turn")
	}
	return j.cluster.open(ctx, j.env, namespace, name)
}

// splitName splits NAME or NAMESPACE/NAME of a Turn. The --namespace in given applies to a NAME alone.
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

// completeTurns lists the Turns of the folder or of the cluster. It returns no names if they cannot be listed; the
// command itself reports that error.
func (j *journals) completeTurns(cmd *cobra.Command, args []string, _ string) ([]string, cobra.ShellCompDirective) {
	if len(args) > 0 {
		return nil, cobra.ShellCompDirectiveNoFileComp
	}
	var found []string
	var err error
	if j.dataDir != "" {
		found, err = storedTurns(cmd.Context(), j.dataDir, j.namespace)
	} else {
		found, err = j.cluster.turns(cmd.Context(), j.namespace, anyTurn)
	}
	if err != nil {
		return nil, cobra.ShellCompDirectiveNoFileComp
	}
	return found, cobra.ShellCompDirectiveNoFileComp
}
