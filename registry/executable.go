package registry

import (
	"debug/elf"
	"debug/macho"
	"debug/pe"
	"fmt"
	"io"
	"os"
)

// checkExecutable refuses a file whose header says that it is for another
// platform than os/arch. A file that is no executable of a known format, such
// as a script, passes: whether it runs is for its author to know.
func checkExecutable(file, goos, arch string) error {
	f, err := os.Open(file)
	if err != nil {
		return err
	}
	defer f.Close()
	return checkExecutableHeader(f, file, goos, arch)
}

func checkExecutableHeader(r io.ReaderAt, name, goos, arch string) error {
	gotOS, gotArch := executablePlatform(r)
	if gotOS == "" || gotOS == goos && gotArch == arch {
		return nil
	}
	return fmt.Errorf("%s: an executable for %s/%s, not for %s/%s", name, gotOS, gotArch, goos, arch)
}

// executablePlatform reads the platform from an ELF, Mach-O or PE header;
// both are empty for anything else.
func executablePlatform(r io.ReaderAt) (goos, arch string) {
	if f, err := elf.NewFile(r); err == nil {
		defer f.Close()
		switch f.Machine {
		case elf.EM_X86_64:
			return "linux", "amd64"
		case elf.EM_AARCH64:
			return "linux", "arm64"
		}
		return "linux", f.Machine.String()
	}
	if f, err := macho.NewFile(r); err == nil {
		defer f.Close()
		switch f.Cpu {
		case macho.CpuAmd64:
			return "darwin", "amd64"
		case macho.CpuArm64:
			return "darwin", "arm64"
		}
		return "darwin", f.Cpu.String()
	}
	if f, err := pe.NewFile(r); err == nil {
		defer f.Close()
		switch f.Machine {
		case pe.IMAGE_FILE_MACHINE_AMD64:
			return "windows", "amd64"
		case pe.IMAGE_FILE_MACHINE_ARM64:
			return "windows", "arm64"
		}
		return "windows", fmt.Sprintf("machine %#x", f.Machine)
	}
	return "", ""
}
