package display

import (
	"bufio"
	"crypto/sha256"
	"encoding/hex"
	"encoding/xml"
	"fmt"
	"io"
	"strings"

	"github.com/krmcat/krmcat/schema"
)

type (
	junitSuites struct {
		XMLName  xml.Name     `xml:"testsuites"`
		Tests    int          `xml:"tests,attr"`
		Failures int          `xml:"failures,attr"`
		Suites   []junitSuite `xml:"testsuite"`
	}
	junitSuite struct {
		Name     string      `xml:"name,attr"`
		Tests    int         `xml:"tests,attr"`
		Failures int         `xml:"failures,attr"`
		Cases    []junitCase `xml:"testcase"`
	}
	junitCase struct {
		Name    string        `xml:"name,attr"`
		Class   string        `xml:"classname,attr"`
		Failure *junitFailure `xml:"failure,omitempty"`
		Out     string        `xml:"system-out,omitempty"`
	}
	junitFailure struct {
		Message string `xml:"message,attr"`
		Type    string `xml:"type,attr"`
		Text    string `xml:",chardata"`
	}
)

// writeJUnit makes every file a test case that fails if it has errors.
func (r *Report) writeJUnit(w io.Writer) error {
	suite := junitSuite{Name: "krmcat validate"}
	for _, file := range r.Files {
		c := junitCase{Name: Visible(file), Class: "krmcat.validate"}
		var fails, talk []string
		for _, d := range r.Diagnostics {
			if d.Pos.File != file {
				continue
			}
			line := fmt.Sprintf("%s: %s: %s", Visible(d.Pos.String()), strings.TrimSpace(d.Severity.String()+" "+d.Rule), message(d))
			if d.Severity != schema.Error {
				talk = append(talk, line)
				continue
			}
			if c.Failure == nil {
				c.Failure = &junitFailure{Message: message(d), Type: d.Rule}
			}
			fails = append(fails, line)
		}
		if c.Failure != nil {
			c.Failure.Text = strings.Join(fails, "\n")
			suite.Failures++
		}
		c.Out = strings.Join(talk, "\n")
		suite.Cases = append(suite.Cases, c)
	}
	suite.Tests = len(suite.Cases)
	out, err := xml.MarshalIndent(junitSuites{Tests: suite.Tests, Failures: suite.Failures, Suites: []junitSuite{suite}}, "", "  ")
	if err == nil {
		_, err = fmt.Fprintf(w, "%s%s\n", xml.Header, out)
	}
	if err != nil {
		return fmt.Errorf("writing output: %w", err)
	}
	return nil
}

var (
	githubData     = strings.NewReplacer("%", "%25", "\r", "%0D", "\n", "%0A")
	githubProperty = strings.NewReplacer("%", "%25", "\r", "%0D", "\n", "%0A", ":", "%3A", ",", "%2C")
)

// writeGitHub writes workflow commands, which become annotations of a pull
// request.
func (r *Report) writeGitHub(w io.Writer) error {
	b := bufio.NewWriter(w)
	for _, d := range r.Diagnostics {
		fmt.Fprintf(b, "::%s file=%s", d.Severity, githubProperty.Replace(location(d.Pos.File)))
		if d.Pos.Line > 0 {
			fmt.Fprintf(b, ",line=%d,col=%d,endColumn=%d", d.Pos.Line, d.Pos.Column, d.Pos.Column+max(1, d.Width))
		}
		fmt.Fprintf(b, ",title=%s::%s\n", githubProperty.Replace(strings.TrimSpace("krmcat "+d.Rule)), githubData.Replace(message(d)))
	}
	if err := b.Flush(); err != nil {
		return fmt.Errorf("writing output: %w", err)
	}
	return nil
}

type (
	gitlabIssue struct {
		Description string         `json:"description"`
		CheckName   string         `json:"check_name"`
		Fingerprint string         `json:"fingerprint"`
		Severity    string         `json:"severity"`
		Location    gitlabLocation `json:"location"`
	}
	gitlabLocation struct {
		Path  string      `json:"path"`
		Lines gitlabLines `json:"lines"`
	}
	gitlabLines struct {
		Begin int `json:"begin"`
	}
)

// writeGitLab writes a code quality report.
func (r *Report) writeGitLab(w io.Writer) error {
	issues := []gitlabIssue{}
	seen := map[string]int{}
	for _, d := range r.Diagnostics {
		severity := map[schema.Severity]string{schema.Error: "major", schema.Warning: "minor"}[d.Severity]
		if severity == "" {
			severity = "info"
		}
		// Without the line, so that a finding keeps its identity when lines
		// above it change.
		key := strings.Join([]string{location(d.Pos.File), d.Rule, d.Path, d.Message}, "\x00")
		seen[key]++
		sum := sha256.Sum256(fmt.Appendf(nil, "%s\x00%d", key, seen[key]))
		issues = append(issues, gitlabIssue{Description: message(d), CheckName: d.Rule, Fingerprint: hex.EncodeToString(sum[:16]), Severity: severity,
			Location: gitlabLocation{Path: location(d.Pos.File), Lines: gitlabLines{max(1, d.Pos.Line)}}})
	}
	return encode(w, issues)
}
