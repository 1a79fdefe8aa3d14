package main

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"time"

	"github.com/proxyc/proxyc/apply/daemon/host"
	"github.com/proxyc/proxyc/apply/daemon/status"
	"github.com/proxyc/proxyc/cmd/proxyc/review"
)

type statusCmd struct {
	clusterFlags
	Address string `placeholder:"IP:PORT" help:"Metrics server of the daemon (default 127.0.0.1:10249, if no status socket is found)."`
	Socket  string `name:"status-socket" placeholder:"PATH" help:"Status socket of the daemon; by default that of the daemon that writes this node's rules."`
	Output  string `short:"o" enum:"text,json" default:"text" help:"Output: text or json."`
	Ignore  bool   `name:"ignore-findings" help:"Exit 0 even if objects of the cluster have errors."`
}

func (c *statusCmd) Run(e *env) error {
	if c.Context != "" || c.Kubeconfig != "" {
		return c.nodes(e)
	}
	_, port, err := net.SplitHostPort(c.Address)
	switch {
	case c.Socket != "" && c.Address != "":
		return errors.New("--address, --status-socket: use only one")
	case c.Address == "":
		c.Socket = cmp.Or(c.Socket, host.DaemonSocket())
	case err != nil || port == "":
		return fmt.Errorf("--address: must be IP:PORT, got %s", c.Address)
	}
	st, err := review.FetchStatus(context.Background(), c.daemon())
	if err != nil {
		return c.noAnswer(err, host.Writer())
	}
	err = e.print(c.Output, st.Print, func(w io.Writer) error { return review.WriteDocument(w, "Status", "  ", st) })
	if err == nil && !st.Healthy() && !(c.Ignore && st.NodeHealthy()) {
		return errFindings
	}
	return err
}

// nodes shows the daemons of all Nodes of a cluster.
func (c *statusCmd) nodes(e *env) error {
	if c.Address != "" || c.Socket != "" {
		return errors.New("--context, --kubeconfig: cannot be combined with --address or --status-socket")
	}
	cluster, err := c.cluster(slog.New(slog.DiscardHandler))
	if err != nil {
		return err
	}
	nodes, pods, err := cluster.Daemons(context.Background(), status.DaemonPods)
	if err != nil {
		return err
	}
	all := status.OfNodes(nodes, pods, time.Now())
	err = e.print(c.Output, all.Print, func(w io.Writer) error { return review.WriteDocument(w, "NodeStatusList", "  ", all) })
	if err == nil && (all.Ready < len(all.Nodes) || all.Ready == 0) {
		return errFindings
	}
	return err
}

// defaultAddress is the default of metricsBindAddress.
const defaultAddress = "127.0.0.1:10249"

// daemon returns where the daemon is asked.
func (c *statusCmd) daemon() string { return cmp.Or(c.Socket, c.Address, defaultAddress) }

// noAnswer returns an error that no daemon answers, with the process that writes the rules
// nevertheless; "" if none is known.
func (c *statusCmd) noAnswer(err error, writer string) error {
	why := c.daemon() + ": " + err.Error()
	if writer != "" {
		why += "; " + writer + " writes this node's rules"
	} else if c.Socket == "" {
		why += "; if it uses another metricsBindAddress or a --status-socket, use --address or --status-socket"
	}
	return errors.New(why)
}
