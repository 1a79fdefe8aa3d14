// Package top shows what a daemon counts in an interval.
package top

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"slices"
	"text/tabwriter"
	"time"

	"github.com/proxyc/proxyc/apply/daemon/status"
	"github.com/proxyc/proxyc/cmd/proxyc/review"
	"github.com/proxyc/proxyc/compiler/diag"
)

// Flags are the flags of the verb.
type Flags struct {
	Namespace string        `short:"n" placeholder:"NAME" help:"Show only Services of a namespace."`
	Sort      string        `enum:"connections,refused,name" default:"connections" placeholder:"ORDER" help:"Order: connections, refused (and dropped), or name."`
	Interval  time.Duration `default:"1s" placeholder:"DURATION" help:"Time between two reads."`
	Watch     bool          `help:"Repeat until interrupted."`
	Socket    string        `name:"status-socket" placeholder:"PATH" help:"Status socket of the daemon; by default that of the daemon that writes this node's rules."`
	Output    string        `short:"o" enum:"text,json" default:"text" help:"Output: text or json."`
}

const start = "start proxyc watch with --service-metrics=services"

// Run writes the traffic of an interval; with Watch, again until ctx ends.
func (c *Flags) Run(ctx context.Context, socket string, w io.Writer) error {
	if socket == "" {
		return errors.New("no daemon writes this node's rules: " + start + ", or use --status-socket")
	}
	before, err := fetch(ctx, socket)
	for err == nil {
		select {
		case <-ctx.Done():
			return nil
		case <-time.After(c.Interval):
		}
		var now *status.Traffic
		if now, err = fetch(ctx, socket); err != nil {
			break
		}
		now.Since(before)
		err = review.Buffered(w, func(w io.Writer) error { return c.print(w, now) })
		if before = now; !c.Watch {
			break
		}
	}
	return err
}

func fetch(ctx context.Context, socket string) (*status.Traffic, error) {
	t, err := review.FetchTraffic(ctx, socket)
	switch {
	case err != nil:
		err = fmt.Errorf("%w: %s", err, start)
	case t.Error != "":
		err = errors.New(t.Error)
	}
	return &t, err
}

func (c *Flags) print(w io.Writer, t *status.Traffic) error {
	t.Services = slices.DeleteFunc(t.Services, func(s *status.ServiceTraffic) bool { return c.Namespace != "" && s.Namespace != c.Namespace })
	switch c.Sort {
	case "connections":
		slices.SortStableFunc(t.Services, func(a, b *status.ServiceTraffic) int {
			return cmp.Or(cmp.Compare(b.Interval.Connections, a.Interval.Connections), cmp.Compare(b.Connections, a.Connections))
		})
	case "refused":
		slices.SortStableFunc(t.Services, func(a, b *status.ServiceTraffic) int {
			return cmp.Or(status.MoreRefused(a.Interval, b.Interval), status.MoreRefused(&a.Counts, &b.Counts))
		})
	}
	if c.Output == "json" {
		return review.WriteDocument(w, "Traffic", "  ", t)
	}
	out := tabwriter.NewWriter(w, 0, 0, 2, ' ', 0)
	fmt.Fprintln(out, "SERVICE\tNEW/S\tTOTAL\tREFUSED\tDROPPED\tCAUSE")
	for _, s := range t.Services {
		refused, dropped := s.Refusals()
		fmt.Fprintf(out, "%s\t%.1f\t%d\t%d\t%d\t%s\n", s.Name(), float64(s.Interval.Connections)/t.Seconds, s.Connections, refused, dropped, diag.OneLine(s.Cause))
	}
	return out.Flush()
}
