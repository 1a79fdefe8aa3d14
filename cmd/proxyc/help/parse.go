package help

import (
	"cmp"
	"errors"
	"fmt"
	"reflect"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/alecthomas/kong"
	"k8s.io/apimachinery/pkg/api/resource"

	"github.com/proxyc/proxyc/apply"
	"github.com/proxyc/proxyc/compiler/diag"
)

// KubeProxyFlags is the group of kube-proxy's own flags.
const KubeProxyFlags = "kube-proxy's flags:"

// Parsed is a command line with all of its errors; kong reports only the first.
type Parsed struct {
	*kong.Context
	Verb  string // path of the command; "" if unknown
	Wrong []error
}

// PrintsText reports whether --output selects text for people, and no document.
func (p Parsed) PrintsText() bool {
	return !slices.ContainsFunc(p.Flags(), func(f *kong.Flag) bool {
		return f.Name == "output" && !slices.Contains([]string{"text", "wide", "stat"}, fmt.Sprint(p.FlagValue(f)))
	})
}

// Parse parses a command line. It records and removes invalid values and unknown flags, for which
// kong would stop, and parses the rest.
func Parse(k *kong.Kong, args []string) (p Parsed) {
	note := func(err error) {
		if !slices.ContainsFunc(p.Wrong, func(o error) bool { return o.Error() == err.Error() }) {
			p.Wrong = append(p.Wrong, err)
		}
	}
	noteValues(k.Model.Node, note)
	for unknown := false; ; unknown = true {
		var err error
		p.Context, err = k.Parse(args)
		if err == nil {
			p.Verb = p.Selected().Path()
			noteRepeated(p.Path, note)
			p.noteStdin(note)
			if p.Verb != daemonVerb {
				p.noteNameless(note)
			}
			return p
		}
		if len(p.Wrong) == 0 && strings.HasPrefix(err.Error(), "expected one of ") {
			args = append(args, "--help") // a command is missing
			continue
		}
		var command *kong.Node
		if of, ok := errors.AsType[*kong.ParseError](err); ok && of.Context.Selected() != nil {
			command = of.Context.Selected()
			p.Verb = command.Path()
		}
		rest, is := without(args, err, "unknown flag ")
		if !is && unknown { // possibly its value
			if rest, is = without(args, err, "unexpected argument "); is {
				args = rest
				continue
			}
		}
		note(Explain(err, command))
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

// noteStdin reports standard input as the value of several flags and arguments, since the second file would be empty. Those
// tagged writes name an output.
func (p *Parsed) noteStdin(note func(error)) {
	values := slices.Clone(p.Selected().Positional)
	for _, f := range p.Flags() {
		values = append(values, f.Value)
	}
	used := 0
	for _, v := range values {
		names := []string{ValueText(v.Target)}
		if list, is := v.Target.Interface().([]string); is {
			names = list
		} else if _, list, is := strings.Cut(names[0], ":"); is && v.Tag.PlaceHolder == "SIDE" { // dump:FILE,FILE
			names = strings.Split(list, ",")
		}
		for _, name := range names {
			if name == "-" && !v.Tag.Has("writes") {
				used++
			}
		}
	}
	if used > 1 {
		note(errors.New("standard input can be used only once"))
	}
}

// daemonVerb accepts kube-proxy's flags like kube-proxy, where an empty --config is no file.
const daemonVerb = "watch"

// noteNameless reports flags whose value must be a name but is empty, as from an unset variable.
// Otherwise an unintended object, or none, would be used. kube-proxy's flags may be empty, except
// files.
func (p *Parsed) noteNameless(note func(error)) {
	for _, at := range p.Path {
		f, want := at.Flag, "must name a file"
		switch {
		case f == nil:
			continue
		case f.PlaceHolder == "NAME" && (f.Group == nil || f.Group.Key != KubeProxyFlags):
			want = "must be a name"
		case f.PlaceHolder != "FILE" && f.PlaceHolder != "PATH":
			continue
		}
		name := f.ShortSummary() + ": "
		noted := slices.ContainsFunc(p.Wrong, func(err error) bool { return strings.HasPrefix(err.Error(), name) })
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
	wrong := notOf(ctx.Value, target)
	if err != nil {
		wrong = []error{err}
	} else if len(wrong) > 0 && target.Kind() == reflect.String {
		was.SetString(cmp.Or(ctx.Value.Default, ctx.Value.EnumSlice()[0])) // kong would report "" as another error
	}
	for _, err := range wrong {
		target.Set(was)
		m.note(fmt.Errorf("%s: %w", ctx.Value.ShortSummary(), err))
	}
	return nil
}

// notOf returns the errors about values that are not in the enum of a flag or argument.
func notOf(v *kong.Value, target reflect.Value) (wrong []error) {
	list, _ := target.Interface().([]string)
	if target.Kind() == reflect.String {
		list = []string{target.String()}
	}
	for _, one := range list {
		if v.Enum != "" && !slices.Contains(v.EnumSlice(), one) {
			wrong = append(wrong, diag.NotOneOf(one, v.EnumSlice()))
		}
	}
	return wrong
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

// Dashed converts other spellings of flags that kube-proxy accepts to those of kong: names with
// underscores, and short flags with an equals sign before their value. An argument with a space
// after its first letter is no flag.
func Dashed(args []string) []string {
	out := make([]string, 0, len(args))
	for i, arg := range args {
		if arg == "--" {
			return append(out, args[i:]...)
		}
		name, value, hasValue := strings.Cut(arg, "=")
		switch {
		case len(arg) > len("-A ") && arg[0] == '-' && arg[2] == ' ':
			out = append(out, " "+arg) // a line of rules, for explain
		case strings.HasPrefix(name, "--"):
			out = append(out, strings.ReplaceAll(name, "_", "-")+arg[len(name):])
		case !hasValue || len(name) != len("-x") || name[0] != '-':
			out = append(out, arg)
		case value == "":
			out = append(out, name, "")
		default:
			out = append(out, name+value)
		}
	}
	return out
}

// Switches parses boolean flags with kube-proxy's values, which are Go's: 1, t, T, true and so on,
// but not yes.
type Switches struct{}

func (Switches) IsBool() bool { return true }

// Decode parses the value after "="; no value is true.
func (Switches) Decode(ctx *kong.DecodeContext, target reflect.Value) error {
	on, err := SwitchOf(ctx)
	target.SetBool(on)
	return err
}

// SwitchOf parses such a value. words are additional values for true.
func SwitchOf(ctx *kong.DecodeContext, words ...string) (bool, error) {
	if ctx.Scan.Peek().Type != kong.FlagValueToken {
		return true, nil
	}
	text := fmt.Sprint(ctx.Scan.Pop().Value)
	if slices.Contains(words, text) {
		return true, nil
	}
	on, err := strconv.ParseBool(text)
	if err != nil {
		return false, fmt.Errorf("must be true or false, got %q", text)
	}
	return on, nil
}

// Durations parses flags with durations. proxyc's own must not be negative. Those of kube-proxy,
// which set a field of its configuration, may be if the field may be.
type Durations struct{}

// Decode parses the next argument, even if it starts with a minus sign.
func (Durations) Decode(ctx *kong.DecodeContext, target reflect.Value) error {
	text, _ := ctx.Scan.Pop().Value.(string)
	d, err := time.ParseDuration(text)
	switch {
	case ctx.Value.Tag.Has("config") || ctx.Value.Tag.Has("sets"):
		if err != nil {
			return fmt.Errorf("must be a duration such as 30s or 1h30m, got %q", text)
		}
	case err != nil || d < 0:
		return fmt.Errorf("must be a duration such as 30s or 1h30m, not negative, got %q", text)
	}
	target.SetInt(int64(d))
	return nil
}

// Given returns the given flags of a command line except some.
func Given(k *kong.Context, but ...string) (words []string) {
	flags := map[string]*kong.Flag{}
	for _, f := range k.Flags() {
		flags["--"+f.Name] = f
		if f.Short != 0 {
			flags["-"+string(f.Short)] = f
		}
	}
	for i := 0; i < len(k.Args); i++ {
		name, _, whole := strings.Cut(k.Args[i], "=")
		if !strings.HasPrefix(name, "--") && len(name) > len("-x") {
			name, whole = name[:len("-x")], true
		}
		f := flags[name]
		if f == nil {
			continue
		}
		begin := i
		if !whole && !f.IsBool() && i+1 < len(k.Args) {
			i++
		}
		if slices.Contains(but, f.Name) {
			continue
		}
		words = append(words, k.Args[begin:i+1]...)
	}
	return words
}

// Values returns all flags of the running command by name, with their effective values: those of the
// configuration for flags that set a field of it, otherwise those of the command line or the defaults.
func Values(k *kong.Context, inForce map[string]string) map[string]string {
	values := map[string]string{}
	for _, flag := range k.Flags() {
		value, ok := inForce[flag.Name]
		if !ok {
			value = ValueText(reflect.ValueOf(k.FlagValue(flag)))
		}
		name := "--" + flag.Name + "="
		values[flag.Name] = strings.TrimPrefix(apply.Redact(name+value), name)
	}
	delete(values, "help")
	return values
}

// ValueText returns the value of a flag as text; "" for none.
func ValueText(v reflect.Value) string {
	if v = reflect.Indirect(v); !v.IsValid() {
		return ""
	}
	return fmt.Sprint(v.Interface())
}

// program is the command that users call, unless proxyc is a kubectl plugin.
const program = "proxyc"

// CalledAs returns the command that users call for a program name, and the arguments that the name
// implies. kubectl runs kubectl-proxyc in PATH for "kubectl proxyc", and kubectl_complete-proxyc
// for completions.
func CalledAs(file string) (name string, words []string) {
	switch strings.TrimSuffix(file, ".exe") {
	case "kube-proxy":
		return program, []string{"watch"}
	case "kubectl-proxyc":
		return "kubectl " + program, nil
	case "kubectl_complete-proxyc":
		return program, []string{Complete, ForKubectl}
	}
	return program, nil
}

// Directory is a directory to write to.
type Directory string

// UnmarshalText rejects an empty name, as from an unset variable in a script.
func (d *Directory) UnmarshalText(text []byte) error {
	if len(text) == 0 {
		return errors.New("must name a directory, got \"\"")
	}
	*d = Directory(text)
	return nil
}

// Bytes is a number of bytes on the command line: 1000, 64Ki, 256Mi.
type Bytes int64

// UnmarshalText parses a Kubernetes quantity.
func (b *Bytes) UnmarshalText(text []byte) error {
	q, err := resource.ParseQuantity(string(text))
	if err != nil || q.Sign() < 0 {
		return fmt.Errorf("must be a number of bytes such as 256Mi, got %q", text)
	}
	*b = Bytes(q.Value())
	return nil
}
