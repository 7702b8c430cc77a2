package evaluation

import (
	"encoding/xml"
	"fmt"
	"strings"

	"github.com/capstan-dev/capstan/internal/termsafe"
)

// The elements of a JUnit report.
type (
	junitSuite struct {
		XMLName  xml.Name    `xml:"testsuite"`
		Name     string      `xml:"name,attr"`
		Tests    int         `xml:"tests,attr"`
		Failures int         `xml:"failures,attr"`
		Errors   int         `xml:"errors,attr"`
		Skipped  int         `xml:"skipped,attr"`
		Time     string      `xml:"time,attr"`
		Cases    []junitCase `xml:"testcase"`
		Out      string      `xml:"system-out,omitempty"`
	}
	junitCase struct {
		Class   string        `xml:"classname,attr"`
		Name    string        `xml:"name,attr"`
		Time    string        `xml:"time,attr"`
		Failure *junitProblem `xml:"failure"`
		Error   *junitProblem `xml:"error"`
		Skipped *junitProblem `xml:"skipped"`
		Out     string        `xml:"system-out,omitempty"`
	}
	junitProblem struct {
		Message string `xml:"message,attr"`
		Text    string `xml:",chardata"`
	}
)

// junit returns the report as JUnit XML. The encoder replaces characters that XML does not allow. If some cases have
// not ended, the XML has one more test case, with an error, and its counts include that test case.
func (r *Report) junit() (string, error) {
	suite := junitSuite{
		Name: r.Agent + " " + r.PromptProfile + " " + r.Version, Tests: r.Total, Failures: r.Failed, Errors: r.Errors,
	}
	var all int64
	for _, c := range r.Cases {
		all += c.Milliseconds
		one := junitCase{Class: r.Agent, Name: c.Name, Time: seconds(c.Milliseconds), Out: c.Answer}
		if len(c.Problems) > 0 {
			p := &junitProblem{Message: termsafe.Line(c.Problems[0], maxShown), Text: strings.Join(c.Problems, "\n")}
			if c.Outcome == Errored {
				one.Error = p
			} else {
				one.Failure = p
			}
		}
		suite.Cases = append(suite.Cases, one)
	}
	if b := r.Backtest; b != nil {
		for _, skipped := range b.Skipped {
			suite.Cases = append(suite.Cases, junitCase{
				Class: r.Agent, Name: skipped.Turn, Time: seconds(0),
				Skipped: &junitProblem{Message: termsafe.Line(skipped.Reason, maxShown)},
			})
		}
		suite.Skipped, suite.Tests = len(b.Skipped), suite.Tests+len(b.Skipped)
		suite.Out = strings.Join(append([]string{b.total()}, r.changesInText()...), "\n")
	}
	if r.Missing > 0 {
		suite.Cases = append(suite.Cases, junitCase{Class: r.Agent, Name: "interrupted", Time: seconds(0), Error: &junitProblem{
			Message: "interrupted: " + r.missing(),
		}})
		suite.Errors, suite.Tests = suite.Errors+1, suite.Tests+1
	}
	suite.Time = seconds(all)
	data, err := xml.MarshalIndent(suite, "", "  ")
	if err != nil {
		return "", fmt.Errorf("failed to encode the report: %w", err)
	}
	return xml.Header + string(data) + "\n", nil
}
