package config

import (
	"flag"
	"fmt"
	"maps"
	"reflect"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
)

var update = flag.Bool("update", false, "rewrite docs/configuration.md and docs/flags.md")

func TestEveryFieldIsDescribed(t *testing.T) {
	var inCode, inTable []string
	for _, l := range leaves(new(Config)) {
		inCode = append(inCode, l.path)
	}
	for _, f := range Fields() {
		inTable = append(inTable, f.Path)
		if f.Means == "" || f.Modes == "" {
			t.Errorf("%s: no meaning or no modes", f.Path)
		}
	}
	if diff := cmp.Diff(inCode, inTable); diff != "" {
		t.Errorf("Fields must list the fields of Config in their order (-Config +Fields):\n%s", diff)
	}
}

func flagFields() []reflect.StructField {
	return slices.Collect(reflect.TypeFor[Flags]().Fields())
}

func TestEveryFlagIsDescribed(t *testing.T) {
	paths := map[string]bool{}
	for _, l := range leaves(new(Config)) {
		paths[l.path] = true
	}
	for _, f := range flagFields() {
		path, isDirect := f.Tag.Lookup("config")
		_, inWords := f.Tag.Lookup("sets")
		if isDirect == inWords {
			t.Errorf("%s: must have one of the tags config and sets", f.Name)
		}
		if isDirect && !paths[path] {
			t.Errorf("%s: no field %q in the configuration", f.Name, path)
		}
		if f.Tag.Get("name") == "" || f.Tag.Get("help") == "" {
			t.Errorf("%s: no name or no help", f.Name)
		}
	}
}

const configurationHead = `# Configuration file

proxyc reads kube-proxy's own configuration file: KubeProxyConfiguration in
version kubeproxy.config.k8s.io/v1alpha1, in YAML or JSON, with every field that
any release had. It also takes the ConfigMap that kubeadm writes, with the file
under ` + "`data[\"config.conf\"]`" + `, and that of EKS, under ` + "`data[\"config\"]`" + `. Of several
documents and Lists in a file, such as kubeadm's own configuration or what
kubectl prints, the first configuration counts. gzip may have compressed the file.

- All errors are told at once, each with its line.
- A key that is unknown or stands twice is a warning, as kube-proxy goes on too;
  with ` + "`--strict`" + ` it is an error. Names are matched with their case.
- Durations are written like ` + "`30s`" + ` or ` + "`1h30m`" + `. ` + "`0s`" + ` counts as not set, except
  for conntrack.tcpEstablishedTimeout and conntrack.tcpCloseWaitTimeout.
- ` + "`proxyc config show FILE`" + ` tells what is in force, and where each value comes from.

Modes: I iptables, P ipvs, N nftables, W kernelspace (Windows), U userspace.
"Since" is the release of Kubernetes that brought the field, if it was not there
from the beginning; "until", the one that took its effect away.

This page is generated from the code (` + "`go test ./compiler/config -run Docs -update`" + `).

| Field | Type | Default | Allowed | Modes | Since, until | Meaning |
|---|---|---|---|---|---|---|
`

const gatesHead = `
## Feature gates

featureGates takes all gates that kube-proxy 1.36 knows, with its defaults, and
refuses what it refuses: names that nobody knows, another value of a gate that is
locked, and a gate that is on without one that it needs. ` + "`kubernetes_feature_enabled`" + `
among the metrics tells of each gate its stage and whether it is on. These
change what proxyc does:

| Gate | Stage | Default | On |
|---|---|---|---|
`

const gatesFoot = `
All others have no effect, which is said where one is set. A gate that kube-proxy 1.36 knows no
more, or not yet, is a warning; kube-proxy does not start with it:

| Gate | |
|---|---|
`

func TestConfigurationDocs(t *testing.T) {
	var b strings.Builder
	b.WriteString(configurationHead)
	defaults := leaves(Default())
	for i, f := range Fields() {
		v := defaults[i].value
		def := "`" + text(v) + "`"
		if v.IsZero() && v.Kind() == reflect.Pointer {
			def = "none"
		}
		if f.Depends != "" {
			def += "; " + f.Depends
		}
		life := f.Since
		if f.Until != "" {
			life = "until " + f.Until
		}
		means := f.Means
		if f.Instead != "" {
			means += " Use " + f.Instead + "."
		}
		fmt.Fprintf(&b, "| `%s` | %s | %s | %s | %s | %s | %s |\n", f.Path, kindOf(v.Type()), def, f.Allowed, f.Modes, life, means)
	}
	b.WriteString(gatesHead)
	for _, e := range Effects() {
		g := gates()[e.Gate]
		fmt.Fprintf(&b, "| `%s` | %s | %t | %s |\n", e.Gate, g.stage, g.on, e.Means)
	}
	b.WriteString(gatesFoot)
	for _, name := range slices.Sorted(maps.Keys(gatesOfOthers())) {
		fmt.Fprintf(&b, "| `%s` | %s |\n", name, gatesOfOthers()[name])
	}
	fmt.Fprintf(&b, "\nOf other components, and of releases up to 1.16: %s.\n", strings.Join(strings.Fields(gatesOfOld), ", "))
	golden(t, "configuration.md", b.String())
}

const flagsHead = `# Flags of kube-proxy

` + "`proxyc compile`, `apply` and `watch`" + ` understand every flag of kube-proxy 1.36, on Linux
and on Windows, those of its reference manuals since release 1.14, and two of their
own: ` + "`-c`" + `, short for --config, and --mode. Other flags are errors, as in kube-proxy.

With --config, all flags are thrown away but those that are marked as kept: the
file is not merged with them. A flag that is thrown away gives a warning; an address
or a gate that cannot be read is an error all the same. --mode counts always;
--proxy-mode, as in kube-proxy, only without a file.

An empty address leaves the default. An empty --cluster-cidr is an error, as in
kube-proxy. --feature-gates takes the [gates](configuration.md#feature-gates) of the file.

Without --config, flags are set upon the defaults, and nothing is computed anew:
--bind-address=:: leaves the health server at 0.0.0.0:10256. A mode that is given
by flags and is ipvs has a minimal sync period of 1s, not 0s as by file.

"Default" is what is in force without the flag and without a file. ` + "`proxyc VERB --help`" + ` shows
the flags that have an effect on the verb, ` + "`--help=all`" + ` all of them.

--hostname-override is trimmed and made lower case; blanks alone are an error.
The patterns of --vmodule stand before those of the file.

This page is generated from the code (` + "`go test ./compiler/config -run Docs -update`" + `).

| Flag | Sets | Default | Kept beside --config | Without effect since | Meaning |
|---|---|---|---|---|---|
`

func TestFlagsDocs(t *testing.T) {
	var b strings.Builder
	b.WriteString(flagsHead)
	defaults := FlagDefaults()
	for _, f := range flagFields() {
		tag := f.Tag
		name := "`" + flagName(tag) + "`"
		if short := tag.Get("short"); short != "" && len(tag.Get("name")) > 1 {
			name = "`-" + short + "`, " + name
		}
		sets := tag.Get("sets")
		if path := tag.Get("config"); path != "" {
			sets = "`" + path + "`"
		}
		kept := ""
		if has(tag, "keep") {
			kept = "yes"
		}
		until := tag.Get("until")
		if has(tag, "userspace") {
			until += ", except in mode userspace"
		}
		help := tag.Get("help")
		if instead := tag.Get("instead"); instead != "" {
			help += " Use " + instead + "."
		}
		fmt.Fprintf(&b, "| %s | %s | %s | %s | %s | %s |\n", name, sets, defaults[tag.Get("name")], kept, until, strings.ReplaceAll(help, "|", "\\|"))
	}
	golden(t, "flags.md", b.String())
}
