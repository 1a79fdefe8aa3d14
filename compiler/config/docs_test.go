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

var update = flag.Bool("update", false, "rewrite docs/reference/configuration.md and docs/reference/flags.md")

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

proxyc reads kube-proxy's configuration: a KubeProxyConfiguration of kubeproxy.config.k8s.io/v1alpha1, in YAML or JSON, optionally compressed with gzip. It supports every field of every release.

- The file may be a ConfigMap: kubeadm's with ` + "`data[\"config.conf\"]`" + `, or EKS' with ` + "`data[\"config\"]`" + `.
- In a file with several documents or a List, the first configuration applies.
- All errors are reported together, each with its line. Unknown and duplicate keys are warnings, and errors with ` + "`--strict`" + `. Names are case-sensitive.
- Durations are written like ` + "`30s`" + ` or ` + "`1h30m`" + `. ` + "`0s`" + ` means unset, except for conntrack.tcpEstablishedTimeout and conntrack.tcpCloseWaitTimeout.
- ` + "`proxyc config show FILE`" + ` prints the values in force and the source of each.

Modes: I iptables, P ipvs, N nftables, W kernelspace, U userspace. A number is the release that added the field, if later than the first, or, after "until", the release that removed its effect.

This page is generated (` + "`go test ./compiler/config -run Docs -update`" + `).

| Field | Default | Allowed | Modes, release | Meaning |
|---|---|---|---|---|
`

const gatesHead = `
## Feature gates

featureGates accepts the gates of kube-proxy 1.37 with their defaults. Unknown gates, changes of locked gates, and gates without a required gate are errors. Metric ` + "`kubernetes_feature_enabled`" + ` shows all gates. These gates have an effect:

| Gate | Stage | Default | Effect if true |
|---|---|---|---|
`

const gatesFoot = `
All other gates have no effect, which a finding reports. Gates of other components and releases are warnings; kube-proxy 1.37 does not start with them.
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
		modes := f.Modes
		if f.Since != "" {
			modes += ", " + f.Since
		}
		if f.Until != "" {
			modes += ", until " + f.Until
		}
		allowed := kindOf(v.Type())
		if f.Allowed != "" {
			allowed += ": " + f.Allowed
		}
		means := f.Means
		if f.Instead != "" {
			means += " Use " + f.Instead + "."
		}
		fmt.Fprintf(&b, "| `%s` | %s | %s | %s | %s |\n", f.Path, def, allowed, modes, means)
	}
	b.WriteString(gatesHead)
	for _, e := range Effects() {
		g := gates(Peer)[e.Gate]
		fmt.Fprintf(&b, "| `%s` | %s | %t | %s |\n", e.Gate, g.stage, g.on, e.Means)
	}
	b.WriteString(gatesFoot)
	golden(t, "reference/configuration.md", b.String())
}

const flagsHead = `# Flags of kube-proxy

` + "`proxyc compile`, `apply` and `watch`" + ` accept every flag of kube-proxy 1.37 on Linux and Windows, and every flag of releases since 1.14. ` + "`-c` and `--mode`" + ` are proxyc's own. ` + "`proxyc VERB --help=all`" + ` prints all flags.

| rule | exception |
|---|---|
| With --config, all other flags are ignored with a warning | flags marked "kept"; invalid addresses and gates are still errors |
| --mode always applies | --proxy-mode applies only without a file |
| An empty address keeps the default | an empty --cluster-cidr is an error |
| Without --config, flags change the defaults and nothing is derived: ` + "`--bind-address=::`" + ` keeps the health server at 0.0.0.0:10256 | mode ipvs has a minimum sync period of 1s |
| --hostname-override is trimmed and converted to lower case | blanks only are an error |
| Patterns of --vmodule precede those of the file | |

Flags that set a field have its default and meaning ([configuration](configuration.md)). --feature-gates accepts the same [gates](configuration.md#feature-gates).

This page is generated (` + "`go test ./compiler/config -run Docs -update`" + `).

| Flag | Field |
|---|---|
`

func TestFlagsDocs(t *testing.T) {
	var fields, others strings.Builder
	none := map[string][]string{} // by release
	for _, f := range flagFields() {
		tag := f.Tag
		name := "`" + flagName(tag) + "`"
		if short := tag.Get("short"); short != "" && len(tag.Get("name")) > 1 {
			name = "`-" + short + "`, " + name
		}
		if has(tag, "keep") {
			name += " (kept)"
		}
		until := tag.Get("until")
		if has(tag, "userspace") {
			until += ", except in mode userspace"
		}
		sets, path := tag.Get("sets"), tag.Get("config")
		if path != "" {
			sets = "`" + path + "`"
		}
		switch {
		case until != "" && sets == "-":
			none[until] = append(none[until], name)
		case sets == "-":
			fmt.Fprintf(&others, "| %s | %s |\n", name, strings.ReplaceAll(tag.Get("help"), "|", "\\|"))
		case until != "":
			fmt.Fprintf(&fields, "| %s | %s; no effect since %s |\n", name, sets, until)
		default:
			fmt.Fprintf(&fields, "| %s | %s |\n", name, sets)
		}
	}
	others.WriteString("\nThese flags have no effect:\n\n")
	for _, release := range slices.Sorted(maps.Keys(none)) {
		fmt.Fprintf(&others, "- since %s: %s\n", release, strings.Join(none[release], ", "))
	}
	golden(t, "reference/flags.md", flagsHead+fields.String()+"\n| Other flag | Meaning |\n|---|---|\n"+others.String())
}

// kindOf returns the name of a type for display.
func kindOf(t reflect.Type) string {
	switch {
	case t.Kind() == reflect.Pointer:
		return kindOf(t.Elem())
	case isDuration(t):
		return "duration"
	case t == reflect.TypeFor[Quantity]():
		return "quantity"
	}
	switch t.Kind() {
	case reflect.String:
		return "string"
	case reflect.Bool:
		return "boolean"
	case reflect.Float32:
		return "number"
	case reflect.Int32, reflect.Uint32:
		return "integer"
	case reflect.Slice:
		if isSection(t.Elem()) {
			return "list of mappings"
		}
		return "list of " + kindOf(t.Elem()) + "s"
	case reflect.Map:
		return "map of " + kindOf(t.Elem()) + "s"
	}
	return "mapping"
}
