package main

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"slices"

	"github.com/alecthomas/kong"

	"github.com/proxyc/proxyc/apply/daemon/host"
	"github.com/proxyc/proxyc/cmd/proxyc/review"
	"github.com/proxyc/proxyc/cmd/proxyc/review/rules"
	"github.com/proxyc/proxyc/cmd/proxyc/review/trace"
	"github.com/proxyc/proxyc/ir"
)

type traceCmd struct {
	source
	namespaceFlag

	From    string  `placeholder:"SOURCE" help:"Sender: pod:NAMESPACE/NAME, node, node:NAME or IP[:PORT][@INTERFACE]. node is this node. The default INTERFACE is the one with the network of the address, or eth0 if unknown. PORT is relevant only for a choice by Maglev table."`
	To      string  `placeholder:"DESTINATION" help:"Destination: IP:PORT[/PROTO] or NAMESPACE/NAME[:PORT][/PROTO]. The DNS name of a Service is accepted too, and a kind of frontend before a name, as in \"LoadBalancer of NAMESPACE/NAME:PORT\". PORT is a name or a number; the only one of a Service is the default. The default protocol is tcp."`
	Expect  *string `placeholder:"FATE" help:"Expected result; exit 1 if it differs. One of served, rejected, dropped, \"not proxied\", or all backends as they are printed."`
	Packets string  `placeholder:"FILE" help:"Trace the packets of a file; - for standard input. Each line is a JSON object with from, to and, optionally, expect."`
	Kernel  bool    `help:"Trace the rules of this node's kernel; exit 1 if the result differs. It is the default on a node with a daemon, without other input. Foreign rules are included as far as proxyc supports them. It requires root, and nft for foreign tables."`
	Variant string  `name:"iptables-variant" enum:"auto,nft,legacy" default:"auto" help:"Variant of iptables that --kernel reads: auto, nft or legacy. auto is the one that the node uses."`
	Output  string  `short:"o" enum:"text,json" default:"text" help:"Output: text or json; with --packets one line of JSON each."`
}

func (c *traceCmd) Run(e *env, k *kong.Context) error {
	found := c.Socket == "" && c.Packets == "" && c.Expect == nil // by check
	if err := errors.Join(c.check(), c.source.check(k)); err != nil {
		return err
	}
	c.From, c.To = c.pod(c.From), c.service(c.To)
	daemon := review.FetchDaemon(context.Background(), cmp.Or(c.Socket, host.DaemonSocket()))
	if c.Kernel || found && c.Socket != "" && review.Modes[daemon.Mode].Follow != nil {
		return c.kernel(e, &daemon)
	}
	wanted, unread := c.expected(e)
	if len(wanted) == 0 {
		return unread
	}
	c.from, c.namespace, c.eachNode = c.From, c.Namespace, c.Packets == "" && c.Expect == nil && c.Output == "text"
	job, programs, err := c.programs(e)
	if err != nil {
		if unread != nil {
			fmt.Fprintf(e.stderr, "proxyc: %s\n", unread)
		}
		return err
	}
	if programs == (ir.Programs{}) { // no Node is chosen
		text, err := trace.EachNode(job, wanted)
		fmt.Fprint(e.stdout, text)
		return e.finish(job, err)
	}
	if host.Writer() != "" {
		fmt.Fprintln(e.stderr, "info: the rules in this node's kernel are not read: --kernel follows them")
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
	return compared(!slices.ContainsFunc(results, func(r trace.Result) bool { return !r.Met() }), 0)
}

// expected returns the packets with their expected results, and why some cannot be read.
func (c *traceCmd) expected(e *env) (list []trace.Expectation, unread error) {
	if c.Packets == "" {
		return []trace.Expectation{{From: c.From, To: c.To, Expect: c.Expect}}, nil
	}
	list, unread = trace.ReadPackets(e.inputs(), c.Packets, int64(c.Limit))
	for i := range list {
		list[i].From, list[i].To = c.pod(list[i].From), c.service(list[i].To)
	}
	return list, unread
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
	case c.From+c.To == "":
		return errors.New("missing flags: --from=SOURCE, --to=DESTINATION, or --packets=FILE")
	case c.From == "":
		return errors.New("missing flags: --from=SOURCE")
	case c.To == "":
		return errors.New("missing flags: --to=DESTINATION")
	}
	return trace.Expectation{Expect: c.Expect}.Check()
}

// kernel traces the packet through the rules in this kernel.
func (c *traceCmd) kernel(e *env, daemon *review.Daemon) error {
	if err := needRoot("trace --kernel"); err != nil {
		return err
	}
	c.Live = c.IR == "" && c.Socket == "" || c.Live
	job, programs, err := c.programs(e)
	if err != nil {
		return err
	}
	f, err := rules.Trace(context.Background(), job, programs, c.From, c.To, c.Variant, daemon)
	if err != nil {
		return e.finish(job, err)
	}
	if err := e.finish(job, e.print(c.Output, f.WriteText, f.WriteJSON)); err != nil {
		return err
	}
	return compared(f.Well(), 0)
}
