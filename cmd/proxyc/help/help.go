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
	badInput = "bad input or usage, or a file that cannot be read or written"
	getAll   = "kubectl get services,endpointslices,nodes,servicecidrs -A -o yaml >cluster.yaml"
)

// Verbs returns the help of all commands, by path.
func Verbs() map[string]Verb {
	return map[string]Verb{
		"compile": {[]string{
			getAll,
			"proxyc compile -c config.yaml -s cluster.yaml --hostname-override node1",
			"proxyc compile -c config.yaml -s cluster.yaml --mode ipvs --out-dir out",
			"proxyc compile -c config.yaml -s cluster.yaml --all-nodes --out-dir out",
		}, [...]string{"done", "", badInput + "; the rules of all that is right are written"}},
		"apply": {[]string{
			"proxyc apply -c config.yaml -s cluster.yaml --dry-run",
			"proxyc apply -c config.yaml -s cluster.yaml --yes-takeover",
			"proxyc apply -c config.yaml -s cluster.yaml --check",
		}, [...]string{"done", "with --check: something differs", badInput + ", or a kernel that refuses something"}},
		"watch": {[]string{
			"proxyc watch --config /var/lib/kube-proxy/config.conf",
			"proxyc watch -c config.yaml -s cluster.yaml",
		}, [...]string{"ended by a signal, or done with --cleanup, --init-only or --write-config-to", "", badInput + ", or something without which the daemon cannot go on"}},
		"status": {[]string{
			"proxyc status",
			"proxyc status --address unix:/run/proxyc.sock -o json",
		}, [...]string{"the daemon answers, and the kernel is as it should be", "the daemon answers, and the kernel is not, or is not known to be, as it should be", "no daemon answers, or wrong usage"}},
		"doctor": {[]string{
			"proxyc doctor",
			"proxyc doctor --config config.yaml --try nftables -o json",
		}, [...]string{"nothing is an error; there may be warnings", "something is an error", "wrong usage, or no rights"}},
		"cleanup": {[]string{
			"proxyc cleanup --dry-run",
			"proxyc cleanup",
		}, [...]string{"done", "", "wrong usage, or something that cannot be removed"}},
		"trace": {[]string{
			"proxyc trace -c config.yaml -s cluster.yaml --from pod:shop/web-110 --to 10.96.0.10:80",
			"proxyc trace -c config.yaml -s cluster.yaml --from 192.0.2.200@eth0 --to [2001:db8::1]:443/udp -o json",
		}, [...]string{"done", "", badInput}},
		"explain": {[]string{
			"proxyc explain -c config.yaml -s cluster.yaml 10.96.0.10:80",
			"proxyc explain -c config.yaml -s cluster.yaml shop/web:http",
			"proxyc explain -c config.yaml -s cluster.yaml 30080",
		}, [...]string{"done", "nothing has this name", badInput}},
		"diff": {[]string{
			"proxyc diff -c config.yaml -s old.yaml -S new.yaml",
			"proxyc diff -c config.yaml -s old.yaml -S new.yaml --all-nodes -o markdown",
			"proxyc diff -c old.yaml -C new.yaml -s cluster.yaml -o nftables",
			"proxyc diff -c config.yaml -s cluster.yaml --new-mode nftables",
		}, [...]string{"no difference", "differences", badInput}},
		"prove": {[]string{
			"proxyc prove -c config.yaml -s cluster.yaml --mode nftables ir kernel",
			"proxyc prove -c config.yaml -s cluster.yaml --mode iptables ir dump:node17.iptables-save",
			"proxyc prove -c config.yaml -s cluster.yaml mode:iptables mode:nftables",
		}, [...]string{"equal", "different, or not provable", badInput}},
		"migrate": {[]string{
			"proxyc migrate -c config.yaml -s cluster.yaml --from iptables --to nftables --all-nodes",
			"proxyc migrate -c config.yaml -s cluster.yaml --to nftables --dump node17.iptables-save -o json",
		}, [...]string{"nothing changes", "something changes, or cannot be shown", badInput}},
		"lint": {[]string{
			"proxyc lint -c config.yaml -s cluster.yaml",
			"proxyc lint -s manifests/ --fail-on warning -o github",
			"proxyc lint -c config.yaml -s cluster.yaml --write-baseline known.txt",
			"proxyc lint -c config.yaml -s cluster.yaml --baseline known.txt -o sarif",
		}, [...]string{"nothing found, or nothing as grave as --fail-on", "findings, none of them an error", badInput + ", or findings that are errors"}},
		"report": {[]string{
			"proxyc report -c config.yaml -s cluster.yaml -o report.html",
			"proxyc report -c config.yaml -s new.yaml --against old.yaml --all-nodes -o report.html",
			"proxyc report -c config.yaml -s new.yaml --against old.yaml -o markdown",
		}, [...]string{"done", "", badInput + ", or findings that are errors; without --against the report of all that is right is written"}},
		"config defaults": {[]string{
			"proxyc config defaults",
			"proxyc config defaults --proxy-mode nftables",
		}, [...]string{"done", "", badInput}},
		"config validate": {[]string{
			"proxyc config validate config.yaml",
			"kubectl -n kube-system get configmap kube-proxy -o yaml | proxyc config validate --strict -",
		}, [...]string{"valid", "", "not valid, or a file that cannot be read"}},
		"config show": {[]string{
			"proxyc config show config.yaml",
			"proxyc config show --cluster-cidr 10.244.0.0/16 -o json",
		}, [...]string{"done", "", badInput}},
		"snapshot": {[]string{
			"proxyc snapshot -o cluster.json.gz",
			"proxyc snapshot --kubeconfig ~/.kube/prod --context prod -o cluster.json",
			"proxyc snapshot --status-socket /run/proxyc.sock -o node1.json",
			"proxyc snapshot -c config.yaml --redact -o cluster.json --config-out redacted.yaml --stand-ins keep.txt",
		}, [...]string{"done", "", badInput + "; objects that are right are written beside one that is not"}},
		"record": {[]string{
			"proxyc record -o run.jsonl",
		}, [...]string{"ended by a signal", "", badInput}},
		"replay": {[]string{
			"proxyc replay -c config.yaml --hostname-override node1 run.jsonl",
			"proxyc replay -c config.yaml --hostname-override node1 run.jsonl --packets packets.jsonl -o none",
			"proxyc replay -c config.yaml --hostname-override node1 run.jsonl --until 2026-01-02T03:04:05Z --netns scratch",
		}, [...]string{"played to the end, or to --until", "a packet met another fate, or rules do not do what is wanted", badInput + ", or a kernel that refuses something"}},
		"demo": {[]string{
			"proxyc demo --mode iptables",
			"proxyc demo --write demo",
			"proxyc demo --live",
		}, [...]string{"done", "with --live: a connection went otherwise than trace says", badInput}},
		"version": {[]string{
			"proxyc version -o json",
		}, [...]string{"done", "", "wrong usage"}},
		"completion": {[]string{
			"proxyc completion bash",
			"proxyc completion zsh",
			"proxyc completion fish",
			"proxyc completion powershell",
		}, [...]string{"done", "", "wrong usage"}},
		"man": {[]string{
			"proxyc man",
			"proxyc man trace",
			"proxyc man --write /usr/local/share/man/man1",
		}, [...]string{"done", "", "wrong usage, or a file that cannot be written"}},
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
var Offline = []string{"compile", "trace", "explain", "diff", "prove", "migrate", "lint", "report", "replay", "config defaults", "config show"}

// printHelp prints the help of a command. Of kube-proxy's flags it omits those without effect on
// the command, and removed ones, unless all is set. calls formats the command lines of examples.
func printHelp(all bool, calls func(string) string) kong.HelpPrinter {
	return func(options kong.HelpOptions, ctx *kong.Context) error {
		verb := ctx.Selected()
		hidden := 0
		if verb != nil {
			verb.Positional = slices.DeleteFunc(verb.Positional, func(v *kong.Value) bool { return v.Tag.Hidden }) // kong shows them otherwise
			for _, f := range verb.Flags {
				switch {
				case all:
					f.Hidden = false
				case f.Tag.Has("daemon") && slices.Contains(Offline, verb.Path()):
					f.Hidden = true
				}
				if f.Hidden {
					hidden++
				}
			}
		}
		if err := kong.DefaultHelpPrinter(options, ctx); err != nil {
			return err
		}
		if verb == nil || len(verb.Children) > 0 {
			return nil
		}
		var b strings.Builder
		if hidden > 0 {
			fmt.Fprintf(&b, "\nFlags of kube-proxy that have no effect here are taken, too: --help=all shows %d more.\n", hidden)
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

// FlagText returns the help of a flag, with its default.
func FlagText(flagDefaults map[string]string) kong.HelpValueFormatter {
	return func(v *kong.Value) string {
		if v.Flag == nil {
			return v.Help
		}
		def := v.Default
		if v.Tag != nil && (v.Tag.Has("config") || v.Tag.Has("sets")) {
			def = flagDefaults[v.Flag.Name]
		}
		if def == "" || strings.Contains(v.Help, "default") {
			return v.Help
		}
		return strings.TrimSuffix(v.Help, ".") + " (default " + def + ")."
	}
}

// Options returns the parser options for the help.
func Options(all bool, calls func(string) string) []kong.Option {
	return []kong.Option{
		kong.ConfigureHelp(kong.HelpOptions{Compact: true, NoExpandSubcommands: true}),
		kong.Help(printHelp(all, calls)),
		kong.ValueFormatter(FlagText(config.FlagDefaults())),
	}
}
