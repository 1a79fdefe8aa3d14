package main

import (
	"context"
	"errors"
	"fmt"
	"io"

	"github.com/alecthomas/kong"

	"github.com/proxyc/proxyc/cmd/proxyc/review/rules"
	"github.com/proxyc/proxyc/cmd/proxyc/review/trace"
)

type traceCmd struct {
	source
	namespaceFlag

	From    string  `placeholder:"SOURCE" help:"Sender: pod:NAMESPACE/NAME, node, node:NAME or IP[:PORT][@INTERFACE]. node is this node. The default INTERFACE is the one with the network of the address, or eth0 if unknown. PORT is relevant only for a choice by Maglev table."`
	To      string  `placeholder:"DESTINATION" help:"Destination: IP:PORT[/PROTO] or NAMESPACE/NAME:PORT[/PROTO]. The DNS name of a Service is accepted too, and a kind of frontend before a name, as in \"LoadBalancer of NAMESPACE/NAME:PORT\". PORT is a name or a number. The default protocol is tcp."`
	Expect  *string `placeholder:"FATE" help:"Expected result; exit 1 if it differs. One of accepted, rejected, dropped, \"not ours\", or all backends as they are printed."`
	Packets string  `placeholder:"FILE" help:"Trace the packets of a file; - for standard input. Each line is a JSON object with from, to and, optionally, expect."`
	Kernel  bool    `help:"Trace the rules of this node's kernel; exit 1 if the result differs. Foreign rules are included as far as proxyc supports them. It requires root, and nft for foreign tables."`
	Variant string  `name:"iptables-variant" enum:"auto,nft,legacy" default:"auto" help:"Variant of iptables that --kernel reads: auto, nft or legacy. auto is the one that the node uses."`
	Output  string  `short:"o" enum:"text,json" default:"text" help:"Output: text or json; with --packets one line of JSON each."`
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
	c.from, c.namespace = c.From, c.Namespace
	job, programs, err := c.programs(e)
	if err != nil {
		if unread != nil {
			fmt.Fprintf(e.stderr, "proxyc: %s\n", unread)
		}
		return err
	}
	results, failed := trace.NewTracer(job, programs).TraceAll(wanted)
	failed = errors.Join(unread, failed)
	if failed != nil && len(results) == 0 {
		return e.finish(job, failed)
	}
	failed = errors.Join(e.print(c.Output, func(w io.Writer) error { return trace.Write(w, results, c.Packets != "") },
		func(w io.Writer) error { return trace.WriteJSON(w, results, c.Packets != "") }), failed)
	if err := e.finish(job, failed); err != nil {
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
		return errors.New("--packets: cannot be combined with --from, --to and --expect, which each line contains")
	case c.Kernel && (c.Packets != "" || c.Expect != nil):
		return errors.New("--kernel: cannot be combined with --packets and --expect: the expected result is that of the compiled rules")
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
	f, err := rules.Trace(context.Background(), trace.NewTracer(job, programs), c.From, c.To, variantOf(c.Variant))
	if err != nil {
		return e.finish(job, err)
	}
	if err := e.finish(job, e.print(c.Output, f.WriteText, f.WriteJSON)); err != nil {
		return err
	}
	if !f.Well() {
		return errFindings
	}
	return nil
}
