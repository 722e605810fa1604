package schema_test

import (
	"fmt"
	"os"
	"strings"
	"testing"

	"github.com/krmcat/krmcat/schema"
)

// TestRulesDocumented checks that docs/rules says something about every rule,
// where the links of findings lead.
func TestRulesDocumented(t *testing.T) {
	t.Parallel()
	data, err := os.ReadFile("../docs/rules/README.md")
	if err != nil {
		t.Fatal(err)
	}
	text := string(data)
	for _, r := range schema.Rules() {
		ids := []string{r.ID(schema.Consume)}
		if other := r.ID(schema.Publish); other != ids[0] {
			ids = append(ids, other)
		}
		for _, id := range ids {
			if !strings.Contains(text, fmt.Sprintf("<a id=%q></a>", strings.ToLower(id))) {
				t.Errorf("docs/rules has no anchor for %s", id)
			}
		}
		heading := fmt.Sprintf("### %s: %s\n", strings.Join(ids, ", "), r.Title)
		_, section, ok := strings.Cut(text, heading)
		if !ok {
			t.Errorf("docs/rules has no heading %q", heading)
			continue
		}
		if body, _, _ := strings.Cut(section, "Severity: "); len(strings.TrimSpace(body)) < 20 {
			t.Errorf("docs/rules says nothing about %s", ids[0])
		}
	}
}
