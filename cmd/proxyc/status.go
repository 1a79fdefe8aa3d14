package main

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/url"

	"github.com/proxyc/proxyc/apply/daemon/host"
	"github.com/proxyc/proxyc/apply/daemon/status"
	"github.com/proxyc/proxyc/cmd/proxyc/review"
)

type statusCmd struct {
	Address string `placeholder:"IP:PORT" help:"Metrics server of the daemon (default 127.0.0.1:10249, if no status socket is found)."`
	Socket  string `name:"status-socket" placeholder:"PATH" help:"Status socket of the daemon; by default that of the daemon that writes this node's rules."`
	Output  string `short:"o" enum:"text,json" default:"text" help:"Output: text or json."`
	Ignore  bool   `name:"ignore-findings" help:"Exit 0 even if objects of the cluster have errors."`
}

func (c *statusCmd) Run(e *env) error {
	ctx, cancel := context.WithTimeout(context.Background(), review.AnswerTimeout)
	defer cancel()
	server, client, err := c.server()
	if err != nil {
		return err
	}
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, "http://"+server+status.StatusPath, nil)
	if err != nil {
		return fmt.Errorf("--address: %w", err)
	}
	resp, err := client.Do(req)
	if err != nil {
		return c.noAnswer(err, host.Writer())
	}
	defer resp.Body.Close()
	body, err := io.ReadAll(resp.Body)
	if err != nil {
		return c.noAnswer(err, host.Writer())
	}
	var st status.Status
	if err := json.Unmarshal(body, &st); err != nil || resp.StatusCode != http.StatusOK {
		return fmt.Errorf("%s: is not a proxyc daemon: it answers %s", c.daemon(), resp.Status)
	}
	err = e.print(c.Output, st.Print, func(w io.Writer) error { return review.WriteDocument(w, "Status", "  ", json.RawMessage(body)) })
	if err == nil && !st.Healthy() && !(c.Ignore && st.NodeHealthy()) {
		return errFindings
	}
	return err
}

// server returns the address of the daemon for a URL, and the client for it.
func (c *statusCmd) server() (string, *http.Client, error) {
	if c.Socket != "" && c.Address != "" {
		return "", nil, errors.New("--address, --status-socket: use only one")
	}
	if c.Address == "" {
		c.Socket = cmp.Or(c.Socket, host.DaemonSocket())
	}
	if c.Socket != "" {
		return "localhost", review.UnixClient(c.Socket), nil
	}
	server := cmp.Or(c.Address, defaultAddress)
	if _, port, err := net.SplitHostPort(server); err != nil || port == "" {
		return "", nil, fmt.Errorf("--address: must be IP:PORT, got %s", c.Address)
	}
	return server, http.DefaultClient, nil
}

// defaultAddress is the default of metricsBindAddress.
const defaultAddress = "127.0.0.1:10249"

// daemon returns where the daemon is asked.
func (c *statusCmd) daemon() string { return cmp.Or(c.Socket, c.Address, defaultAddress) }

// noAnswer returns an error that no daemon answers, with the process that writes the rules
// nevertheless; "" if none is known.
func (c *statusCmd) noAnswer(err error, writer string) error {
	if failed, ok := errors.AsType[*url.Error](err); ok {
		err = failed.Err // the message already contains the address
	}
	why := fmt.Sprintf("no daemon answers at %s: %v", c.daemon(), err)
	if errors.Is(err, context.DeadlineExceeded) {
		why = fmt.Sprintf("the daemon at %s does not answer within %s: it is stopped or hangs", c.daemon(), review.AnswerTimeout)
	}
	if writer != "" {
		why += "; " + writer + " writes this node's rules"
	} else if c.Socket == "" {
		why += "; if it uses another metricsBindAddress or a --status-socket, use --address or --status-socket"
	}
	return errors.New(why)
}
