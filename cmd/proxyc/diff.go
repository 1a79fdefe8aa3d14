package main

import (
	"bytes"
	"errors"
	"fmt"
	"io"

	"github.com/rogpeppe/go-internal/diff"

	"github.com/proxyc/proxyc/ir"
)

type diffCmd struct {
	input

	NewConfig   string   `short:"C" placeholder:"FILE" help:"The other configuration; by default the same."`
	NewSnapshot []string `short:"S" sep:"none" placeholder:"FILE" help:"The other snapshot; by default the same."`
	NewMode     *string  `placeholder:"MODE" help:"The other mode; by default the same."`
	Output      string   `short:"o" default:"ir" placeholder:"FORMAT" help:"What to compare: ir (by Service, the default), or a text that the mode writes, as with compile."`
}

// Run compiles both sides and shows the lines that differ.
func (c *diffCmd) Run(e *env) error {
	if c.NewConfig == "" && len(c.NewSnapshot) == 0 && c.NewMode == nil {
		return errors.New("nothing to compare with: give --new-config, --new-snapshot or --new-mode")
	}
	// Both sides may read standard input, where they read it for the same.
	if err := oneStdin(append(append(c.names(), c.NewConfig), c.NewSnapshot...)...); err != nil {
		return err
	}
	start, err := e.rereading(c.names(), int64(c.Limit))
	if err != nil {
		return err
	}
	was, err := c.load(start())
	if err != nil {
		return err
	}
	other := c.input
	if c.NewConfig != "" {
		other.setConfig(c.NewConfig)
	}
	if len(c.NewSnapshot) > 0 {
		other.Snapshot = c.NewSnapshot
	}
	if c.NewMode != nil {
		other.Mode, other.modeFlag = c.NewMode, "--new-mode"
	}
	is, err := other.load(start())
	if err != nil {
		return err
	}
	from, to := was.compile(), is.compile()
	was.diags = append(was.findings(), is.findings()...) // each with the places in its own files

	var text []byte
	if c.Output == "ir" {
		text, err = diffIR(from, to)
	} else {
		text, err = diffRules(from, to, c.Output)
	}
	if err == nil {
		_, err = e.stdout.Write(text)
	}
	if err := was.finish(e, err); err != nil {
		return err
	}
	if len(text) > 0 {
		return errFindings
	}
	return nil
}

// diffIR compares the node's settings, then Service by Service.
func diffIR(from, to ir.Programs) ([]byte, error) {
	var out bytes.Buffer
	for f, was := range from.All() {
		is := to.Of(f)
		node, err := diffText(f.String()+" node", was, is, writeNode)
		if err != nil {
			return nil, err
		}
		out.Write(node)
		for _, change := range ir.Diff(was, is) {
			name := fmt.Sprintf("%s Service %s", f, change.Name)
			out.Write(diffBytes(name, serviceText(change.Old), serviceText(change.New)))
		}
	}
	return out.Bytes(), nil
}

// writeNode writes the part of a Program that no Service has a share in.
func writeNode(w io.Writer, p *ir.Program) error {
	bare := *p
	bare.Services = nil
	return ir.WriteText(w, ir.NewPrograms(&bare))
}

func serviceText(s *ir.Service) []byte {
	if s == nil {
		return nil
	}
	return []byte(s.Text())
}

func diffRules(from, to ir.Programs, format string) ([]byte, error) {
	return diffText(format, from, to, func(w io.Writer, p ir.Programs) error { return writeFormat(w, p, format) })
}

func diffText[T any](name string, from, to T, write func(io.Writer, T) error) ([]byte, error) {
	var a, b bytes.Buffer
	if err := errors.Join(write(&a, from), write(&b, to)); err != nil {
		return nil, err
	}
	return diffBytes(name, a.Bytes(), b.Bytes()), nil
}

// diffBytes returns the lines that differ, under a header with the name once.
func diffBytes(name string, from, to []byte) []byte {
	_, lines, found := bytes.Cut(diff.Diff(name, from, name, to), []byte("\n"))
	if !found {
		return nil
	}
	return append([]byte("diff "+name+"\n"), lines...)
}
