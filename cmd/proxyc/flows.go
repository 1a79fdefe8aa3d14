package main

import (
	"io"
	"runtime/debug"

	"github.com/alecthomas/kong"

	"github.com/proxyc/proxyc/cmd/proxyc/review"
	"github.com/proxyc/proxyc/cmd/proxyc/review/flows"
)

type flowsCmd struct {
	source
	namespaceFlag

	File     string `arg:"" optional:"" help:"Output of conntrack -L, also with -o extended, of one family or both; - for standard input. Without it, the flows in this node's kernel are read, which requires root."`
	Service  string `placeholder:"NAMESPACE/NAME[:PORT]" help:"Show only flows of a Service, or of one port by its name."`
	Client   string `placeholder:"CLIENT" help:"Show only flows of clients: IP, a range, pod:NAMESPACE/NAME or node:NAME."`
	Endpoint string `placeholder:"ENDPOINT" help:"Show only flows to endpoints, in the forms of --client."`
	Wrong    bool   `help:"Show only flows with errors and warnings."`
	All      bool   `help:"Print each flow, instead of one of those that are wrong alike."`
	Output   string `short:"o" enum:"text,json" default:"text" help:"Output: text, or json, one line for each flow."`
}

// Run relates flows to Services. Those that the rules would forward otherwise now are exit code 1.
func (c *flowsCmd) Run(e *env, k *kong.Context) error {
	if err := c.check(k); err != nil {
		return err
	}
	if c.File == "" {
		if err := needRoot("flows"); err != nil {
			return err
		}
		c.Live = c.IR+c.Socket == "" || c.Live
	}
	c.namespace = c.Namespace
	job, programs, err := c.programs(e)
	if err != nil {
		return err
	}
	r, err := flows.New(job, programs, flows.Filter{Service: c.service(c.Service), Client: c.pod(c.Client), Endpoint: c.pod(c.Endpoint), Wrong: c.Wrong})
	if err != nil {
		return e.finish(job, err)
	}
	e.doing("reading flows")
	defer debug.SetGCPercent(debug.SetGCPercent(100)) // flows are garbage immediately, unlike what a compilation allocates
	err = review.Buffered(e.stdout, func(w io.Writer) error {
		return r.Write(w, e.inputs(), c.File, c.Output == "json", c.All)
	})
	if err := e.finish(job, err); err != nil {
		return err
	}
	if r.HasErrors() {
		return errFindings
	}
	return nil
}
