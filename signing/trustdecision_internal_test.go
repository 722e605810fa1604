package signing

import (
	"strings"
	"testing"
	"time"
)

// A signature that nothing vouches for the time of is of no age: some evidence,
// such as an entry in a log of the newer kind, comes without a time.
func TestMinimumAgeNeedsTime(t *testing.T) {
	t.Parallel()
	p := &TrustPolicy{signers: map[string]*TrustSigner{"a": {Name: "a"}}}
	a, now := &authority{name: "a"}, time.Now()
	rule := &TrustRule{MinimumAge: "1h", minimumAge: time.Hour}
	for name, tt := range map[string]struct {
		at   time.Time
		want string
	}{
		"no time":   {time.Time{}, "nothing vouches for when"},
		"too young": {now.Add(-59 * time.Minute), "has to be 1h old"},
		"future":    {now.Add(time.Hour), "has to be 1h old"},
		"old":       {now.Add(-time.Hour), ""},
	} {
		err := p.counts(a, &Verification{Time: tt.at}, rule, now)
		if tt.want == "" && err != nil || tt.want != "" && (err == nil || !strings.Contains(err.Error(), tt.want)) {
			t.Errorf("%s: got %v, want %q", name, err, tt.want)
		}
	}
}

// A text of somebody else's is one line of printable characters.
func TestPrintable(t *testing.T) {
	t.Parallel()
	if got := printable("a\x1b[31mb\nc\u202e"); got != "a?[31mb?c?" {
		t.Errorf("got %q", got)
	}
	if got := printable(strings.Repeat("x", 1000)); len(got) != 200 {
		t.Errorf("got %d bytes", len(got))
	}
}
