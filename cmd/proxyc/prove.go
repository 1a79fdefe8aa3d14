package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"strings"
	"time"

	"github.com/alecthomas/kong"

	"github.com/proxyc/proxyc/cmd/proxyc/help"
	"github.com/proxyc/proxyc/cmd/proxyc/review"
	"github.com/proxyc/proxyc/cmd/proxyc/review/diff"
	"github.com/proxyc/proxyc/cmd/proxyc/review/proof"
	"github.com/proxyc/proxyc/compiler/config"
	"github.com/proxyc/proxyc/compiler/diag"
	"github.com/proxyc/proxyc/ir"
	"github.com/proxyc/proxyc/ir/prove"
)

type proveCmd struct {
	input
	oneNode
	comparingTime

	A       string `arg:"" placeholder:"SIDE" help:"First side: mode:MODE, ir, ir:FILE, dump:FILE[,FILE], live[:PATH] or kernel. mode:MODE is the rules that proxyc writes in that mode. ir is the meaning of configuration and snapshot. ir:FILE is the output of compile -o ir-json. dump:FILE is the output of iptables-save, ip6tables-save or nft list ruleset, and for mode ipvs also of ipset save and ipvsadm -Sn, with rules of proxyc or kube-proxy. live is the effective state of this node's daemon, or of the one with status socket PATH. kernel is the rules of this node."`
	B       string `arg:"" placeholder:"SIDE" help:"Second side. --snapshot-limit applies to the files of each side."`
	Output  string `short:"o" enum:"text,json" default:"text" help:"Output: text or json."`
	Variant string `name:"iptables-variant" enum:"auto,nft,legacy" default:"auto" help:"Variant of iptables that side kernel reads: auto, nft or legacy. auto is the one that the node uses."`
	All     bool   `help:"Print all differences; by default of the first 20 destinations."`
}

// comparingTime limits the time of a comparison.
type comparingTime struct {
	Timeout time.Duration `default:"2m" placeholder:"TIME" help:"Longest time to compare packets; 0: no limit. Packets not compared by then are reported as not known."`
}

// limit returns a context that ends a comparison, which then returns its results so far.
func (c *comparingTime) limit(ctx context.Context) (context.Context, context.CancelFunc) {
	if c.Timeout <= 0 {
		return context.WithCancel(ctx)
	}
	return context.WithTimeoutCause(ctx, c.Timeout, prove.Limit(fmt.Sprintf("the comparison takes longer than %s (--timeout)", c.Timeout)))
}

// Run compares two sides for every first packet.
func (c *proveCmd) Run(e *env, k *kong.Context) error {
	ctx := context.Background()
	c.node = c.Node
	j, err := c.load(e)
	if err != nil {
		return err
	}
	ofKernel := c.A == proof.Kernel || c.B == proof.Kernel
	if c.Live || ofKernel {
		review.WarnUnused(e.stderr, j.Config)
	}
	programs := j.Compile()
	var sides [2]*proof.Side
	for i, name := range [...]string{c.A, c.B} {
		if sides[i], err = c.side(ctx, e, j, programs, name); err != nil {
			return e.finish(j, err)
		}
	}
	ctx, cancel := c.limit(ctx)
	defer cancel()
	p, err := proof.Compare(e.comparing(ctx), sides[0], sides[1], programs)
	if err != nil {
		return e.finish(j, err)
	}
	if n, _ := diff.WrongObjects(j.Diags); n > 0 {
		p.Without(review.Counted(n, "object") + " with errors, as named")
	}
	p.FindCauses(sides[0], sides[1], c.All)
	p.Trace = c.trace(k, j.Config.ProxyMode())
	if ofKernel {
		p.Trace += " --kernel"
	}
	if err := e.finish(j, e.print(c.Output, func(w io.Writer) error { return p.WriteText(w, c.All) }, p.WriteJSON)); err != nil {
		return err
	}
	return compared(p.Verdict == proof.Equal || p.Verdict == proof.NoDifference, 0)
}

// trace returns the command that shows a packet, in the mode of the side that has another than the input.
func (c *proveCmd) trace(k *kong.Context, mode ir.Mode) string {
	text, other := "proxyc trace", []string{"output", "all", "timeout"} // flags that trace does not have
	for _, side := range [...]string{c.B, c.A} {
		if of, ok := strings.CutPrefix(side, "mode:"); ok && of != string(mode) {
			text, other = text+" --mode "+of, append(other, "mode", "proxy-mode")
			break
		}
	}
	for _, word := range help.Given(k, other...) {
		text += " " + review.ShellWord(word)
	}
	return text
}

// side loads one side. programs are those of the unmodified configuration.
func (c *proveCmd) side(ctx context.Context, e *env, j *review.Input, programs ir.Programs, name string) (*proof.Side, error) {
	if name == proof.Kernel {
		if err := needRoot("prove"); err != nil {
			return nil, err
		}
	}
	r := &proof.Reader{Input: j, Programs: programs, Files: e.inputs(), Limit: int64(c.Limit), Variant: c.Variant,
		Resolve: func(mode string) (*config.Resolved, diag.List) {
			flags := c.configFlags
			flags.Mode = &mode
			return flags.Resolve(e.inputs().ReadFile, c.Strict)
		}}
	d, err := r.Read(ctx, name)
	if errors.Is(err, proof.ErrWrongMode) {
		err = errReported // printed as findings
	}
	return d, err
}
