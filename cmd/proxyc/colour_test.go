package main

import (
	"bytes"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/proxyc/proxyc/cmd/proxyc/disk"
	"github.com/proxyc/proxyc/cmd/proxyc/terminal"
)

// Lines that say how something went are coloured where they are read on a terminal, however
// they are cut; documents never are, and nothing is in a pipe.
func TestColours(t *testing.T) {
	const red, green, yellow, faint, off = "\x1b[31m", "\x1b[32m", "\x1b[33m", "\x1b[2m", "\x1b[0m"
	for text, want := range map[string]string{
		"error: a: b\n":                      red + "error" + off + ": a: b\n",
		"warning  modules: x\n":              yellow + "warning" + off + "  modules: x\n",
		"errors are errors\n":                "errors are errors\n",
		"  => dropped\n":                     "  " + red + "=> dropped" + off + "\n",
		"  => 10.0.0.1:80\n":                 "  " + green + "=> 10.0.0.1:80" + off + "\n",
		"  => not known offline\n":           "  " + yellow + "=> not known offline" + off + "\n",
		"+ shop/web\n- shop/api\n~ shop/x":   green + "+" + off + " shop/web\n" + red + "-" + off + " shop/api\n" + yellow + "~" + off + " shop/x",
		"  1. step   # Service a: b\n":       "  1. step   " + faint + "# Service a: b" + off + "\n",
		"-A KUBE-SERVICES -j X\nplain\n":     "-A KUBE-SERVICES -j X\nplain\n",
		"equal: ir and kernel, IPv4\nokay\n": green + "equal" + off + ": ir and kernel, IPv4\nokay\n",
	} {
		for cut := range len(text) {
			var out bytes.Buffer
			p := terminal.NewWriter(&out)
			p.Format(true, 0)
			p.Write([]byte(text[:cut]))
			p.Write([]byte(text[cut:]))
			p.End()
			if d := cmp.Diff(want, out.String()); d != "" {
				t.Fatalf("%q cut at %d (-want +got):\n%s", text, cut, d)
			}
		}
	}
	const cluster = " -c demo/config.yaml -s demo/cluster.yaml --hostname-override node1"
	for _, tc := range []struct {
		args     string
		terminal bool
		coloured bool
	}{
		{"trace --from node --to 10.96.0.10:80" + cluster, true, true},
		{"trace --from node --to 10.96.0.10:80" + cluster, false, false},
		{"trace --from node --to 10.96.0.10:80 -o json" + cluster, true, false},
		{"lint" + cluster, true, true},
		{"lint -o sarif" + cluster, true, false},
		{"compile -o ir" + cluster, true, false},
	} {
		var out bytes.Buffer
		e := testEnv(t, disk.OS{}, strings.Fields(tc.args)...)
		e.stdout, e.colourOut, e.columnsOut = &out, tc.terminal, 60
		if code := run(e); code == exitBad || out.Len() == 0 {
			t.Errorf("%s: exit code %d, %q", tc.args, code, &out)
		}
		if got := strings.Contains(out.String(), "\x1b"); got != tc.coloured {
			t.Errorf("%s, terminal %t: colours: %t in\n%s", tc.args, tc.terminal, got, &out)
		}
	}
	for args, broken := range map[string]bool{"trace -h": true, "lint" + cluster: true, "lint -o json" + cluster: false, "compile -o ir" + cluster: false} {
		var pipe, screen bytes.Buffer
		for out, columns := range map[*bytes.Buffer]int{&pipe: 0, &screen: 60} {
			e := testEnv(t, disk.OS{}, strings.Fields(args)...)
			e.stdout, e.columnsOut = out, columns
			run(e)
		}
		if pipe.Len() == 0 || (pipe.String() != screen.String()) != broken {
			t.Errorf("%s: lines are to be broken: %t, got\n%s", args, broken, &screen)
		}
	}
	for name, values := range map[string]map[string]string{"NO_COLOR": {"NO_COLOR": "1"}, "TERM=dumb": {"TERM": "dumb"}} {
		if terminal.WantsColours(func(k string) string { return values[k] }) {
			t.Errorf("%s: colours are wanted", name)
		}
	}
	if !terminal.WantsColours(func(string) string { return "" }) {
		t.Error("no colours are wanted where nothing speaks against them")
	}
}
