package main

import (
	"errors"
	"fmt"
	"io/fs"
	"reflect"
	"slices"
	"strings"

	"github.com/alecthomas/kong"

	"github.com/proxyc/proxyc/compiler/config"
	"github.com/proxyc/proxyc/compiler/diag"
)

// parsed is a command line with all that is wrong with it, where kong tells the first error alone.
type parsed struct {
	*kong.Context
	path  string // of the verb; empty: none is known
	wrong []error
}

// parse reads a command line. What kong would end at, a value that a flag does not take or a flag
// that there is not, is noted and left out, and the rest is read.
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
				noteNameless(p.Path, note)
			}
			return p
		}
		if of, ok := errors.AsType[*kong.ParseError](err); ok && of.Context.Selected() != nil {
			p.path = of.Context.Selected().Path()
		}
		rest, is := without(args, err, "unknown flag ")
		if !is && unknown { // perhaps its value
			if rest, is = without(args, err, "unexpected argument "); is {
				args = rest
				continue
			}
		}
		note(err)
		if !is {
			return p
		}
		args = rest
	}
}

// noteRepeated has flags told to note that are tagged once and were given more often: of these kong
// takes the last, as kube-proxy does of its own flags.
func noteRepeated(path []*kong.Path, note func(error)) {
	seen := map[*kong.Flag]bool{}
	for _, at := range path {
		if at.Flag == nil || !at.Flag.Tag.Has("once") {
			continue
		}
		if seen[at.Flag] {
			note(fmt.Errorf("--%s: can be given once", at.Flag.Name))
		}
		seen[at.Flag] = true
	}
}

// daemonVerb takes kube-proxy's flags as kube-proxy does, where an empty --config is none.
const daemonVerb = "watch"

// noteNameless notes flags whose value must name a file and is empty, as an unset variable is: another file
// than the one that was meant, or none, would be used.
func noteNameless(path []*kong.Path, note func(error)) {
	for _, at := range path {
		if at.Flag == nil || at.Flag.PlaceHolder != "FILE" {
			continue
		}
		if v := reflect.Indirect(at.Flag.Target); v.Kind() == reflect.String && v.Len() == 0 {
			note(fmt.Errorf("%s: must name a file, got \"\"", at.Flag.ShortSummary()))
		}
	}
}

// without returns the arguments without the one that an error says what about; false: it says
// something else.
func without(args []string, err error, what string) ([]string, bool) {
	rest, is := strings.CutPrefix(err.Error(), what)
	name, _, _ := strings.Cut(rest, ",")
	i := slices.IndexFunc(args, func(arg string) bool { return arg == name || strings.HasPrefix(arg, name+"=") })
	if !is || i < 0 {
		return nil, false
	}
	return slices.Delete(slices.Clone(args), i, i+1), true
}

// noteValues has values that flags and arguments do not take told to note, and then left out.
func noteValues(n *kong.Node, note func(error)) {
	values := slices.Clone(n.Positional)
	for _, f := range n.Flags {
		values = append(values, f.Value)
	}
	for _, v := range values {
		m := noting{v.Mapper, note}
		v.Mapper = m
		if _, ok := m.Mapper.(kong.BoolMapper); ok {
			v.Mapper = notingSwitch{m}
		}
		if _, ok := m.Mapper.(kong.BoolMapperExt); ok {
			v.Mapper = notingPointer{m}
		}
	}
	for _, child := range n.Children {
		noteValues(child, note)
	}
}

// noting is a Mapper whose errors are noted.
type noting struct {
	kong.Mapper
	note func(error)
}

// Decode leaves what is not taken as it was.
func (m noting) Decode(ctx *kong.DecodeContext, target reflect.Value) error {
	was := reflect.New(target.Type()).Elem()
	was.Set(target)
	err := m.Mapper.Decode(ctx, target)
	if v := ctx.Value; err == nil && v.Enum != "" && target.Kind() == reflect.String && !slices.Contains(v.EnumSlice(), target.String()) {
		err = fmt.Errorf("must be one of %s, got %q", strings.Join(v.EnumSlice(), ", "), target.String())
		was.SetString(v.Default)
	}
	if err != nil {
		target.Set(was)
		m.note(fmt.Errorf("%s: %w", ctx.Value.ShortSummary(), err))
	}
	return nil
}

// notingSwitch is one of a flag that needs no value.
type notingSwitch struct{ noting }

func (m notingSwitch) IsBool() bool { return m.Mapper.(kong.BoolMapper).IsBool() }

// notingPointer is one of a flag of which its target says whether it needs a value.
type notingPointer struct{ noting }

func (m notingPointer) IsBoolFromValue(v reflect.Value) bool {
	return m.Mapper.(kong.BoolMapperExt).IsBoolFromValue(v)
}

// tell prints all that is wrong with the command line, and where to look.
func (p parsed) tell(e *env) {
	var verb any
	if p.Context != nil && p.Selected() != nil {
		verb = p.Selected().Target.Addr().Interface()
	}
	e.tellWrong(verb, p.wrong)
	called := p.path
	if called != "" {
		called += " "
	}
	fmt.Fprintf(e.stderr, "Run \"%s\" for how it is used.\n", e.calls("proxyc "+called+"--help"))
}

// tellWrong prints what is wrong with a command line and with the configuration that it gives,
// which one would be told next.
func (e *env) tellWrong(verb any, wrong []error) {
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
	if waits { // nobody is asked to write a configuration for nothing
		return
	}
	if w, ok := verb.(*watchCmd); ok && resolved != nil && !findings.HasErrors() {
		findings.Add(w.withoutEffect(resolved.Config.ProxyMode())...)
	}
	e.report(findings)
}
