package cli

import (
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"github.com/capstan-dev/capstan/internal/cli/localrun"
	"github.com/capstan-dev/capstan/internal/cli/output"
)

// selectors are the flags that say what a command acts on, where and as whom. If one of them is not set, the command
// acts on more, on something else, or as another user.
var selectors = []string{
	"agent", "artifact", "call", "data-dir", "filename", "manager-namespace", "manifests", "model", "profile", "requester", "scope",
	"server", "server-ca-file", "session", "since", "skills-file", "token", "turn", "uid",
}

// checkSelection returns an error if an argument or a flag that selects something is empty. In a script, a variable
// that is not set makes it so, and capstan approve --call "$ID" -y must then not approve another call.
func checkSelection(cmd *cobra.Command, args []string) error {
	if cmd.DisableFlagParsing { // the request for a completion, whose last argument may be empty
		return nil
	}
	for _, name := range selectors {
		f := cmd.Flags().Lookup(name)
		if f == nil || !f.Changed {
			continue
		}
		values := []string{f.Value.String()}
		if list, ok := f.Value.(pflag.SliceValue); ok {
			values = list.GetSlice()
		}
		if slices.Contains(values, "") {
			return fmt.Errorf("--%s must not be empty: give it a value, or leave it out", name)
		}
	}
	if slices.Contains(args, "") {
		return errors.New("an argument must not be empty: give it a value, or leave it out")
	}
	return nil
}

// outputFormats lists the values of -o of most commands, for messages and completion.
var outputFormats = []string{string(output.Text), string(output.JSON), string(output.YAML)}

// formatValue is the value of -o.
type formatValue struct{ *output.Format }

// String returns the format.
func (f formatValue) String() string { return string(*f.Format) }

// Type returns the values for help texts.
func (formatValue) Type() string { return strings.Join(outputFormats, "|") }

// Set parses a value of the command line.
func (f formatValue) Set(value string) error {
	if !slices.Contains(outputFormats, value) {
		message := "must be text, json or yaml"
		if guess := closest(value, outputFormats); guess != "" {
			message += fmt.Sprintf(": did you mean %s?", guess)
		}
		return errors.New(message)
	}
	*f.Format = output.Format(value)
	return nil
}

// textOrJSON is the value of -o of commands that cannot print YAML.
type textOrJSON struct{ formatValue }

// Type returns the values for help texts.
func (textOrJSON) Type() string { return "text|json" }

// Set parses a value of the command line.
func (f textOrJSON) Set(value string) error {
	if value != string(output.Text) && value != string(output.JSON) {
		return errors.New("must be text or json")
	}
	return f.formatValue.Set(value)
}

// instant is the value of --now. It is the zero time if the flag is not set.
type instant struct{ *time.Time }

// String returns the time in RFC 3339, or an empty string if the flag is not set.
func (i instant) String() string {
	if i.IsZero() {
		return ""
	}
	return i.Format(time.RFC3339Nano)
}

// Type returns the format for help texts.
func (i instant) Type() string { return "RFC3339" }

// Set parses a value of the command line.
func (i instant) Set(value string) error {
	t, err := time.Parse(time.RFC3339, value)
	if err != nil || t.IsZero() {
		return errors.New("must be an RFC 3339 time, such as 2026-04-09T10:00:00Z")
	}
	*i.Time = t
	return nil
}

// objectOutput is the value of -o of commands that print an object.
type objectOutput struct{ formatValue }

// objectFormats lists the values of objectOutput.
var objectFormats = []string{string(output.Text), string(output.JSON), string(output.YAML), string(output.Name)}

// Type returns the values for help texts.
func (objectOutput) Type() string { return strings.Join(objectFormats, "|") }

// Set parses a value of the command line.
func (f objectOutput) Set(value string) error {
	if value == string(output.Name) {
		*f.Format = output.Name
		return nil
	}
	if err := f.formatValue.Set(value); err != nil {
		return errors.New("must be text, json, yaml or name")
	}
	return nil
}

// approvalModes lists the values of --approve, for messages and completion.
var approvalModes = []string{string(localrun.ApproveAsk), string(localrun.ApproveAll), string(localrun.ApproveNone)}

// approvalValue is the value of --approve.
type approvalValue struct{ *localrun.ApprovalMode }

// String returns the mode.
func (m approvalValue) String() string { return string(*m.ApprovalMode) }

// Type returns the values for help texts.
func (approvalValue) Type() string { return strings.Join(approvalModes, "|") }

// Set parses a value of the command line.
func (m approvalValue) Set(value string) error {
	if !slices.Contains(approvalModes, value) {
		return errors.New("must be ask, all or none")
	}
	*m.ApprovalMode = localrun.ApprovalMode(value)
	return nil
}
