package display

import (
	"io"
	"net/url"
	"strings"

	"github.com/krmcat/krmcat/schema"
)

// The parts of SARIF 2.1.0 that are used.
type (
	sarifLog struct {
		Schema  string     `json:"$schema"`
		Version string     `json:"version"`
		Runs    []sarifRun `json:"runs"`
	}
	sarifRun struct {
		Tool       sarifTool       `json:"tool"`
		ColumnKind string          `json:"columnKind"`
		Artifacts  []sarifArtifact `json:"artifacts,omitempty"`
		Results    []sarifResult   `json:"results"`
	}
	sarifTool struct {
		Driver sarifDriver `json:"driver"`
	}
	sarifDriver struct {
		Name           string      `json:"name"`
		Version        string      `json:"version,omitempty"`
		InformationURI string      `json:"informationUri"`
		Rules          []sarifRule `json:"rules"`
	}
	sarifRule struct {
		ID               string      `json:"id"`
		ShortDescription sarifText   `json:"shortDescription"`
		HelpURI          string      `json:"helpUri"`
		Default          sarifConfig `json:"defaultConfiguration"`
	}
	sarifConfig struct {
		Level string `json:"level"`
	}
	sarifText struct {
		Text string `json:"text"`
	}
	sarifArtifact struct {
		Location sarifURI `json:"location"`
	}
	sarifURI struct {
		URI string `json:"uri"`
	}
	sarifResult struct {
		RuleID    string          `json:"ruleId,omitempty"`
		RuleIndex *int            `json:"ruleIndex,omitempty"`
		Level     string          `json:"level"`
		Message   sarifText       `json:"message"`
		Locations []sarifLocation `json:"locations"`
	}
	sarifLocation struct {
		Physical sarifPhysical  `json:"physicalLocation"`
		Logical  []sarifLogical `json:"logicalLocations,omitempty"`
	}
	sarifPhysical struct {
		Artifact sarifURI     `json:"artifactLocation"`
		Region   *sarifRegion `json:"region,omitempty"`
	}
	sarifRegion struct {
		StartLine   int        `json:"startLine"`
		StartColumn int        `json:"startColumn,omitempty"`
		EndColumn   int        `json:"endColumn,omitempty"`
		Snippet     *sarifText `json:"snippet,omitempty"`
	}
	sarifLogical struct {
		Name string `json:"fullyQualifiedName"`
	}
)

// sarifLevel is SARIF's word for a severity.
func sarifLevel(s schema.Severity) string {
	if s == schema.Notice {
		return "note"
	}
	return s.String()
}

func sarifPath(file string) sarifURI {
	return sarifURI{(&url.URL{Path: location(file)}).EscapedPath()}
}

func (r *Report) writeSARIF(w io.Writer) error {
	run := sarifRun{ColumnKind: "unicodeCodePoints", Results: []sarifResult{}}
	driver := sarifDriver{Name: "krmcat", Version: r.Version, InformationURI: "https://github.com/krmcat/krmcat", Rules: []sarifRule{}}
	index := map[string]int{}
	titles := map[string]string{}
	for _, rule := range schema.Rules() {
		titles[rule.ID(schema.Publish)], titles[rule.ID(schema.Consume)] = rule.Title, rule.Title
	}
	for _, f := range r.Files {
		run.Artifacts = append(run.Artifacts, sarifArtifact{sarifPath(f)})
	}
	for _, d := range r.Diagnostics {
		res := sarifResult{RuleID: d.Rule, Level: sarifLevel(d.Severity), Message: sarifText{message(d)}}
		if d.Rule != "" {
			i, ok := index[d.Rule]
			if !ok {
				i = len(driver.Rules)
				index[d.Rule] = i
				title := titles[d.Rule]
				if title == "" {
					title = d.Rule
				}
				driver.Rules = append(driver.Rules, sarifRule{ID: d.Rule, ShortDescription: sarifText{title},
					HelpURI: RulesURL + "#" + strings.ToLower(d.Rule), Default: sarifConfig{sarifLevel(d.Severity)}})
			}
			res.RuleIndex = &i
		}
		loc := sarifLocation{Physical: sarifPhysical{Artifact: sarifPath(d.Pos.File)}}
		if d.Pos.Line > 0 {
			loc.Physical.Region = &sarifRegion{StartLine: d.Pos.Line, StartColumn: d.Pos.Column, EndColumn: d.Pos.Column + max(1, d.Width)}
			if d.Excerpt != "" && d.Skip == 0 {
				loc.Physical.Region.Snippet = &sarifText{d.Excerpt}
			}
		}
		if d.Path != "" {
			loc.Logical = []sarifLogical{{d.Path}}
		}
		res.Locations = []sarifLocation{loc}
		run.Results = append(run.Results, res)
	}
	run.Tool.Driver = driver
	return encode(w, sarifLog{Schema: "https://json.schemastore.org/sarif-2.1.0.json", Version: "2.1.0", Runs: []sarifRun{run}})
}
