package main

import (
	"context"
	"errors"
	"fmt"
	"io"

	"github.com/alecthomas/kong"

	"github.com/proxyc/proxyc/cmd/proxyc/review"
	"github.com/proxyc/proxyc/cmd/proxyc/review/rules"
	"github.com/proxyc/proxyc/cmd/proxyc/review/trace"
)

type traceCmd struct {
	source
	namespaceFlag

	From    string  `placeholder:"SOURCE" help:"Who sends: pod:NAMESPACE/NAME, node (this one), node:NAME, or IP[:PORT][@INTERFACE]; without INTERFACE the one in whose network the address is, or eth0 where nothing tells. The PORT counts where a Maglev table chooses."`
	To      string  `placeholder:"DESTINATION" help:"To what: IP:PORT[/PROTO], NAMESPACE/NAME:PORT[/PROTO] or the DNS name of a Service with PORT, by name or number; tcp if no protocol is given."`
	Expect  *string `placeholder:"FATE" help:"What is to become of the packet: accepted, rejected, dropped, \"not ours\", or all its backends as they are printed; exit 1 if it is something else."`
	Packets string  `placeholder:"FILE" help:"Trace many packets: lines of JSON with from, to and, if it is to be checked, expect. - for standard input."`
	Kernel  bool    `help:"Walk the rules that this node's kernel really holds, those of others included as far as they are understood, and tell where they depart from what is wanted; exit 1 if they do. Needs root, and the tool nft for tables of others."`
	Variant string  `name:"iptables-variant" enum:"auto,nft,legacy" default:"auto" help:"Which iptables --kernel reads; auto is the one that the node uses."`
	Output  string  `short:"o" enum:"text,json" default:"text" help:"Output: text or json; with --packets a line of JSON each."`
}

func (c *traceCmd) Run(e *env, k *kong.Context) error {
	if err := errors.Join(c.check(), c.source.check(k)); err != nil {
		return err
	}
	c.From, c.To = c.pod(c.From), c.service(c.To)
	if c.Kernel {
		return c.kernel(e)
	}
	wanted := []trace.Expectation{{From: c.From, To: c.To, Expect: c.Expect}}
	var unread error
	if c.Packets != "" {
		if err := oneStdin(append(c.names(), c.IR, c.Packets)...); err != nil {
			return err
		}
		if wanted, unread = trace.ReadPackets(e.inputs(), c.Packets, int64(c.Limit)); len(wanted) == 0 {
			return unread
		}
		for i := range wanted {
			wanted[i].From, wanted[i].To = c.pod(wanted[i].From), c.service(wanted[i].To)
		}
	}
	job, programs, err := c.programs(e)
	if err != nil {
		if unread != nil {
			fmt.Fprintf(e.stderr, "proxyc: %s\n", unread)
		}
		return err
	}
	results, failed := trace.NewScene(job, programs).TraceAll(wanted)
	failed = errors.Join(unread, failed)
	if failed != nil && len(results) == 0 {
		return e.finish(job, failed)
	}
	write := func(w io.Writer) error { return trace.Write(w, results, c.Packets != "") }
	if c.Output == "json" {
		write = func(w io.Writer) error { return trace.WriteJSON(w, results, c.Packets != "") }
	}
	if err := e.finish(job, errors.Join(review.Buffered(e.stdout, write), failed)); err != nil {
		return err
	}
	for i := range results {
		if !results[i].Met() {
			return errFindings
		}
	}
	return nil
}

// check rejects incompatible flags.
func (c *traceCmd) check() error {
	switch {
	case c.Packets != "" && (c.From+c.To != "" || c.Expect != nil):
		return errors.New("--packets: has --from, --to and --expect of its own in each line")
	case c.Kernel && (c.Packets != "" || c.Expect != nil):
		return errors.New("--kernel: not together with --packets and --expect: what is wanted is expected of it")
	case c.Packets != "":
		return nil
	case c.From == "" && c.To == "":
		return errors.New("missing flags: --from=SOURCE, --to=DESTINATION, or --packets=FILE")
	case c.From == "":
		return errors.New("missing flags: --from=SOURCE")
	case c.To == "":
		return errors.New("missing flags: --to=DESTINATION")
	}
	return trace.Expectation{Expect: c.Expect}.Check()
}

// kernel traces the packet through the rules in this kernel.
func (c *traceCmd) kernel(e *env) error {
	if err := needRoot("trace --kernel"); err != nil {
		return err
	}
	c.Live = c.IR == "" && c.Socket == "" || c.Live
	job, programs, err := c.programs(e)
	if err != nil {
		return err
	}
	f, err := rules.Trace(context.Background(), trace.NewScene(job, programs), c.From, c.To, variantOf(c.Variant))
	if err != nil {
		return e.finish(job, err)
	}
	write := f.WriteText
	if c.Output == "json" {
		write = f.WriteJSON
	}
	if err := e.finish(job, review.Buffered(e.stdout, write)); err != nil {
		return err
	}
	if !f.Well() {
		return errFindings
	}
	return nil
}
