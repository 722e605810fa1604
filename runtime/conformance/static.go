package conformance

import (
	"bytes"
	"encoding/binary"
	"encoding/json"
	"fmt"
	"io"
	"slices"
	"strings"

	ocispec "github.com/opencontainers/image-spec/specs-go/v1"
)

// CheckExecutable checks that an executable is one for a platform, by its
// header (C23): os is linux, darwin or windows, arch amd64 or arm64, as
// definitions name them. A script with an interpreter is one for every
// platform that has interpreters.
func CheckExecutable(file io.ReaderAt, os, arch string) []Finding {
	c := &checker{}
	format, archs := executableFormat(file)
	want := map[string]string{"linux": "ELF", "darwin": "Mach-O", "windows": "PE"}[os]
	switch {
	case format == "script" && os != "windows":
	case format == "":
		c.add("C23 KC-064", Error, "the file for "+os+"/"+arch+" is no executable", evidenceOf(file))
	case format != want:
		c.add("C23 KC-064", Error, fmt.Sprintf("the executable for %s/%s is of format %s", os, arch, format), evidenceOf(file))
	case !slices.Contains(archs, arch):
		c.add("C23 KC-065", Error, fmt.Sprintf("the executable for %s/%s is for %s", os, arch, strings.Join(archs, ", ")), format+" for "+strings.Join(archs, ", "))
	}
	return c.findings
}

func evidenceOf(file io.ReaderAt) string {
	b := make([]byte, 16)
	n, err := file.ReadAt(b, 0)
	if n == 0 {
		return fmt.Sprintf("(nothing can be read: %v)", err)
	}
	return fmt.Sprintf("it starts with % x", b[:n])
}

// executableFormat is ELF, Mach-O, PE or script, and the architectures as
// definitions name them; empty for anything else. It reads headers only: the
// debug packages of the standard library are not made for hostile files.
func executableFormat(file io.ReaderAt) (string, []string) {
	at := func(offset int64, n int) []byte {
		b := make([]byte, n)
		if got, _ := file.ReadAt(b, offset); got < n {
			return nil
		}
		return b
	}
	h := at(0, 2)
	if string(h) == "#!" {
		return "script", nil
	}
	if string(h) == "MZ" {
		if b := at(0x3c, 4); b != nil {
			if pe := at(int64(binary.LittleEndian.Uint32(b)), 6); pe != nil && string(pe[:4]) == "PE\x00\x00" {
				return "PE", []string{machine(map[uint32]string{0x8664: "amd64", 0xaa64: "arm64"}, uint32(binary.LittleEndian.Uint16(pe[4:])))}
			}
		}
		return "", nil
	}
	if h = at(0, 20); h == nil {
		return "", nil
	}
	machO := map[uint32]string{0x01000007: "amd64", 0x0100000c: "arm64"}
	switch string(h[:4]) {
	case "\x7fELF":
		var order binary.ByteOrder = binary.LittleEndian
		if h[5] == 2 {
			order = binary.BigEndian
		}
		return "ELF", []string{machine(map[uint32]string{62: "amd64", 183: "arm64"}, uint32(order.Uint16(h[18:])))}
	case "\xcf\xfa\xed\xfe":
		return "Mach-O", []string{machine(machO, binary.LittleEndian.Uint32(h[4:]))}
	case "\xca\xfe\xba\xbe": // several in one file; a Java class starts like that too
		n := binary.BigEndian.Uint32(h[4:])
		var archs []string
		for i := range min(n, 16) {
			if b := at(8+20*int64(i), 4); b != nil {
				archs = append(archs, machine(machO, binary.BigEndian.Uint32(b)))
			}
		}
		return "Mach-O", archs
	}
	return "", nil
}

func machine(known map[uint32]string, number uint32) string {
	if name := known[number]; name != "" {
		return name
	}
	return fmt.Sprintf("machine %#x", number)
}

// CheckImage checks the configuration of a container image (C23): it says
// what to run, and if it names a user, one that is a number, as engines cannot
// look names up in an image without users.
func CheckImage(config []byte) []Finding {
	c := &checker{}
	var image ocispec.Image
	if err := json.Unmarshal(config, &image); err != nil {
		c.add("C23 CF-04", Error, "the configuration of the image cannot be read: "+err.Error(), firstLines(config))
		return c.findings
	}
	if len(image.Config.Entrypoint)+len(image.Config.Cmd) == 0 {
		c.add("C23 CF-04", Error, "the image has neither ENTRYPOINT nor CMD", firstLines(config))
	}
	user, _, _ := strings.Cut(image.Config.User, ":")
	if strings.Trim(user, "0123456789") != "" {
		c.add("C23 FS-30", Info, fmt.Sprintf("the image's user %q is a name", user), "USER "+image.Config.User)
	}
	return c.findings
}

// CompareRuntimes compares what two runtimes of one function, such as its
// container and its executable, made of the same example (C27).
func CompareRuntimes(nameA string, a *Report, nameB string, b *Report) []Finding {
	c := &checker{}
	if a.Err != nil || b.Err != nil {
		return nil
	}
	what := fmt.Sprintf("%s and %s", nameA, nameB)
	if a.ExitCode != b.ExitCode {
		c.add("C27", Warning, fmt.Sprintf("%s end with different exit codes, %d and %d", what, a.ExitCode, b.ExitCode), a.Stderr+b.Stderr)
		return c.findings
	}
	x, y := readable(a.Stdout), readable(b.Stdout)
	if x == nil || y == nil {
		if !bytes.Equal(a.Stdout, b.Stdout) {
			c.add("C27", Warning, what+" give different output", diffText(string(a.Stdout), string(b.Stdout)))
		}
		return c.findings
	}
	if d := differStripped(x.Items, y.Items); d != "" {
		c.add("C27", Warning, what+" give different items", d)
	}
	if d := diffResults(x.Results, y.Results); d != "" {
		c.add("C27", Warning, what+" give different results", d)
	}
	return c.findings
}
