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
	"regexp"
	"strings"

	"github.com/proxyc/proxyc/apply/daemon/host"
	"github.com/proxyc/proxyc/apply/daemon/status"
	"github.com/proxyc/proxyc/cmd/proxyc/review"
	"github.com/proxyc/proxyc/compiler/config"
	"github.com/proxyc/proxyc/compiler/diag"
)

type statusCmd struct {
	Address string `placeholder:"IP:PORT" help:"Metrics server of the daemon (default 127.0.0.1:10249)."`
	Socket  string `name:"status-socket" placeholder:"PATH" help:"Ask the daemon at this socket, instead of its metrics server."`
	Output  string `short:"o" enum:"text,json" default:"text" help:"Output: text or json."`
	Ignore  bool   `name:"ignore-findings" help:"Exit 0 even if objects of the cluster have errors."`
}

func (c *statusCmd) Run(e *env) error {
	ctx, cancel := context.WithTimeout(context.Background(), review.AnswerTimeout)
	defer cancel()
	server, client := cmp.Or(c.Address, defaultAddress), http.DefaultClient
	switch _, port, err := net.SplitHostPort(server); {
	case c.Socket != "" && c.Address != "":
		return errors.New("--address, --status-socket: use only one")
	case c.Socket != "":
		server, client = "localhost", review.UnixClient(c.Socket)
	case err != nil || port == "":
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
		var drops []string
		if c.Socket == "" && errors.Is(err, context.DeadlineExceeded) {
			drops = host.LocalDrops(review.AnswerTimeout)
		}
		return c.noAnswer(err, host.Writer(), drops)
	}
	defer resp.Body.Close()
	body, err := io.ReadAll(resp.Body)
	if err != nil {
		return c.noAnswer(err, host.Writer(), nil)
	}
	var st status.Status
	if err := json.Unmarshal(body, &st); err != nil || resp.StatusCode != http.StatusOK {
		return fmt.Errorf("%s: is not a proxyc daemon: it answers %s", c.daemon(), resp.Status)
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

// defaultAddress is the default of metricsBindAddress.
const defaultAddress = "127.0.0.1:10249"

// daemon returns where the daemon is asked.
func (c *statusCmd) daemon() string { return cmp.Or(c.Socket, c.Address, defaultAddress) }

// badAddress rejects an address that cannot have a server.
func (c *statusCmd) badAddress(why string) error {
	return fmt.Errorf("--address: must be IP:PORT, got %s%s", c.Address, why)
}

// noAnswer returns an error that no daemon answers, with the process that writes the rules
// nevertheless; "" if none is known. drops are foreign rules that may drop the request.
func (c *statusCmd) noAnswer(err error, writer string, drops []string) error {
	if failed, ok := errors.AsType[*url.Error](err); ok {
		err = failed.Err // the message already contains the address
	}
	why := fmt.Sprintf("no daemon answers at %s: %v", c.daemon(), err)
	if errors.Is(err, context.DeadlineExceeded) {
		why = fmt.Sprintf("the daemon at %s does not answer within %s: it is stopped or hangs", c.daemon(), review.AnswerTimeout)
		if len(drops) > 0 {
			why += ", or a foreign rule drops the packets: " + strings.Join(drops, "; ")
		}
	}
	switch {
	case writer != "" && errors.Is(err, context.DeadlineExceeded):
		why += "; " + writer + " writes this node's rules"
	case writer != "":
		why += "; " + writer + " writes this node's rules: use --address with its metrics server, or its --status-socket"
	case c.Socket == "":
		why += "; if it uses another metricsBindAddress or a --status-socket, use --address or --status-socket"
	}
	return errors.New(why)
}

// socketOf matches the status socket in a command line.
var socketOf = regexp.MustCompile(` --status-socket[= ]([^ )]+)`)

// warnUnused warns of the files and objects whose newest version the daemon that writes this node's rules
// does not use: its rules then differ from those of the files.
func (e *env) warnUnused(cfg *config.Config) {
	writer, at := host.Writer(), cfg.MetricsBindAddress
	if socket := socketOf.FindStringSubmatch(writer); socket != nil {
		at = socket[1]
	}
	if writer == "" {
		return
	}
	ctx, cancel := context.WithTimeout(context.Background(), review.AnswerTimeout)
	defer cancel()
	st, _ := review.FetchStatus(ctx, at) // another configuration has another address
	for _, f := range st.InvalidFiles {
		st.Invalid = append(st.Invalid, status.Problem{Object: f.Path, Reason: f.Reason})
	}
	for _, p := range st.Invalid {
		fmt.Fprintf(e.stderr, "warning: the newest version of %s\n", diag.OneLine(fmt.Sprintf("%s is not in force: %s; compare with the status socket of %s", p.Object, p.Reason, writer)))
	}
}
