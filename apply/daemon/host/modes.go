package host

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/proxyc/proxyc/apply"
	"github.com/proxyc/proxyc/apply/daemon/status"
	"github.com/proxyc/proxyc/apply/sysctl"
	"github.com/proxyc/proxyc/apply/watch"
	"github.com/proxyc/proxyc/ir"
)

// Mode describes how the rules of a mode are applied. The table of dataplanes corresponds to
// that of back ends (cmd/proxyc/review.Modes).
type Mode struct {
	mode ir.Mode
	// within is another mode whose kind of rules this mode also uses. That mode's leftovers are then
	// in use.
	within ir.Mode
	// CompareEvery is the interval of comparisons with the kernel without other reasons (DMN-21, the
	// maximum sync interval); 0 for one hour.
	CompareEvery time.Duration
	// open opens the dataplane; nil if its rules can only be removed.
	open func(context.Context, apply.Options) (apply.Dataplane, error)
	// leftovers returns the leftovers of the mode if it is not open; nil if those of within are all.
	// Unless readOnly is set, it may remove rules that prevent a tool from listing the others.
	leftovers func(ctx context.Context, readOnly bool) ([]apply.Leftover, error)
	// Separate is set if the mode shares no chain with kube-proxy's rules of the same mode.
	Separate bool
	// Events are sent about the node at each start in the mode.
	Events []watch.Event
}

// Open opens the dataplane of a mode.
func Open(ctx context.Context, mode ir.Mode, o apply.Options) (apply.Dataplane, error) {
	if err := CheckMode(mode, true); err != nil {
		return nil, err
	}
	d, err := ModeOf(mode).open(ctx, o)
	if err != nil {
		return nil, fmt.Errorf("mode %s: %w", mode, err)
	}
	return d, nil
}

// ModeOf returns the dataplane of a mode, or the zero value.
func ModeOf(mode ir.Mode) Mode {
	for _, d := range modes {
		if d.mode == mode {
			return d
		}
	}
	return Mode{}
}

// CheckMode returns an error if a mode cannot be applied on this system. The error lists the modes
// that can; with processes it includes those that require a process.
func CheckMode(mode ir.Mode, processes bool) error {
	var words []string
	for _, d := range modes {
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
	return fmt.Errorf("mode: this system supports modes %s, got %q; compile -o shows what %s would need", list, mode, mode)
}

// errNotConfigured is returned for leftovers whose location is not configured.
var errNotConfigured = errors.New("leftovers were not searched")

// Leftovers returns what proxyc and kube-proxy left on the node, in every mode. It excludes the
// rules of the dataplane in use, which has the given mode; inUse may be nil. With readOnly nothing changes.
func Leftovers(ctx context.Context, mode ir.Mode, inUse apply.Dataplane, readOnly bool) ([]apply.Leftover, error) {
	var all []apply.Leftover
	var errs []error
	within := ir.Mode("")
	if inUse != nil {
		within = ModeOf(mode).within
	}
	for _, d := range modes {
		find := d.leftovers
		switch {
		case inUse != nil && d.mode == mode:
			find = func(ctx context.Context, _ bool) ([]apply.Leftover, error) { return apply.Leftovers(ctx, inUse) }
		case find == nil, inUse != nil && within != "" && d.mode == within:
			continue
		}
		left, err := find(ctx, readOnly)
		if inUse != nil && errors.Is(err, errNotConfigured) {
			continue // configured on every node that ever had that mode
		}
		all, errs = append(all, left...), append(errs, err)
	}
	return all, errors.Join(errs...)
}

// Exposed returns a warning if removed leftovers protected listeners on localhost and the kernel
// now accepts packets to them; otherwise "". The rules of applied Programs that require the setting
// protect them, too. Like kube-proxy, proxyc does not reset the setting, since another program may
// depend on it.
func Exposed(gone []apply.Leftover, applied ir.Programs) string {
	if p := applied.IPv4; p != nil && sysctl.RequiresLocalnet(&p.Node) {
		return ""
	}
	guarded := slices.ContainsFunc(gone, func(l apply.Leftover) bool { return l.GuardsLocalhost })
	if !guarded || !sysctl.RoutesLocalnet(Root) {
		return ""
	}
	return "net.ipv4.conf.all.route_localnet is 1, and the rules that protected localhost were removed: machines on the same link can reach listeners on 127.0.0.1 (sysctl -w net.ipv4.conf.all.route_localnet=0, unless another program needs it)"
}

// Remove removes leftovers. It continues after errors.
func Remove(ctx context.Context, leftovers []apply.Leftover) error {
	var errs []error
	for _, l := range leftovers {
		if err := l.Remove(ctx); err != nil {
			errs = append(errs, fmt.Errorf("%s: %w", l.Object, err))
		}
	}
	return errors.Join(errs...)
}

// Ease removes the leftovers that no connection uses. It returns the others, with the number of
// their connections.
func Ease(ctx context.Context, leftovers []apply.Leftover) (kept []status.Kept, err error) {
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
			kept = append(kept, status.Kept{Object: l.Object, Connections: n})
		}
	}
	return kept, errors.Join(errs...)
}

// OfKubeProxy returns the names of the leftovers that only kube-proxy creates.
func OfKubeProxy(leftovers []apply.Leftover) []string {
	var objects []string
	for _, l := range leftovers {
		if l.KubeProxy {
			objects = append(objects, l.Object)
		}
	}
	return objects
}
