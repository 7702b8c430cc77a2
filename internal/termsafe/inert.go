package termsafe

import "regexp"

// command matches the beginning of a command to a CI server. CI servers read commands from the output of programs, and
// some read them from reports:
//
//   - GitHub Actions: a line that begins with :: after white space, and ##[ anywhere in a line
//   - Azure Pipelines and TeamCity: ##vso[ and ##teamcity[
//   - Jenkins, GitLab and Azure Pipelines: [[ATTACHMENT|FILE]] in a JUnit report, which publishes a file of the machine
var command = regexp.MustCompile(`(?im)(^\s*:|##|\[\[)(:|(?:vso|teamcity)?\[|ATTACHMENT\|)`)

// Inert puts a space into the beginning of each command to a CI server, so that a text from outside cannot give
// commands.
func Inert(text string) string { return command.ReplaceAllString(text, "$1 $2") }
