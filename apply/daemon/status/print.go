package status

import (
	"cmp"
	"fmt"
	"io"
	"strings"
	"time"

	"github.com/proxyc/proxyc/apply"
	"github.com/proxyc/proxyc/compiler/diag"
	"github.com/proxyc/proxyc/ir"
)

// Print writes the Status as text.
func (st *Status) Print(w io.Writer) error {
	word := "no"
	switch {
	case st.Synced && len(st.MayDrop)+len(st.MayDivert)+len(st.Settings) > 0:
		word = "yes, but foreign rules or settings may affect packets, as below"
	case st.Synced:
		word = "yes"
	case st.Reason != "":
		word += ": " + st.Reason
	}
	line := func(name, format string, args ...any) {
		const column = "\n             " // indentation of further lines, as of joined errors
		fmt.Fprintf(w, "%-12s %s\n", name, strings.ReplaceAll(fmt.Sprintf(format, args...), "\n", column))
	}
	line("node", "%s", st.Node)
	if st.InsteadOf == "" {
		line("mode", "%s", st.Mode)
	} else {
		line("mode", "%s, instead of %s: %s", st.Mode, st.InsteadOf, st.InsteadOfReason)
	}
	line("version", "%s, process %d, up %s", st.Version, st.PID, age(st.Now, st.Started))
	line("synced", "%s", word)
	if st.Synced && st.Reason != "" {
		line("not ready", "%s", st.Reason)
	}
	if st.Restored != "" {
		saved := ""
		if !st.RestoredOf.IsZero() {
			saved = fmt.Sprintf(", saved %s ago", age(st.Now, st.RestoredOf))
		}
		if st.RestoredOf.After(st.Now) { // the clock was set back while the node was down
			saved = fmt.Sprintf(", saved at %s by a clock that was ahead", st.RestoredOf.Format(time.RFC3339))
		}
		line("restored", "rules of %s%s: repaired if another program changes them, but not updated", st.Restored, saved)
	}
	if st.Generation == 0 {
		line("in force", "nothing yet by this process: foreign changes of existing rules are not repaired")
	}
	line("generation", "%d", st.Generation)
	line("pending", "%d", st.Pending)
	line("objects", "%d Services, %d EndpointSlices, %d Nodes", st.Objects.Services, st.Objects.EndpointSlices, st.Objects.Nodes)
	st.printAPI(line)
	st.printFiles(line)
	st.printSyncs(line)
	st.printDraining(line)
	st.printFindings(line)
	for _, s := range st.Refusing {
		refused, dropped := s.Refusals()
		line("refusing", "%s: %d of %d connections, %s", s.Name(), refused+dropped, s.Connections, diag.OneLine(s.Cause))
	}
	st.printForeign(line)
	return nil
}

// printSyncs prints the results of the last syncs.
func (st *Status) printSyncs(line func(name, format string, args ...any)) {
	if !st.LastSync.IsZero() {
		line("last sync", "%s, %s: %s", st.LastSync.Format(time.RFC3339), st.LastKind, st.Operations)
	}
	if c := st.LastChange; c != nil && c.At.Before(st.LastSync) && st.Operations.Total() == 0 {
		line("last change", "%s, %s: %s", c.At.Format(time.RFC3339), c.Kind, c.Operations)
	}
	for _, q := range st.Refused {
		line("refused", "%s: %s", q.Object, q.Reason)
	}
}

// printDraining prints what existing connections keep.
func (st *Status) printDraining(line func(name, format string, args ...any)) {
	for _, d := range st.Draining {
		of := ""
		if d.Service != (ir.Name{}) {
			of = "Service " + d.Service.String() + ": "
		}
		line("draining", "%s%s -> %s, for %s: %d connections", of, d.Frontend, d.Backend, age(st.Now, d.Since), d.Connections)
	}
	if e := st.Easing; e != nil {
		for _, k := range e.Kept {
			line("kept", "%s, for %s until its connections end: %d", diag.OneLine(k.Object), age(st.Now, e.Since), k.Connections)
		}
		line("", "the rest is removed at %s, in %s", e.Until.Format(time.RFC3339), age(e.Until, st.Now))
	}
}

// printFindings prints problems besides the rules.
func (st *Status) printFindings(line func(name, format string, args ...any)) {
	for _, r := range st.Retrying {
		line("retrying", "%s, since %s ago: %s", r.What, age(st.Now, r.Since), r.Error)
	}
	for _, p := range st.Invalid {
		line("invalid", "%s", diag.OneLine(p.Object+": "+p.Reason))
	}
	for _, f := range st.Findings {
		line("finding", "%s: %s", f.Severity, f.Text())
	}
	if more := st.FindingsTotal - len(st.Findings); more > 0 {
		line("", "and %d more: proxyc lint shows all", more)
	}
	if st.LastError != nil {
		line("last error", "%s, %s ago: %s", st.LastError.At.Format(time.RFC3339), age(st.Now, st.LastError.At), st.LastError.Error)
	}
}

// printForeign prints foreign changes of the rules, and foreign rules that may interfere.
func (st *Status) printForeign(line func(name, format string, args ...any)) {
	if st.LastDrift != nil {
		st.LastDrift.print(line)
	}
	if k := st.KubeProxy; k != nil {
		line("kube-proxy", "%s, since %s ago: %s", diag.OneLine(k.Text()), age(st.Now, k.Since), strings.Join(k.Objects, ", "))
	}
	for _, rule := range (apply.Interference{Drops: st.MayDrop, Diverts: st.MayDivert}).Lines() {
		line("foreign", "%s", diag.OneLine(rule))
	}
	for _, setting := range st.Settings {
		line("setting", "%s", setting)
	}
}

// printAPI prints the contact with the API server.
func (st *Status) printAPI(line func(name, format string, args ...any)) {
	api := st.APIServer
	if api == nil {
		return
	}
	line("API server", "%s", api.Server)
	if !api.Lost.IsZero() {
		line("cut off", "since %s, %s ago: %s", api.Lost.Format(time.RFC3339), age(st.Now, api.Lost), api.Cause)
		if api.Fix != "" {
			line("", "fix: %s", api.Fix)
		}
	}
	var heard []string
	for _, r := range api.Resources {
		ago := "never"
		switch {
		case r.Unavailable != "":
			ago = "not given: " + r.Unavailable
		case !r.Last.IsZero():
			ago = age(st.Now, r.Last).String() + " ago"
		}
		if r.Optional && !r.Lost.IsZero() {
			ago += " (" + r.Cause + ")"
		}
		heard = append(heard, r.Resource+" "+ago)
	}
	line("heard", "%s", strings.Join(heard, ", "))
}

// printFiles prints the files in use, and invalid ones.
func (st *Status) printFiles(line func(name, format string, args ...any)) {
	type named struct {
		name string
		*File
	}
	files := []named{{"config", st.Config}}
	for _, f := range st.Snapshot {
		files = append(files, named{"snapshot", f})
	}
	for _, f := range append(files, named{"boot file", st.BootFile}) {
		switch {
		case f.File == nil:
		case f.Modified.IsZero():
			line(f.name, "%s, does not exist", f.Path)
		default:
			line(f.name, "%s of %s", f.Path, f.Modified.Format(time.RFC3339))
		}
		if f.File != nil && f.Error != "" {
			line("", "cannot be written: %s", f.Error)
		}
		if f.File != nil && f.Invalid != "" {
			line("", "is invalid: %s", f.Invalid)
		}
	}
	inForce := "rules are still updated"
	if !st.Synced {
		inForce = "rules do not depend on it"
	}
	for _, d := range st.Down {
		line("not served", "%s at %s, since %s ago: %s; %s", d.Server, d.Address, age(st.Now, d.Since), d.Reason, inForce)
	}
	for _, k := range st.InvalidFiles {
		word := map[bool]string{true: "pending"}[k.Retried] // it could not be applied, and may be valid
		line(cmp.Or(word, "invalid"), "the newest version of %s, %s ago: %s", k.Path, age(st.Now, k.At), k.Reason)
		if k.At.Sub(k.Since) >= time.Second {
			line("", "and earlier ones, since %s ago", age(st.Now, k.Since))
		}
	}
}

// age returns the time since then, in whole seconds.
func age(now, then time.Time) time.Duration { return now.Sub(then).Round(time.Second) }

// print prints the last repair.
func (d *LastDrift) print(line func(name, format string, args ...any)) {
	if d.contested() {
		line("fought", "rules were changed and repaired %d times in the last minute: stop the program that changes them (%s)", d.Recent, Authors(d.By))
	}
	line("last drift", "%s: %s", d.At.Format(time.RFC3339), d.Operations)
	if len(d.By) > 0 {
		line("", "by %s", Authors(d.By))
	}
	for _, what := range d.Gone {
		line("", "%s is gone", diag.OneLine(what))
	}
	for _, op := range d.First {
		line("", "%s %s", op.Verb, diag.OneLine(op.Object))
		for _, l := range op.Have {
			line("", "  have: %s", diag.OneLine(l))
		}
		for _, l := range op.Want {
			line("", "  want: %s", diag.OneLine(l))
		}
	}
	if d.More > 0 {
		line("", "and %d more", d.More)
	}
}

// Authors returns the names of the programs that changed the rules, for messages.
func Authors(programs []string) string {
	if len(programs) == 0 {
		return "unknown"
	}
	return diag.OneLine(strings.Join(programs, ", "))
}

// Text describes the state.
func (k *KubeProxy) Text() string {
	switch k.State {
	case Maintained:
		if k.Process != "" {
			return fmt.Sprintf("kube-proxy is running (%s), and packets may match its rules: stop kube-proxy or proxyc", k.Process)
		}
		return "kube-proxy's rules appeared, and packets may match them: kube-proxy seems to be running; stop it or proxyc"
	case LeftOver:
		return "leftover rules of kube-proxy are being removed, and packets may match them"
	default:
		return "leftover rules of kube-proxy were removed"
	}
}
