// Package help writes the help of commands, their manual pages, and shell completions.
package help

import (
	"fmt"
	"slices"
	"strings"

	"github.com/alecthomas/kong"

	"github.com/proxyc/proxyc/compiler/config"
)

// Verb is the help of a command besides its flags.
type Verb struct {
	Examples []string
	// Exits are the meanings of its exit codes, by code; "" if it does not return the code.
	Exits [3]string
}

const (
	badInput = "invalid input or usage, or a file that cannot be read or written"
	getAll   = "kubectl get services,endpointslices,nodes,servicecidrs -A -o yaml >cluster.yaml"
)

// Verbs returns the help of all commands, by path.
func Verbs() map[string]Verb {
	return map[string]Verb{
		"compile": {[]string{
			getAll,
			"proxyc compile -c config.yaml -s cluster.yaml --node node1",
			"proxyc compile -c config.yaml -s cluster.yaml --mode ipvs --out-dir out",
			"proxyc compile -c config.yaml -s cluster.yaml --all-nodes --out-dir out",
		}, [...]string{"done", "", badInput + "; the rules of all valid objects are written"}},
		"apply": {[]string{
			"proxyc apply -c config.yaml -s cluster.yaml --dry-run",
			"proxyc apply -c config.yaml -s cluster.yaml --yes-takeover",
			"proxyc apply -c config.yaml -s cluster.yaml --check",
		}, [...]string{"done", "with --check: something differs", badInput + ", or the kernel rejected a change"}},
		"watch": {[]string{
			"proxyc watch --config /var/lib/kube-proxy/config.conf",
			"proxyc watch -c config.yaml -s cluster.yaml",
		}, [...]string{"ended by a signal, or completed --cleanup, --init-only or --write-config-to", "", badInput + ", or a condition that stops the daemon"}},
		"status": {[]string{
			"proxyc status",
			"proxyc status --status-socket /run/proxyc.sock -o json",
		}, [...]string{"the daemon answers, and the kernel matches", "the daemon answers, and the kernel does not match, or is not verified", "no daemon answers, or invalid usage"}},
		"doctor": {[]string{
			"proxyc doctor",
			"proxyc doctor --config config.yaml --try nftables -o json",
		}, [...]string{"no errors; there may be warnings", "errors", "invalid usage, or insufficient privileges"}},
		"cleanup": {[]string{
			"proxyc cleanup --dry-run",
			"proxyc cleanup",
		}, [...]string{"done", "", "invalid usage, or rules that cannot be removed"}},
		"trace": {[]string{
			"proxyc trace -c config.yaml -s cluster.yaml --from pod:shop/web-110 --to 10.96.0.10:80",
			"proxyc trace -c config.yaml -s cluster.yaml --from 192.0.2.200@eth0 --to [2001:db8::1]:443/udp -o json",
		}, [...]string{"done", "the result differs from --expect, or from that of --kernel", badInput}},
		"explain": {[]string{
			"proxyc explain -c config.yaml -s cluster.yaml 10.96.0.10:80",
			"proxyc explain -c config.yaml -s cluster.yaml shop/web:http",
			"proxyc explain -c config.yaml -s cluster.yaml 30080",
		}, [...]string{"done", "no match", badInput}},
		"diff": {[]string{
			"proxyc diff -c config.yaml -s old.yaml -S new.yaml",
			"proxyc diff -c config.yaml -s old.yaml -S new.yaml --all-nodes -o markdown",
			"proxyc diff -c config.yaml -s old.yaml -S new.yaml --fail-on opens,lost --ignore backends",
			"proxyc diff -c old.yaml -C new.yaml -s cluster.yaml -o nftables",
			"proxyc diff -c config.yaml -s cluster.yaml --new-mode nftables",
			"proxyc diff -c config.yaml --context prod --overlay manifests/ --all-nodes",
		}, [...]string{"no difference, or none with an effect of --fail-on", "differences, or an incomplete comparison", badInput + ", or objects with errors"}},
		"prove": {[]string{
			"proxyc prove -c config.yaml -s cluster.yaml --mode nftables ir kernel",
			"proxyc prove -c config.yaml -s cluster.yaml --mode iptables ir dump:node17.iptables-save",
			"proxyc prove -c config.yaml -s cluster.yaml mode:iptables mode:nftables",
		}, [...]string{"equal", "different, or not provable", badInput}},
		"assert": {[]string{
			"proxyc assert -f contracts.yaml -c config.yaml -s cluster.yaml",
			"proxyc assert -f contracts.yaml -s manifests/ -o json",
		}, [...]string{"all contracts hold", "a contract is violated, or not checked", badInput}},
		"migrate": {[]string{
			"proxyc migrate -c config.yaml -s cluster.yaml --from iptables --to nftables --all-nodes",
			"proxyc migrate -c config.yaml -s cluster.yaml --to nftables --dump node17.iptables-save -o json",
		}, [...]string{"nothing changes", "something changes, or the change cannot be determined", badInput}},
		"lint": {[]string{
			"proxyc lint -c config.yaml -s cluster.yaml",
			"proxyc lint -s manifests/ -o github",
			"proxyc lint -c config.yaml -s cluster.yaml --write-baseline known.txt",
			"proxyc lint -c config.yaml -s cluster.yaml --baseline known.txt -o sarif",
		}, [...]string{"no findings, or none as severe as --fail-on", "findings", badInput + ", or an invalid configuration"}},
		"report": {[]string{
			"proxyc report -c config.yaml -s cluster.yaml -o report.html",
			"proxyc report -c config.yaml -s new.yaml --against old.yaml --all-nodes -o report.html",
			"proxyc report -c config.yaml -s new.yaml --against old.yaml -o markdown",
		}, [...]string{"done", "", badInput + ", or findings that are errors; without --against, the report of all valid objects is written"}},
		"config defaults": {[]string{
			"proxyc config defaults",
			"proxyc config defaults --proxy-mode nftables",
		}, [...]string{"done", "", badInput}},
		"config validate": {[]string{
			"proxyc config validate config.yaml",
			"kubectl -n kube-system get configmap kube-proxy -o yaml | proxyc config validate --strict -",
		}, [...]string{"valid", "", "invalid, or a file that cannot be read"}},
		"config show": {[]string{
			"proxyc config show config.yaml",
			"proxyc config show --cluster-cidr 10.244.0.0/16 -o json",
		}, [...]string{"done", "", badInput}},
		"snapshot": {[]string{
			"proxyc snapshot -o cluster.json.gz",
			"proxyc snapshot --kubeconfig ~/.kube/prod --context prod -o cluster.json",
			"proxyc snapshot --status-socket /run/proxyc.sock -o node1.json",
			"proxyc snapshot -c config.yaml --redact -o cluster.json --config-out redacted.yaml --stand-ins keep.txt",
		}, [...]string{"done", "", badInput + "; valid objects are written nevertheless"}},
		"record": {[]string{
			"proxyc record -o run.jsonl",
		}, [...]string{"ended by a signal", "", badInput}},
		"replay": {[]string{
			"proxyc replay -c config.yaml --node node1 run.jsonl",
			"proxyc replay -c config.yaml --node node1 run.jsonl --packets packets.jsonl -o none",
			"proxyc replay -c config.yaml --node node1 run.jsonl --until 2026-01-02T03:04:05Z --netns scratch",
		}, [...]string{"replayed to the end, or to --until", "a packet had an unexpected result, or rules do not match", badInput + ", or the kernel rejected a change"}},
		"demo": {[]string{
			"proxyc demo --mode iptables",
			"proxyc demo --write demo",
			"proxyc demo --live",
		}, [...]string{"done", "with --live: a connection differed from its trace", badInput}},
		"version": {[]string{
			"proxyc version -o json",
		}, [...]string{"done", "", "invalid usage"}},
		"completion": {[]string{
			"proxyc completion bash",
			"proxyc completion zsh",
			"proxyc completion fish",
			"proxyc completion powershell",
		}, [...]string{"done", "", "invalid usage"}},
		"man": {[]string{
			"proxyc man",
			"proxyc man trace",
			"proxyc man --write /usr/local/share/man/man1",
		}, [...]string{"done", "", "invalid usage, or a file that cannot be written"}},
	}
}

// Args removes requests for help that kong does not support: help VERB, and --help=all. all reports
// whether to show every flag.
func Args(args []string) (rest []string, all bool) {
	if len(args) > 0 && args[0] == "help" {
		args = append(slices.Clone(args[1:]), "--help")
	}
	for _, arg := range args {
		if arg == "--" {
			break
		}
		all = all || arg == "--help=all"
	}
	if all {
		args = slices.DeleteFunc(slices.Clone(args), func(arg string) bool { return arg == "--help" || arg == "--help=all" })
		args = append(args, "--help")
	}
	return args, all
}

// Offline are the commands that neither change a node nor run on one, so they do not use the
// daemon's flags.
var Offline = []string{"compile", "trace", "explain", "diff", "prove", "assert", "migrate", "lint", "report", "replay", "config defaults", "config show"}

// printHelp prints the help of a command: one line per flag, without most of kube-proxy's flags, or
// all flags with their full texts if all is set. calls formats the command lines of examples.
func printHelp(all bool, calls func(string) string) kong.HelpPrinter {
	return func(options kong.HelpOptions, ctx *kong.Context) error {
		verb := ctx.Selected()
		if verb == nil || len(verb.Children) > 0 {
			return kong.DefaultHelpPrinter(options, ctx)
		}
		verb.Positional = slices.DeleteFunc(verb.Positional, func(v *kong.Value) bool { return v.Tag.Hidden }) // kong shows them
		var b strings.Builder
		if all {
			for _, f := range verb.Flags {
				f.Hidden = f.Hidden && !f.Tag.Has("config") && !f.Tag.Has("sets") // only kube-proxy's are shown
			}
			if err := kong.DefaultHelpPrinter(options, ctx); err != nil {
				return err
			}
		} else {
			writeBrief(&b, ctx.Model.Name, verb)
		}
		u := Verbs()[verb.Path()]
		b.WriteString("\nExamples:\n")
		for _, example := range u.Examples {
			b.WriteString("  " + calls(example) + "\n")
		}
		b.WriteString("\nExit codes:\n")
		for code, means := range u.Exits {
			if means != "" {
				fmt.Fprintf(&b, "  %d  %s\n", code, means)
			}
		}
		_, err := ctx.Stdout.Write([]byte(b.String()))
		return err
	}
}

// briefColumn is the column of the texts of flags. Few names are longer.
const briefColumn = 34

// common are the flags of kube-proxy that the help of every verb shows.
var common = []string{"config", "hostname-override", "mode", "cluster-cidr"}

// writeBrief writes the help of a verb with the first sentence of each flag.
func writeBrief(b *strings.Builder, program string, verb *kong.Node) {
	fmt.Fprintf(b, "Usage: %s %s\n\n%s\n", program, verb.Summary(), verb.Help)
	line := func(name string, v *kong.Value) {
		fmt.Fprintf(b, "  %-*s  %s\n", briefColumn-len("    "), name, withDefault(firstSentence(v.Help), v, config.FlagDefaults()))
	}
	if len(verb.Positional) > 0 {
		b.WriteString("\nArguments:\n")
		for _, p := range verb.Positional {
			line(p.Summary(), p)
		}
	}
	b.WriteString("\nFlags:\n")
	more := 0
	for _, group := range verb.AllFlags(false) {
		for _, f := range group {
			switch kubeProxys := f.Tag.Has("config") || f.Tag.Has("sets"); {
			case kubeProxys && !slices.Contains(common, f.Name):
				more++
			case f.Hidden:
			case f.Short != 0:
				line(f.String(), f.Value)
			default:
				line("    "+f.String(), f.Value)
			}
		}
	}
	if more > 0 {
		fmt.Fprintf(b, "\n%d more flags of kube-proxy are accepted: --help=all lists them.\n", more)
	}
}

// firstSentence returns the first sentence of a flag's text.
func firstSentence(text string) string {
	first, _, more := strings.Cut(text, ". ")
	if more {
		return first + "."
	}
	return text
}

// FlagText returns the help of a flag, with its default.
func FlagText(flagDefaults map[string]string) kong.HelpValueFormatter {
	return func(v *kong.Value) string { return withDefault(v.Help, v, flagDefaults) }
}

// withDefault adds the default of a flag to its text, unless the text states one.
func withDefault(text string, v *kong.Value, flagDefaults map[string]string) string {
	if v.Flag == nil || strings.Contains(text, "default") {
		return text
	}
	def := v.Default
	if v.Tag != nil && (v.Tag.Has("config") || v.Tag.Has("sets")) {
		def = flagDefaults[v.Flag.Name]
	}
	if def == "" {
		return text
	}
	return strings.TrimSuffix(text, ".") + " (default " + def + ")."
}

// Options returns the parser options for the help.
func Options(all bool, calls func(string) string) []kong.Option {
	return []kong.Option{
		kong.ConfigureHelp(kong.HelpOptions{Compact: true, NoExpandSubcommands: true}),
		kong.Help(printHelp(all, calls)),
		kong.ValueFormatter(FlagText(config.FlagDefaults())),
	}
}
