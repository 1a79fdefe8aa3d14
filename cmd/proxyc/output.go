package main

import (
	"bufio"
	"cmp"
	"fmt"
	"io"
	"path/filepath"
	"strings"

	"github.com/proxyc/proxyc/ir"
	"github.com/proxyc/proxyc/render"
)

// outputs are all texts that can be made of the programs of one node: the
// mode's own, the first of which is the default, and the IR's two forms.
func outputs(programs []*ir.Program) (own []render.Output, all []render.Output, rendered render.Rendered) {
	rendered = renderers[programs[0].Node.Mode].Lower(programs)
	own = rendered.Outputs()
	all = append(own[:len(own):len(own)],
		render.Output{Format: "ir", Write: func(w io.Writer) error { return ir.WriteText(w, programs) }},
		render.Output{Format: "ir-json", Write: func(w io.Writer) error { return ir.WriteJSON(w, programs) }})
	return own, all, rendered
}

// writeFormat writes one text of the programs; format "" is the mode's own.
func writeFormat(w io.Writer, programs []*ir.Program, format string) error {
	_, all, _ := outputs(programs)
	names := make([]string, len(all))
	for i, o := range all {
		if o.Format == cmp.Or(format, all[0].Format) {
			return buffered(w, o.Write)
		}
		names[i] = o.Format
	}
	return fmt.Errorf("-o: mode %s writes %s, got %q", programs[0].Node.Mode, strings.Join(names, ", "), format)
}

// writeExplain writes the table of where each rule and element comes from:
// a line each, of three columns with tabs between.
func writeExplain(w io.Writer, rendered render.Rendered) error {
	return buffered(w, func(w io.Writer) (err error) {
		for entry := range rendered.Explain {
			if err = writeEntry(w, entry); err != nil {
				break
			}
		}
		return err
	})
}

func writeEntry(w io.Writer, entry render.Entry) error {
	_, err := fmt.Fprintf(w, "%s\t%s\t%s\n", entry, portText(entry.Port), entry.Origin)
	return err
}

// portText names a service port, "-" for what belongs to none.
func portText(p ir.ServicePort) string {
	if p == (ir.ServicePort{}) {
		return "-"
	}
	return p.String()
}

func buffered(w io.Writer, write func(io.Writer) error) error {
	b := bufio.NewWriterSize(w, 1<<16)
	if err := write(b); err != nil {
		return err
	}
	return b.Flush()
}

// writeDir writes all that a node needs into dir: the mode's files and a
// README of how to load each. All are written under temporary names first, so
// that an error leaves what was there before.
func (e *env) writeDir(dir string, programs []*ir.Program, explain bool) error {
	rules, _, rendered := outputs(programs)
	own := append(rules[:len(rules):len(rules)], render.Output{File: "README", Write: func(w io.Writer) error { return writeReadme(w, programs, rules) }})
	if explain {
		own = append(own, render.Output{File: "explain.tsv", Write: func(w io.Writer) error { return writeExplain(w, rendered) }})
	}

	if err := e.files.MkdirAll(dir); err != nil {
		return err
	}
	staged := make([]string, 0, len(own))
	defer func() {
		for _, name := range staged {
			e.files.Remove(name)
		}
	}()
	for _, o := range own {
		name, err := e.stage(dir, func(w io.Writer) error { return buffered(w, o.Write) })
		if err != nil {
			return fmt.Errorf("%s: %w", filepath.Join(dir, o.File), err)
		}
		staged = append(staged, name)
	}
	for _, o := range own {
		if err := e.files.Rename(staged[0], filepath.Join(dir, o.File)); err != nil {
			return err
		}
		staged = staged[1:]
	}
	return nil
}

func writeReadme(w io.Writer, programs []*ir.Program, own []render.Output) error {
	node := &programs[0].Node
	_, err := fmt.Fprintf(w, "Rules of node %s in mode %s.\n\n", node.Name, node.Mode)
	for _, o := range own {
		how := o.Load
		if how == "" {
			how = "(no command loads it)"
		}
		if err == nil {
			_, err = fmt.Fprintf(w, "%s\n    %s\n", o.File, how)
		}
	}
	return err
}
