package review

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"path/filepath"
	"slices"
	"strings"

	"github.com/proxyc/proxyc/apply/sysctl"
	"github.com/proxyc/proxyc/cmd/proxyc/disk"
	"github.com/proxyc/proxyc/ir"
	"github.com/proxyc/proxyc/render"
)

// Files of --out-dir besides the renderers'.
const (
	readmeFile  = "README"
	explainFile = "explain.tsv"
)

// WriteDir writes all files that a node needs into dir: those of the mode, and a README that
// describes how to load each.
//
// All files are written under temporary names first, so that an error leaves the previous ones. The
// README, which identifies our files later, is renamed before the others. Files of another mode
// from an earlier run are removed last. Foreign files are never changed.
func WriteDir(files disk.Disk, dir string, programs ir.Programs, explain bool) error {
	rules, _, rendered := Outputs(programs)
	own := append([]render.Output{{File: readmeFile, Write: func(w io.Writer) error { return writeReadme(w, programs, rules) }}}, rules...)
	if explain {
		own = append(own, render.Output{File: explainFile, Write: func(w io.Writer) error { return WriteExplain(w, rendered) }})
	}

	if err := files.MkdirAll(dir); err != nil {
		return err
	}
	ours, err := isOurs(files, dir, own)
	if err != nil {
		return err
	}
	staged := make([]string, 0, len(own))
	defer func() {
		for _, name := range staged {
			files.Remove(name)
		}
	}()
	for _, o := range own {
		name, err := disk.Stage(files, dir, disk.Everybody, func(w io.Writer) error { return Buffered(w, o.Write) })
		if err != nil {
			return fmt.Errorf("%s: %w", filepath.Join(dir, o.File), err)
		}
		staged = append(staged, name)
	}
	for _, o := range own {
		if err := files.Rename(staged[0], filepath.Join(dir, o.File)); err != nil {
			return err
		}
		staged = staged[1:]
	}
	if !ours {
		return nil
	}
	return removeOthers(files, dir, own)
}

// isOurs reports whether the README shows that the files in a directory are from an earlier run.
// Otherwise none of own may exist there.
func isOurs(files disk.Disk, dir string, own []render.Output) (bool, error) {
	readme, err := files.ReadFile(filepath.Join(dir, readmeFile))
	if err == nil && bytes.HasPrefix(readme, []byte(readmeTitle)) {
		return true, nil
	}
	var errs []error
	for _, o := range own {
		name := filepath.Join(dir, o.File)
		if _, err := files.Stat(name); !errors.Is(err, fs.ErrNotExist) {
			errs = append(errs, fmt.Errorf("--out-dir: %s exists, and proxyc did not write it: choose another directory", name))
		}
	}
	return false, errors.Join(errs...)
}

// removeOthers removes the files of --out-dir that are not in own.
func removeOthers(files disk.Disk, dir string, own []render.Output) error {
	for _, file := range allFiles() {
		if slices.ContainsFunc(own, func(o render.Output) bool { return o.File == file }) {
			continue
		}
		if err := files.Remove(filepath.Join(dir, file)); err != nil && !errors.Is(err, fs.ErrNotExist) {
			return err
		}
	}
	return nil
}

// allFiles returns the names of all files that --out-dir writes, in any mode.
func allFiles() []string {
	names := []string{readmeFile, explainFile}
	for _, mode := range ir.Modes() {
		node := ir.Node{Mode: mode}
		programs := ir.NewPrograms(&ir.Program{Family: ir.IPv4, Node: node}, &ir.Program{Family: ir.IPv6, Node: node})
		for _, o := range Modes[mode].Lower(programs).Outputs() {
			names = append(names, o.File)
		}
	}
	slices.Sort(names)
	return slices.Compact(names)
}

// readmeTitle is the start of every README of --out-dir.
const readmeTitle = "Rules of node "

func writeReadme(w io.Writer, programs ir.Programs, own []render.Output) error {
	node := &programs.IPv4.Node
	var b strings.Builder
	fmt.Fprintf(&b, "%s%s in mode %s.\n", readmeTitle, node.Name, node.Mode)
	writeSettingsReadme(&b, node)
	fmt.Fprintf(&b, "\nLoad the files in this order:\n")
	for _, o := range own {
		fmt.Fprintf(&b, "\n%s\n", o.File)
		if o.Load != "" {
			fmt.Fprintf(&b, "    %s\n", o.Load)
		}
		if o.Note != "" {
			fmt.Fprintf(&b, "  %s\n", o.Note)
		}
	}
	_, err := io.WriteString(w, b.String())
	return err
}

// writeSettingsReadme writes the kernel settings that the mode requires.
func writeSettingsReadme(b *strings.Builder, node *ir.Node) {
	// The node's kernel is unknown: older ones require more settings.
	older := sysctl.Dataplane(node, sysctl.Host{Kernel: sysctl.Version{Major: 5, Minor: 8}})
	newer := sysctl.Dataplane(node, sysctl.Host{Kernel: sysctl.Version{Major: 5, Minor: 9}})
	if len(older) == 0 {
		return
	}
	b.WriteString("\nKernel settings that the rules require:\n")
	if node.IPVS != nil {
		b.WriteString("    modprobe ip_vs\n")
	}
	for _, s := range older {
		only := ""
		if !slices.Contains(newer, s) {
			only = "   # before Linux 5.9 only"
		}
		fmt.Fprintf(b, "    sysctl -w %s=%s%s\n", s.Name(), s.Want, only)
	}
}
