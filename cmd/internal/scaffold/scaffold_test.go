package scaffold

import (
	"bytes"
	"encoding/json"
	"errors"
	"go/format"
	"os"
	"os/exec"
	"path/filepath"
	"reflect"
	"strings"
	"testing"

	"sigs.k8s.io/yaml"
)

// written makes the files of a function and puts them into a folder.
func written(t *testing.T, f Function) (string, map[string]string) {
	t.Helper()
	files, err := Files(f)
	if err != nil {
		t.Fatal(err)
	}
	dir, texts := t.TempDir(), map[string]string{}
	for _, file := range files {
		name := filepath.Join(dir, filepath.FromSlash(file.Name))
		if err := os.MkdirAll(filepath.Dir(name), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(name, file.Data, 0o644); err != nil {
			t.Fatal(err)
		}
		texts[file.Name] = string(file.Data)
	}
	return dir, texts
}

func TestFilesName(t *testing.T) {
	for _, runtime := range Runtimes {
		_, texts := written(t, Function{Name: "set-owner", Group: "acme.com", Kind: "SetOwner", Runtime: runtime})
		for name, text := range texts {
			if strings.Contains(text, "{{") || strings.Contains(text, "no value") || strings.Contains(text, "\n\n\n") {
				t.Errorf("%s, %s is not filled in:\n%s", runtime, name, text)
			}
			if strings.HasSuffix(name, ".tmpl") {
				t.Errorf("%s, %s has the name of a template", runtime, name)
			}
		}
		for _, name := range []string{"function.yaml", "README.md", "examples/basic/README.md", "examples/basic/input.yaml", "examples/basic/output.yaml"} {
			if texts[name] == "" {
				t.Errorf("%s: there is no %s", runtime, name)
			}
		}
	}
}

// The program in Go is built with krmcat's own modules, does what its example
// says, and names the version of kyaml that was tested.
func TestGoProgram(t *testing.T) {
	dir, texts := written(t, Function{Name: "set-owner", Group: "acme.com", Kind: "SetOwner", Runtime: "go"})
	if text, err := format.Source([]byte(texts["main.go"])); err != nil || string(text) != texts["main.go"] {
		t.Errorf("main.go is not formatted: %v\n%s", err, text)
	}
	kyaml, err := exec.Command("go", "list", "-m", "sigs.k8s.io/kustomize/kyaml").Output()
	if err != nil {
		t.Fatal(err)
	}
	if want := strings.TrimSpace(string(kyaml)); !strings.Contains(texts["go.mod"], want) {
		t.Errorf("go.mod does not have %s:\n%s", want, texts["go.mod"])
	}

	here, err := os.Getwd()
	if err != nil {
		t.Fatal(err)
	}
	overlay, err := json.Marshal(map[string]any{"Replace": map[string]string{filepath.Join(here, "program", "main.go"): filepath.Join(dir, "main.go")}})
	if err != nil {
		t.Fatal(err)
	}
	overlayFile, program := filepath.Join(dir, "overlay.json"), filepath.Join(dir, "program")
	if err := os.WriteFile(overlayFile, overlay, 0o644); err != nil {
		t.Fatal(err)
	}
	if out, err := exec.Command("go", "build", "-overlay", overlayFile, "-o", program, "./program").CombinedOutput(); err != nil {
		t.Fatalf("go build: %v\n%s", err, out)
	}
	run := func(input string) (map[string]any, error) {
		cmd := exec.Command(program)
		cmd.Stdin = strings.NewReader(input)
		var out, errs bytes.Buffer
		cmd.Stdout, cmd.Stderr = &out, &errs
		err := cmd.Run()
		return object(t, out.Bytes()), err
	}
	got, err := run(texts["examples/basic/input.yaml"])
	if err != nil {
		t.Fatal(err)
	}
	if want := object(t, []byte(texts["examples/basic/output.yaml"])); !reflect.DeepEqual(got, want) {
		t.Errorf("got %v\nwant %v", got, want)
	}
	got, err = run(strings.Replace(texts["examples/basic/input.yaml"], "acme.com/owner: team-shop", "{}", 1))
	if err == nil || got["results"] == nil {
		t.Errorf("a functionConfig without annotations: %v, %v", got, err)
	}
}

func object(t *testing.T, data []byte) map[string]any {
	t.Helper()
	var o map[string]any
	if err := yaml.Unmarshal(data, &o); err != nil {
		t.Fatalf("%v:\n%s", err, data)
	}
	return o
}

func TestWrongNames(t *testing.T) {
	good := Function{Name: "set-owner", Group: "acme.com", Kind: "SetOwner", Runtime: "starlark"}
	for what, change := range map[string]func(*Function){
		"function": func(f *Function) { f.Name = "Set_Owner" },
		"group":    func(f *Function) { f.Group = "acme" },
		"kind":     func(f *Function) { f.Kind = "setOwner" },
		"runtime":  func(f *Function) { f.Runtime = "perl" },
	} {
		f := good
		change(&f)
		_, err := Files(f)
		wrong, ok := errors.AsType[*NameError](err)
		if !ok || wrong.What != what {
			t.Errorf("%+v: %v", f, err)
		}
	}
	for _, group := range []string{"", "acme.com\n", "a b.c", "acme.com: x", "{acme.com}"} {
		f := good
		f.Group = group
		if _, err := Files(f); err == nil {
			t.Errorf("the group %q is taken", group)
		}
	}
}

func TestKindOf(t *testing.T) {
	for name, want := range map[string]string{"set-owner": "SetOwner", "a": "A", "x-2": "X2", "": "", "--": ""} {
		if got := KindOf(name); got != want {
			t.Errorf("KindOf(%q) is %q, not %q", name, got, want)
		}
	}
}
