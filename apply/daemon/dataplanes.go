package daemon

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/proxyc/proxyc/apply"
	"github.com/proxyc/proxyc/apply/sysctl"
	"github.com/proxyc/proxyc/apply/watch"
	"github.com/proxyc/proxyc/ir"
)

// dataplane says how a mode's rules come to a node. The table of all of them is
// the twin of the table of back ends (cmd/proxyc/review.Modes).
type dataplane struct {
	mode ir.Mode
	// within is another mode whose rules it has a part of; what that mode would
	// leave is in use, too.
	within ir.Mode
	// compareEvery is how often the kernel is compared with what is wanted, if
	// nothing else gives a reason to (DMN-21); 0: every hour.
	compareEvery time.Duration
	// open opens it; nil: its rules can be removed only.
	open func(context.Context, apply.Options) (apply.Dataplane, error)
	// leftovers are what there is where it is not open; nil: those of within
	// are all.
	leftovers func(context.Context) ([]apply.Leftover, error)
	// apart is set if it shares no chain with kube-proxy's rules of the same mode.
	apart bool
	// events are told of the node at each start in the mode.
	events []watch.Event
}

// Open opens the dataplane of a mode.
func Open(ctx context.Context, mode ir.Mode, o apply.Options) (apply.Dataplane, error) {
	if err := checkMode(mode, true); err != nil {
		return nil, err
	}
	d, err := dataplaneOf(mode).open(ctx, o)
	if err != nil {
		return nil, fmt.Errorf("mode %s: %w", mode, err)
	}
	return d, nil
}

// dataplaneOf returns that of a mode; the zero value where there is none.
func dataplaneOf(mode ir.Mode) dataplane {
	for _, d := range dataplanes {
		if d.mode == mode {
			return d
		}
	}
	return dataplane{}
}

// checkMode returns an error where a mode's rules do not come to a node. It lists
// those that do: with processes also the modes whose rules lead to one.
func checkMode(mode ir.Mode, processes bool) error {
	var words []string
	for _, d := range dataplanes {
		switch {
		case d.open == nil:
		case d.mode == mode:
			return nil
		case processes || !d.mode.ByProcess():
			words = append(words, string(d.mode))
		}
	}
	if len(words) == 0 {
		return errNotLinux
	}
	slices.Sort(words)
	list := words[len(words)-1]
	if rest := words[:len(words)-1]; len(rest) > 0 {
		list = strings.Join(rest, ", ") + " and " + list
	}
	return fmt.Errorf("mode: a node takes modes %s, got %q; compile -o shows what %s would need", list, mode, mode)
}

// once returns an error where rules of a mode cannot be written once and left alone.
func once(mode ir.Mode) error {
	if mode.ByProcess() {
		return fmt.Errorf("mode: in mode %s a process carries the connections, and none would when apply has ended: say watch, which is that process, or --dry-run or --check to look only", mode)
	}
	return nil
}

// errUnasked is the error of leftovers for which nobody can look, as nothing says where.
var errUnasked = errors.New("leftovers were not looked for")

// Leftovers returns what proxyc and kube-proxy left on the node, in every mode:
// all but the rules of the dataplane that is in use, if there is one, of a mode.
func Leftovers(ctx context.Context, mode ir.Mode, inUse apply.Dataplane) ([]apply.Leftover, error) {
	var all []apply.Leftover
	var errs []error
	within := ir.Mode("")
	if inUse != nil {
		within = dataplaneOf(mode).within
	}
	for _, d := range dataplanes {
		find := d.leftovers
		switch {
		case inUse != nil && d.mode == mode:
			find = inUse.Leftovers
		case find == nil, inUse != nil && within != "" && d.mode == within:
			continue
		}
		left, err := find(ctx)
		if inUse != nil && errors.Is(err, errUnasked) {
			continue // it belongs to a node that never had that mode
		}
		all, errs = append(all, left...), append(errs, err)
	}
	return all, errors.Join(errs...)
}

// Exposed returns what is to be told where leftovers that went kept other machines from
// what listens on localhost, and the kernel lets them in without; or nothing. proxyc
// does not set it back, as kube-proxy does not: another may rely on it.
func Exposed(gone []apply.Leftover) string {
	guarded := slices.ContainsFunc(gone, func(l apply.Leftover) bool { return l.GuardsLocalhost })
	if !guarded || !sysctl.RoutesLocalnet(kernelRoot) {
		return ""
	}
	return "net.ipv4.conf.all.route_localnet is 1 and the rules that guarded localhost are gone: machines on the same link reach what listens on 127.0.0.1 (sysctl -w net.ipv4.conf.all.route_localnet=0, unless another program needs it)"
}

// remove removes leftovers; one that cannot be removed does not keep the others.
func remove(ctx context.Context, leftovers []apply.Leftover) error {
	var errs []error
	for _, l := range leftovers {
		if err := l.Remove(ctx); err != nil {
			errs = append(errs, fmt.Errorf("%s: %w", l.Object, err))
		}
	}
	return errors.Join(errs...)
}

// ease removes leftovers as far as no connection needs them, and returns those that
// some do: what they are, and how many.
func ease(ctx context.Context, leftovers []apply.Leftover) (busy []Busy, err error) {
	var errs []error
	for _, l := range leftovers {
		n := 0
		if l.Ease == nil {
			err = l.Remove(ctx)
		} else {
			n, err = l.Ease(ctx)
		}
		if err != nil {
			errs = append(errs, fmt.Errorf("%s: %w", l.Object, err))
		}
		if n > 0 {
			busy = append(busy, Busy{l.Object, n})
		}
	}
	return busy, errors.Join(errs...)
}

// Busy is a leftover that connections need.
type Busy struct {
	Object      string `json:"object"`
	Connections int    `json:"connections"`
}

// peers returns the names of the leftovers that only kube-proxy makes.
func peers(leftovers []apply.Leftover) []string {
	var objects []string
	for _, l := range leftovers {
		if l.KubeProxy {
			objects = append(objects, l.Object)
		}
	}
	return objects
}
