package main

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
)

// A kernel is a directory with vmlinuz and lib/modules/RELEASE.
type kernel struct{ dir string }

func (k kernel) image() string   { return filepath.Join(k.dir, "vmlinuz") }
func (k kernel) modules() string { return filepath.Join(k.dir, "lib", "modules") }

func cacheDir() string {
	dir, err := os.UserCacheDir()
	if err != nil {
		dir = os.TempDir()
	}
	return filepath.Join(dir, "proxyc-vm")
}

// findKernel returns the kernel of the package linux-image-amd64. If necessary it fetches the
// package and unpacks it below dir. It does not install it.
func findKernel(ctx context.Context, dir string) (kernel, error) {
	for _, tool := range []string{"qemu-system-x86_64", "depmod", "modprobe"} {
		if _, err := exec.LookPath(tool); err != nil {
			return kernel{}, fmt.Errorf("%s: is not there; `make setup-vm` installs it on Debian", tool)
		}
	}
	name, err := kernelPackage(ctx)
	if err != nil {
		return kernel{}, err
	}
	k := kernel{filepath.Join(dir, name)}
	if _, err := os.Stat(k.image()); err == nil {
		return k, nil
	}
	fmt.Println("vm: fetching", name)
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return kernel{}, err
	}
	part, err := os.MkdirTemp(dir, "part-") // renamed when it is complete
	if err != nil {
		return kernel{}, err
	}
	defer os.RemoveAll(part)
	const unpack = `apt-get download -q "$1" && dpkg -x ./*.deb . && rm -r ./*.deb usr &&
	mv boot/vmlinuz-* vmlinuz && depmod -b . "$(ls lib/modules)" && chmod 755 .`
	cmd := exec.CommandContext(ctx, "sh", "-c", unpack, "sh", name)
	cmd.Dir = part
	if out, err := cmd.CombinedOutput(); err != nil {
		return kernel{}, fmt.Errorf("unpack %s: %w\n%s", name, err, out)
	}
	if err := os.Rename(part, k.dir); err != nil {
		return kernel{}, err
	}
	return k, nil
}

// kernelPackage is the package on which linux-image-amd64 depends.
func kernelPackage(ctx context.Context) (string, error) {
	out, err := exec.CommandContext(ctx, "apt-cache", "depends", "linux-image-amd64").Output()
	if err != nil {
		return "", fmt.Errorf("apt-cache: %w (Debian's packages must be known: apt-get update)", err)
	}
	for line := range strings.Lines(string(out)) {
		if name, ok := strings.CutPrefix(strings.TrimSpace(line), "Depends: "); ok {
			return name, nil
		}
	}
	return "", errors.New("apt-cache: linux-image-amd64 is not known; `apt-get update` makes it so")
}

// closure returns the files of the modules and of all their dependencies, in an order in which
// they can be loaded.
func (k kernel) closure(names ...string) (files []string, err error) {
	deps, err := filepath.Glob(filepath.Join(k.modules(), "*", "modules.dep"))
	if err != nil || len(deps) != 1 {
		return nil, fmt.Errorf("%s: want one kernel's modules, got %d (%w)", k.modules(), len(deps), err)
	}
	f, err := os.Open(deps[0])
	if err != nil {
		return nil, err
	}
	defer f.Close()
	found := map[string][]string{} // name → its dependencies, last first, and the module
	for lines := bufio.NewScanner(f); lines.Scan(); {
		file, before, _ := strings.Cut(lines.Text(), ":")
		name := strings.TrimSuffix(filepath.Base(file), ".ko")
		list := strings.Fields(before)
		slices.Reverse(list)
		found[name] = append(list, file)
	}
	for _, name := range names {
		if found[name] == nil {
			return nil, fmt.Errorf("%s: no module %s", deps[0], name)
		}
		for _, file := range found[name] {
			if file = filepath.Join(filepath.Dir(deps[0]), file); !slices.Contains(files, file) {
				files = append(files, file)
			}
		}
	}
	return files, nil
}
