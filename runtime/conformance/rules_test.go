package conformance_test

import (
	"bytes"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"slices"
	"strings"
	"testing"

	"github.com/krmcat/krmcat/runtime"
	"github.com/krmcat/krmcat/runtime/conformance"
	"github.com/krmcat/krmcat/runtime/fntest"
	"github.com/krmcat/krmcat/runtime/starlarkfn"
)

// Every statement of the three specifications has a check, or a reason why it
// has none.
func TestEveryNumberIsAccountedFor(t *testing.T) {
	why := map[string]string{}
	for _, e := range conformance.Exempts() {
		for _, n := range e.Numbers {
			if why[n] != "" {
				t.Errorf("%s is exempt twice", n)
			}
			why[n] = e.Why
		}
	}
	checked := map[string]bool{}
	for _, c := range conformance.Checks() {
		if c.Remedy == "" {
			t.Errorf("%s has no remedy", c.ID)
		}
		for _, n := range c.Rules {
			checked[n] = true
			if why[n] != "" {
				t.Errorf("%s is checked by %s and exempt", n, c.ID)
			}
		}
	}
	for prefix, last := range map[string]int{"FS": 47, "CF": 75, "KG": 28} {
		for i := 1; i <= last; i++ {
			if n := fmt.Sprintf("%s-%02d", prefix, i); !checked[n] && why[n] == "" {
				t.Errorf("%s has neither a check nor a reason", n)
			}
		}
	}
}

// good is a function that keeps every rule.
func good(t *testing.T) (runtime.Function, conformance.Example, conformance.Options) {
	t.Helper()
	fn, err := (&starlarkfn.Executor{}).Script("set-labels.star", []byte(strictLabels), runtime.Grants{}, runtime.Limits{})
	if err != nil {
		t.Fatal(err)
	}
	return fn, conformance.Example{
			Name:           "good",
			FunctionConfig: []byte(labelConfig),
			Input:          []byte(head + "items:\n" + item),
			Expected:       []byte(head + "items:\n" + strings.Replace(item, "  spec:", "    labels: {team: a}\n  spec:", 1)),
		}, conformance.Options{
			Idempotent: true,
			Withheld:   conformance.Withheld{Privileges: true, Network: true, Files: true},
			Schema:     []byte(labelSchema),
			Valid:      validLabels,
			Many:       50,
		}
}

const strictLabels = `
def run(rl):
    config = rl.get("functionConfig")
    if not config or config["kind"] != "SetLabels":
        fail("functionConfig must be of kind SetLabels")
    for field in config:
        if field not in ["apiVersion", "kind", "metadata", "labels"]:
            fail("functionConfig has no field " + field)
    if type(config.get("labels")) != "dict":
        fail("functionConfig: labels must be a mapping")
    for i in rl["items"]:
        m = i["metadata"]
        if not m.get("labels"):
            m["labels"] = {}
        m["labels"].update(config["labels"])
run(ctx.resource_list)
`

const labelSchema = `{"type":"object","required":["labels"],"properties":{"apiVersion":{"type":"string"},"kind":{"type":"string"},"metadata":{"type":"object"},"labels":{"type":"object","additionalProperties":{"type":"string"}}}}`

// validLabels is what a validator of labelSchema says.
func validLabels(_ context.Context, config []byte) error {
	switch {
	case !bytes.Contains(config, []byte("labels:")):
		return errors.New("labels is required")
	case bytes.Contains(config, []byte("labels: wrong")):
		return errors.New("labels: want an object")
	case bytes.Contains(config, []byte("noSuchField")):
		return errors.New("noSuchField is not known")
	}
	return nil
}

// wrap changes how the test function behaves.
func wrap(change func(input []byte, run func([]byte) (out []byte, err error)) ([]byte, error)) runtime.Function {
	return runtime.FunctionFunc(func(ctx context.Context, s runtime.Stdio) error {
		input, err := io.ReadAll(s.Stdin)
		if err != nil {
			return err
		}
		out, err := change(input, func(in []byte) ([]byte, error) {
			var b bytes.Buffer
			err := test(ctx, runtime.Stdio{Stdin: bytes.NewReader(in), Stdout: &b, Stderr: s.Stderr})
			return b.Bytes(), err
		})
		_, _ = s.Stdout.Write(out)
		return err
	})
}

// star is a script as a function.
func star(t *testing.T, script string) runtime.Function {
	t.Helper()
	fn, err := (&starlarkfn.Executor{}).Script("test.star", []byte(script), runtime.Grants{}, runtime.Limits{})
	if err != nil {
		t.Fatal(err)
	}
	return fn
}

// Each rule finds a function that breaks it, with its number, evidence and a
// remedy, and has nothing to say about one that keeps it.
func TestRules(t *testing.T) {
	fn, ex, opts := good(t)
	goodReport := conformance.Run(t.Context(), fn, ex, opts)
	confined := conformance.Withheld{Privileges: true, Network: true, Files: true}
	two := append(bytes.Split(fntest.List(""), []byte("functionConfig:"))[0], "- apiVersion: v1\n  kind: Service\n  metadata:\n    name: web\n    annotations:\n      internal.config.kubernetes.io/path: b.yaml\n"...)
	with := func(do string) conformance.Example {
		return conformance.Example{Name: do, FunctionConfig: fntest.Config(do), Input: two}
	}
	fails := func(stderr string) runtime.Function {
		return wrap(func([]byte, func([]byte) ([]byte, error)) ([]byte, error) {
			return nil, &runtime.FunctionError{Name: "x", ExitCode: 1, Stderr: stderr}
		})
	}
	for _, tt := range []struct {
		id     string
		number string // one that the finding must name; empty if the check has none
		level  conformance.Level
		breaks runtime.Function
		ex     conformance.Example
		opts   conformance.Options
		keeps  string // what a function does that keeps it; empty for the good function
	}{
		{id: "C01", number: "FS-07", level: conformance.Error, breaks: test, ex: with("garbage")},
		{id: "C01", number: "CF-06", level: conformance.Error, breaks: test, ex: with("empty")},
		{id: "C02", number: "FS-10", level: conformance.Error, breaks: test, ex: with("other-kind")},
		{id: "C02", number: "CF-14", level: conformance.Warning, ex: with("fixed-version"), breaks: wrap(func(in []byte, run func([]byte) ([]byte, error)) ([]byte, error) {
			if !bytes.Contains(in, []byte("config.kubernetes.io/v1\n")) {
				return nil, &runtime.FunctionError{Name: "x", ExitCode: 1, Stderr: "unknown version"}
			}
			return bytes.Replace(in, []byte("do: fixed-version"), []byte("do: copy"), 1), nil
		})},
		{id: "C03", number: "FS-12", level: conformance.Error, breaks: test, ex: with("no-items")},
		{id: "C04", number: "FS-31", level: conformance.Error, breaks: test, ex: with("logs")},
		{id: "C05", number: "KG-22", level: conformance.Error, breaks: test, ex: with("error-exit-0"), keeps: "invalid"},
		{id: "C06", number: "CF-08", level: conformance.Warning, breaks: test, ex: with("silent"), keeps: "fail"},
		{id: "C07", number: "FS-17", level: conformance.Error, breaks: test, ex: with("bad-results"), keeps: "validate"},
		{id: "C07", number: "FS-20", level: conformance.Error, breaks: test, ex: with("bad-results"), keeps: "said-twice"},
		{id: "C08", number: "FS-40", level: conformance.Error, breaks: test, ex: with("internal"), keeps: "copy"},
		{id: "C08", number: "FS-41", level: conformance.Error, breaks: test, ex: with("drop-internal"), keeps: "copy"},
		{id: "C08", number: "FS-39", level: conformance.Info, ex: with("copy"), keeps: "copy", breaks: wrap(func(in []byte, run func([]byte) ([]byte, error)) ([]byte, error) {
			out, err := run(in)
			return bytes.Replace(out, []byte("internal.config.kubernetes.io/other:"), []byte("internal.config.kubernetes.io/mine: x\n      internal.config.kubernetes.io/other:"), 1), err
		})},
		{id: "C09", number: "FS-42", level: conformance.Error, breaks: test, ex: with("escape"), keeps: "copy"},
		{id: "C09", number: "FS-44", level: conformance.Error, breaks: test, ex: with("collide"), keeps: "create"},
		{id: "C10", number: "FS-34", level: conformance.Warning, breaks: test, ex: with("strip"), keeps: "annotate"},
		{id: "C11", level: conformance.Info, breaks: test, ex: with("reformat"), keeps: "annotate"},
		{id: "C11", level: conformance.Info, breaks: test, ex: with("backwards"), keeps: "annotate"},
		{id: "C12", number: "FS-28", level: conformance.Error, ex: with("copy"), keeps: "copy", breaks: wrap(func(in []byte, run func([]byte) ([]byte, error)) ([]byte, error) {
			if bytes.HasPrefix(in, []byte("{")) {
				return nil, &runtime.FunctionError{Name: "x", ExitCode: 1, Stderr: "not block style"}
			}
			return run(in)
		})},
		{id: "C12", number: "FS-28", level: conformance.Error, breaks: test, ex: with("utf8"), keeps: "copy"},
		{id: "C13", number: "FS-30", level: conformance.Error, breaks: fails("open /etc/shadow: permission denied\n"), ex: with("copy"), opts: conformance.Options{Withheld: confined}},
		{id: "C14", number: "CF-15", level: conformance.Error, breaks: fails("dial tcp: lookup example.com: no such host\n"), ex: with("copy"), opts: conformance.Options{Withheld: confined}},
		{id: "C15", number: "KC-061", level: conformance.Error, breaks: test, ex: with("missing-file"), opts: conformance.Options{Withheld: confined}},
		{id: "C16", number: "KC-051", level: conformance.Error, breaks: test, ex: with("create"), opts: conformance.Options{Idempotent: true}},
		{id: "C17", level: conformance.Warning, breaks: test, ex: with("random"), keeps: "copy"},
		{id: "C18", number: "KC-054", level: conformance.Error, breaks: test, ex: with("copy"), opts: conformance.Options{Schema: []byte(labelSchema), Valid: validLabels}},
		{id: "C18", number: "KC-050", level: conformance.Info, breaks: test, ex: conformance.Example{FunctionConfig: []byte(labelConfig), Input: two}, opts: conformance.Options{Schema: []byte(labelSchema), Valid: validLabels}},
		{id: "C19", number: "KG-16", level: conformance.Warning, breaks: test, ex: with("crash-empty")},
		{id: "C20", number: "KG-03", level: conformance.Warning, breaks: test, ex: with("known-only"), keeps: "copy"},
		{id: "C21", number: "KG-17", level: conformance.Warning, breaks: test, ex: with("copy")},
		{id: "C22", number: "CF-10", level: conformance.Warning, ex: conformance.Example{Input: []byte(head + "items: []\n")}, breaks: star(t, `
def run(rl):
    rl["items"] = [i for i in rl["items"] if i["metadata"]["name"] != "made"]
    rl["items"].append({"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "made"}})
run(ctx.resource_list)
`)},
		{id: "C24", level: conformance.Warning, breaks: test, ex: with("first-ten"), opts: conformance.Options{Many: 40}, keeps: "copy"},
		{id: "C25", number: "KC-054", level: conformance.Error, breaks: test, ex: conformance.Example{FunctionConfig: fntest.Config("delete"), Input: two, Expected: two}},
		{id: "C26", number: "CF-03", level: conformance.Error, ex: with("copy"), keeps: "copy", breaks: runtime.FunctionFunc(func(context.Context, runtime.Stdio) error {
			return &runtime.TimeoutError{Name: "x", Stderr: "still at it"}
		})},
		{id: "C28", number: "CF-09", level: conformance.Warning, breaks: test, ex: with("annotate"), opts: conformance.Options{Validator: true}, keeps: "validate"},
		{id: "C29", number: "CF-11", level: conformance.Warning, breaks: test, ex: with("needs-path"), keeps: "copy"},
	} {
		t.Run(tt.id+" "+tt.number+" "+tt.ex.Name, func(t *testing.T) {
			t.Parallel()
			if tt.opts.Many == 0 {
				tt.opts.Many = 20
			}
			r := conformance.Run(t.Context(), tt.breaks, tt.ex, tt.opts)
			if r.Err != nil {
				t.Fatal(r.Err)
			}
			i := slices.IndexFunc(r.Findings, func(f conformance.Finding) bool {
				return f.ID == tt.id && f.Level == tt.level && (tt.number == "" || slices.Contains(f.Rules, tt.number))
			})
			if i < 0 {
				t.Fatalf("%s %s by %s is not among\n%v", tt.id, tt.level, tt.number, r.Findings)
			}
			for _, f := range r.Findings {
				if f.Remedy == "" || f.Evidence == "" {
					t.Errorf("without evidence or remedy: %+v", f)
				}
			}
			r = goodReport
			if tt.keeps != "" {
				r = conformance.Run(t.Context(), test, with(tt.keeps), tt.opts)
			}
			for _, f := range r.Findings {
				if f.ID == tt.id {
					t.Errorf("a function that keeps it: %v", f)
				}
			}
		})
	}
}

// What was not withheld cannot have been missed, and a function that should
// fail may say why.
func TestConfinedOnlyWhenWithheld(t *testing.T) {
	ex := example("missing-file")
	r := conformance.Run(t.Context(), test, ex, conformance.Options{})
	for _, id := range []string{"C13", "C14", "C15"} {
		if slices.Contains(r.Checked, id) || strings.Contains(fmt.Sprint(r.Findings), id) {
			t.Errorf("%s was checked", id)
		}
	}
	ex.Expected = []byte(head + "items: []\nresults: [{message: m}]\n")
	r = conformance.Run(t.Context(), test, ex, conformance.Options{Withheld: conformance.Withheld{Files: true}})
	if !slices.Contains(r.Checked, "C15") || strings.Contains(fmt.Sprint(r.Findings), "C15") {
		t.Errorf("checked %v: %v", r.Checked, r.Findings)
	}
}

// All that Run can check is checked on the good function, and it has nothing
// to say.
func TestEverythingIsChecked(t *testing.T) {
	fn, ex, opts := good(t)
	r := conformance.Run(t.Context(), fn, ex, opts)
	if !r.OK() || len(r.Findings) > 0 {
		t.Errorf("OK %v, %v: %v", r.OK(), r.Err, r.Findings)
	}
	for _, c := range conformance.Checks() {
		switch c.ID {
		case "C22", "C28": // for generators and validators
		case "C23", "C27": // not about one run
		default:
			if !slices.Contains(r.Checked, c.ID) {
				t.Errorf("%s was not checked", c.ID)
			}
		}
	}
}

// A generator that merges what it makes into what is there.
func TestGoodGenerator(t *testing.T) {
	fn := star(t, `
def run(rl):
    if rl.get("functionConfig", {}).get("kind", "Make") != "Make":
        fail("functionConfig must be of kind Make")
    for i in rl["items"]:
        if i["metadata"]["name"] == "made":
            return
    rl["items"].append({"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "made"}})
run(ctx.resource_list)
`)
	r := conformance.Run(t.Context(), fn, conformance.Example{Input: []byte(head + "items: []\n")}, conformance.Options{Idempotent: true})
	if len(r.Findings) > 0 || !slices.Contains(r.Checked, "C22") {
		t.Errorf("checked %v: %v", r.Checked, r.Findings)
	}
}

func TestCheckExecutable(t *testing.T) {
	elf := func(machine byte) []byte {
		return append([]byte("\x7fELF\x02\x01\x01\x00\x00\x00\x00\x00\x00\x00\x00\x00\x02\x00"), machine, 0)
	}
	macho := func(cpu uint32) []byte {
		b := []byte("\xcf\xfa\xed\xfe")
		return append(binary.LittleEndian.AppendUint32(b, cpu), make([]byte, 16)...)
	}
	fat := []byte("\xca\xfe\xba\xbe\x00\x00\x00\x02")
	for _, cpu := range []uint32{0x01000007, 0x0100000c} {
		fat = append(binary.BigEndian.AppendUint32(fat, cpu), make([]byte, 16)...)
	}
	pe := func(machine uint16) []byte {
		b := append([]byte("MZ"), make([]byte, 0x3a)...)
		b = binary.LittleEndian.AppendUint32(b, 0x40)
		return binary.LittleEndian.AppendUint16(append(b, "PE\x00\x00"...), machine)
	}
	for _, tt := range []struct {
		name, os, arch string
		file           []byte
		number         string // empty if all is well
	}{
		{"linux", "linux", "amd64", elf(62), ""},
		{"linux arm", "linux", "arm64", elf(183), ""},
		{"other arch", "linux", "arm64", elf(62), "KC-065"},
		{"strange arch", "linux", "amd64", elf(243), "KC-065"},
		{"mac", "darwin", "arm64", macho(0x0100000c), ""},
		{"mac, both", "darwin", "amd64", fat, ""},
		{"linux on mac", "darwin", "amd64", elf(62), "KC-064"},
		{"windows", "windows", "amd64", pe(0x8664), ""},
		{"windows arm", "windows", "amd64", pe(0xaa64), "KC-065"},
		{"script", "linux", "amd64", []byte("#!/bin/sh\n"), ""},
		{"script on windows", "windows", "amd64", []byte("#!/bin/sh\n"), "KC-064"},
		{"text", "linux", "amd64", []byte("hello, world, this is no program\n"), "KC-064"},
		{"empty", "linux", "amd64", nil, "KC-064"},
		{"cut", "windows", "amd64", []byte("MZ\x00\x00"), "KC-064"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			got := conformance.CheckExecutable(bytes.NewReader(tt.file), tt.os, tt.arch)
			if (len(got) == 0) != (tt.number == "") || len(got) > 0 && (!slices.Contains(got[0].Rules, tt.number) || got[0].ID != "C23" || got[0].Evidence == "") {
				t.Errorf("got %+v", got)
			}
		})
	}
}

func FuzzCheckExecutable(f *testing.F) {
	f.Add([]byte("\x7fELF\x02\x01"), true)
	f.Add([]byte("MZ"), false)
	f.Add([]byte("\xca\xfe\xba\xbe\xff\xff\xff\xff"), false)
	f.Fuzz(func(t *testing.T, file []byte, linux bool) {
		os := "darwin"
		if linux {
			os = "linux"
		}
		a := conformance.CheckExecutable(bytes.NewReader(file), os, "amd64")
		b := conformance.CheckExecutable(bytes.NewReader(file), os, "arm64")
		// One file is for two architectures on darwin only, or a script.
		if linux && len(a) == 0 && len(b) == 0 && !bytes.HasPrefix(file, []byte("#!")) {
			t.Errorf("% x is for both", file)
		}
	})
}

func TestCheckImage(t *testing.T) {
	for _, tt := range []struct {
		name, config, number string
	}{
		{"entrypoint", `{"config":{"Entrypoint":["/fn"]}}`, ""},
		{"cmd and user", `{"config":{"Cmd":["fn"],"User":"65534:65534"}}`, ""},
		{"neither", `{"config":{}}`, "CF-04"},
		{"user by name", `{"config":{"Cmd":["fn"],"User":"nobody"}}`, "FS-30"},
		{"no JSON", `x`, "CF-04"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			got := conformance.CheckImage([]byte(tt.config))
			if (len(got) == 0) != (tt.number == "") || len(got) > 0 && !slices.Contains(got[0].Rules, tt.number) {
				t.Errorf("got %+v", got)
			}
		})
	}
}

func TestCompareRuntimes(t *testing.T) {
	run := func(do string) *conformance.Report {
		return conformance.Run(t.Context(), test, example(do), conformance.Options{Quick: true})
	}
	good := run("copy")
	if got := conformance.CompareRuntimes("exec", good, "container", run("reformat")); len(got) > 0 {
		t.Errorf("the same values: %v", got)
	}
	for do, want := range map[string]string{"create": "different items", "fail": "different exit codes", "validate": "different results", "garbage": "different output"} {
		got := conformance.CompareRuntimes("exec", good, "container", run(do))
		if len(got) != 1 || got[0].ID != "C27" || !strings.Contains(got[0].Message, want) || got[0].Evidence == "" {
			t.Errorf("%s: %v", do, got)
		}
	}
	missing := &conformance.Report{Err: runtime.ErrUnavailable}
	if got := conformance.CompareRuntimes("exec", good, "container", missing); got != nil {
		t.Errorf("one that did not run: %v", got)
	}
}

// Whatever a function writes, it can be checked; and writing the input again
// is no error.
func FuzzCheckOutput(f *testing.F) {
	in := head + "items:\n" + item
	for _, s := range []string{in, "INFO x\n" + in, in + "results:\n- {message: 1, severity: [], field: {}, file: {path: /x, index: a}, tags: {a: []}}\n", in + "results: {items: [1]}\n", in + "results:\n- 1\n- null\n- [a]\n", head + "items: [1]\n", "{", "--- \n---\n" + in} {
		f.Add([]byte(s), 0)
	}
	f.Fuzz(func(t *testing.T, out []byte, exit int) {
		for _, finding := range conformance.CheckOutput([]byte(in), out, exit) {
			if finding.Remedy == "" || finding.Evidence == "" || finding.Message == "" {
				t.Errorf("incomplete: %+v", finding)
			}
		}
		conformance.Compare([]byte(in), out)
		for _, finding := range conformance.CheckOutput(out, out, 0) {
			// An output that is a good input is a good output of a function
			// that copies, unless it has results that are errors, or things
			// that no orchestrator sends.
			if finding.ID == "C04" {
				t.Errorf("%v\n%s", finding, out)
			}
		}
	})
}
