package pkgdir

import (
	"errors"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"sigs.k8s.io/kustomize/kyaml/filesys"
	"sigs.k8s.io/kustomize/kyaml/kio"
	"sigs.k8s.io/kustomize/kyaml/kio/kioutil"
)

const resource = "apiVersion: v1\nkind: A\nmetadata:\n  name: a\n"

// paths makes a folder of files, with text where it is given and a resource
// otherwise.
func paths(t *testing.T, names []string, text map[string]string) string {
	t.Helper()
	dir := t.TempDir()
	for name, data := range text {
		names = append(names, name)
		_ = data
	}
	for _, name := range names {
		data, ok := text[name]
		if !ok {
			data = resource
		}
		p := filepath.Join(dir, filepath.FromSlash(name))
		if err := errors.Join(os.MkdirAll(filepath.Dir(p), 0o755), os.WriteFile(p, []byte(data), 0o644)); err != nil {
			t.Fatal(err)
		}
	}
	return dir
}

const kptfile = "apiVersion: kpt.dev/v1\nkind: Kptfile\nmetadata:\n  name: p\n"

// Ignore files mean what they mean to kpt: the same files are read as by
// kyaml's reader, which kpt and kustomize use, and as the case says.
func TestIgnore(t *testing.T) {
	if runtime.GOOS == "windows" {
		t.Skip("kyaml compares with other separators")
	}
	files := []string{"a.yaml", "b.yaml", "c.yml", "dev/a.yaml", "dev/deep/a.yaml", "prod/a.yaml", "prod/dev/b.yaml", "test-1.yaml", "test-2.yaml"}
	for _, tt := range []struct {
		name string
		text map[string]string
		want string
	}{
		{"none", nil, "a.yaml b.yaml c.yml dev/a.yaml dev/deep/a.yaml prod/a.yaml prod/dev/b.yaml test-1.yaml test-2.yaml"},
		{"a file, wherever it is", map[string]string{".krmignore": "a.yaml\n"}, "b.yaml c.yml prod/dev/b.yaml test-1.yaml test-2.yaml"},
		{"a file of the top folder", map[string]string{".krmignore": "/a.yaml\n"}, "b.yaml c.yml dev/a.yaml dev/deep/a.yaml prod/a.yaml prod/dev/b.yaml test-1.yaml test-2.yaml"},
		{"a folder, wherever it is", map[string]string{".krmignore": "dev/\n"}, "a.yaml b.yaml c.yml prod/a.yaml test-1.yaml test-2.yaml"},
		{"a folder of the top folder", map[string]string{".krmignore": "/dev\n"}, "a.yaml b.yaml c.yml prod/a.yaml prod/dev/b.yaml test-1.yaml test-2.yaml"},
		{"stars, comments and empty lines", map[string]string{".krmignore": "# tests\n\ntest-*.yaml  \n"}, "a.yaml b.yaml c.yml dev/a.yaml dev/deep/a.yaml prod/a.yaml prod/dev/b.yaml"},
		{"not this one", map[string]string{".krmignore": "!test-1.yaml\ntest-*.yaml\n"}, "a.yaml b.yaml c.yml dev/a.yaml dev/deep/a.yaml prod/a.yaml prod/dev/b.yaml test-1.yaml"},
		{"a path", map[string]string{".krmignore": "dev/deep\nprod/a.yaml\n"}, "a.yaml b.yaml c.yml dev/a.yaml prod/dev/b.yaml test-1.yaml test-2.yaml"},
		{"line ends of Windows", map[string]string{".krmignore": "a.yaml\r\nb.yaml\r\n"}, "c.yml test-1.yaml test-2.yaml"},
		{"everything", map[string]string{".krmignore": "*\n"}, ""},
		{"a folder that is no package has none", map[string]string{"dev/.krmignore": "a.yaml\n"}, "a.yaml b.yaml c.yml dev/a.yaml dev/deep/a.yaml prod/a.yaml prod/dev/b.yaml test-1.yaml test-2.yaml"},
		{"a package below has its own", map[string]string{"dev/Kptfile": kptfile, "dev/.krmignore": "deep/\n", ".krmignore": "test-*\n"}, "a.yaml b.yaml c.yml dev/Kptfile dev/a.yaml prod/a.yaml prod/dev/b.yaml"},
		{"that of the top does not count there", map[string]string{"dev/Kptfile": kptfile, ".krmignore": "a.yaml\n"}, "b.yaml c.yml dev/Kptfile dev/a.yaml dev/deep/a.yaml prod/dev/b.yaml test-1.yaml test-2.yaml"},
		{"but can leave out the package", map[string]string{"dev/Kptfile": kptfile, ".krmignore": "/dev\n"}, "a.yaml b.yaml c.yml prod/a.yaml prod/dev/b.yaml test-1.yaml test-2.yaml"},
		{"the Kptfile itself", map[string]string{"Kptfile": kptfile, ".krmignore": "Kptfile\n/prod\n/dev\ntest*\n"}, "a.yaml b.yaml c.yml"},
		{"after a package, the top's again", map[string]string{"dev/Kptfile": kptfile, ".krmignore": "b.yaml\n"}, "a.yaml c.yml dev/Kptfile dev/a.yaml dev/deep/a.yaml prod/a.yaml test-1.yaml test-2.yaml"},
		{"packages with like names", map[string]string{"pro/Kptfile": kptfile, "pro/.krmignore": "a.yaml\n"}, "a.yaml b.yaml c.yml dev/a.yaml dev/deep/a.yaml pro/Kptfile prod/a.yaml prod/dev/b.yaml test-1.yaml test-2.yaml"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			dir := paths(t, slices.Clone(files), tt.text)
			d := read(t, dir)
			var got []string
			for _, it := range d.Items {
				got = append(got, it.Meta().Path)
			}
			slices.Sort(got)
			if diff := cmp.Diff(strings.Fields(tt.want), got); diff != "" && tt.want+strings.Join(got, "") != "" {
				t.Errorf("(-want +got):\n%s", diff)
			}
			if tt.name == "packages with like names" {
				return // kyaml takes pro's file for prod's: it compares beginnings
			}
			if diff := cmp.Diff(kyamlReads(t, dir), got); diff != "" {
				t.Errorf("(-kyaml +krmcat):\n%s", diff)
			}
		})
	}
}

func kyamlReads(t *testing.T, dir string) []string {
	t.Helper()
	nodes, err := kio.LocalPackageReader{
		PackagePath:        dir,
		PackageFileName:    "Kptfile",
		IncludeSubpackages: true,
		MatchFilesGlob:     []string{"*.yaml", "*.yml", "Kptfile"},
		FileSystem:         filesys.FileSystemOrOnDisk{},
	}.Read()
	if err != nil {
		t.Fatal(err)
	}
	var got []string
	for _, n := range nodes {
		p, _, err := kioutil.GetFileAnnotations(n)
		if err != nil {
			t.Fatal(err)
		}
		got = append(got, p)
	}
	slices.Sort(got)
	return got
}

// An ignore file that does not count is named, and one that cannot be read is
// an error, not silence.
func TestIgnoreFiles(t *testing.T) {
	d := read(t, paths(t, []string{"dev/a.yaml"}, map[string]string{"dev/.krmignore": "a.yaml\n"}))
	if len(d.Skipped) != 1 || d.Skipped[0].Path != "dev/.krmignore" {
		t.Errorf("skipped: %v", d.Skipped)
	}
	dir := paths(t, []string{"a.yaml", ".krmignore/x"}, nil)
	if _, err := Read(t.Context(), dir); err == nil || !strings.Contains(err.Error(), ".krmignore is not a regular file") {
		t.Errorf("a folder: %v", err)
	}
	dir = paths(t, []string{"a.yaml"}, map[string]string{".krmignore": strings.Repeat("# much\n", maxIgnoreFile/7+1)})
	if _, err := Read(t.Context(), dir); err == nil || !strings.Contains(err.Error(), "larger than") {
		t.Errorf("a large one: %v", err)
	}
	outside := paths(t, nil, map[string]string{"ignore": "*\n"})
	dir = paths(t, []string{"a.yaml"}, nil)
	if err := os.Symlink(filepath.Join(outside, "ignore"), filepath.Join(dir, ".krmignore")); err != nil {
		t.Skip(err)
	}
	if _, err := Read(t.Context(), dir); err == nil {
		t.Error("a link that leads out of the folder is followed")
	}
}

// A resource cannot be written over a file that was left out.
func TestIgnoredIsNotOverwritten(t *testing.T) {
	dir := paths(t, []string{"a.yaml"}, map[string]string{"secret.yaml": "apiVersion: v1\nkind: Secret\nmetadata: {name: s}\n", ".krmignore": "secret.yaml\n"})
	before := files(t, dir)
	d := read(t, dir)
	items := edit(t, d.Items, func(s string) string {
		return s + "- apiVersion: v1\n  kind: B\n  metadata:\n    name: b\n    annotations:\n      config.kubernetes.io/path: secret.yaml\n"
	})
	if _, err := d.Changes(items); !errors.Is(err, ErrCollision) {
		t.Errorf("got %v", err)
	}
	// And its removal from the list does not remove it.
	apply(t, d, d.Items)
	if diff := cmp.Diff(before, files(t, dir)); diff != "" {
		t.Error(diff)
	}
}

// Whatever is in an ignore file, reading goes on, and a plain name matches
// itself.
func FuzzIgnore(f *testing.F) {
	f.Add("a\n!a\n/\n!\n!/\n//\n", "a/b")
	f.Add("[\n[a-\n\\\n**\n*/*\n", "x.yaml")
	f.Add("\\#x\n \n", "#x")
	f.Fuzz(func(t *testing.T, text, name string) {
		if name == "" || strings.ContainsAny(name, "\x00\r\n") || filepath.Clean("/"+name) != "/"+name {
			return
		}
		m := matcher([]byte(text))
		_, _ = m.Match("/"+name, false), m.Match("/"+name, true)
		if strings.ContainsAny(name, "!#\\*?[ /") || strings.TrimSpace(name) != name || len(name) > 1000 {
			return
		}
		if !matcher([]byte(name+"\n")).Match("/sub/"+name, false) {
			t.Errorf("%q does not match itself", name)
		}
	})
}
