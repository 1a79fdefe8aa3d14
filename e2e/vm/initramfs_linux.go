package main

import (
	"bufio"
	"fmt"
	"io"
	"os"
	"path/filepath"
)

// early are the modules that give access to the outer machine's files.
var early = []string{"virtio_pci", "9pnet_virtio", "9p", "overlay"}

// writeInitramfs writes the initial files of the kernel: this program, and the early modules in
// the order of their names.
func writeInitramfs(file string, k kernel) error {
	modules, err := k.closure(early...)
	if err != nil {
		return err
	}
	self, err := os.Executable()
	if err != nil {
		return err
	}
	out, err := os.Create(file)
	if err != nil {
		return err
	}
	defer out.Close()
	w := archive{Writer: bufio.NewWriter(out)}
	for _, dir := range []string{"dev", "proc", "sys", "lower", "rw", "root", "modules"} {
		w.add(dir, 0o040755, nil)
	}
	if err := w.addFile("init", self); err != nil {
		return err
	}
	for i, module := range modules {
		if err := w.addFile(fmt.Sprintf("modules/%02d-%s", i, filepath.Base(module)), module); err != nil {
			return err
		}
	}
	w.add("TRAILER!!!", 0, nil)
	return w.Flush()
}

// An archive has the format that cpio calls newc, which the kernel unpacks.
type archive struct {
	*bufio.Writer
	entries int
}

func (a *archive) addFile(name, from string) error {
	data, err := os.ReadFile(from)
	if err == nil {
		a.add(name, 0o100755, data)
	}
	return err
}

func (a *archive) add(name string, mode int, data []byte) {
	a.entries++
	// magic, inode, mode, uid, gid, links, mtime, size, device, device of its own, length of name, checksum
	n, _ := fmt.Fprintf(a, "070701%08x%08x%08x%08x%08x%08x%08x%08x%08x%08x%08x%08x%08x%s\x00",
		a.entries, mode, 0, 0, 1, 0, len(data), 0, 0, 0, 0, len(name)+1, 0, name)
	a.pad(n)
	a.Write(data)
	a.pad(len(data))
}

// pad pads to a multiple of four. Flush returns errors.
func (a *archive) pad(n int) { io.WriteString(a, "\x00\x00\x00"[:(4-n%4)%4]) }
