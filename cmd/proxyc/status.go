package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/url"
	"strings"

	"github.com/proxyc/proxyc/apply/daemon/host"
	"github.com/proxyc/proxyc/apply/daemon/status"
	"github.com/proxyc/proxyc/cmd/proxyc/review"
)

type statusCmd struct {
	Address string `default:"127.0.0.1:10249" placeholder:"ADDRESS" help:"Daemon: IP:PORT of its metrics server, or unix:PATH of its --status-socket."`
	Output  string `short:"o" enum:"text,json" default:"text" help:"Output: text or json."`
	Ignore  bool   `name:"ignore-findings" help:"Exit 0 even if objects of the cluster have errors."`
}

func (c *statusCmd) Run(e *env) error {
	ctx, cancel := context.WithTimeout(context.Background(), review.AnswerTimeout)
	defer cancel()
	server, client := c.Address, http.DefaultClient
	if path, ok := strings.CutPrefix(c.Address, status.UnixPrefix); ok {
		server, client = "localhost", review.UnixClient(path)
	} else if _, port, err := net.SplitHostPort(c.Address); err != nil || port == "" {
		return c.badAddress("")
	}
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, "http://"+server+status.StatusPath, nil)
	if err != nil {
		return fmt.Errorf("--address: %w", err)
	}
	resp, err := client.Do(req)
	if unknown, ok := errors.AsType[*net.DNSError](err); ok {
		return c.badAddress(": " + unknown.Err)
	}
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
		return fmt.Errorf("%s: is not a proxyc daemon: it answers %s", c.Address, resp.Status)
	}
	if c.Output == "json" {
		err = review.WriteDocument(e.stdout, "Status", "  ", json.RawMessage(body))
	} else {
		err = review.Buffered(e.stdout, func(w io.Writer) error { return st.Print(w) })
	}
	if err == nil && !st.Healthy() && !(c.Ignore && st.NodeHealthy()) {
		return errFindings
	}
	return err
}

// badAddress rejects an address that cannot have a server.
func (c *statusCmd) badAddress(why string) error {
	return fmt.Errorf("--address: must be IP:PORT or unix:PATH, got %s%s", c.Address, why)
}

// noAnswer returns an error that no daemon answers, with the process that writes the rules
// nevertheless; "" if none is known.
func (c *statusCmd) noAnswer(err error, writer string) error {
	if failed, ok := errors.AsType[*url.Error](err); ok {
		err = failed.Err // the message already contains the address
	}
	why := fmt.Sprintf("no daemon answers at %s: %v", c.Address, err)
	if errors.Is(err, context.DeadlineExceeded) {
		why = fmt.Sprintf("the daemon at %s does not answer within %s: it is stopped or hangs", c.Address, review.AnswerTimeout)
	}
	switch {
	case writer != "":
		why += "; " + writer + " writes this node's rules: use --address with its metrics server, or --address unix:PATH with its --status-socket"
	case !strings.HasPrefix(c.Address, status.UnixPrefix):
		why += "; if it uses another metricsBindAddress or --status-socket PATH, use --address (unix:PATH)"
	}
	return errors.New(why)
}
