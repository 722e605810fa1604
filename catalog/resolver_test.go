package catalog

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"strings"
	"testing"

	"github.com/opencontainers/go-digest"

	"github.com/krmcat/krmcat/schema"
)

// documents is a source over a few texts; it counts what is fetched.
type documents struct {
	texts   map[string]string
	fetched map[string]int
}

func (d *documents) Fetch(_ context.Context, loc Location) (*Content, error) {
	if d.fetched == nil {
		d.fetched = map[string]int{}
	}
	d.fetched[loc.String()]++
	text, ok := d.texts[loc.String()]
	if !ok {
		return nil, fmt.Errorf("%s: %w", loc, os.ErrNotExist)
	}
	out := loc
	switch loc.Scheme {
	case "oci":
		out.Digest = digest.FromString("manifest of " + text)
	case "git":
		g, err := loc.Git()
		if err != nil {
			return nil, err
		}
		g.Ref = strings.Repeat("c", 40)
		out.Ref = g.String()
	}
	return &Content{Body: io.NopCloser(strings.NewReader(text)), Size: int64(len(text)), Location: out}, nil
}

// catalogText is a catalog with a container for each kind. The image says
// which catalog and which entry it is from.
func catalogText(name string, kinds ...string) string {
	var b strings.Builder
	fmt.Fprintf(&b, "apiVersion: config.kubernetes.io/v1alpha1\nkind: Catalog\nmetadata: {name: %s}\nspec:\n  krmFunctions:\n", name)
	for i, k := range kinds {
		fmt.Fprintf(&b, "  - {group: g.example, names: {kind: %s}, versions: [{name: v1, runtime: {container: {image: h/%s-%d}}}]}\n", k, name, i)
	}
	return b.String()
}

func newTestList(t *testing.T, docs *documents, trusted []string, locations ...string) *List {
	t.Helper()
	trust := &TrustList{Source: docs}
	for _, s := range trusted {
		if err := trust.ParseTrusted(s); err != nil {
			t.Fatal(err)
		}
	}
	l := &List{Source: docs, Trust: trust, Options: ReadOptions{Level: schema.Consume}}
	for _, s := range locations {
		l.Entries = append(l.Entries, NewEntry(mustLocation(t, s)))
	}
	return l
}

func TestListResolve(t *testing.T) {
	t.Parallel()
	a, b := catalogText("a", "A", "B", "A"), catalogText("b", "B", "C")
	texts := map[string]string{
		"https://h/a.yaml": a, "https://h/b.yaml": b, "copy.yaml": a, "edited.yaml": a + "# edited\n",
		"broken.yaml": "a: [", "oci://h/a:v1": a, "https://h/o/r//a.yaml?ref=main": a,
	}
	gone := "https://h/gone.yaml"
	for _, tt := range []struct {
		name     string
		kind     string
		catalogs []string
		trusted  []string
		image    string
		err      error
		text     string
		fetches  []string // nothing else is fetched
	}{
		{"KC-085: first in a catalog", "A", []string{"https://h/a.yaml"}, []string{"https://h/a.yaml"}, "h/a-0", nil, "", []string{"https://h/a.yaml"}},
		{"KC-084: first catalog", "B", []string{"https://h/a.yaml", "https://h/b.yaml"}, []string{"https://h/a.yaml", "https://h/b.yaml"}, "h/a-1", nil, "", []string{"https://h/a.yaml"}},
		{"KC-017: in the order given", "B", []string{"https://h/b.yaml", "https://h/a.yaml"}, []string{"https://h/a.yaml", "https://h/b.yaml"}, "h/b-0", nil, "", nil},
		{"KC-022: not trusted", "A", []string{"https://h/a.yaml"}, nil, "", ErrUntrusted, "https://h/a.yaml", nil},
		{"not trusted, though a later one is", "B", []string{"https://h/a.yaml", "https://h/b.yaml"}, []string{"https://h/b.yaml"}, "", ErrUntrusted, "", nil},
		{"not trusted and not needed", "C", []string{"https://h/a.yaml", "https://h/b.yaml"}, []string{"https://h/b.yaml"}, "h/b-1", nil, "", nil},
		{"KC-096: no match", "D", []string{"https://h/a.yaml"}, []string{"https://h/a.yaml"}, "", ErrNotFound, "searched https://h/a.yaml", nil},
		{"no catalogs", "D", nil, nil, "", ErrNotFound, "no catalog was given", []string{}},
		{"KC-111: unavailable and needed", "A", []string{gone, "https://h/a.yaml"}, []string{"https://h/a.yaml"}, "", os.ErrNotExist, gone, []string{gone}},
		{"KC-112: unavailable and not needed", "A", []string{"https://h/a.yaml", gone}, []string{"https://h/a.yaml"}, "h/a-0", nil, "", []string{"https://h/a.yaml"}},
		{"broken", "A", []string{"broken.yaml"}, []string{"broken.yaml"}, "", nil, "broken.yaml:1", nil},
		{"KC-034: a copy of a trusted catalog", "A", []string{"copy.yaml"}, []string{"https://h/a.yaml"}, "h/a-0", nil, "", []string{"copy.yaml", "https://h/a.yaml"}},
		{"an edited copy", "A", []string{"edited.yaml"}, []string{"https://h/a.yaml"}, "", ErrUntrusted, "", nil},
		{"a copy, and the trusted one is gone", "A", []string{"copy.yaml"}, []string{gone}, "", ErrUntrusted, "could not be compared", nil},
		{"by the digest of the document", "A", []string{"copy.yaml"}, []string{digest.FromString(a).String()}, "h/a-0", nil, "", []string{"copy.yaml"}},
		{"by another digest", "A", []string{"copy.yaml"}, []string{digest.FromString(b).String()}, "", ErrUntrusted, "", nil},
		{"normalised", "A", []string{"https://h/a.yaml"}, []string{"HTTPS://H:443/x/../a.yaml"}, "h/a-0", nil, "", nil},
		{"by URL and digest", "A", []string{"https://h/a.yaml"}, []string{"https://h/a.yaml#" + digest.FromString(a).String()}, "h/a-0", nil, "", nil},
		{"a tag by digest", "A", []string{"oci://h/a:v1"}, []string{"oci://h/a@" + digest.FromString("manifest of "+a).String()}, "h/a-0", nil, "", nil},
		{"a tag", "A", []string{"oci://h/a:v1"}, []string{"oci://h/a:v1"}, "h/a-0", nil, "", nil},
		{"a branch by commit", "A", []string{"https://h/o/r//a.yaml?ref=main"}, []string{"https://h/o/r//a.yaml?ref=" + strings.Repeat("c", 40)}, "h/a-0", nil, "", nil},
		{"another commit", "A", []string{"https://h/o/r//a.yaml?ref=main"}, []string{"https://h/o/r//a.yaml?ref=" + strings.Repeat("d", 40)}, "", ErrUntrusted, "", nil},
	} {
		docs := &documents{texts: texts}
		l := newTestList(t, docs, tt.trusted, tt.catalogs...)
		r, err := l.Resolve(t.Context(), GVK("g.example/v1", tt.kind))
		switch {
		case tt.image != "":
			if err != nil {
				t.Errorf("%s: %v", tt.name, err)
			} else if got := r.Version.Runtime.Container.Image; got != tt.image {
				t.Errorf("%s: %s, want %s", tt.name, got, tt.image)
			}
		case err == nil:
			t.Errorf("%s: %s, want an error", tt.name, r.Version.Runtime.Container.Image)
		case tt.err != nil && !errors.Is(err, tt.err), !strings.Contains(err.Error(), tt.text):
			t.Errorf("%s: %v, want %v with %q", tt.name, err, tt.err, tt.text)
		}
		if tt.fetches != nil {
			for _, f := range tt.fetches {
				if docs.fetched[f] != 1 {
					t.Errorf("%s: %s was fetched %d times, want once", tt.name, f, docs.fetched[f])
				}
			}
			if len(docs.fetched) != len(tt.fetches) {
				t.Errorf("%s: fetched %v, want only %v", tt.name, docs.fetched, tt.fetches)
			}
		}
	}
}

// A pinned location does not trust other content at the same place.
func TestTrustPinned(t *testing.T) {
	t.Parallel()
	docs := &documents{texts: map[string]string{"https://h/a.yaml": catalogText("a", "A"), "oci://h/a:v1": catalogText("a", "A")}}
	for _, tt := range []struct{ catalog, trusted string }{
		{"https://h/a.yaml", "https://h/a.yaml#sha256:" + hexA},
		{"oci://h/a:v1", "oci://h/a:v1@sha256:" + hexA},
		{"oci://h/a:v1", "oci://h/a:v2"},
		{"oci://h/a:v1", "oci://h/a"},
	} {
		l := newTestList(t, docs, []string{tt.trusted}, tt.catalog)
		if _, err := l.Resolve(t.Context(), GVK("g.example/v1", "A")); !errors.Is(err, ErrUntrusted) {
			t.Errorf("%s with %s trusted: %v", tt.catalog, tt.trusted, err)
		}
	}
	if err := (&TrustList{}).Trusted(t.Context(), &Catalog{Name: "x"}); !errors.Is(err, ErrUntrusted) {
		t.Errorf("the zero TrustList: %v", err)
	}
	if err := (&TrustList{}).ParseTrusted("-x"); err == nil {
		t.Error("a bad location is accepted")
	}
	if _, err := (&List{Entries: []*Entry{Loaded(read(t, "c.yaml", catalogText("c", "A")).Catalog)}}).Resolve(t.Context(), GVK("g.example/v1", "A")); !errors.Is(err, ErrUntrusted) {
		t.Errorf("a List without Trust: %v", err)
	}
}

// KC-024, KC-025, KC-095: an official catalog needs no trust and is first.
func TestOfficial(t *testing.T) {
	t.Parallel()
	official := Loaded(read(t, "https://h/official.yaml", catalogText("official", "A")).Catalog)
	official.Official = true
	l := &List{Entries: []*Entry{official, Loaded(read(t, "c.yaml", catalogText("c", "A")).Catalog)}}
	r, err := l.Resolve(t.Context(), GVK("g.example/v1", "A"))
	if err != nil || r.Catalog.Name != "official" {
		t.Errorf("%v, %v", r, err)
	}
}

func TestExplain(t *testing.T) {
	t.Parallel()
	docs := &documents{texts: map[string]string{
		"1.yaml": catalogText("one", "X"), "2.yaml": catalogText("two", "A", "A"), "3.yaml": catalogText("three", "A"),
	}}
	l := newTestList(t, docs, []string{"2.yaml"}, "1.yaml", "2.yaml", "3.yaml")
	r, looked, err := l.Explain(t.Context(), GVK("g.example/v1", "A"))
	if err != nil {
		t.Fatal(err)
	}
	if r != looked[1].Matches[0] {
		t.Errorf("resolved %v, want the first match", r)
	}
	var got []string
	for _, x := range looked {
		got = append(got, fmt.Sprintf("%s %v %d", x.Location, x.State, len(x.Matches)))
	}
	if want := "1.yaml no match 0, 2.yaml match 2, 3.yaml not needed 0"; strings.Join(got, ", ") != want {
		t.Errorf("got %q, want %q", got, want)
	}
	_, _, err = l.Explain(t.Context(), GVK("g.example/v2", "A"))
	nf, ok := errors.AsType[*NotFoundError](err)
	if !ok || len(nf.Searched) != 3 || !strings.Contains(err.Error(), "searched 3 catalogs") || !strings.Contains(err.Error(), "did you mean g.example/v1, kind A?") {
		t.Errorf("not found: %v", err)
	}
}

// A failure that ctx caused is not kept.
func TestListCancelled(t *testing.T) {
	t.Parallel()
	docs := &documents{texts: map[string]string{"c.yaml": catalogText("c", "A")}}
	l := newTestList(t, docs, []string{"c.yaml"}, "c.yaml")
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if _, err := l.Resolve(ctx, GVK("g.example/v1", "A")); !errors.Is(err, context.Canceled) {
		t.Errorf("cancelled: %v", err)
	}
	if _, err := l.Resolve(t.Context(), GVK("g.example/v1", "A")); err != nil {
		t.Errorf("after that: %v", err)
	}
}

func TestListAll(t *testing.T) {
	t.Parallel()
	docs := &documents{texts: map[string]string{"a.yaml": catalogText("a", "A", "B"), "b.yaml": catalogText("b", "A")}}
	var got []string
	for r, err := range newTestList(t, docs, nil, "a.yaml", "b.yaml", "gone.yaml").All(t.Context()) {
		if err != nil {
			got = append(got, "error")
			continue
		}
		got = append(got, r.Version.Runtime.Container.Image)
	}
	if want := "h/a-0 h/a-1 h/b-0 error"; strings.Join(got, " ") != want {
		t.Errorf("got %q, want %q", got, want)
	}
}

// The functions of the six readable examples of KEP-2906 resolve, 11 of 11.
func TestResolveKEPExamples(t *testing.T) {
	t.Parallel()
	n := 0
	for i := 1; i <= 6; i++ {
		name := fmt.Sprintf("testdata/kep-examples/catalog-%d.yaml", i)
		data, err := os.ReadFile(name)
		if err != nil {
			t.Fatal(err)
		}
		c := read(t, name, string(data)).Catalog
		l := &List{Entries: []*Entry{Loaded(c)}, Trust: &TrustList{Locations: []Location{mustLocation(t, name)}}}
		for r := range c.Resolutions() {
			got, err := l.Resolve(t.Context(), r.GVK())
			if err != nil || got.Version != r.Version {
				t.Errorf("%s: %s: %v, %v", name, r.GVK(), got, err)
			}
			n++
		}
	}
	if n != 11 {
		t.Errorf("resolved %d functions, want 11", n)
	}
}
