package main

import (
	"cmp"
	"errors"
	"fmt"
	"io/fs"
	"reflect"
	"regexp"
	"slices"
	"strings"

	"github.com/alecthomas/kong"

	"github.com/proxyc/proxyc/cmd/proxyc/help"
	"github.com/proxyc/proxyc/cmd/proxyc/review"
	"github.com/proxyc/proxyc/compiler/config"
	"github.com/proxyc/proxyc/compiler/diag"
)

// parsed is a command line with all of its errors; kong reports only the first.
type parsed struct {
	*kong.Context
	path  string // path of the command; "" if unknown
	wrong []error
}

// parse parses a command line. It records and removes invalid values and unknown flags, for which
// kong would stop, and parses the rest.
func parse(k *kong.Kong, args []string) (p parsed) {
	note := func(err error) {
		if !slices.ContainsFunc(p.wrong, func(o error) bool { return o.Error() == err.Error() }) {
			p.wrong = append(p.wrong, err)
		}
	}
	noteValues(k.Model.Node, note)
	for unknown := false; ; unknown = true {
		var err error
		p.Context, err = k.Parse(args)
		if err == nil {
			p.path = p.Selected().Path()
			noteRepeated(p.Path, note)
			if p.path != daemonVerb {
				p.noteNameless(note)
			}
			return p
		}
		var command *kong.Node
		if of, ok := errors.AsType[*kong.ParseError](err); ok && of.Context.Selected() != nil {
			command = of.Context.Selected()
			p.path = command.Path()
		}
		rest, is := without(args, err, "unknown flag ")
		if !is && unknown { // possibly its value
			if rest, is = without(args, err, "unexpected argument "); is {
				args = rest
				continue
			}
		}
		note(help.Explain(err, command))
		if !is {
			return p
		}
		args = rest
	}
}

// noteRepeated reports flags tagged once that were given more than once. kong would use the last
// one, as kube-proxy does for its own flags.
func noteRepeated(path []*kong.Path, note func(error)) {
	seen := map[*kong.Flag]bool{}
	for _, at := range path {
		if at.Flag == nil || !at.Flag.Tag.Has("once") {
			continue
		}
		if seen[at.Flag] {
			note(fmt.Errorf("--%s: can be used only once", at.Flag.Name))
		}
		seen[at.Flag] = true
	}
}

// daemonVerb accepts kube-proxy's flags like kube-proxy, where an empty --config is no file.
const daemonVerb = "watch"

// noteNameless reports flags whose value must be a name but is empty, as from an unset variable.
// Otherwise an unintended object, or none, would be used. kube-proxy's flags may be empty, except
// files.
func (p *parsed) noteNameless(note func(error)) {
	for _, at := range p.Path {
		f, want := at.Flag, "must name a file"
		switch {
		case f == nil:
			continue
		case f.PlaceHolder == "NAME" && (f.Group == nil || f.Group.Key != kubeProxyFlags):
			want = "must be a name"
		case f.PlaceHolder != "FILE" && f.PlaceHolder != "PATH":
			continue
		}
		name := f.ShortSummary() + ": "
		noted := slices.ContainsFunc(p.wrong, func(err error) bool { return strings.HasPrefix(err.Error(), name) })
		v := reflect.Indirect(f.Target)
		list, _ := v.Interface().([]string)
		if empty := v.Kind() == reflect.String && v.Len() == 0 || slices.Contains(list, ""); empty && !noted {
			note(errors.New(name + want + `, got ""`))
		}
	}
}

// without returns the arguments without the one that an error is about; false for other errors.
func without(args []string, err error, what string) ([]string, bool) {
	rest, is := strings.CutPrefix(err.Error(), what)
	name, _, _ := strings.Cut(rest, ",")
	i := slices.IndexFunc(args, func(arg string) bool { return arg == name || strings.HasPrefix(arg, name+"=") })
	if !is || i < 0 {
		return nil, false
	}
	return slices.Delete(slices.Clone(args), i, i+1), true
}

// noteValues makes kong record invalid values of flags and arguments, and skip them.
func noteValues(n *kong.Node, note func(error)) {
	values := slices.Clone(n.Positional)
	for _, f := range n.Flags {
		values = append(values, f.Value)
	}
	for _, v := range values {
		m := collector{v.Mapper, note}
		v.Mapper = m
		if _, ok := m.Mapper.(kong.BoolMapper); ok {
			v.Mapper = collectingSwitch{m}
		}
		if _, ok := m.Mapper.(kong.BoolMapperExt); ok {
			v.Mapper = collectingPointer{m}
		}
	}
	for _, child := range n.Children {
		noteValues(child, note)
	}
}

// collector is a Mapper that records errors.
type collector struct {
	kong.Mapper
	note func(error)
}

// Decode keeps the previous value after an error.
func (m collector) Decode(ctx *kong.DecodeContext, target reflect.Value) error {
	was := reflect.New(target.Type()).Elem()
	was.Set(target)
	if text := ctx.Scan.Peek().String(); negative.MatchString(text) && !ctx.Value.IsBool() {
		ctx.Scan.Pop()
		ctx.Scan.PushTyped(text, kong.FlagValueToken) // kube-proxy accepts --oom-score-adj -998
	}
	next := ctx.Scan.Peek()
	err := m.Mapper.Decode(ctx, target)
	if err != nil && !next.IsValue() {
		err = errors.New("requires a value")
		if !next.IsEOL() {
			ctx.Scan.PushToken(next) // it is a flag
		}
	}
	v := ctx.Value
	if list, is := target.Interface().([]string); is && err == nil && v.Enum != "" {
		if i := slices.IndexFunc(list, func(one string) bool { return !slices.Contains(v.EnumSlice(), one) }); i >= 0 {
			err = review.NotOneOf(list[i], v.EnumSlice())
		}
	}
	if err == nil && v.Enum != "" && target.Kind() == reflect.String && !slices.Contains(v.EnumSlice(), target.String()) {
		err = review.NotOneOf(target.String(), v.EnumSlice())
		was.SetString(cmp.Or(v.Default, v.EnumSlice()[0])) // kong would report "" as another error
	}
	if err != nil {
		target.Set(was)
		m.note(fmt.Errorf("%s: %w", ctx.Value.ShortSummary(), err))
	}
	return nil
}

// negative matches arguments that are values although they start with a minus sign.
var negative = regexp.MustCompile(`^-[0-9]`)

// collectingSwitch is a collector for flags without a required value.
type collectingSwitch struct{ collector }

func (m collectingSwitch) IsBool() bool { return m.Mapper.(kong.BoolMapper).IsBool() }

// collectingPointer is a collector for flags whose target determines whether they require a value.
type collectingPointer struct{ collector }

func (m collectingPointer) IsBoolFromValue(v reflect.Value) bool {
	return m.Mapper.(kong.BoolMapperExt).IsBoolFromValue(v)
}

// printErrors prints all errors of the command line, and where to find help.
func (p parsed) printErrors(e *env) {
	var verb any
	if p.Context != nil && p.Selected() != nil {
		verb = p.Selected().Target.Addr().Interface()
	}
	e.printErrors(verb, p.wrong)
	called := p.path
	if called != "" {
		called += " "
	}
	fmt.Fprintf(e.stderr, "Run \"%s\" for usage.\n", e.calls("proxyc "+called+"--help"))
}

// printErrors prints the errors of a command line and of the configuration that it selects, which
// would be reported next.
func (e *env) printErrors(verb any, wrong []error) {
	for _, err := range wrong {
		fmt.Fprintf(e.stderr, "proxyc: %s\n", strings.TrimSpace(err.Error()))
	}
	c, ok := verb.(interface {
		Resolve(func(string) ([]byte, error), bool) (*config.Resolved, diag.List)
	})
	if !ok {
		return
	}
	waits := false
	resolved, findings := c.Resolve(func(name string) ([]byte, error) {
		if waits = waits || name == "-"; waits {
			return nil, fs.ErrNotExist
		}
		return e.inputs().ReadFile(name)
	}, false)
	if waits { // the prompt of --write-config-to must not be shown for nothing
		return
	}
	if w, ok := verb.(*watchCmd); ok && resolved != nil && !findings.HasErrors() {
		findings.Add(w.withoutEffect(resolved.Config.ProxyMode())...)
	}
	e.report(findings)
}
